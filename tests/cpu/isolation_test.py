# SPDX-License-Identifier: Apache-2.0
"""Each copy of the CPU kernels is one object with one global symbol, its entry, and nothing weak.

Otherwise the linker would keep one copy of the inline functions that all of them share, and a processor
might meet instructions that it does not have.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

OBJECTS = [Path(path) for path in os.environ.get("TX_KERNEL_OBJECTS", "").split(":") if path]
NM = shutil.which("nm")


def symbols(path: Path) -> list[tuple[str, str]]:
    """(type letter, name) of every symbol; nm writes global types in capitals, weak ones as W, V, u."""
    text = subprocess.run([NM, str(path)], check=True, capture_output=True, text=True).stdout
    return [(kind, name) for kind, name in re.findall(r"^[0-9a-f ]*\s(\w) (\S+)$", text, re.M)]


def test_there_are_objects_to_look_at() -> None:
    if not OBJECTS:
        pytest.skip("this build has one copy of the kernels, not isolated")
    assert NM is not None, "nm comes with binutils"
    assert any("baseline" in path.name for path in OBJECTS)


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_one_global_symbol_and_none_shared(path: Path) -> None:
    found = symbols(path)
    name = path.stem.removeprefix("cpu_kernels_")
    # U: wanted from elsewhere. Small letters are local, except u (unique), v and w (weak).
    defined = [s for kind, s in found if kind.isupper() and kind not in "UWV"]
    shared = [(kind, s) for kind, s in found if kind in "uWVwv"]
    assert defined == [f"transducer_cpu_kernels_{name}"]
    assert shared == []


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_what_is_wanted_from_elsewhere_is_plain_c(path: Path) -> None:
    """libc, libm and the C++ runtime only: another C++ name could be shared between copies."""
    wanted = [s for kind, s in symbols(path) if kind == "U"]
    cpp = [s for s in wanted if s.startswith("_Z") and not re.match(r"_Z(dl|da|nw|na|(T[ISV]|N)?St)", s)]
    assert cpp == []
