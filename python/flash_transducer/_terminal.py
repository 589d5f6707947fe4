# SPDX-License-Identifier: Apache-2.0
"""Tables, JSON and progress bars of the command line, by rich (plain text without it)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(text: str, total: int) -> Iterator[Callable[[], None]]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield lambda: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table; the first column is text, the others are numbers."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print("\n".join(["\t".join(columns), *("\t".join(row) for row in rows)]))
        return
    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # A file or a pipe has no width that a table should be cut to.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)
    with console.capture() as text:
        console.print(table)
    # Through print, because rich would end the program itself when the reader of a pipe leaves.
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _json(value: Any) -> Any:
    """Numbers that JSON lacks become strings."""
    if isinstance(value, dict):
        return {key: _json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def print_json(value: Any) -> None:
    print(json.dumps(_json(value), indent=2, allow_nan=False))
