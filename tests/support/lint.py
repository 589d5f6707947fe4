#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Format and lint the project's files with the tools of .venv, or rewrite them with --fix.

Each tool counts as one check in the closing line. `--only TOOL` runs that one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from check_includes import check

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CPP = (".hpp", ".cpp", ".cuh", ".cu")


def files(*endings: str) -> list[str]:
    """Return the files that git knows, or would know after `git add`, with one of these endings."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [f for f in listed.splitlines() if f.endswith(endings) and (ROOT / f).exists()]


def run(*command: str | Path) -> tuple[bool, str]:
    """Run a command; return whether it succeeded and what it said."""
    finished = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return finished.returncode == 0, finished.stdout + finished.stderr


def clang_format(fix: bool) -> tuple[bool, str]:
    """Lay out C++ as .clang-format says."""
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    return run(BIN / "clang-format", *mode, *files(*CPP))


def meson_format(fix: bool) -> tuple[bool, str]:
    """Lay out the build files as meson.format says."""
    mode = "--inplace" if fix else "--check-only"
    results = [run(BIN / "meson", "format", mode, file) for file in files("meson.build", "meson.options")]
    return all(ok for ok, _ in results), "".join(text for _, text in results)


def ruff_format(fix: bool) -> tuple[bool, str]:
    """Lay out Python."""
    return run(BIN / "ruff", "format", *([] if fix else ["--diff"]))


def ruff_check(fix: bool) -> tuple[bool, str]:
    """Find faults in Python."""
    return run(BIN / "ruff", "check", *(["--fix"] if fix else []))


def includes(_fix: bool) -> tuple[bool, str]:
    """Check who includes whom."""
    faults = check(ROOT)
    return not faults, "\n".join(faults)


def mypy(_fix: bool) -> tuple[bool, str]:
    """Check the types of the package, as installed: the build makes some of the stubs."""
    return run(BIN / "mypy", "--strict", "build/site/flash_transducer")


def stubtest(_fix: bool) -> tuple[bool, str]:
    """Compare the stubs with what a program finds at run time."""
    allowed = ROOT / "tests" / "support" / "stubtest_allowlist.txt"
    options = ["--allowlist", allowed, "--mypy-config-file", ROOT / "pyproject.toml"]
    return run(sys.executable, "-m", "mypy.stubtest", "flash_transducer", *options)


def clang_tidy(_fix: bool) -> tuple[bool, str]:
    """Find faults in C++, and names that break the rules."""
    database = json.loads((ROOT / "build" / "compile_commands.json").read_text(encoding="utf-8"))
    units = sorted({os.path.normpath(Path(unit["directory"], unit["file"])) for unit in database})
    # Vectors of a size that the tool's own target lacks, and flags that it does not know.
    units = [unit for unit in units if "/cpu/kernels/" not in unit]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The wheel of clang-tidy has no omp.h of its own: GCC's stands in.
        gcc = run("c++", "-print-file-name=include")[1].strip()
        tidy = [BIN / "clang-tidy", "-p", "build", "--quiet", f"--extra-arg=-idirafter{gcc}"]
        results = pool.map(lambda unit: run(*tidy, unit), units)
        failed = [text for ok, text in results if not ok]
    return not failed, "\n".join(failed)


CHECKS = (
    clang_format,
    meson_format,
    ruff_format,
    ruff_check,
    includes,
    mypy,
    stubtest,
    clang_tidy,
)
FIXES = (clang_format, meson_format, ruff_check, ruff_format)


def main() -> int:
    """Run the checks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite instead of complaining")
    parser.add_argument("--only", action="append", default=[], help="run this tool only")
    options = parser.parse_args()

    passed = failed = 0
    for tool in FIXES if options.fix else CHECKS:
        name = tool.__name__.replace("_", "-")
        if options.only and name not in options.only:
            continue
        start = time.perf_counter()
        ok, text = tool(options.fix)
        seconds = time.perf_counter() - start
        print(f"{name:13} {'ok' if ok else 'FAILED'}  {seconds:.1f} s", flush=True)
        if not ok:
            print(text, flush=True)
        passed, failed = passed + ok, failed + (not ok)
    line = f"{passed} passed, {failed} failed, 0 skipped"
    totals = os.environ.get("TX_TOTALS")  # as in count.py
    if totals:
        with Path(totals).open("a", encoding="utf-8") as file:
            print(line, file=file)
    print(f"so far, {line}" if totals else line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
