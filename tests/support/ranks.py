# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: mpirun on this machine, with a limit on the time that anything may take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

PROGRAM = [sys.executable, "-m", "flash_transducer.run"]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Several ranks on one core must not spin.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
# The longest that any rank may live after one has failed.
SECONDS_TO_END = 10.0


def has_mpi() -> bool:
    try:
        from flash_transducer import _mpi  # noqa: F401
    except ImportError:
        return False
    return shutil.which("mpirun") is not None


def launch(ranks: int, command: list[str]) -> list[str]:
    """The command on so many ranks; 0: without mpirun."""
    if ranks == 0:
        return command
    if not has_mpi():
        pytest.skip("MPI is not installed")
    return ["mpirun", "--oversubscribe", "-n", str(ranks), *command]


def run_program(ranks: int, *arguments: Any, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = launch(ranks, [*PROGRAM, *map(str, arguments)])
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=seconds
    )


def start_program(ranks: int, *arguments: Any) -> subprocess.Popen[str]:
    command = launch(ranks, [*PROGRAM, *map(str, arguments)])
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    message: str  # standard error
    seconds: float  # from the first line of ours there to the end of all ranks


def watch(command: list[str], folder: Path, seconds: float = 120.0) -> Ended:
    """Run a command that is to fail, and time how long it lives after it has said so."""
    log = folder / "stderr"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=file)
    said = None
    start = time.monotonic()
    while process.poll() is None:
        if said is None and "flash-transducer-run:" in log.read_text():
            said = time.monotonic()
        if time.monotonic() - start > seconds:
            process.kill()
            raise AssertionError(f"still running after {seconds} s: {log.read_text()}")
        time.sleep(0.02)
    end = time.monotonic()
    return Ended(process.returncode, log.read_text(), 0.0 if said is None else end - said)


def dense_tensors(seed: int, utterances: int = 4, frames: int = 12, labels: int = 4) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    lengths = random.integers(labels, frames + 1, utterances)
    return {
        "logits": random.normal(size=(utterances, frames, labels + 1, 9)).astype(np.float32),
        "targets": random.integers(0, 8, (utterances, labels)),
        "logit_lengths": lengths,
        "target_lengths": random.integers(0, labels + 1, utterances),
    }


def joint_tensors(seed: int, utterances: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "encoder": random.normal(size=(utterances, 8, 6)).astype(np.float32),
        "predictor": random.normal(size=(utterances, 4, 6)).astype(np.float32),
        "weight": random.normal(size=(9, 6)).astype(np.float32),
        "bias": random.normal(size=9).astype(np.float32),
        "targets": random.integers(0, 8, (utterances, 3)),
        "encoder_lengths": random.integers(3, 9, utterances),
        "target_lengths": random.integers(0, 4, utterances),
    }


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
