# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone: it includes what it uses, and including it twice changes nothing."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pybind11
import pytest
from check_includes import sources

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shlex.split(os.environ.get("TX_COMPILER", "c++"))
HEADERS = [file.as_posix() for file in sources(ROOT) if file.suffix == ".hpp"]
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++"]
# As the bindings are built: pybind11's own types are hidden.
FLAGS += ["-fvisibility=hidden"]
FLAGS += ["-Wno-missing-field-initializers"]  # as in meson.build
FOLDERS = ["-I", str(ROOT)]
FOLDERS += ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include")]
FOLDERS += ["-isystem", "/usr/include/eigen3"]
# Packages that some headers need and that may be missing: a text of theirs, and its name.
OPTIONAL = {"<rapidcheck": ("rapidcheck.h", "RapidCheck"), "<Eigen": ("Eigen/Core", "Eigen")}


def compile_text(text, *more):
    command = [*COMPILER, *FLAGS, *FOLDERS, *more, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_there_is_a_compiler():
    assert shutil.which(COMPILER[0])
    assert HEADERS


def test_a_header_that_leans_on_others_is_refused():
    assert compile_text("inline std::size_t f() { return 0; }\n").returncode != 0


@pytest.mark.parametrize("name", HEADERS)
def test_compiles_alone(name):
    for mark, (header, package) in OPTIONAL.items():
        uses = mark in (ROOT / name).read_text(encoding="utf-8")
        if uses and compile_text(f"#include <{header}>\n").returncode != 0:
            pytest.skip(f"{package} is not installed")
    openmp = ["-fopenmp"] if "#pragma omp" in (ROOT / name).read_text(encoding="utf-8") else []
    run = compile_text(f'#include "{name}"\n#include "{name}"\n', *openmp)
    assert run.returncode == 0, run.stderr
