# SPDX-License-Identifier: Apache-2.0
"""Time torchaudio's CPU loss beside this project's, on the same logits, in one run.

Needs torch with torchaudio and the built package. Times loss and gradient; ours through ft.value_and_grad.
"""

import argparse
import statistics
import time

import flash_transducer as ft
import numpy as np
import torch
import torchaudio

SHAPES = {
    "V=1024": (8, 188, 90, 1024),
    "V=28": (128, 150, 39, 28),
    "V=50 long": (64, 1500, 299, 50),
}


def timed(body):
    start = time.perf_counter()
    result = body()
    return time.perf_counter() - start, result


def compare(name, shape, options):
    B, T, U, V = shape
    random = np.random.default_rng(0)
    logits = random.standard_normal((B, T, U + 1, V), dtype=np.float32)
    targets = random.integers(0, V - 1, (B, U)).astype(np.int32)
    frames, labels = np.full(B, T, np.int32), np.full(B, U, np.int32)

    def ours():
        return ft.value_and_grad(logits, targets, frames, labels, backend="cpu", reduction="sum")

    def theirs():
        leaf = torch.from_numpy(logits).requires_grad_()
        cost = torchaudio.functional.rnnt_loss(
            leaf, *map(torch.from_numpy, (targets, frames, labels)), reduction="sum"
        )
        cost.backward()
        return cost.item(), leaf.grad.numpy()

    cost, gradient = ours()
    slow, (peer_cost, peer_gradient) = timed(theirs)  # once: it takes seconds
    assert abs(cost - peer_cost) < 1e-4 * abs(cost)
    difference = np.abs(gradient - peer_gradient).max()
    fast = statistics.median(timed(ours)[0] for _ in range(options.repeats))
    print(
        f"{name}: {options.threads} threads, ours {fast * 1e3:.1f} ms, torchaudio {slow * 1e3:.1f} ms, "
        f"{slow / fast:.1f} times; largest gradient difference {difference:.1e}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, shape in SHAPES.items():
        compare(name, shape, options)


if __name__ == "__main__":
    main()
