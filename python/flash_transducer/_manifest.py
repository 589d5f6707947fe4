# SPDX-License-Identifier: Apache-2.0
"""A manifest: JSON lines, each naming one batch file, read line by line.

``{"file": "batch.safetensors", "rows": 5120, "speaker": "1034"}``: ``file`` is relative to the manifest's
folder; ``rows``, optional, is the number of lattice rows of the file, the sum of T (U + 1); every other field
is copied into each result of the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

# Fields of a result that a manifest line may not carry.
RESERVED = ("line", "file", "utterance", "frames", "labels", "cost", "error")


class ManifestError(ValueError):
    """A manifest that cannot be used; names the line."""


@dataclass(frozen=True)
class Entry:
    """One line of a manifest."""

    line: int  # numbered from 1; blank lines count
    file: str  # as the line says
    path: Path
    rows: int | None
    fields: dict[str, Any] = field(default_factory=dict)


def read_manifest(path: Path) -> Iterator[Entry]:
    """The entries, one at a time."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _parse(path, number, text)
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 text ({error.reason})") from error


def _parse(path: Path, number: int, text: str) -> Entry:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}:{number}: not a line of JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("file"), str) or not value["file"]:
        raise ManifestError(
            f'{path}:{number}: expected an object that names a file, such as {{"file": "a.safetensors"}}'
        )
    file, rows = value.pop("file"), value.pop("rows", None)
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows < 2**62):
        raise ManifestError(f"{path}:{number}: rows is {rows!r}, expected a whole number of lattice rows")
    taken = [name for name in RESERVED if name in value]
    if taken:
        raise ManifestError(f"{path}:{number}: the field {taken[0]!r} is one that results have themselves")
    return Entry(number, file, path.parent / file, rows, value)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def windows(entries: Iterator[Entry], size: int) -> Iterator[list[Entry]]:
    """Lists of up to `size` entries."""
    while window := list(islice(entries, size)):
        yield window


def digest(path: Path) -> str:
    """A hash of the whole manifest, so that a run is not resumed with another one."""
    with path.open("rb") as file:
        hasher = hashlib.sha256()
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def count_rows(path: Path) -> int:
    """Lattice rows of a batch file, by its lengths alone; 0 if it cannot be read: its owner says why."""
    try:
        import safetensors

        with safetensors.safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            frames = file.get_tensor("encoder_lengths" if "encoder_lengths" in names else "logit_lengths")
            labels = file.get_tensor("target_lengths")
        rows = int(np.sum(np.asarray(frames, np.int64) * (np.asarray(labels, np.int64) + 1)))
    except Exception:
        return 0
    return rows if 0 <= rows < 2**62 else 0
