# SPDX-License-Identifier: Apache-2.0
"""The losses of the training example by a plain float64 lattice on whole logits, and autograd.

Written from the papers' equations and without the library: alpha(t, u) is the log-sum over the arcs that end
there, one diagonal t + u = d after the other. With the memory that the library avoids.
"""

import torch
from torch.nn.functional import log_softmax, logsigmoid
from toy.model import BIG_BLANKS, DURATIONS

NEVER = -1e30  # finite, so that gradients of impossible paths are 0 and not NaN


def arcs_of(logits, targets, scheme):
    """List ``(dt, du, weight [B, T, U + 1], may_finish)`` of every arc."""
    V, blank, name = scheme.symbols, scheme.blank, scheme.variant.name
    B, T, rows, _ = logits.shape
    # At u = U there is no next label; the last column of any row will do, because the arc is not followed.
    following = torch.cat([targets, targets[:, -1:]], dim=1)[:, None, :, None].expand(B, T, rows, 1)

    if name == "hat":
        labels = log_softmax(logits[..., :blank], dim=-1).gather(3, following)[..., 0]
        stop = logits[..., blank]
        return [(1, 0, logsigmoid(stop), True), (0, 1, logsigmoid(-stop) + labels, False)]

    symbols = log_softmax(logits[..., :V], dim=-1)
    label = symbols.gather(3, following)[..., 0]
    if name == "rnnt":
        return [(1, 0, symbols[..., blank], True), (0, 1, label, False)]
    if name == "monotonic":
        return [(1, 0, symbols[..., blank], True), (1, 1, label, True)]
    if name == "multi_blank":
        big = [(duration, 0, symbols[..., blank - 1 - i], True) for i, duration in enumerate(BIG_BLANKS)]
        return [(1, 0, symbols[..., blank], True), (0, 1, label, False), *big]
    assert name == "tdt"
    lengths = log_softmax(logits[..., V:], dim=-1)
    blanks = [(d, 0, symbols[..., blank] + lengths[..., i], True) for i, d in enumerate(DURATIONS) if d > 0]
    return blanks + [(d, 1, label + lengths[..., i], False) for i, d in enumerate(DURATIONS)]


def costs(logits, targets, frames, labels, scheme):
    """Return the negative log-probabilities ``[B]``."""
    B, T, rows, _ = logits.shape
    t, u = torch.arange(T)[:, None], torch.arange(rows)
    end = frames[:, None, None]
    arcs = []
    for dt, du, weight, may_finish in arcs_of(logits, targets, scheme):
        exists = (t < end) & ((t + dt < end) | ((t + dt == end) & may_finish)) & (u + du < rows)
        # By diagonals: [B, d, t] holds node (t, d - t); nodes that do not exist stay at NEVER.
        skewed = torch.full((B, T + rows, T + 1), NEVER, dtype=logits.dtype)
        skewed[:, t + u, t.expand(T, rows)] = weight.masked_fill(~exists, NEVER)
        arcs.append((dt, du, skewed))

    first = torch.full((B, T + 1), NEVER, dtype=logits.dtype)
    first[:, 0] = 0.0
    alpha = [first]  # [B, t] of each diagonal
    for d in range(1, T + rows):
        incoming = [
            torch.nn.functional.pad(
                (alpha[d - dt - du] + weight[:, d - dt - du])[:, : T + 1 - dt], (dt, 0), value=NEVER
            )
            for dt, du, weight in arcs
            if dt + du <= d
        ]
        alpha.append(torch.stack(incoming).logsumexp(dim=0))
    whole = torch.stack(alpha, dim=1)
    return -whole[torch.arange(B), frames + labels, frames]


def loss(model, batch, scheme):
    """Return what ``Transducer.forward`` returns, in nats per label."""
    encoder, lengths = model.encode(batch.features, batch.frames)
    predictor, _ = model.predict(torch.cat([model.start(len(lengths)), batch.targets], dim=1))
    inputs = encoder, predictor, model.output.weight, model.output.bias
    if torch.is_autocast_enabled("cpu"):  # the four inputs are rounded, and nothing else
        inputs = [tensor.to(torch.bfloat16) for tensor in inputs]
    with torch.autocast("cpu", enabled=False):
        encoder, predictor, weight, bias = (tensor.double() for tensor in inputs)
        logits = torch.tanh(encoder[:, :, None] + predictor[:, None]) @ weight.T + bias
        return costs(logits, batch.targets, lengths, batch.labels, scheme).sum() / batch.labels.sum()
