# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding: at each node take the arc of largest weight, whatever the variant.

A decoder stands at frame t with a list of labels. `arc_weights` gives the log-weight [V, D] of every arc that
leaves the node, symbol by duration, and `arc_frames` how many frames each of them moves on:

    rnnt         log p(symbol); a label stays at its frame, blank moves one frame
    multi_blank  the same, with blanks that move several frames
    monotonic    the same, and a label moves one frame too
    hat          log b for blank, log (1 - b) + log p(label) for labels, b = sigmoid(x_blank)
    tdt          log p(symbol) + log q(duration); a blank may not stay

These are the arcs of the loss (docs/variants.md), so decoding and training mean the same by a logit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid

from toy.data import TOKENS, Batch
from toy.model import BIG_BLANKS, DURATIONS, STEP_SECONDS, Scheme, Transducer

MOST_LABELS_PER_FRAME = 10  # an untrained model would write for ever


@dataclass(frozen=True)
class Token:
    """A label and the encoder frame that wrote it."""

    label: int
    frame: int

    @property
    def seconds(self) -> float:
        """When the frame was over."""
        return STEP_SECONDS * (self.frame + 1)


def arc_frames(scheme: Scheme) -> Tensor:
    """Return the frames that each arc moves on, ``[V, D]``."""
    V, blank, name = scheme.symbols, scheme.blank, scheme.variant.name
    if name == "tdt":
        return torch.tensor(DURATIONS).expand(V, -1)
    frames = (
        torch.ones(V, 1, dtype=torch.int64) if name == "monotonic" else torch.zeros(V, 1, dtype=torch.int64)
    )
    frames[blank] = 1
    if name == "multi_blank":
        for i, duration in enumerate(BIG_BLANKS):
            frames[blank - 1 - i] = duration
    return frames


def arc_weights(logits: Tensor, scheme: Scheme) -> Tensor:
    """Return the log-weight of each arc from a node, ``[V, D]``; `logits` are ``[K]``."""
    V, blank, name = scheme.symbols, scheme.blank, scheme.variant.name
    if name == "hat":
        labels = logsigmoid(-logits[blank]) + log_softmax(logits[:blank], dim=0)  # blank is the last column
        return torch.cat([labels, logsigmoid(logits[blank:])])[:, None]
    weights = log_softmax(logits[:V], dim=0)[:, None]
    if name == "tdt":
        weights = weights + log_softmax(logits[V:], dim=0)
        weights[blank] = weights[blank].masked_fill(torch.tensor(DURATIONS) == 0, -torch.inf)
    return weights


def greedy(frames: int, logits_at: Callable[[int, list[Token]], Tensor], scheme: Scheme) -> list[Token]:
    """Walk from node to node; `logits_at(t, written)` are the logits ``[K]`` of a node."""
    moves = arc_frames(scheme)
    written: list[Token] = []
    t = at_this_frame = 0
    while t < frames:
        best = int(arc_weights(logits_at(t, written), scheme).argmax())
        symbol, duration = divmod(best, moves.shape[1])
        step = int(moves[symbol, duration])
        if symbol < len(TOKENS):
            written.append(Token(symbol, t))
            at_this_frame += 1
            if at_this_frame == MOST_LABELS_PER_FRAME:
                step = max(step, 1)
        t += step
        at_this_frame = 0 if step else at_this_frame
    return written


@torch.no_grad()
def decode(model: Transducer, batch: Batch, scheme: Scheme) -> list[list[Token]]:
    """Decode each utterance of a batch."""
    encoder, lengths = model.encode(batch.features, batch.frames)
    decoded = []
    for row, length in zip(encoder, lengths.tolist(), strict=True):
        predictor, state = model.predict(model.start())
        seen = 0

        def logits_at(t: int, written: list[Token], row: Tensor = row) -> Tensor:
            nonlocal predictor, state, seen
            if len(written) > seen:  # the predictor moves on when a label was written
                predictor, state = model.predict(torch.tensor([[written[-1].label]]), state)
                seen = len(written)
            return model.join(row[t], predictor[0, 0])

        decoded.append(greedy(length, logits_at, scheme))
    return decoded


def spell(tokens: list[Token]) -> str:
    """Return the text."""
    return "".join(TOKENS[token.label] for token in tokens)
