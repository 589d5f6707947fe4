#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw docs/images/lattice.png, the picture of the README.

    .venv/bin/python docs/images/lattice.py [FILE]

The scores are made up, but shaped like a trained model's: at each frame the model knows roughly how
far the speaker has got, prefers blank until the next letter is due, and then that letter.
"""

import sys
from pathlib import Path

import flash_transducer as ft
import numpy as np
from flash_transducer.plot import plot_lattice

TEXT = "what a transducer sees"
ALPHABET = " abcdefghijklmnopqrstuvwxyz"  # the blank follows as the last symbol
FRAMES = 100
FRAME_SECONDS = 0.04


def made_up_logits(labels: list[int], rng: np.random.Generator) -> np.ndarray:
    """Return scores [1, T, U+1, V] under which label u is due around a frame of its own."""
    pauses = rng.gamma(2.0, size=len(labels) + 1)
    due = np.cumsum(pauses)[:-1] / pauses.sum() * (FRAMES - 10) + 4
    logits = rng.normal(scale=0.7, size=(1, FRAMES, len(labels) + 1, len(ALPHABET) + 1))
    for u, label in enumerate(labels):
        lateness = np.arange(FRAMES) - due[u]
        surprise = rng.uniform(0.15, 0.6)  # how suddenly the model makes up its mind
        logits[0, :, u, -1] += 5.0 - 5.0 / (1.0 + np.exp(-surprise * lateness))
        logits[0, :, u, label] += 6.0 / (1.0 + np.exp(-surprise * lateness))
    logits[0, :, -1, -1] += 5.0
    return logits


def main() -> None:
    """Draw the picture."""
    file = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_suffix(".png")
    labels = [ALPHABET.index(letter) for letter in TEXT]
    logits = made_up_logits(labels, np.random.default_rng(11))
    batch = (logits, np.array([labels]), np.array([FRAMES]), np.array([len(labels)]))
    figure = plot_lattice(
        ft.lattice(*batch),
        alignment=ft.align(*batch),
        tokens=[letter if letter != " " else "space" for letter in TEXT],
        frame_seconds=FRAME_SECONDS,
    )
    figure.savefig(file, metadata={"Software": None})


if __name__ == "__main__":
    main()
