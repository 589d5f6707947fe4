#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the example with ft.joint_loss and with a plain float64 lattice: how far apart the curves are.

    PYTHONPATH=python/examples:tests/python python tests/bench/compare_training.py --dtype bfloat16

The distance of two curves is their mean difference after smoothing over 20 steps, relative to the curve of
the plain lattice. A training amplifies every rounding; how much, a fourth run says: the plain lattice, with
each element of each gradient moved by up to the rounding error of the type.
"""

from __future__ import annotations

import argparse

import numpy as np
import plain_lattice
import torch
from toy.training import Loss, Run, Settings

ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-9}


def curve(settings: Settings, steps: int, loss: Loss | None = None, nudge: float = 0.0) -> np.ndarray:
    """Return the smoothed losses of a training."""
    run = Run(settings, loss)
    if nudge:
        random = torch.Generator().manual_seed(1)
        for parameter in run.model.parameters():
            parameter.register_hook(
                lambda g: g * (1 + nudge * (2 * torch.rand(g.shape, generator=random) - 1))
            )
    losses = [run.step() for _ in range(steps)]
    return np.convolve(losses, np.full(20, 1 / 20), mode="valid")


def main() -> None:
    """Train four times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--dtype", choices=ROUNDING, default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(dtype=options.dtype)
    scheme = Run(settings).scheme

    def plain(model: torch.nn.Module, batch: object) -> torch.Tensor:
        return plain_lattice.loss(model, batch, scheme)

    expected = curve(settings, options.steps, plain)
    print(f"{options.dtype}, {options.steps} steps: plain lattice, last loss {expected[-1]:.4f}")
    others = {
        "gradients rounded once more": lambda: curve(settings, options.steps, plain, ROUNDING[options.dtype]),
        "ft.joint_loss": lambda: curve(settings, options.steps),
        "ft.joint_loss, skip_mass=0": lambda: curve(
            Settings(dtype=options.dtype, skip_mass=0.0), options.steps
        ),
    }
    for name, train in others.items():
        losses = train()
        distance = np.mean(np.abs(losses - expected)) / np.mean(expected)
        print(f"{name}: distance {distance:.1e}, last loss {losses[-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
