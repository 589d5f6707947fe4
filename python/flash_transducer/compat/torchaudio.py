# SPDX-License-Identifier: Apache-2.0
"""``torchaudio.functional.rnnt_loss`` and ``torchaudio.transforms.RNNTLoss``.

Signatures from torchaudio 2.11.1 (pytorch/audio, src/torchaudio/functional/functional.py and
src/torchaudio/transforms/_transforms.py), which has called both deprecated since 2.8. Blank -1 is the last
column; any clamp that is not positive turns clamping off; a clamp acts on the gradient before the incoming
one multiplies it, and with ``fused_log_softmax=False`` on the gradient of the log-probabilities.

Unlike the peer: targets and lengths need not be int32 nor contiguous, lengths need not reach their
dimension, half precision gives float32 costs, and a label equal to the blank is right.
"""

from __future__ import annotations

import torch

from flash_transducer.compat._shared import positive_or_off, reduction_name, rnnt
from flash_transducer.torch import loss

__all__ = ["RNNTLoss", "rnnt_loss"]


def rnnt_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
) -> torch.Tensor:
    """Transducer loss of logits ``[B, T, U + 1, V]``: scalar, or ``[B]`` with reduction "none".

    With ``fused_log_softmax=False`` the first argument holds log-probabilities.
    """
    return loss(
        logits, targets, logit_lengths, target_lengths, rnnt(blank),
        reduction=reduction_name("torchaudio.rnnt_loss", reduction), clamp=positive_or_off(clamp),
        from_log_probs=not fused_log_softmax,
    )  # fmt: skip


class RNNTLoss(torch.nn.Module):
    """:func:`rnnt_loss` as a module."""

    def __init__(
        self,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: str = "mean",
        fused_log_softmax: bool = True,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.clamp = clamp
        self.reduction = reduction
        self.fused_log_softmax = fused_log_softmax

    def extra_repr(self) -> str:
        return (
            f"blank={self.blank}, clamp={self.clamp}, reduction={self.reduction!r}, "
            f"fused_log_softmax={self.fused_log_softmax}"
        )

    def forward(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        logit_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
    ) -> torch.Tensor:
        return rnnt_loss(
            logits, targets, logit_lengths, target_lengths,
            self.blank, self.clamp, self.reduction, self.fused_log_softmax,
        )  # fmt: skip
