# SPDX-License-Identifier: Apache-2.0
"""The demonstration: made-up scores for utterances of real lengths, four variants, and pictures."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import flash_transducer as ft

FRAME_SECONDS = 0.04
DURATIONS = (0, 1, 2)
# A grammar small enough for 31 words; blank is the last column.
_WORDS = (
    ("the", "one", "this", "every", "some"),
    ("old", "small", "quiet", "red", "bright", "slow"),
    ("bird", "river", "train", "child", "lamp", "door", "cloud", "fox"),
    ("finds", "hears", "follows", "keeps", "meets", "leaves"),
    ("near", "under", "before", "behind", "above", "after"),
)
_ORDER = (0, 1, 2, 3, 0, 2, 4, 0, 1, 2, 3, 0, 1, 2, 4, 0, 2)
VOCABULARY = tuple(word for words in _WORDS for word in words)
BLANK = len(VOCABULARY)


@dataclass(frozen=True)
class Utterance:
    """One utterance: scores, labels, and the frames at which the labels were meant to be emitted."""

    logits: npt.NDArray[np.float32]  # [T, U + 1, V + durations]
    labels: npt.NDArray[np.int64]  # [U]
    emitted: npt.NDArray[np.float64]  # [U]

    @property
    def tokens(self) -> list[str]:
        """The words of the labels."""
        return [VOCABULARY[label] for label in self.labels]

    def arguments(self, variant: ft.Variant) -> tuple[Any, ...]:
        """What ``ft.loss`` and its kin take for a batch of this one utterance."""
        columns = self.logits.shape[2] - (0 if variant.heads else len(DURATIONS))
        frames, rows = self.logits.shape[:2]
        return self.logits[None, :, :, :columns], self.labels[None], [frames], [rows - 1], variant


@dataclass
class Row:
    """One line of the result: totals over all utterances for one variant."""

    variant: ft.Variant
    cost: float = 0.0
    labels: int = 0
    seconds: float = 0.0
    squared_gradient: float = 0.0
    delay: float = 0.0  # frames, summed over labels

    def as_dict(self) -> dict[str, Any]:
        """Figures per label, ready for JSON."""
        labels = max(self.labels, 1)
        return {
            "variant": repr(self.variant),
            "cost_per_label": self.cost / labels,
            "mean_delay_ms": 1000.0 * FRAME_SECONDS * self.delay / labels,
            "gradient_norm": self.squared_gradient**0.5,
            "seconds": self.seconds,
        }


def variants() -> list[ft.Variant]:
    """The four variants of the demonstration."""
    names: Any = ft  # the constructors come from the list of named variants
    return [names.rnnt(), names.tdt(DURATIONS), names.hat(), names.star()]


def find_lengths_file() -> Path:
    """The sample of LibriSpeech lengths: installed with the package, or in the repository."""
    here = Path(__file__).resolve()
    name = "librispeech_lengths.csv"
    places = [here.parent / "data" / name]
    places += [parent / "tests" / "data" / name for parent in here.parents]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(f"{places[0]}: no such file. Install the package again, or give --lengths")


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Frames and labels of each utterance, from a CSV file with these two columns."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        try:
            if not {"frames", "labels"} <= set(rows.fieldnames or ()):
                raise ValueError("no such columns")
            lengths = [(int(row["frames"]), int(row["labels"])) for row in rows]
        except (TypeError, ValueError, csv.Error) as error:
            raise ValueError(f"{path}: expected the columns frames,labels with whole numbers") from error
    if not lengths:
        raise ValueError(f"{path}: holds no utterances")
    for frames, labels in lengths:
        if frames < 1 or labels < 0:
            raise ValueError(f"{path}: {frames} frames and {labels} labels; frames must be at least 1")
    return lengths


def choose_lengths(lengths: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """As many as asked for, evenly from the shortest to the longest."""
    ordered = sorted(lengths)
    count = min(count, len(ordered))
    return [ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)]


def make_utterance(frames: int, labels: int, seed: int) -> Utterance:
    """Scores such as a trained model gives: a label is likely from about its true frame on.

    Words come in groups with pauses between them. Some onsets are sharp and some are blurred over several
    frames; at some of them a second word is nearly as likely.
    """
    random = np.random.default_rng(seed)
    shift = int(random.integers(len(_ORDER)))
    kinds = [_ORDER[(shift + u) % len(_ORDER)] for u in range(labels)]
    words = np.array([VOCABULARY.index(random.choice(_WORDS[kind])) for kind in kinds], dtype=np.int64)

    gaps = random.gamma(2.0, size=labels + 1) + 4.0 * (random.random(labels + 1) < 0.12)
    emitted = np.floor(np.cumsum(gaps)[:labels] / gaps.sum() * max(frames - 2, 0))
    blur = random.choice([0.5, 1.0, 3.0], size=labels, p=[0.45, 0.35, 0.2])

    columns = BLANK + 1
    logits = random.normal(scale=0.6, size=(frames, labels + 1, columns + len(DURATIONS)))
    t = np.arange(frames)[:, None]  # [T, 1]
    u = np.arange(labels)
    onset = 0.5 + 0.5 * np.tanh((t - emitted + 0.5) / (2.0 * blur))  # [T, U], 0 to 1
    logits[:, :, :columns] -= 2.0
    logits[:, u, words] += 5.0 * onset
    rival = random.integers(BLANK, size=labels)
    logits[:, u, rival] += 4.5 * onset * (random.random(labels) < 0.15)
    # Of its own sign as well: a variant with a Bernoulli blank reads this column alone.
    logits[:, :, BLANK] += 6.0
    logits[:, u, BLANK] -= 8.0 * onset
    # Duration columns: up to the next emission, or the one after it once that is due.
    ends = np.append(emitted, [frames, frames])
    due = ends[:-1] <= t + 1.0
    distance = np.where(due, ends[np.minimum(np.arange(labels + 1) + 1, labels + 1)], ends[:-1]) - t
    wanted = np.clip(np.floor(distance), min(DURATIONS), max(DURATIONS))
    logits[:, :, columns:] -= 1.5 * np.abs(wanted[:, :, None] - np.array(DURATIONS))
    return Utterance(logits.astype(np.float32), words, emitted)


def mean_emission_frames(lattice: ft.Lattice) -> npt.NDArray[np.float64]:
    """``[U]`` expected frame at which each label of the first utterance leaves."""
    emits = [i for i, arc in enumerate(lattice.variant.arcs) if arc.du == 1]
    mass = lattice.arc_posterior[0][:, :-1, emits].sum(axis=2)  # [T, U]
    frames: npt.NDArray[np.float64] = np.arange(mass.shape[0]) @ mass
    return frames


def run(utterances: list[Utterance], advance: Callable[[], None]) -> Iterator[Row]:
    """Costs, gradients and emission times of all utterances, variant by variant."""
    for variant in variants():
        row = Row(variant)
        for utterance in utterances:
            arguments = utterance.arguments(variant)
            begin = time.perf_counter()
            cost, gradient = ft.value_and_grad(*arguments, reduction="sum")
            row.seconds += time.perf_counter() - begin
            row.cost += float(cost)
            row.labels += len(utterance.labels)
            row.squared_gradient += float(np.square(gradient, dtype=np.float64).sum())
            expected = mean_emission_frames(ft.lattice(*arguments))
            row.delay += float((expected - utterance.emitted).sum())
            advance()
        yield row


def write_pictures(utterance: Utterance, output: Path) -> list[Path]:
    """One picture per variant of one utterance."""
    from flash_transducer.plot import plot_utterance

    output.mkdir(parents=True, exist_ok=True)
    paths = []
    for variant in variants():
        arguments = utterance.arguments(variant)
        lattice = ft.lattice(*arguments)
        cost = float(lattice.cost[0])
        frames, labels = utterance.logits.shape[0], len(utterance.labels)
        figure = plot_utterance(
            lattice,
            alignment=ft.align(*arguments),
            tokens=utterance.tokens,
            frame_seconds=FRAME_SECONDS,
            title=f"{variant}: {frames} frames, {labels} words, cost {cost:.1f} nats",
        )
        paths.append(output / f"lattice_{variant.name}.png")
        figure.savefig(paths[-1])
    return paths
