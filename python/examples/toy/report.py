# SPDX-License-Identifier: Apache-2.0
"""What a trained model can do: word error rates, tokens with their times, and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import flash_transducer as ft
import jiwer
import numpy as np
import torch
from flash_transducer.plot import plot_lattice
from matplotlib.figure import Figure

from toy.data import FRAME_SECONDS, TOKENS, Utterance, make_batch, make_utterance
from toy.decode import Token, decode, spell
from toy.model import STEP_SECONDS
from toy.training import Run


@dataclass(frozen=True)
class Score:
    """How a set of utterances was understood."""

    utterances: list[Utterance]
    decoded: list[list[Token]]

    @property
    def word_error_rate(self) -> float:
        """Words that were substituted, deleted or inserted, per word that was said."""
        said = [utterance.text for utterance in self.utterances]
        return float(jiwer.wer(said, [spell(tokens) for tokens in self.decoded]))

    @property
    def delays(self) -> list[float]:
        """Seconds from the end of a letter to its token, over the utterances without an error."""
        return [
            token.seconds - end
            for utterance, tokens in zip(self.utterances, self.decoded, strict=True)
            if spell(tokens) == utterance.text
            for token, end in zip(tokens, utterance.ends, strict=True)
        ]

    def as_dict(self) -> dict[str, float | int | None]:
        """Figures ready for JSON."""
        delays = self.delays
        return {
            "utterances": len(self.utterances),
            "word_error_rate": self.word_error_rate,
            "median_delay_seconds": float(np.median(delays)) if delays else None,
        }


def score(run: Run, split: str, count: int) -> Score:
    """Decode the first utterances of a split."""
    run.model.eval()
    utterances = [make_utterance(run.settings.seed, split, index) for index in range(count)]
    decoded: list[list[Token]] = []
    for begin in range(0, count, 50):
        decoded += decode(run.model, make_batch(utterances[begin : begin + 50]), run.scheme)
    return Score(utterances, decoded)


def timestamps(tokens: list[Token]) -> str:
    """Return each token with the second at which it was written."""
    return " ".join(f"{'_' if TOKENS[t.label] == ' ' else TOKENS[t.label]}@{t.seconds:.2f}" for t in tokens)


def draw_losses(losses: list[float], title: str, path: Path) -> None:
    """Draw the loss of each step, and its mean over the last 50."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color="#8CCBF0", linewidth=0.8, label="each step")
    sums = np.cumsum([0.0, *losses])
    first = np.maximum(steps - 50, 0)
    axes.plot(
        steps, (sums[steps] - sums[first]) / (steps - first), color="#00558A", label="mean of the last 50"
    )
    axes.set(title=title, xlabel="step", ylabel="loss, nats per label", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


@torch.no_grad()
def draw_lattice(run: Run, utterance: Utterance, path: Path) -> None:
    """Draw where the trained model is at each frame of an utterance, given its text."""
    model, batch = run.model, make_batch([utterance])
    encoder, lengths = model.encode(batch.features, batch.frames)
    predictor, _ = model.predict(torch.cat([model.start(), batch.targets], dim=1))
    layer = model.output
    inputs = encoder, predictor, layer.weight, layer.bias, batch.targets, lengths, batch.labels
    lattice = ft.joint_lattice(*inputs, run.scheme.variant, activation="tanh")
    best = ft.joint_align(*inputs, run.scheme.variant, activation="tanh")
    seconds = FRAME_SECONDS * len(utterance.features)
    about = f"{seconds:.1f} s, {run.scheme.variant}: cost {float(lattice.cost[0]):.1f} nats"
    plot_lattice(
        lattice,
        alignment=best,
        tokens=["_" if letter == " " else letter for letter in utterance.text],
        frame_seconds=STEP_SECONDS,
        title=f'"{utterance.text}", {about}',
    ).savefig(path, dpi=120)
