# SPDX-License-Identifier: Apache-2.0
"""The same functions on tensors from the inputs of the joint network, ``W drop(act(E_t + P_u)) + c``.

Under autocast, encoder, predictor, weight and bias in float32 are rounded to autocast's type, as the inputs
of ``torch.nn.functional.linear`` are; gradients come back in float32. Sums and costs stay float32 or
float64.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flash_transducer._api import RNNT
from flash_transducer._joint import seeded
from flash_transducer.inspection import Alignment, Lattice
from flash_transducer.torch import _taps
from flash_transducer.torch._call import Options, autocast_joint, run_loss, run_scores
from flash_transducer.torch._gradients import run_value_and_grad
from flash_transducer.torch._sources import JOINT_LOSS, JOINT_SCORES
from flash_transducer.variants import Variant


def joint_loss(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    reduction: str = "mean",
    clamp: float = 0.0,
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    inplace_grad: bool = False,
    skip_mass: float | None = None,
    band: Any = None,
    semiring: str = "log",
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """:func:`flash_transducer.joint_loss` on tensors: differentiable in the four inputs and all scores.

    The logits ``[B, T, U + 1, K]`` exist in neither pass. Arguments as :func:`flash_transducer.joint_loss`;
    ``inplace_grad`` has no logits to write over and does nothing.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> import torch
    >>> layer = torch.nn.Linear(8, 5)
    >>> encoder, predictor = torch.zeros(1, 4, 8), torch.zeros(1, 3, 8)
    >>> batch = torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
    >>> cost = ft.torch.joint_loss(encoder, predictor, layer.weight, layer.bias, *batch)
    >>> cost.backward()
    >>> tuple(layer.weight.grad.shape)
    (5, 8)
    """
    del inplace_grad
    values = (
        *autocast_joint((encoder, predictor, weight, bias)), targets, encoder_lengths, target_lengths,
        arc_scores, band, start_scores, final_scores, predictor_mask, utterance_ids,
    )  # fmt: skip
    words = (
        from_log_probs, threads, reduction, zero_infinity, skip_mass, semiring, workspace_limit, validate,
        activation, precision,
    )  # fmt: skip
    options = Options(words, (clamp, dropout, seeded("ft.joint_loss", dropout, seed)))
    return run_loss(JOINT_LOSS, "ft.joint_loss", values, variant, backend, options)


def joint_value_and_grad(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    reduction: str = "mean",
    clamp: float = 0.0,
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    inplace_grad: bool = False,
    skip_mass: float | None = None,
    band: Any = None,
    semiring: str = "log",
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
    wrt: Any = "joint",
) -> tuple[Tensor, Any]:
    """:func:`flash_transducer.joint_value_and_grad` on tensors; no result has a graph."""
    del inplace_grad
    values = (
        encoder, predictor, weight, bias, targets, encoder_lengths, target_lengths,
        arc_scores, band, start_scores, final_scores, predictor_mask, utterance_ids,
    )  # fmt: skip
    words = (
        from_log_probs, threads, reduction, zero_infinity, skip_mass, semiring, workspace_limit, validate,
        activation, precision,
    )  # fmt: skip
    options = Options(words, (clamp, dropout, seeded("ft.joint_value_and_grad", dropout, seed)))
    return run_value_and_grad(JOINT_LOSS, "ft.joint_value_and_grad", values, variant, backend, options, wrt)


def joint_scores(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    from_log_probs: bool = False,
    arc_scores: Any = None,
    band: Any = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """:func:`flash_transducer.joint_scores` on tensors, with autograd; see :func:`scores`."""
    values = (
        *autocast_joint((encoder, predictor, weight, bias)), targets, encoder_lengths, target_lengths,
        arc_scores, band, predictor_mask, utterance_ids,
    )  # fmt: skip
    words = (from_log_probs, threads, activation, precision)
    options = Options(words, (dropout, seeded("ft.joint_scores", dropout, seed)))
    return run_scores(JOINT_SCORES, "ft.joint_scores", values, variant, backend, options)


def joint_lattice(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
    semiring: str = "log",
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Lattice:
    """:func:`flash_transducer.joint_lattice` on tensors: a ``Lattice`` of tensors without a graph."""
    values = (
        *autocast_joint((encoder, predictor, weight, bias)), targets, encoder_lengths, target_lengths,
        arc_scores, band, start_scores, final_scores, predictor_mask, utterance_ids,
    )  # fmt: skip
    words = (
        from_log_probs, threads, "none", zero_infinity, None, semiring, workspace_limit, validate,
        activation, precision,
    )  # fmt: skip
    options = Options(words, (0.0, dropout, seeded("ft.joint_lattice", dropout, seed)))
    return _taps.run_lattice(JOINT_LOSS, "ft.joint_lattice", values, variant, backend, options)


def joint_align(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
    **ignored: Any,
) -> list[Alignment]:
    """:func:`flash_transducer.joint_align` on tensors: each ``Alignment`` holds tensors on the host."""
    values = (
        *autocast_joint((encoder, predictor, weight, bias)), targets, encoder_lengths, target_lengths,
        arc_scores, band, start_scores, final_scores, predictor_mask, utterance_ids,
    )  # fmt: skip
    words = (
        from_log_probs, threads, "none", False, None, "log", workspace_limit, validate,
        activation, precision,
    )  # fmt: skip
    options = Options(words, (0.0, dropout, seeded("ft.joint_align", dropout, seed)))
    return _taps.run_align(JOINT_LOSS, "ft.joint_align", values, variant, backend, options, ignored)
