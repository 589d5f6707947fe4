# SPDX-License-Identifier: Apache-2.0
"""Constructors of the named variants, made from the list in reference/variants/all.hpp.

A new entry of that list appears here by itself, with its signature, docstring and type stub.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flash_transducer import _core
from flash_transducer.variants import Variant, from_spec

_TYPES = {
    "flag": "bool",
    "integer": "int",
    "real": "float",
    "integers": "Sequence[int]",
    "word": "str",
}

# Plain values for printing: a NumPy integer prints as more than its digits.
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "flag": bool,
    "integer": int,
    "real": float,
    "integers": lambda values: [int(value) for value in values],
}


def _parameter(entry: dict[str, Any]) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if entry["keyword_only"]:
        kind = inspect.Parameter.KEYWORD_ONLY
    default = entry.get("default", inspect.Parameter.empty)
    return inspect.Parameter(entry["name"], kind, default=default, annotation=_TYPES[entry["kind"]])


def _docstring(entry: dict[str, Any]) -> str:
    lines = [entry["summary"], "", f"Source: {entry['citation']}.", "", "Parameters", "----------"]
    for parameter in entry["parameters"]:
        choices = ", ".join(repr(choice) for choice in parameter["choices"])
        lines += [
            parameter["name"],
            f"    {parameter['meaning']}" + (f" One of {choices}." if choices else ""),
        ]
    arguments = ", ".join(repr(p["example"]) for p in entry["parameters"] if p["required"])
    lines += ["", "Examples", "--------", ">>> import flash_transducer as ft"]
    lines += [f">>> ft.{entry['name']}({arguments}).name", repr(entry["name"])]
    return "\n".join(lines)


def _constructor(entry: dict[str, Any]) -> Callable[..., Variant]:
    name = entry["name"]
    signature = inspect.Signature(
        [_parameter(parameter) for parameter in entry["parameters"]], return_annotation="Variant"
    )

    def construct(*args: Any, **kwargs: Any) -> Variant:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"ft.{name}: {error}") from None
        spec = _core.make_named_variant(name, given)
        shown = []
        for parameter in entry["parameters"]:
            if parameter["name"] not in given:
                continue
            value = given[parameter["name"]]
            if parameter["kind"] in _PLAIN:
                value = _PLAIN[parameter["kind"]](value)
            keyword = "" if parameter["required"] else f"{parameter['name']}="
            if parameter["required"] or value != parameter.get("default"):
                shown.append(f"{keyword}{value!r}")
        return from_spec(spec, call=f"ft.{name}({', '.join(shown)})")

    construct.__name__ = construct.__qualname__ = name
    construct.__doc__ = _docstring(entry)
    construct.__module__ = __name__
    construct.__signature__ = signature  # type: ignore[attr-defined]
    # What torch.compiler.assume_constant_result sets, without importing torch: a variant that is made in a
    # compiled function is made while it is traced.
    construct._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return construct


__all__ = [entry["name"] for entry in _core.named_variants()]
globals().update({entry["name"]: _constructor(entry) for entry in _core.named_variants()})
