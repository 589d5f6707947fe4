# SPDX-License-Identifier: Apache-2.0
"""The functions of dense logits ``[B, T, U + 1, K]`` and of arc weights ``[B, T, U + 1, A]`` on tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flash_transducer import _api
from flash_transducer.inspection import Alignment, Lattice
from flash_transducer.torch import _taps
from flash_transducer.torch._call import Options, run_loss, run_scores
from flash_transducer.torch._gradients import run_value_and_grad
from flash_transducer.torch._sources import LATTICE_LOSS, LOSS, SCORES
from flash_transducer.variants import Variant

RNNT = _api.RNNT


def loss(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    """:func:`flash_transducer.loss` on tensors: differentiable in logits, arc, start and final scores.

    Parameters
    ----------
    inplace_grad
        The backward pass writes the gradient over the logits, which no other operation may need and which
        must not be a leaf; a second backward pass raises.

    Others as :func:`flash_transducer.loss`.

    Returns
    -------
    torch.Tensor
        float64 if the logits are, else float32, on the device of the logits.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> import torch
    >>> logits = torch.zeros(1, 4, 3, 5, requires_grad=True)
    >>> cost = ft.torch.loss(logits, torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2]))
    >>> cost.backward()
    >>> tuple(logits.grad.shape)
    (1, 4, 3, 5)
    """
    values = (
        logits, targets, logit_lengths, target_lengths, arc_scores, band, start_scores, final_scores
    )  # fmt: skip
    words = (
        from_log_probs, threads, reduction, zero_infinity, skip_mass, semiring, workspace_limit, validate
    )  # fmt: skip
    options = Options(words, (clamp,))
    return run_loss(LOSS, "ft.loss", values, variant, backend, options, inplace_grad=inplace_grad)


def value_and_grad(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    wrt: Any = "logits",
) -> tuple[Tensor, Any]:
    """:func:`flash_transducer.value_and_grad` on tensors; neither result has a graph."""
    values = (
        logits, targets, logit_lengths, target_lengths, arc_scores, band, start_scores, final_scores
    )  # fmt: skip
    words = (
        from_log_probs, threads, reduction, zero_infinity, skip_mass, semiring, workspace_limit, validate
    )  # fmt: skip
    options = Options(words, (clamp,))
    return run_value_and_grad(
        LOSS, "ft.value_and_grad", values, variant, backend, options, wrt, inplace_grad=inplace_grad
    )


def skipped_mass(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    skip_mass: float | None = None,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """:func:`flash_transducer.skipped_mass` on tensors: ``[B]`` float64, without a graph."""
    values = (
        logits, targets, logit_lengths, target_lengths, arc_scores, band, start_scores, final_scores
    )  # fmt: skip
    options = Options((from_log_probs, threads, "none", False, skip_mass, "log", None, None), (0.0,))
    return _taps.run_skipped_mass(LOSS, "ft.skipped_mass", values, variant, backend, options)


def scores(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    band: Any = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """:func:`flash_transducer.scores` on tensors: arc weights, differentiable in logits and arc scores."""
    values = (logits, targets, logit_lengths, target_lengths, arc_scores, band)
    return run_scores(SCORES, "ft.scores", values, variant, backend, Options((from_log_probs, threads)))


def lattice_loss(
    arc_weights: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    reduction: str = "mean",
    zero_infinity: bool = False,
    start_scores: Any = None,
    final_scores: Any = None,
    semiring: str = "log",
    backend: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """:func:`flash_transducer.lattice_loss` on tensors: differentiable in weights, start and final scores."""
    values = (arc_weights, logit_lengths, target_lengths, start_scores, final_scores)
    options = Options((False, threads, reduction, zero_infinity, None, semiring, None, None), (0.0,))
    return run_loss(LATTICE_LOSS, "ft.lattice_loss", values, variant, backend, options)


def lattice(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    """:func:`flash_transducer.lattice` on tensors: a ``Lattice`` of tensors without a graph."""
    values = (
        logits, targets, logit_lengths, target_lengths, arc_scores, band, start_scores, final_scores
    )  # fmt: skip
    options = Options(
        (from_log_probs, threads, "none", zero_infinity, None, semiring, workspace_limit, validate), (0.0,)
    )
    return _taps.run_lattice(LOSS, "ft.lattice", values, variant, backend, options)


def align(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    """:func:`flash_transducer.align` on tensors: each ``Alignment`` holds tensors on the host."""
    values = (
        logits, targets, logit_lengths, target_lengths, arc_scores, band, start_scores, final_scores
    )  # fmt: skip
    options = Options(
        (from_log_probs, threads, "none", False, None, "log", workspace_limit, validate), (0.0,)
    )
    return _taps.run_align(LOSS, "ft.align", values, variant, backend, options, ignored)
