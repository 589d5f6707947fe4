# SPDX-License-Identifier: Apache-2.0
"""A run on paper: how evenly a list of lengths divides over ranks, and how long each would compute.

The time of an utterance is ``seconds_per_row T (U + 1) + seconds_per_utterance``. Both constants are measured
on this machine, with one thread, on utterances of the list itself (a least-squares fit), or given.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import flash_transducer as ft
from flash_transducer import _core
from flash_transducer.variants import Variant

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CostModel:
    """Seconds of one core for the loss and gradients of one utterance."""

    seconds_per_row: float
    seconds_per_utterance: float

    def of(self, rows: Integers) -> npt.NDArray[Any]:
        """Seconds of each utterance."""
        return self.seconds_per_row * rows + self.seconds_per_utterance


def measure(
    frames: Integers,
    labels: Integers,
    columns: int,
    hidden: int | None,
    variant: Variant,
    budget: float = 4.0,
) -> CostModel:
    """Time utterances between the shortest and the longest of the list, and fit the two constants."""
    order = np.argsort(frames * (labels + 1), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, num=min(8, len(order)), dtype=np.int64)]
    random = np.random.default_rng(0)
    rows, seconds = [], []
    start = time.perf_counter()
    for i in chosen:
        T, U = int(frames[i]), int(labels[i])
        targets = random.integers(0, max(columns - variant.heads - 1, 1), (1, U))
        lengths: Any = (targets, [T], [U], variant)
        arrays: Any
        if hidden is None:
            function: Any = ft.value_and_grad
            arrays = (random.normal(size=(1, T, U + 1, columns)).astype(np.float32),)
        else:
            function = ft.joint_value_and_grad
            shapes = ((1, T, hidden), (1, U + 1, hidden), (columns, hidden), (columns,))
            arrays = tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)
        times: list[float] = []
        while len(times) < 2 or (len(times) < 5 and time.perf_counter() - start < budget):
            begin = time.process_time()
            function(*arrays, *lengths, threads=1)
            times.append(time.process_time() - begin)
        rows.append(T * (U + 1))
        seconds.append(min(times))
    design = np.stack([np.array(rows, np.float64), np.ones(len(rows))], axis=1)
    # Relative errors count, so that short utterances do.
    weights = 1.0 / np.maximum(np.array(seconds), 1e-9)
    slope, constant = np.linalg.lstsq(design * weights[:, None], np.ones(len(rows)), rcond=None)[0]
    return CostModel(max(float(slope), 0.0), max(float(constant), 0.0))


def divide(rows: Integers, ranks: int, model: CostModel) -> dict[str, Any]:
    """The whole list over some ranks."""
    owners = np.asarray(_core.shard(rows.tolist(), ranks, []), np.int64)
    loads = np.bincount(owners, weights=rows, minlength=ranks)
    seconds = np.bincount(owners, weights=model.of(rows), minlength=ranks)
    return {
        "ranks": ranks,
        "rows_largest": int(loads.max()),
        "rows_mean": float(loads.mean()),
        "imbalance": float(loads.max() / max(loads.mean(), 1e-300)),
        "seconds_largest": float(seconds.max()),
        "seconds_mean": float(seconds.mean()),
    }


def batches(frames: Integers, most: int) -> list[Integers]:
    """Utterances sorted by frames and packed into batches of at most so many frames in all."""
    packed: list[list[int]] = [[]]
    total = 0
    for i in np.argsort(frames, kind="stable").tolist():
        if packed[-1] and total + int(frames[i]) > most:
            packed.append([])
            total = 0
        packed[-1].append(i)
        total += int(frames[i])
    return [np.array(batch, np.int64) for batch in packed]


def divide_batches(frames: Integers, rows: Integers, most: int, ranks: int) -> dict[str, float]:
    """Imbalance where ranks meet after each batch, as in training."""
    largest = mean = worst = 0.0
    for batch in batches(frames, most):
        owners = np.asarray(_core.shard(rows[batch].tolist(), ranks, []), np.int64)
        loads = np.bincount(owners, weights=rows[batch], minlength=ranks)
        largest, mean = largest + float(loads.max()), mean + float(loads.mean())
        worst = max(worst, float(loads.max() / max(loads.mean(), 1e-300)))
    return {"imbalance": largest / max(mean, 1e-300), "imbalance_worst": worst}


def bytes_per_rank(utterances: int, columns: int, hidden: int | None, *, reproducible: bool) -> int:
    """What a rank hands to collectives in one call on a batch, by the account in distributed/loss.hpp."""
    shared = 0 if hidden is None else columns * (hidden + 1)
    return 24 + 16 * utterances + shared * (_core.reproducible_bytes if reproducible else 8)
