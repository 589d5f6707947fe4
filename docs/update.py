#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrite the parts of README.md and docs/*.md that are copies of something else.

    .venv/bin/python docs/update.py            rewrite
    .venv/bin/python docs/update.py --check    say what is stale and exit with 1

Two kinds of parts, each named by a comment that the page does not show:

    <!-- include FILE | FIRST | LAST -->      the fenced block that follows holds the lines of FILE
                                              from the one that begins with FIRST to the next that
                                              is LAST
    <!-- generated NAME --> ... <!-- end -->  made by a function of GENERATED below
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ".venv/bin/python docs/update.py"

INCLUDE = re.compile(
    r"^<!-- include (?P<file>\S+) \| (?P<first>.+?) \| (?P<last>.+?) -->\n"
    r"```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PART = re.compile(
    r"^<!-- generated (?P<name>[\w-]+) -->\n(?P<body>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL
)


def pages() -> list[Path]:
    """Return README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def region(file: str, first: str, last: str) -> str:
    """Return the lines of a file from one that begins with `first` to the next that is `last`."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    begin = [i for i, line in enumerate(lines) if line.strip().startswith(first)]
    if len(begin) != 1:
        raise SystemExit(f"{file}: {len(begin)} lines begin with '{first}', expected one")
    end = [i for i in range(begin[0] + 1, len(lines)) if lines[i].strip() == last]
    if not end:
        raise SystemExit(f"{file}: no line after '{first}' is '{last}'")
    return textwrap.dedent("\n".join(lines[begin[0] : end[0] + 1])) + "\n"


def named_variants() -> list[dict[str, Any]]:
    """Return the list of named variants of the built package."""
    from flash_transducer import _core

    entries: list[dict[str, Any]] = _core.named_variants()
    return entries


def knob_names() -> set[str]:
    """Return the keyword-only parameters that every variant takes."""
    each = [{p["name"] for p in variant["parameters"] if p["keyword_only"]} for variant in named_variants()]
    return set.intersection(*each)


def call(variant: dict[str, Any]) -> str:
    """Return how the variant is called, its knobs left out."""
    arguments = []
    star = False
    for parameter in variant["parameters"]:
        if parameter["name"] in knob_names():
            continue
        if parameter["keyword_only"] and not star:
            arguments.append("*")
            star = True
        default = "" if parameter["required"] else f"={parameter['default']!r}"
        arguments.append(parameter["name"] + default)
    return f"ft.{variant['name']}({', '.join(arguments)})"


def linked(citation: str) -> str:
    """Return the citation with its arXiv number as a link."""
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", citation)


def variants_table() -> str:
    """Return one row for each named variant."""
    rows = ["| call | what it is | source |", "| --- | --- | --- |"]
    for variant in named_variants():
        rows.append(f"| `{call(variant)}` | {variant['summary']} | {linked(variant['citation'])} |")
    return "\n".join(rows) + "\n"


def knobs_table() -> str:
    """Return one row for each parameter that every variant takes."""
    rows = ["| knob | default | meaning |", "| --- | --- | --- |"]
    for parameter in named_variants()[0]["parameters"]:
        if parameter["name"] in knob_names():
            meaning = parameter["meaning"]
            rows.append(f"| `{parameter['name']}` | `{parameter['default']!r}` | {meaning} |")
    return "\n".join(rows) + "\n"


def parameter_row(parameter: dict[str, Any]) -> str:
    """Return the table row of one parameter."""
    default = "required" if parameter["required"] else f"`{parameter['default']!r}`"
    choices = ", ".join(f"`{choice}`" for choice in parameter["choices"])
    meaning = parameter["meaning"] + (f" One of {choices}." if choices else "")
    return f"| `{parameter['name']}` | {default} | {meaning} |"


def arc_row(arc: Any, index: int) -> str:
    """Return the table row of one arc."""
    finish = "yes" if arc.may_finish else "no"
    return f"| {index} | {arc.kind} | `({arc.dt}, {arc.du})` | {finish} |"


def variants_reference() -> str:
    """Return a section for each named variant: parameters, and its arcs in their order."""
    import flash_transducer as ft

    out = []
    for variant in named_variants():
        required = {p["name"]: p["example"] for p in variant["parameters"] if p["required"]}
        example = getattr(ft, variant["name"])(**required)
        out += [f"## {variant['name']}", ""]
        out += [
            f"{variant['summary']} {linked(variant['citation'])}.",
            "",
            f"`{call(variant)}`",
            "",
        ]
        out += ["| parameter | default | meaning |", "| --- | --- | --- |"]
        out += [parameter_row(p) for p in variant["parameters"] if p["name"] not in knob_names()]
        out += ["", f"Arcs of `{example!r}`, in order:", ""]
        out += ["| index | kind | `(dt, du)` | may end the path |", "| --- | --- | --- | --- |"]
        out += [arc_row(arc, index) for index, arc in enumerate(example.arcs)]
        out += [""]
    return "\n".join(out)


GENERATED: dict[str, Callable[[], str]] = {
    "variants": variants_table,
    "knobs": knobs_table,
    "variants-reference": variants_reference,
}


def updated(text: str) -> str:
    """Return the page with every copied or generated part fresh."""

    def include(match: re.Match[str]) -> str:
        body = region(match["file"], match["first"], match["last"])
        head = match[0].split("\n", 1)[0]
        return f"{head}\n```{match['language']}\n{body}```"

    def generate(match: re.Match[str]) -> str:
        return f"<!-- generated {match['name']} -->\n{GENERATED[match['name']]()}<!-- end -->"

    return PART.sub(generate, INCLUDE.sub(include, text))


def main(arguments: list[str]) -> int:
    """Rewrite the stale pages, or name them."""
    check = "--check" in arguments
    stale = False
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fresh = updated(text)
        if fresh == text:
            continue
        stale = True
        if check:
            print(f"{page.relative_to(ROOT)} is stale; run {COMMAND}")
        else:
            page.write_text(fresh, encoding="utf-8")
            print(f"rewrote {page.relative_to(ROOT)}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
