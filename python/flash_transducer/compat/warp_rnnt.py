# SPDX-License-Identifier: Apache-2.0
"""``warp_rnnt.rnnt_loss``: log-probabilities in, a cost per utterance out.

Signature from 1ytic/warp-rnnt, pytorch_binding/warp_rnnt/__init__.py (66dfe05). The gradient is that of the
log-probabilities, minus the arc posteriors; FastEmit multiplies those of label arcs by 1 + lambda and leaves
the cost as it is. The default reduction is none.

Unlike the peer: a gradient is never set to 0 because two sums disagree (the peer compares its forward and
backward sums at 0.1 %), tensors on the host are taken too, and the number of frames and labels is not
limited.
"""

from __future__ import annotations

import torch

from flash_transducer.compat._shared import reduction_name, rnnt
from flash_transducer.torch import loss

__all__ = ["rnnt_loss"]

_CALLER = "warp_rnnt.rnnt_loss"


def rnnt_loss(
    log_probs: torch.Tensor,
    labels: torch.Tensor,
    frames_lengths: torch.Tensor,
    labels_lengths: torch.Tensor,
    average_frames: bool = False,
    reduction: str | None = "none",
    blank: int = 0,
    gather: bool = False,
    fastemit_lambda: float = 0.0,
    compact: bool = False,
) -> torch.Tensor:
    """Transducer loss of log-probabilities ``[N, T, U, V]`` with labels ``[N, U - 1]``.

    ``average_frames`` divides each cost by its number of frames before the reduction. ``gather`` saves memory
    in the peer; here nothing of the vocabulary's width is kept either way, so it changes nothing. With
    ``compact`` the rows of all utterances follow each other without padding: log_probs ``[sum T U, V]``,
    labels ``[sum (U - 1)]``. They are padded for the call, which costs the padded memory and, for lengths on
    a device, a wait for it.
    """
    reduction = reduction_name(_CALLER, reduction)
    if not isinstance(gather, bool):
        raise TypeError(f"{_CALLER}: gather is {gather!r}, expected True or False")
    if compact:
        log_probs, labels = _padded(log_probs, labels, frames_lengths, labels_lengths)
    costs = loss(
        log_probs, labels, frames_lengths, labels_lengths, rnnt(blank, fastemit=fastemit_lambda),
        reduction="none" if average_frames else reduction, from_log_probs=True,
    )  # fmt: skip
    if not average_frames:
        return costs
    costs = costs / frames_lengths.to(costs)
    return costs if reduction == "none" else costs.sum() if reduction == "sum" else costs.mean()


def _padded(
    log_probs: torch.Tensor, labels: torch.Tensor, frames: torch.Tensor, label_counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[N, T, U, V]`` and ``[N, U - 1]`` of rows that stand one after the other."""
    frames, label_counts = frames.to(log_probs.device).long(), label_counts.to(log_probs.device).long()
    columns = label_counts + 1
    rows, symbols = int((frames * columns).sum()), int(label_counts.sum())
    if log_probs.dim() != 2 or log_probs.shape[0] != rows:
        raise ValueError(
            f"{_CALLER}: log_probs has shape {list(log_probs.shape)}, expected [{rows}, V] because compact "
            "is True and the sum of frames_lengths * (labels_lengths + 1) is its number of rows"
        )
    if labels.dim() != 1 or labels.shape[0] != symbols:
        raise ValueError(
            f"{_CALLER}: labels has shape {list(labels.shape)}, expected [{symbols}] because compact is True "
            "and labels_lengths sum to that"
        )
    t = torch.arange(max(frames.tolist(), default=0), device=log_probs.device)
    u = torch.arange(max(columns.tolist(), default=1), device=log_probs.device)
    sizes = frames * columns
    first = (sizes.cumsum(0) - sizes)[:, None, None]
    row = first + t[:, None] * columns[:, None, None] + u
    symbol = (label_counts.cumsum(0) - label_counts)[:, None] + u[:-1]
    # What lies past an utterance's end is never read: any row will do there.
    padded = log_probs[row.clamp(max=max(rows - 1, 0))]
    if symbols == 0:
        return padded, labels.new_zeros(symbol.shape)
    return padded, labels[symbol.clamp(max=symbols - 1).to(labels.device)]
