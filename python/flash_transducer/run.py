# SPDX-License-Identifier: Apache-2.0
"""The program ``flash-transducer-run``: a loss over a corpus, alone or under ``mpirun -n N``.

A corpus is a manifest of batch files (see :mod:`flash_transducer._manifest`). Files are handed out in
windows, longest first onto the least loaded rank; each rank reads the next file while it computes. Ranks
exchange sizes of files (not even those where the manifest has ``rows``) and, at the end, totals.

A rank that fails says which file and utterance, and ends all ranks. Exit status: 0; 2 for what the user can
mend, 3 if ``--keep-going`` left out bad utterances, 130 and 143 after Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

import flash_transducer as ft
from flash_transducer import _core
from flash_transducer._call import DEFAULT_BACKEND
from flash_transducer._corpus_report import Report, print_summary, summarise
from flash_transducer._entry import Settings, evaluate, failed_file
from flash_transducer._journal import Journal
from flash_transducer._manifest import Entry, count_rows, digest, read_manifest, windows
from flash_transducer._ranks import launcher
from flash_transducer._variant_options import add_variant_options, variant_from_options
from flash_transducer.batch_file import Batch, BatchFileError, read_batch
from flash_transducer.cli import _Parser, _positive, _sentence

PROGRAM = "flash-transducer-run"
FILES_PER_RANK = 32  # in a window


class Terminated(BaseException):
    """SIGTERM arrived."""


class Elsewhere(Exception):
    """Another rank failed and has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    found = launcher(os.environ)
    parser = _parser()
    if found is not None and found.rank > 0:
        parser.error = lambda message: sys.exit(2)  # type: ignore[method-assign]  # rank 0 says it
    options = parser.parse_args(arguments)
    ranks: Any = None
    try:
        from flash_transducer.distributed import world

        signal.signal(signal.SIGTERM, _terminate)
        ranks = world()
        return _run(options, ranks)
    except Elsewhere as error:
        return error.status
    except BaseException as error:
        status = _explain(error, ranks)
        if ranks is not None and ranks.size > 1:
            ranks.abort(status)
        return status


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _explain(error: BaseException, ranks: Any) -> int:
    """Say on standard error what happened, with the rank; returns the exit status."""
    who = f"rank {ranks.rank}: " if ranks is not None and ranks.size > 1 else ""
    if isinstance(error, (KeyboardInterrupt, Terminated)):
        text, status = (
            ("interrupted", 130) if isinstance(error, KeyboardInterrupt) else ("ended by SIGTERM", 143)
        )
    elif isinstance(error, MemoryError):
        text, status = f"not enough memory ({error or 'no details'})", 2
    elif isinstance(error, (ValueError, TypeError, OSError, RuntimeError, ImportError)):
        text, status = _sentence(error), 2
    else:
        raise error
    print(f"{PROGRAM}: {who}{' '.join(text.split())}", file=sys.stderr, flush=True)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Costs, gradients and posteriors of a corpus, on one process or under mpirun.",
        epilog=f"example: mpirun -n 4 {PROGRAM} manifest.jsonl --out costs.jsonl --resume",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {ft.__version__}")
    parser.add_argument(
        "manifest", metavar="MANIFEST.jsonl", help='lines such as {"file": "batch.safetensors"}'
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON lines, one per utterance, in manifest order"
    )
    parser.add_argument("--grad", type=Path, metavar="DIR", help="gradients of each file, as safetensors")
    parser.add_argument(
        "--posteriors", type=Path, metavar="DIR", help="arc posteriors and occupancy of each file"
    )
    parser.add_argument(
        "--align", type=Path, metavar="DIR", help="best path of each utterance, as JSON lines"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on where an earlier run with this --out ended"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="record bad utterances, and end with status 3"
    )
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda", "reference"), default="auto")
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="of each rank (default: its share of cores)"
    )
    parser.add_argument("--progress", action="store_true", help="show on standard error how far rank 0 is")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    parser.add_argument("--zero-infinity", action="store_true", help="cost 0 where there is no path")
    parser.add_argument("--from-log-probs", action="store_true", help="the scores are normalised already")
    parser.add_argument("--semiring", choices=("log", "max"), default="log", help="max: best path only")
    parser.add_argument("--activation", help="of the joint (default: relu)")
    add_variant_options(parser)
    return parser


def _agree(ranks: Any, work: Callable[[], Any]) -> list[Any]:
    """Run `work` on each rank and gather what it returns; if one failed, all raise and the first says why."""
    try:
        mine = {"value": work()}
        failure: BaseException | None = None
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        mine, failure = {"failed": 2}, error
    parts = [json.loads(part) for part in ranks.gather(json.dumps(mine).encode())]
    failed = [rank for rank, part in enumerate(parts) if "failed" in part]
    if failed:
        if failure is not None and ranks.rank == failed[0]:
            _explain(failure, ranks)
        raise Elsewhere(parts[failed[0]]["failed"])
    return [part["value"] for part in parts]


def _run(options: argparse.Namespace, ranks: Any) -> int:
    manifest = Path(options.manifest)
    journal = Journal(options.out) if options.out is not None else None
    prepared = _agree(ranks, lambda: _prepare(options, manifest, journal, ranks))
    session, count = prepared[0]["session"], prepared[0]["entries"]
    if session == 0:
        if ranks.rank == 0:
            print(f"{PROGRAM}: {options.out} is complete already", file=sys.stderr)
        return 0
    variant = variant_from_options(options)
    threads = options.threads or _share_of_cores(ranks)
    call_options: dict[str, Any] = {
        "zero_infinity": options.zero_infinity,
        "from_log_probs": options.from_log_probs,
        "semiring": options.semiring,
        "threads": threads,
    }
    if options.activation is not None:
        call_options["activation"] = options.activation
    backend = DEFAULT_BACKEND if options.backend == "auto" else options.backend
    settings = Settings(
        variant, backend, call_options, options.grad, options.posteriors, options.align, options.keep_going
    )
    done = journal.done() if journal is not None and options.resume else set()
    if journal is not None:
        # No rank begins its part before all have read those of earlier sessions.
        _agree(ranks, lambda: None)
        journal.open(session, ranks.rank)
    report = Report(keep=journal is None, threads=threads)
    todo = (entry for entry in read_manifest(manifest) if entry.line not in done)
    for entry, future in _read_ahead(_own(todo, ranks)):
        with report.waiting():
            batch = _result_of(future, entry, settings)
        with report.computing():
            results = (
                failed_file(entry, batch)
                if isinstance(batch, Exception)
                else evaluate(entry, batch, settings)
            )
        if journal is not None:
            journal.write(entry.line, results)
        report.add(entry, results)
        if options.progress and ranks.rank == 0:
            report.show_progress(entry.line, count)
    return _finish(options, manifest, journal, report, ranks)


def _prepare(
    options: argparse.Namespace, manifest: Path, journal: Journal | None, ranks: Any
) -> dict[str, int]:
    """What can be wrong before anything is computed; rank 0 also makes the folders."""
    variant = variant_from_options(options)
    if options.backend not in ("auto", *ft.backends):
        raise ft.NotBuilt(
            f"--backend {options.backend}: not part of this build, which has {', '.join(ft.backends)}"
        )
    if options.resume and journal is None:
        raise ValueError("--resume: needs --out, whose parts say what is done")
    if ranks.rank != 0:
        return {"session": 0, "entries": 0}
    count = sum(1 for _ in read_manifest(manifest))
    for folder in (options.grad, options.posteriors, options.align):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    if journal is None:
        return {"session": 1, "entries": count}
    if options.resume and options.out.exists() and not journal.folder.exists():
        return {"session": 0, "entries": count}
    description = {
        "manifest": digest(manifest),
        "variant": repr(variant),
        "options": [options.zero_infinity, options.from_log_probs, options.semiring, options.activation],
    }
    return {"session": journal.begin(description, resume=options.resume), "entries": count}


def _share_of_cores(ranks: Any) -> int:
    """Cores this rank may use, over the ranks of its node that may use some of the same."""
    if "OMP_NUM_THREADS" in os.environ:
        return max(1, int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    mine = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    parts = ranks.gather(json.dumps([socket.gethostname(), mine]).encode())
    sharing: int = sum(
        host == socket.gethostname() and not set(mine).isdisjoint(cores)
        for host, cores in map(json.loads, parts)
    )
    return max(1, len(mine) // max(sharing, 1))


def _own(entries: Iterator[Entry], ranks: Any) -> Iterator[Entry]:
    """The entries of this rank, in manifest order."""
    loads = [0] * ranks.size
    for window in windows(entries, FILES_PER_RANK * ranks.size):
        costs = np.array([entry.rows if entry.rows is not None else 0 for entry in window], np.int64)
        if ranks.size > 1 and any(entry.rows is None for entry in window):
            for i in range(ranks.rank, len(window), ranks.size):
                if window[i].rows is None:
                    costs[i] = count_rows(window[i].path)
            # Sizes that the manifest has are on all ranks already.
            for i, entry in enumerate(window):
                if entry.rows is not None and i % ranks.size != ranks.rank:
                    costs[i] = 0
            ranks.sum(costs)
        owners = _core.shard(costs.tolist(), ranks.size, loads)
        for i, owner in enumerate(owners):
            loads[owner] += int(costs[i])
        yield from (entry for entry, owner in zip(window, owners, strict=True) if owner == ranks.rank)


def _read_ahead(entries: Iterator[Entry]) -> Iterator[tuple[Entry, Future[Batch]]]:
    """Each entry with its file, of which the next is read meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        pending: deque[tuple[Entry, Future[Batch]]] = deque()
        for entry in entries:
            pending.append((entry, pool.submit(read_batch, entry.path)))
            if len(pending) > 1:
                yield pending.popleft()
        yield from pending


def _result_of(future: Future[Batch], entry: Entry, settings: Settings) -> Batch | Exception:
    try:
        return future.result()
    except BatchFileError as error:
        if not settings.keep_going:
            raise
        return error


def _finish(
    options: argparse.Namespace, manifest: Path, journal: Journal | None, report: Report, ranks: Any
) -> int:
    """Merge the parts, print totals, and give every rank the same exit status."""
    if journal is not None:
        journal.close()
    parts = ranks.gather(report.as_bytes(bytes_communicated=ranks.bytes_sent))
    status = 0
    if ranks.rank == 0:
        summary = summarise(parts, journal, (entry.line for entry in read_manifest(manifest)))
        print_summary(summary, as_json=options.json, out=options.out)
        sys.stdout.flush()
        status = 3 if summary["bad"] else 0
    decided: int = json.loads(ranks.gather(json.dumps(status).encode())[0])
    return decided


if __name__ == "__main__":
    sys.exit(main())
