# SPDX-License-Identifier: Apache-2.0
"""What a run over a corpus tells at its end: totals in manifest order, throughput, imbalance."""

from __future__ import annotations

import json
import math
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flash_transducer._journal import Journal
from flash_transducer._manifest import Entry
from flash_transducer._terminal import print_json, print_table


class Totals:
    """Sums over results, in the order in which they come."""

    def __init__(self) -> None:
        self.values = {"utterances": 0, "bad": 0, "infeasible": 0, "frames": 0, "labels": 0}
        self.sum = 0.0

    def add(self, result: dict[str, Any]) -> None:
        """Count one result."""
        if "utterance" in result:
            self.values["utterances"] += 1
            self.values["frames"] += result["frames"]
            self.values["labels"] += result["labels"]
        if "error" in result:
            self.values["bad"] += 1
            return
        cost = float(result["cost"])
        if math.isfinite(cost):
            self.sum += cost
        else:
            self.values["infeasible"] += 1


class Report:
    """What one rank did. `keep`: hold the costs, because there is no journal to read them from."""

    def __init__(self, *, keep: bool, threads: int) -> None:
        self._keep = keep
        self._threads = threads
        self._start = time.perf_counter()
        self._busy = self._wait = self._cpu = 0.0
        self._files = self._rows = self._utterances = 0
        self._results: list[str] = []
        self._lines = array("q")
        self._shown = 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Time spent on files, by the clock and on cores."""
        start, cpu = time.perf_counter(), time.process_time()
        yield
        self._busy += time.perf_counter() - start
        self._cpu += time.process_time() - cpu

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent waiting for files to be read."""
        start = time.perf_counter()
        yield
        self._wait += time.perf_counter() - start

    def add(self, entry: Entry, results: list[dict[str, Any]]) -> None:
        """Count the results of one file."""
        self._files += 1
        for result in results:
            if "utterance" in result:
                self._utterances += 1
                # A length that is out of range belongs to a bad utterance.
                self._rows += 0 if "error" in result else result["frames"] * (result["labels"] + 1)
        if self._keep:
            kept = ("utterance", "frames", "labels", "cost", "error")
            slim = [{name: result[name] for name in kept if name in result} for result in results]
            self._lines.append(entry.line)
            self._results.append(json.dumps(slim))

    def show_progress(self, line: int, count: int) -> None:
        """One line on standard error, at most every second."""
        now = time.perf_counter()
        if now - self._shown < 1.0 and line < count:
            return
        self._shown = now
        seconds = max(now - self._start, 1e-9)
        text = (
            f"manifest line {line} of {count}; rank 0: {self._files} files, {self._rows / seconds:.3g} rows/s"
        )
        end = "\r" if sys.stderr.isatty() and line < count else "\n"
        print(text, end=end, file=sys.stderr, flush=True)

    def as_bytes(self, *, bytes_communicated: int) -> bytes:
        """For the other ranks."""
        return json.dumps(
            {
                "files": self._files,
                "rows": self._rows,
                "utterances": self._utterances,
                "seconds": time.perf_counter() - self._start,
                "busy": self._busy,
                "cpu": self._cpu,
                "wait": self._wait,
                "bytes": bytes_communicated,
                "threads": self._threads,
                "results": list(zip(self._lines, self._results, strict=True)),
            }
        ).encode()


def summarise(parts: list[bytes], journal: Journal | None, lines: Iterator[int]) -> dict[str, Any]:
    """Totals of the corpus and figures of this run; merges the parts of the output file."""
    ranks = [json.loads(part) for part in parts]
    totals = Totals()
    if journal is not None:
        journal.merge(lines, totals.add)
    else:
        kept = sorted((pair for rank in ranks for pair in rank["results"]), key=lambda pair: int(pair[0]))
        for _, results in kept:
            for result in json.loads(results):
                totals.add(result)
    seconds = max(max(rank["seconds"] for rank in ranks), 1e-9)
    rows = [rank["rows"] for rank in ranks]
    computed = sum(rank["utterances"] for rank in ranks)
    good = totals.values["utterances"] - totals.values["bad"] - totals.values["infeasible"]
    return {
        **totals.values,
        "sum": totals.sum,
        "mean": totals.sum / max(good, 1),
        "ranks": len(ranks),
        "threads": ranks[0]["threads"],
        "seconds": seconds,
        "computed": computed,
        "utterances_per_second": computed / seconds,
        "rows_per_second": sum(rows) / seconds,
        "imbalance_rows": _imbalance(rows),
        "imbalance_seconds": _imbalance([rank["cpu"] for rank in ranks]),
        "seconds_waiting_for_files": max(rank["wait"] for rank in ranks),
        "bytes_communicated": sum(rank["bytes"] for rank in ranks),
        "per_rank": [
            {name: rank[name] for name in ("files", "utterances", "rows", "busy", "cpu", "wait")}
            for rank in ranks
        ],
    }


def _imbalance(loads: list[float]) -> float:
    return max(loads) * len(loads) / sum(loads) if sum(loads) > 0 else 1.0


def print_summary(summary: dict[str, Any], *, as_json: bool, out: Path | None) -> None:
    """Totals on standard output."""
    if as_json:
        print_json(summary)
        return
    texts = {
        "utterances": f"{summary['utterances']:,} ({summary['computed']:,} in this run)",
        "frames, labels": f"{summary['frames']:,}, {summary['labels']:,}",
        "bad; without a path": f"{summary['bad']:,}; {summary['infeasible']:,}",
        "sum of costs": f"{summary['sum']:.6f} nats",
        "mean cost": f"{summary['mean']:.6f} nats",
        "ranks x threads": f"{summary['ranks']} x {summary['threads']}",
        "time": f"{summary['seconds']:.2f} s",
        "throughput": f"{summary['utterances_per_second']:.1f} utterances/s, "
        f"{summary['rows_per_second']:.4g} rows/s",
        "imbalance (largest over mean)": f"{summary['imbalance_rows']:.3f} rows, "
        f"{summary['imbalance_seconds']:.3f} core seconds",
        "communicated": f"{summary['bytes_communicated']:,} bytes",
    }
    print_table(("", "total"), list(texts.items()))
    if out is not None:
        print(f"results: {out}")
