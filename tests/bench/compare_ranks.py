#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real runs of flash-transducer-run on this machine against the plan, and against processes that do not talk.

Writes files of made-up logits with real lengths to a temporary folder, predicts the core seconds of the
busiest rank from the measured cost model, and runs 0 (no mpirun), 1, 2, 4 and 8 ranks of one thread. Core
seconds are those spent on files, so that the figures hold where there are fewer cores than ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flash_transducer import _ranks_plan, demo, rnnt
from flash_transducer.batch_file import write_batch

PROGRAM = [sys.executable, "-m", "flash_transducer.run"]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def write_corpus(folder: Path, lengths: list[tuple[int, int]], columns: int, repeat: int) -> Path:
    random = np.random.default_rng(0)
    lines = []
    for number, (frames, labels) in enumerate(lengths):
        batch = {
            "logits": random.normal(size=(1, frames, labels + 1, columns)).astype(np.float32),
            "targets": random.integers(0, columns - 1, (1, labels)),
            "logit_lengths": np.array([frames]),
            "target_lengths": np.array([labels]),
        }
        write_batch(folder / f"{number}.safetensors", batch)
        lines.append(json.dumps({"file": f"{number}.safetensors", "rows": frames * (labels + 1)}) + "\n")
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(lines * repeat), encoding="utf-8")
    return manifest


def run(ranks: int, manifest: Path, folder: Path) -> dict[str, Any]:
    launcher = ["mpirun", "--oversubscribe", "-n", str(ranks)] if ranks else []
    command = [*launcher, *PROGRAM, str(manifest), "--grad", str(folder / "grad"), "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def side_by_side(manifests: list[Path], folder: Path) -> float:
    """Utterances per second of independent processes, all of them over the slowest's time."""
    commands = [
        [*PROGRAM, str(manifest), "--grad", str(folder / f"grad{number}"), "--json"]
        for number, manifest in enumerate(manifests)
    ]
    running = [subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) for command in commands]
    found = [json.loads(process.communicate()[0]) for process in running]
    utterances = sum(one["computed"] for one in found)
    return float(utterances / max(one["seconds"] for one in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--utterances", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--times", type=int, default=3, help="runs of each; the fastest counts")
    options = parser.parse_args()
    lengths = demo.choose_lengths(demo.read_lengths(demo.find_lengths_file()), options.utterances)
    array = np.array(lengths, np.int64)
    rows = np.tile(array[:, 0] * (array[:, 1] + 1), options.repeat)
    model = _ranks_plan.measure(array[:, 0], array[:, 1], options.columns, None, rnnt())
    per_row, per_utterance = model.seconds_per_row, model.seconds_per_utterance
    print(f"{len(rows)} files; {per_row:.3g} s a row, {per_utterance:.3g} s an utterance")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = write_corpus(folder, lengths, options.columns, options.repeat)
        lines = manifest.read_text().splitlines(keepends=True)
        halves = [folder / f"half{i}.jsonl" for i in range(2)]
        for i, half in enumerate(halves):
            half.write_text("".join(lines[i::2]))
        for ranks in (0, 1, 2, 4, 8):
            plan = _ranks_plan.divide(rows, max(ranks, 1), model)
            found = [run(ranks, manifest, folder) for _ in range(options.times)]
            busiest = min(max(rank["cpu"] for rank in one["per_rank"]) for one in found)
            throughput = max(one["utterances_per_second"] for one in found)
            imbalance = found[0]["imbalance_rows"]
            print(
                f"{ranks} ranks: busiest {busiest:.3f} core seconds, planned {plan['seconds_largest']:.3f}; "
                f"imbalance {imbalance:.3f}, planned {plan['imbalance']:.3f}; {throughput:.1f} utterances/s",
                flush=True,
            )
        best = max(side_by_side(halves, folder) for _ in range(options.times))
        print(f"2 processes side by side: {best:.1f} utterances/s")


if __name__ == "__main__":
    start = time.monotonic()
    main()
    print(f"took {time.monotonic() - start:.0f} s")
