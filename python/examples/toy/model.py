# SPDX-License-Identifier: Apache-2.0
"""A small transducer: encoder, predictor, and the output layer of the joint network.

    encoder     features [B, frames, F] -> E [B, T, H], T = ceil(frames / 4)
    predictor   targets [B, U] -> P [B, U + 1, H], from the labels before each position
    joint       z(t, u) = W tanh(E_t + P_u) + c, K columns

Training never computes z: `ft.joint_loss` takes E, P, W and c. Decoding computes one row of it at a time.
The encoder looks 6 frames ahead and no further, so it could run while somebody speaks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import flash_transducer as ft
import torch
from torch import Tensor, nn

from toy.data import FEATURES, FRAME_SECONDS, TOKENS, Batch

SUBSAMPLING = 4
STEP_SECONDS = SUBSAMPLING * FRAME_SECONDS  # of one encoder frame
BIG_BLANKS = (2, 4)
DURATIONS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Scheme:
    """A variant, and the columns that it needs."""

    variant: ft.Variant
    symbols: int  # V: tokens and blanks; the standard blank is the last of them
    durations: int = 0  # columns of the duration head, after the symbols

    @property
    def blank(self) -> int:
        """The column of the standard blank."""
        return self.symbols - 1


VARIANTS = ("rnnt", "tdt", "multi_blank", "monotonic", "hat")


def make_scheme(name: str, fastemit: float = 0.0) -> Scheme:
    """Return the scheme of a variant; `fastemit` (arXiv 2010.11148) makes it write early and surely."""
    symbols = len(TOKENS) + 1
    if name == "tdt":
        return Scheme(ft.tdt(DURATIONS, fastemit=fastemit), symbols, len(DURATIONS))
    if name == "multi_blank":
        return Scheme(ft.multi_blank(BIG_BLANKS, fastemit=fastemit), symbols + len(BIG_BLANKS))
    constructors = {"rnnt": ft.rnnt, "monotonic": ft.monotonic, "hat": ft.hat}
    return Scheme(constructors[name](fastemit=fastemit), symbols)


class Transducer(nn.Module):
    """Encoder, predictor and output layer for one scheme."""

    def __init__(self, scheme: Scheme, hidden: int = 64) -> None:
        super().__init__()
        self.blank = scheme.blank
        self.first = nn.Conv1d(FEATURES, hidden, kernel_size=5, stride=2, padding=2)
        self.second = nn.Conv1d(hidden, hidden, kernel_size=5, stride=2, padding=2)
        self.listener = nn.GRU(hidden, hidden, batch_first=True)
        self.to_encoder = nn.Linear(hidden, hidden)
        # The blank is no label, so its row is free to stand for "nothing was said yet".
        self.embedding = nn.Embedding(scheme.symbols, hidden)
        self.speller = nn.GRU(hidden, hidden, batch_first=True)
        self.to_predictor = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, scheme.symbols + scheme.durations)
        # Everything here is so small that a second thread would cost more than it gives.
        self.loss = ft.torch.JointTransducerLoss(
            scheme.variant, activation="tanh", reduction="mean_target", threads=1
        )

    def encode(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(E [B, T, H], lengths [B])``; what lies beyond a length has no influence on it."""
        hidden = features.transpose(1, 2)
        for layer in (self.first, self.second):
            hidden, frames = torch.relu(layer(hidden)), (frames + 1) // 2
            hidden = hidden * (torch.arange(hidden.shape[2]) < frames[:, None])[:, None]
        heard, _ = self.listener(hidden.transpose(1, 2))
        return self.to_encoder(heard), frames

    def predict(self, labels: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``(P [B, n, H], state)`` after each of the labels ``[B, n]``."""
        spelled, state = self.speller(self.embedding(labels), state)
        return self.to_predictor(spelled), state

    def start(self, batch_size: int = 1) -> Tensor:
        """Return the start symbols ``[B, 1]``."""
        return torch.full((batch_size, 1), self.blank)

    def join(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        """Return the logits of a node, or of nodes."""
        return self.output(torch.tanh(encoder + predictor))

    def forward(self, batch: Batch, skip_mass: float | None = None) -> Tensor:
        """Return the loss in nats per label."""
        encoder, lengths = self.encode(batch.features, batch.frames)
        predictor, _ = self.predict(torch.cat([self.start(len(lengths)), batch.targets], dim=1))
        layer = self.output
        inputs = encoder, predictor, layer.weight, layer.bias, batch.targets, lengths, batch.labels
        return self.loss(*inputs, skip_mass=skip_mass)


def learning_rate(step: int, highest: float = 4e-3, warm_up: int = 100) -> float:
    """Rise to `highest`, then fall with the square root of the step, however many steps there will be."""
    return highest * min((step + 1) / warm_up, math.sqrt(warm_up / (step + 1)))
