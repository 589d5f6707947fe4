# SPDX-License-Identifier: Apache-2.0
"""Made-up speech: sentences of a small lexicon, spelled in letters, spoken as noisy feature frames.

A letter is a movement between two points in feature space. How long it takes depends on the letter, on the
speaking rate of the utterance and on chance; neighbours run into each other, every speaker has an offset
and a loudness, and noise lies over everything. So the frames of a letter look different each time, and
where it begins is not known: what a transducer has to find out.

Utterance number i of a split is a function of (seed, split, i) alone. Nothing has to be stored, and a
training run that goes on after an interruption sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
TOKENS = (*CONSONANTS, *VOWELS, " ")  # the last one separates words
FEATURES = 20
FRAME_SECONDS = 0.01
SPLITS = ("train", "known words", "new words")
_TRAINING_WORDS, _NEW_WORDS = 200, 50
_MEAN_FRAMES = {"consonant": 6.0, "vowel": 9.0, "pause": 8.0}
_FEWEST_FRAMES = 5  # more than an encoder that keeps every fourth frame needs for one label per frame


def _make_lexicon() -> tuple[list[str], list[str]]:
    """Return the words of the language: those that training uses, and those that it never sees."""
    random = np.random.default_rng(1)  # the language is the same whatever the seed of a run
    words: dict[str, None] = {}  # ordered, without repetition
    while len(words) < _TRAINING_WORDS + _NEW_WORDS:
        shape = random.choice(["CVC", "CVCV", "CVCVC", "VCV"])
        words["".join(random.choice(list(CONSONANTS if c == "C" else VOWELS)) for c in shape)] = None
    listed = list(words)
    return listed[:_TRAINING_WORDS], listed[_TRAINING_WORDS:]


TRAINING_WORDS, NEW_WORDS = _make_lexicon()
# Where each token's movement begins and ends.  [token, 2, FEATURES]
_MOVEMENTS = np.random.default_rng(2).normal(size=(len(TOKENS), 2, FEATURES))
_MOVEMENTS[-1] = 0.0  # silence


@dataclass(frozen=True)
class Utterance:
    """A sentence and how it was spoken."""

    text: str
    features: npt.NDArray[np.float32]  # [frames, FEATURES]
    labels: npt.NDArray[np.int64]  # [U]
    ends: npt.NDArray[np.float64]  # [U] seconds at which each label is over


@dataclass(frozen=True)
class Batch:
    """Utterances padded to the longest, as the model takes them."""

    features: torch.Tensor  # [B, frames, FEATURES]
    frames: torch.Tensor  # [B]
    targets: torch.Tensor  # [B, U]
    labels: torch.Tensor  # [B]


def make_utterance(seed: int, split: str, index: int) -> Utterance:
    """Speak sentence `index` of a split."""
    random = np.random.default_rng([seed, SPLITS.index(split), index])
    lexicon = NEW_WORDS if split == "new words" else TRAINING_WORDS
    text = " ".join(random.choice(lexicon, size=random.integers(1, 4)))
    labels = np.array([TOKENS.index(letter) for letter in text])

    kinds = ["vowel" if c in VOWELS else "pause" if c == " " else "consonant" for c in text]
    rate = random.lognormal(sigma=0.2)
    lengths = np.array([_MEAN_FRAMES[kind] for kind in kinds]) * random.lognormal(sigma=0.25, size=len(text))
    lengths = np.maximum(np.rint(lengths / rate), _FEWEST_FRAMES).astype(int)
    lead, tail = random.integers(3, 15, size=2)

    pieces = [np.zeros((lead, FEATURES))]
    for label, length in zip(labels, lengths, strict=True):
        way = np.linspace(0.0, 1.0, length)[:, None]
        pieces.append((1.0 - way) * _MOVEMENTS[label, 0] + way * _MOVEMENTS[label, 1])
    clean = np.concatenate([*pieces, np.zeros((tail, FEATURES))])
    # Neighbours run into each other: each frame is a mean over five.
    rounded = np.stack([np.convolve(column, np.full(5, 0.2), mode="same") for column in clean.T], axis=1)
    speaker = random.normal(scale=0.3, size=FEATURES)
    spoken = random.uniform(0.7, 1.4) * rounded + speaker + random.normal(scale=0.5, size=clean.shape)
    ends = FRAME_SECONDS * (lead + np.cumsum(lengths))
    return Utterance(text, spoken.astype(np.float32), labels, ends)


def make_batch(utterances: Sequence[Utterance]) -> Batch:
    """Pad utterances with zeros."""

    def pad(arrays: list[npt.NDArray[np.generic]]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(a) for a in arrays], batch_first=True)

    return Batch(
        features=pad([utterance.features for utterance in utterances]),
        frames=torch.tensor([len(utterance.features) for utterance in utterances]),
        targets=pad([utterance.labels for utterance in utterances]),
        labels=torch.tensor([len(utterance.labels) for utterance in utterances]),
    )


def training_batch(seed: int, step: int, size: int, utterances: int | None = None) -> Batch:
    """Return the batch of a step; with `utterances`, the same few come again and again."""
    numbers = list(range(step * size, (step + 1) * size))
    if utterances is not None:
        numbers = [number % utterances for number in numbers]
    return make_batch([make_utterance(seed, "train", number) for number in numbers])
