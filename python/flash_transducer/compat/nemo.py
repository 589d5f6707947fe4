# SPDX-License-Identifier: Apache-2.0
"""NeMo's ``RNNTLossNumba``, ``MultiblankRNNTLossNumba``, ``TDTLossNumba`` and ``FlashRNNTLoss``.

Signatures from NVIDIA-NeMo/Speech, nemo/collections/asr/parts/numba/rnnt_loss/rnnt_pytorch.py (00a8a76) and
losses/flash_rnnt.py (583c3d1). With FastEmit the reported cost is (1 + lambda) times the plain one, while
the gradient is FastEmit's own (Yu et al. 2021, arXiv 2010.11148), as in NeMo. The clamp acts on the gradient
of each utterance before reduction and incoming gradient multiply it, as in NeMo's CUDA code; durations are
not clamped. Big blank i stands at column ``blank - 1 - i``; duration logits follow the vocabulary. "sum" and
"mean" give shape [1]; "mean" divides by the batch size.

Unlike NeMo: everything runs on the CPU too, with the CUDA order of clamping (NeMo's CPU code clamps after
the incoming gradient); durations need not contain 1 (NeMo's TDT gradient is wrong without it); an utterance
without a path costs +inf with gradient 0 instead of about 10000; a label equal to the blank is right; U may
pass 1023.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from flash_transducer.compat._nemo_joint import joint_inputs
from flash_transducer.compat._shared import (
    multi_blank,
    positive_or_off,
    reduction_name,
    rnnt,
    tdt,
    warp_loss,
)
from flash_transducer.torch import joint_loss
from flash_transducer.variants import Variant

__all__ = ["FlashRNNTLoss", "MultiblankRNNTLossNumba", "RNNTLossNumba", "TDTLossNumba", "rnnt_loss"]


def _with_fastemit(value: torch.Tensor, fastemit_lambda: float) -> torch.Tensor:
    """The cost that NeMo reports; the gradient stays that of `value`."""
    return value + fastemit_lambda * value.detach() if fastemit_lambda else value


def rnnt_loss(
    acts: torch.Tensor,
    labels: torch.Tensor,
    act_lens: torch.Tensor,
    label_lens: torch.Tensor,
    blank: int = 0,
    reduction: str | None = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
) -> torch.Tensor:
    """Transducer loss of logits ``[B, T, U + 1, V]``: ``[1]``, or ``[B]`` with reduction "none" or None."""
    variant = rnnt(blank, fastemit=fastemit_lambda)
    value = warp_loss("nemo.rnnt_loss", acts, labels, act_lens, label_lens, variant, reduction, clamp)
    return _with_fastemit(value, fastemit_lambda)


class _NumbaLoss(torch.nn.Module):
    """What the three losses share: `_variant` says which transducer, and over how many of the columns."""

    def __init__(self, blank: int, reduction: str | None, fastemit_lambda: float, clamp: float) -> None:
        super().__init__()
        self.blank = blank
        self.fastemit_lambda = fastemit_lambda
        self.clamp = positive_or_off(clamp)
        self.reduction = reduction

    def _variant(self) -> tuple[Variant, int]:
        """The variant, and how many columns at the end it does not read."""
        raise NotImplementedError

    def _heads(self) -> int:
        return 0

    def warmup(self, device: str | torch.device) -> bool:
        """False: nothing is compiled at run time, so there is nothing to warm up."""
        return False

    def forward(
        self,
        acts: torch.Tensor,
        labels: torch.Tensor,
        act_lens: torch.Tensor,
        label_lens: torch.Tensor,
    ) -> torch.Tensor:
        caller = f"nemo.{type(self).__name__}"
        variant, unread = self._variant()
        if unread:
            acts = acts[..., :-unread]
        value = warp_loss(caller, acts, labels, act_lens, label_lens, variant, self.reduction, self.clamp)
        return _with_fastemit(value, self.fastemit_lambda)

    def forward_from_joint(
        self,
        joint: Any,
        encoder: torch.Tensor,
        predictor: torch.Tensor,
        labels: torch.Tensor,
        act_lens: torch.Tensor,
        label_lens: torch.Tensor,
    ) -> torch.Tensor:
        """The same loss from ``encoder [B, T, D]`` and ``predictor [B, U + 1, D]`` outputs.

        ``joint`` is NeMo's RNNTJoint, or anything with its ``project_encoder``, ``project_prednet``,
        ``joint_net``, ``activation``, ``dropout`` and ``training``. The joint tensor never exists.
        """
        caller = f"nemo.{type(self).__name__}"
        variant, unread = self._variant()
        inputs, options = joint_inputs(
            caller, joint, encoder, predictor, columns=self.blank + 1 + self._heads(), unread=unread
        )
        value = joint_loss(
            *inputs, labels, act_lens, label_lens, variant, clamp=self.clamp,
            reduction=reduction_name(caller, self.reduction), **options,
        )  # fmt: skip
        return _with_fastemit(value.reshape(-1), self.fastemit_lambda)

    def extra_repr(self) -> str:
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        del shown["training"]
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


class RNNTLossNumba(_NumbaLoss):
    """Transducer loss of logits ``[B, T, U + 1, V]``: ``[1]``, or ``[B]`` with reduction "none" or None."""

    def __init__(
        self,
        blank: int = 0,
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1,
    ) -> None:
        super().__init__(blank, reduction, fastemit_lambda, clamp)

    def _variant(self) -> tuple[Variant, int]:
        return rnnt(self.blank, fastemit=self.fastemit_lambda), 0


class MultiblankRNNTLossNumba(_NumbaLoss):
    """Multi-blank transducer (Xu et al. 2022, arXiv 2211.03541); shapes as :class:`RNNTLossNumba`."""

    def __init__(
        self,
        blank: int,
        big_blank_durations: Sequence[int],
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1,
        sigma: float = 0.0,
    ) -> None:
        super().__init__(blank, reduction, fastemit_lambda, clamp)
        self.big_blank_durations = big_blank_durations
        self.sigma = sigma

    def _variant(self) -> tuple[Variant, int]:
        durations = tuple(self.big_blank_durations)
        return multi_blank(durations, self.blank, fastemit=self.fastemit_lambda, sigma=self.sigma), 0


class TDTLossNumba(_NumbaLoss):
    """Token-and-duration transducer (Xu et al. 2023, arXiv 2304.06795); shapes as :class:`RNNTLossNumba`.

    ``acts`` holds the vocabulary, then one column per duration. With probability ``omega`` a call takes the
    regular transducer on the vocabulary instead, for the whole batch, without sigma and without durations:
    one number is drawn from Python's ``random`` at each call, as NeMo does.
    """

    def __init__(
        self,
        blank: int,
        durations: Sequence[int] | None = None,
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1,
        sigma: float = 0.0,
        omega: float = 0.0,
    ) -> None:
        super().__init__(blank, reduction, fastemit_lambda, clamp)
        self.durations = durations if durations is not None else []
        self.sigma = sigma
        self.omega = omega

    def _heads(self) -> int:
        return len(self.durations)

    def _variant(self) -> tuple[Variant, int]:
        if random.uniform(0, 1) < self.omega:
            return rnnt(self.blank, fastemit=self.fastemit_lambda), len(self.durations)
        durations = tuple(self.durations)
        return tdt(durations, self.blank, fastemit=self.fastemit_lambda, sigma=self.sigma), 0


class FlashRNNTLoss(RNNTLossNumba):
    """Costs ``[B]`` from encoder and predictor outputs; the joint tensor never exists.

    ``max_joint_rows`` bounds NeMo's memory; here the library bounds its own scratch, and the value is only
    checked. Takes any ``blank``, and tensors on the host too.
    """

    def __init__(
        self,
        blank: int,
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        max_joint_rows: int = 200_000,
    ) -> None:
        if fastemit_lambda < 0.0:
            raise ValueError(f"nemo.FlashRNNTLoss: fastemit_lambda is {fastemit_lambda}, expected 0 or more")
        if max_joint_rows < 1:
            raise ValueError(f"nemo.FlashRNNTLoss: max_joint_rows is {max_joint_rows}, expected 1 or more")
        super().__init__(blank, "none", fastemit_lambda, clamp)
        self.max_joint_rows = max_joint_rows

    def forward(  # type: ignore[override]  # the peer's own class takes the joint first
        self,
        joint: Any,
        encoder: torch.Tensor,
        predictor: torch.Tensor,
        targets: torch.Tensor,
        source_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
    ) -> torch.Tensor:
        return self.forward_from_joint(joint, encoder, predictor, targets, source_lengths, target_lengths)
