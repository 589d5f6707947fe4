# SPDX-License-Identifier: Apache-2.0
"""``warprnnt_pytorch`` of warp-transducer: ``rnnt_loss`` and ``RNNTLoss``.

Signatures from HawkAaron/warp-transducer, pytorch_binding/warprnnt_pytorch/__init__.py (f546575). Takes
logits on every device (the peer's C++ takes log-probabilities on the CPU and logits on the GPU; its Python
takes logits on both). "sum" and "mean" give shape [1]; "mean" divides by the batch size.

Unlike the peer: a label equal to the blank has the right gradient (the peer's CPU code overwrites one of its
two parts), an utterance without a path has gradient 0 instead of NaN, a type that is not supported raises
instead of costing 0, and labels may be int64.
"""

from __future__ import annotations

import torch

from flash_transducer.compat._shared import rnnt, warp_loss

__all__ = ["RNNTLoss", "rnnt_loss"]


def rnnt_loss(
    acts: torch.Tensor,
    labels: torch.Tensor,
    act_lens: torch.Tensor,
    label_lens: torch.Tensor,
    blank: int = 0,
    reduction: str = "mean",
) -> torch.Tensor:
    """Transducer loss of logits ``[B, T, U + 1, V]``: ``[1]``, or ``[B]`` with reduction "none"."""
    caller = "warp_transducer.rnnt_loss"
    return warp_loss(caller, acts, labels, act_lens, label_lens, rnnt(blank), reduction)


class RNNTLoss(torch.nn.Module):
    """:func:`rnnt_loss` as a module."""

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"blank={self.blank}, reduction={self.reduction!r}"

    def forward(
        self,
        acts: torch.Tensor,
        labels: torch.Tensor,
        act_lens: torch.Tensor,
        label_lens: torch.Tensor,
    ) -> torch.Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction)
