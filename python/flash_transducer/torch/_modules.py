# SPDX-License-Identifier: Apache-2.0
"""Losses as modules, for code that keeps its criterion as one. They hold options, never tensors."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from flash_transducer._call import OPTIONAL, checked_option
from flash_transducer.torch import _dense, _joint
from flash_transducer.torch._call import check_flag
from flash_transducer.variants import Variant


class _Loss(torch.nn.Module):
    """A function and its options, checked when the module is made."""

    function: Any
    # Arguments of one call, given to forward().
    per_call = (
        "arc_scores",
        "start_scores",
        "final_scores",
        "band",
        "utterance_ids",
        "predictor_mask",
        "seed",
    )

    def __init__(self, variant: Variant | None = None, **options: Any) -> None:
        super().__init__()
        parameters = inspect.signature(type(self).function).parameters
        known = [
            name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name not in self.per_call
        ]
        for name, value in options.items():
            if name not in known:
                raise TypeError(
                    f"{type(self).__name__}: unexpected option {name!r}, expected one of {', '.join(known)}"
                    + ("; it belongs to the call" if name in self.per_call else "")
                )
            if name == "inplace_grad":
                check_flag(type(self).__name__, name, value)
            elif value is not None or name not in (*OPTIONAL, "backend"):
                checked_option(type(self).__name__, name, value)
        self.variant = parameters["variant"].default if variant is None else variant
        if not isinstance(self.variant, Variant):
            raise TypeError(
                f"{type(self).__name__}: variant is a {type(variant).__name__}, "
                "expected an ft.Variant such as ft.rnnt()"
            )
        self.options = options

    def forward(self, *inputs: Any, **more: Any) -> torch.Tensor:
        """Cost of a batch; positional inputs as the function's before `variant`, the rest by name."""
        cost: torch.Tensor = self.function(*inputs, variant=self.variant, **{**self.options, **more})
        return cost

    def extra_repr(self) -> str:
        """Variant and the options that were given."""
        return ", ".join([repr(self.variant), *(f"{name}={value!r}" for name, value in self.options.items())])


class TransducerLoss(_Loss):
    """:func:`loss` as a module: ``TransducerLoss(variant, **options)(logits, targets, lengths, lengths)``.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> ft.torch.TransducerLoss(ft.tdt([0, 1, 2]), reduction="sum", clamp=1.0)
    TransducerLoss(ft.tdt([0, 1, 2]), reduction='sum', clamp=1.0)
    """

    function = staticmethod(_dense.loss)


class JointTransducerLoss(_Loss):
    """:func:`joint_loss` as a module; the output layer stays the caller's and is passed to each call.

    In training mode ``dropout`` applies and a call needs ``seed``; after ``eval()`` nothing is dropped.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> ft.torch.JointTransducerLoss(activation="tanh")
    JointTransducerLoss(ft.rnnt(), activation='tanh')
    """

    function = staticmethod(_joint.joint_loss)

    def forward(self, *inputs: Any, **more: Any) -> torch.Tensor:
        """Cost of a batch from (encoder, predictor, weight, bias, targets, lengths, lengths)."""
        if not self.training and "dropout" in self.options:
            more = {**more, "dropout": 0.0}
        return super().forward(*inputs, **more)
