# SPDX-License-Identifier: Apache-2.0
"""The includes go in the direction of the layers, and the checker sees those that do not."""

import re
from pathlib import Path

import pytest
from check_includes import LICENSE, check

ROOT = Path(__file__).resolve().parents[2]


def make_tree(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def header(*includes):
    lines = [f"#include {name}\n" for name in includes]
    return f"{LICENSE}\n\n#pragma once\n\n" + "".join(lines)


GOOD = {
    "reference/core/view.hpp": header("<span>"),
    "reference/variants/rnnt.hpp": header('"reference/core/view.hpp"'),
    "reference/scores.hpp": header('"reference/core/view.hpp"'),
    "reference/lattice.hpp": header('"reference/scores.hpp"'),
    "cpu/loss.hpp": header('"reference/core/view.hpp"'),
    "cpu/kernels/tile.hpp": header(),
    "cuda/loss.hpp": header('"reference/variants/rnnt.hpp"'),
    "distributed/loss.hpp": header('"cpu/loss.hpp"', '"cuda/loss.hpp"'),
    "python/bindings/bind_loss.cpp": header('"cpu/loss.hpp"', '"reference/variants/rnnt.hpp"'),
    "tests/support/naive.hpp": header('"cpu/kernels/tile.hpp"'),
}


def test_the_project_has_no_fault():
    assert check(ROOT) == []


def test_a_good_tree_has_no_fault(tmp_path):
    make_tree(tmp_path, GOOD)
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("reference/core/a.hpp", header('"reference/scores.hpp"'), "core may not include"),
        ("reference/core/a.hpp", header('"reference/variants/rnnt.hpp"'), "core may not include"),
        ("reference/variants/a.hpp", header('"reference/scores.hpp"'), "variants may not include"),
        ("reference/a.cpp", header('"reference/variants/rnnt.hpp"'), "reference may not include"),
        ("cpu/a.cpp", header('"reference/lattice.hpp"'), "cpu may not include"),
        ("cpu/a.cpp", header('"reference/variants/rnnt.hpp"'), "cpu may not include"),
        ("cuda/a.cu", header('"reference/scores.hpp"'), "cuda may not include"),
        ("cuda/a.cu", header('"cpu/loss.hpp"'), "cuda may not include"),
        ("distributed/a.cpp", header('"cpu/kernels/tile.hpp"'), "distributed may not include"),
        ("python/bindings/a.cpp", header('"cpu/kernels/tile.hpp"'), "bindings may not include"),
        ("reference/a.cpp", header('"tests/support/naive.hpp"'), "reference may not include"),
        ("reference/core/a.hpp", header('"view.hpp"'), r"includes are relative to the root"),
        ("cuda/a.hpp", header("<cuda_runtime.h>"), "must compile without CUDA"),
        ("cpu/a.hpp", LICENSE + "\n", "needs #pragma once"),
        ("cpu/a.cpp", "// a comment\n" + header(), "first line must be"),
        ("python/a.cpp", header(), "no layer has this folder"),
    ],
)
def test_a_fault_is_seen(tmp_path, name, text, fault):
    make_tree(tmp_path, {**GOOD, name: text})
    faults = check(tmp_path)
    assert len(faults) == 1
    assert re.search(rf"^{re.escape(name)}:.*{fault}", faults[0])
