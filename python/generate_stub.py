# SPDX-License-Identifier: Apache-2.0
"""Write the type stub of flash_transducer._named from the list of named variants.

Run by the build, with the freshly built _core on the path: generate_stub.py OUTPUT.
"""

import sys
from pathlib import Path

import _core

TYPES = {
    "flag": "bool",
    "integer": "int",
    "real": "float",
    "integers": "Sequence[int]",
    "word": "str",
}


def parameter(entry):
    text = f"{entry['name']}: {TYPES[entry['kind']]}"
    return text if entry["required"] else f"{text} = {entry['default']!r}"


def constructor(entry):
    positional = [parameter(p) for p in entry["parameters"] if not p["keyword_only"]]
    keywords = [parameter(p) for p in entry["parameters"] if p["keyword_only"]]
    return f"def {entry['name']}({', '.join([*positional, '*', *keywords])}) -> Variant: ..."


def stub():
    variants = _core.named_variants()
    names = ", ".join(repr(entry["name"]) for entry in variants)
    return "\n".join(
        [
            "from collections.abc import Sequence",
            "",
            "from flash_transducer.variants import Variant",
            "",
            f"__all__ = [{names}]",
            "",
            *[constructor(entry) for entry in variants],
            "",
        ]
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(stub(), encoding="utf-8")
