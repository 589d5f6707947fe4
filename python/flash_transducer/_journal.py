# SPDX-License-Identifier: Apache-2.0
"""Results on their way to the output file: what makes a run survive a crash.

Next to ``OUT`` lies the folder ``OUT.parts`` while a run is under way. Each rank appends one line of JSON
for each finished manifest line to a file of its own, so nothing that was finished is lost. A line that a
crash cut short has no newline and counts as not done. At the end rank 0 merges the parts in manifest order,
with memory for one line of each part, renames the result to ``OUT`` and removes the folder.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO


class Journal:
    """The parts of one output file."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(out.name + ".parts")
        self._file: TextIO | None = None
        self._path = out

    def begin(self, description: dict[str, Any], *, resume: bool) -> int:
        """Make the folder, or check that it belongs to the same run; returns the number of this session."""
        about = self.folder / "run.json"
        text = json.dumps(description, indent=2) + "\n"
        if self.folder.exists():
            if not resume:
                raise ValueError(
                    f"--out {self.out}: {self.folder} holds results of an earlier run; continue it with "
                    "--resume, or remove that folder"
                )
            known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else description
            for name, value in description.items():
                if known.get(name) != value:
                    raise ValueError(
                        f"--resume: {self.folder} was begun with {name} {known.get(name)}, and this run has "
                        f"{value}; results of the two do not belong in one file"
                    )
        self.folder.mkdir(exist_ok=True)
        about.write_text(text, encoding="utf-8")
        return 1 + max((int(path.name[:4]) for path in self._parts()), default=0)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*-*.jsonl"))

    def open(self, session: int, rank: int) -> None:
        """Begin this rank's part."""
        self._path = self.folder / f"{session:04d}-{rank:05d}.jsonl"
        self._file = self._path.open("x", encoding="utf-8")

    def write(self, line: int, results: list[dict[str, Any]]) -> None:
        """Append the results of one manifest line."""
        assert self._file is not None
        try:
            self._file.write(json.dumps({"line": line, "results": results}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """End this rank's part, safe on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def done(self) -> set[int]:
        """Manifest lines that earlier sessions finished."""
        return {record["line"] for path in self._parts() for record in _records(path)}

    def merge(self, expected: Iterator[int], visit: Callable[[dict[str, Any]], None]) -> None:
        """Write the output file, and show each result to `visit`.

        `expected` are the lines of the manifest, ascending; a run that lost or repeated one is refused.
        """
        temporary = self.out.with_name(self.out.name + ".tmp")
        merged = heapq.merge(*map(_records, self._parts()), key=lambda record: record["line"])
        try:
            with temporary.open("w", encoding="utf-8") as file:
                for line in expected:
                    record = next(merged, None)
                    if record is None or record["line"] != line:
                        found = "nothing" if record is None else f"line {record['line']}"
                        raise RuntimeError(f"{self.folder}: expected results of line {line}, found {found}")
                    for result in record["results"]:
                        visit(result)
                        file.write(json.dumps(result, allow_nan=False) + "\n")
                if (extra := next(merged, None)) is not None:
                    raise RuntimeError(f"{self.folder}: line {extra['line']} is not in the manifest")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.out)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(self.out)) from error
        shutil.rmtree(self.folder)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                yield json.loads(text)
