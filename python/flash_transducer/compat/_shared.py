# SPDX-License-Identifier: Apache-2.0
"""What several peers have in common: variants, names of reductions, results of shape [1]."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

import flash_transducer as ft
from flash_transducer.torch import loss
from flash_transducer.variants import Variant

# A loss is called with the same few variants at every step, and making one takes up to 0.2 ms.
rnnt = lru_cache(maxsize=64)(ft.rnnt)
monotonic = lru_cache(maxsize=64)(ft.monotonic)
multi_blank = lru_cache(maxsize=64)(ft.multi_blank)
tdt = lru_cache(maxsize=64)(ft.tdt)

_REDUCTIONS = ("none", "mean", "sum")


def reduction_name(caller: str, reduction: Any) -> str:
    """The reduction if a peer knows it; None is "none"."""
    if reduction is None:
        return "none"
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{caller}: reduction is {reduction!r}, expected 'none', 'mean' or 'sum'")
    return str(reduction)


def positive_or_off(clamp: float) -> float:
    """The clamp of peers where any value that is not positive turns it off."""
    return float(clamp) if clamp > 0 else 0.0


def warp_loss(
    caller: str,
    acts: torch.Tensor,
    labels: torch.Tensor,
    act_lens: torch.Tensor,
    label_lens: torch.Tensor,
    variant: Variant,
    reduction: Any,
    clamp: float = 0.0,
) -> torch.Tensor:
    """Loss in the shapes of warp-transducer and its descendants: [B], or [1] where it is reduced.

    Their documentation says of "mean" that costs are divided by target lengths; their code divides the sum
    by the batch size, and so does this.
    """
    value = loss(
        acts, labels, act_lens, label_lens, variant,
        reduction=reduction_name(caller, reduction), clamp=clamp,
    )  # fmt: skip
    return value.reshape(-1)


def later(caller: str, what: str) -> NotImplementedError:
    """The error of a name that a peer has and this library does not have yet."""
    return NotImplementedError(f"{caller}: {what} is not part of this release")
