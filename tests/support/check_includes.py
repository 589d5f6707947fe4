#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check who includes whom, and the head of every C++ file.

The layers that are made fast may use the vocabulary of reference/core but not the reference's
algorithms: only so is a test against the reference an independent check. The table below is the
whole rule; anything else is an error, and so are an include that is not relative to the root, a
CUDA header in a `.hpp` (such a header must compile without the toolkit), a missing `#pragma once`
and a missing licence line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Folder: patterns it may include. The longest folder that a file is in decides. `name/[^/]*` is a
# layer's public headers, those directly in its folder.
ALLOWED = {
    "reference/core": ["reference/core/.*"],
    "reference/variants": ["reference/core/.*", "reference/variants/.*"],
    "reference": ["reference/core/.*", "reference/[^/]*"],
    "cpu": ["reference/core/.*", "cpu/.*"],
    # Compile-time fast paths read the named variants' tables.
    "cuda": ["reference/core/.*", "reference/variants/.*", "cuda/.*"],
    "distributed": ["reference/core/.*", r"cpu/loss\.hpp", r"cuda/loss\.hpp", "distributed/.*"],
    "python/bindings": [
        "reference/(core|variants)/.*",
        "(reference|cpu|cuda|distributed)/[^/]*",
        "python/bindings/.*",
    ],
    "tests": [".*"],
}
SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
LICENSE = "// SPDX-License-Identifier: Apache-2.0"


def sources(root: Path) -> list[Path]:
    """Return every C++ file of the layers, relative to root."""
    folders = sorted({folder.split("/", 1)[0] for folder in ALLOWED})
    files = (file for folder in folders for file in (root / folder).rglob("*"))
    return sorted(file.relative_to(root) for file in files if file.suffix in SUFFIXES)


def rule_of(file: Path) -> str | None:
    """Return the longest folder of the table that the file is in."""
    inside = [folder for folder in ALLOWED if file.as_posix().startswith(folder + "/")]
    return max(inside, key=len, default=None)


def faults_of(file: Path, root: Path) -> list[str]:
    """Return one sentence for each fault of the file."""
    lines = (root / file).read_text(encoding="utf-8").splitlines()
    rule = rule_of(file)
    if rule is None:
        return [f"{file}: no layer has this folder; name it in the table of check_includes.py"]
    faults = []
    if not lines or lines[0] != LICENSE:
        faults.append(f"{file}:1: the first line must be {LICENSE}")
    if file.suffix in {".hpp", ".cuh"} and "#pragma once" not in lines:
        faults.append(f"{file}:1: a header needs #pragma once")
    for number, line in enumerate(lines, start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        place = f"{file}:{number}"
        if quote == "<":
            if file.suffix == ".hpp" and re.match(r"(cuda|cublas|nccl|cooperative_groups)", name):
                faults.append(f"{place}: a .hpp must compile without CUDA; it includes <{name}>")
        elif not (root / name).is_file():
            faults.append(f'{place}: no file "{name}"; includes are relative to the root')
        elif not any(re.fullmatch(pattern, name) for pattern in ALLOWED[rule]):
            allowed = ", ".join(ALLOWED[rule])
            faults.append(f'{place}: {rule} may not include "{name}" (it may include {allowed})')
    return faults


def check(root: Path) -> list[str]:
    """Return every fault below root."""
    return [fault for file in sources(root) for fault in faults_of(file, root)]


def main() -> int:
    """Print the faults of the project this file belongs to."""
    faults = check(Path(__file__).resolve().parents[2])
    print("\n".join(faults) or "includes: no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
