# SPDX-License-Identifier: Apache-2.0
"""Command-line options for variants, made from the list of named variants: no second place to edit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import flash_transducer as ft
from flash_transducer import _core


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_integers.__name__ = "list of whole numbers"  # argparse names the function in its messages
_PARSERS: dict[str, Any] = {"integer": int, "real": float, "integers": _integers, "word": str}
_METAVARS = {"integer": "N", "real": "X", "integers": "N,N,...", "word": "WORD"}


def _parameters() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Each distinct parameter, and the variants that take it."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for variant in _core.named_variants():
        for parameter in variant["parameters"]:
            found.setdefault(parameter["name"], (parameter, []))[1].append(variant["name"])
    return found


def _help(name: str, takers: list[str], *, everyone: bool) -> str:
    """What a parameter means, and to whom: the same name may mean another thing to another variant."""
    whose: dict[str, list[str]] = {}
    for variant in _core.named_variants():
        for parameter in variant["parameters"]:
            if parameter["name"] == name and variant["name"] in takers:
                whose.setdefault(parameter["meaning"].rstrip("."), []).append(variant["name"])
    if everyone and len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{', '.join(variants)}: {meaning}" for meaning, variants in whose.items())


def add_variant_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--variant``, one option per parameter of any named variant, and ``--variant-json``."""
    names = [variant["name"] for variant in _core.named_variants()]
    group = parser.add_argument_group("variant")
    group.add_argument(
        "--variant",
        metavar="NAME",
        help=f"one of {', '.join(names)} (default: {names[0]})",
    )
    for name, (parameter, takers) in _parameters().items():
        meaning = _help(name, takers, everyone=len(takers) == len(names))
        option = "--" + name.replace("_", "-")
        if parameter["kind"] == "flag":
            group.add_argument(
                option,
                dest=f"variant_{name}",
                action=argparse.BooleanOptionalAction,
                default=None,
                help=meaning.replace("%", "%%"),
            )
            continue
        choices = parameter["choices"]
        if choices:
            meaning += f"; one of {', '.join(choices)}"
        group.add_argument(
            option,
            dest=f"variant_{name}",
            type=_PARSERS[parameter["kind"]],
            metavar=_METAVARS[parameter["kind"]],
            help=meaning.replace("%", "%%"),
        )
    group.add_argument(
        "--variant-json", metavar="FILE", help="a variant of your own, as ft.Variant.to_json writes it"
    )


def variant_from_options(options: argparse.Namespace) -> ft.Variant:
    """The variant that was asked for. Raises ValueError with a line that says what to change."""
    given = {
        name: getattr(options, f"variant_{name}")
        for name in _parameters()
        if getattr(options, f"variant_{name}") is not None
    }
    if options.variant_json is not None:
        if options.variant is not None or given:
            raise ValueError("--variant-json is a whole variant; leave out --variant and its options")
        return _read_json(Path(options.variant_json))
    listed = {variant["name"]: variant for variant in _core.named_variants()}
    name = options.variant if options.variant is not None else next(iter(listed))
    if name not in listed:
        raise ValueError(f"--variant {name}: unknown; the variants are {', '.join(listed)}")
    parameters = {parameter["name"]: parameter for parameter in listed[name]["parameters"]}
    for parameter in given:
        if parameter not in parameters:
            takers = ", ".join(_parameters()[parameter][1])
            raise ValueError(
                f"--{parameter.replace('_', '-')}: variant {name} has no such option; it belongs to {takers}"
            )
    for parameter in parameters.values():
        if parameter["required"] and parameter["name"] not in given:
            example = parameter["example"]
            shown = ",".join(map(str, example)) if isinstance(example, list) else example
            raise ValueError(f"--variant {name} needs --{parameter['name'].replace('_', '-')} {shown}")
    variant: ft.Variant = getattr(ft, name)(**given)
    return variant


def _read_json(path: Path) -> ft.Variant:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--variant-json {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"--variant-json {path}: not UTF-8 text") from error
    try:
        return ft.Variant.from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--variant-json {path}: {error}") from error


def example_variants() -> list[ft.Variant]:
    """Every named variant, with its required parameters as in its example."""
    return [
        getattr(ft, variant["name"])(
            **{p["name"]: p["example"] for p in variant["parameters"] if p["required"]}
        )
        for variant in _core.named_variants()
    ]
