# SPDX-License-Identifier: Apache-2.0
"""The losses that ESPnet trains with: ``warprnnt_pytorch`` of b-flo's fork, and multi-blank.

ESPnet imports ``RNNTLoss`` from the fork b-flo/warp-transducer (branch espnet_v1.1) and calls it with
``blank`` and ``fastemit_lambda`` by name; the fork's own default is ``fastemit_lambda=0.001``, not 0.
FastEmit weights the gradient of label arcs by 1 + lambda (Yu et al. 2021, arXiv 2010.11148); the reported
cost is the plain one. "sum" and "mean" give shape [1]; "mean" divides by the batch size. ``RNNTLossNumba``
and ``MultiblankRNNTLossNumba`` are ESPnet's copies from NeMo (espnet2/asr/transducer/rnnt_multi_blank) and
have NeMo's conventions.

Unlike the peer: CPU and GPU have one formula, and the faults named in ``compat.warp_transducer`` are absent.
"""

from __future__ import annotations

import torch

from flash_transducer.compat._shared import rnnt, warp_loss
from flash_transducer.compat.nemo import MultiblankRNNTLossNumba, RNNTLossNumba

__all__ = ["MultiblankRNNTLossNumba", "RNNTLoss", "RNNTLossNumba", "rnnt_loss"]


def rnnt_loss(
    acts: torch.Tensor,
    labels: torch.Tensor,
    act_lens: torch.Tensor,
    label_lens: torch.Tensor,
    blank: int = 0,
    reduction: str = "mean",
    fastemit_lambda: float = 0.001,
) -> torch.Tensor:
    """Transducer loss of logits ``[B, T, U + 1, V]``: ``[1]``, or ``[B]`` with reduction "none"."""
    variant = rnnt(blank, fastemit=fastemit_lambda)
    return warp_loss("espnet.rnnt_loss", acts, labels, act_lens, label_lens, variant, reduction)


class RNNTLoss(torch.nn.Module):
    """:func:`rnnt_loss` as a module. The order of its arguments is the fork's, not that of the function."""

    def __init__(self, blank: int = 0, fastemit_lambda: float = 0.001, reduction: str = "mean") -> None:
        super().__init__()
        self.blank = blank
        self.fastemit_lambda = fastemit_lambda
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"blank={self.blank}, fastemit_lambda={self.fastemit_lambda}, reduction={self.reduction!r}"

    def forward(
        self,
        acts: torch.Tensor,
        labels: torch.Tensor,
        act_lens: torch.Tensor,
        label_lens: torch.Tensor,
    ) -> torch.Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction, self.fastemit_lambda)
