# SPDX-License-Identifier: Apache-2.0
"""k2's ``rnnt_loss`` and ``rnnt_loss_simple``.

Signatures from k2-fsa/k2, k2/python/k2/rnnt_loss.py (a741ae88). Reductions give a scalar; the default is
"mean" over the batch. ``boundary`` is ``[B, 4]`` int64 of begin symbol, begin frame, end symbol, end frame:
arcs outside that box do not exist. ``delay_penalty`` adds ``delay_penalty * ((end frame - 1) / 2 - t)`` to
every label arc (Kang et al. 2022, arXiv 2211.00490), and with that to the cost. "regular" ends with a blank;
"modified" takes one arc per frame, and a label may be the last one.

Unlike the peer: an utterance without a path has gradient 0 (the peer's are not 0), and the sums of the
simple loss are exact where am and lm peak at symbols far apart, where the peer's product of exponentials
underflows. What waits for a later release raises NotImplementedError: rnnt_type "constrained", and the
smoothed and pruned losses with their helpers.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from flash_transducer.compat._box import Box
from flash_transducer.compat._shared import later, monotonic, reduction_name, rnnt
from flash_transducer.torch import loss, scores
from flash_transducer.variants import Variant

__all__ = [
    "do_rnnt_pruning",
    "get_rnnt_prune_ranges",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
]


def rnnt_loss(
    logits: torch.Tensor,
    symbols: torch.Tensor,
    termination_symbol: int,
    boundary: torch.Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str | None = "mean",
) -> torch.Tensor:
    """Transducer loss of logits ``[B, T, S + 1, C]`` and symbols ``[B, S]``."""
    caller = "rnnt_loss"
    variant = _variant(caller, termination_symbol, rnnt_type, delay_penalty)
    reduction = reduction_name(caller, reduction)
    if logits.dim() != 4:
        raise ValueError(f"{caller}: logits has shape {list(logits.shape)}, expected [B, T, S + 1, C]")
    box = Box(caller, boundary, logits.shape[0], logits.shape[1], logits.shape[2] - 1, logits.device)
    if box.starts_at_zero:
        return loss(logits, symbols, box.end_frame, box.end_symbol, variant, reduction=reduction)
    weights = scores(logits, symbols, box.end_frame, box.end_symbol, variant)
    return box.loss(weights, variant, reduction)


def rnnt_loss_simple(
    lm: torch.Tensor,
    am: torch.Tensor,
    symbols: torch.Tensor,
    termination_symbol: int,
    boundary: torch.Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str | None = "mean",
    return_grad: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Transducer loss of the logits ``am[b, t] + lm[b, s]``, which never exist as one tensor.

    ``lm [B, S + 1, C]``, ``am [B, T, C]``. With ``return_grad`` also the arc posteriors of labels,
    ``[B, S, T + 1]`` ("modified": ``[B, S, T]``), and of blanks, ``[B, S + 1, T]``.
    """
    caller = "rnnt_loss_simple"
    variant = _variant(caller, termination_symbol, rnnt_type, delay_penalty)
    reduction = reduction_name(caller, reduction)
    B, T, S = _simple_sizes(caller, lm, am, symbols)
    box = Box(caller, boundary, B, T, S, am.device)
    weights = box.additive_weights(caller, am, lm, symbols, termination_symbol, delay_penalty)
    value = box.loss(weights, variant, reduction)
    if not return_grad:
        return value
    posterior = box.posterior(weights, variant)  # [B, T, S + 1, 2]
    labels = posterior[:, :, :S, 1].transpose(1, 2)
    if rnnt_type == "regular":
        labels = torch.nn.functional.pad(labels, (0, 1))
    return value, (labels, posterior[..., 0].transpose(1, 2))


def rnnt_loss_smoothed(*arguments: Any, **keywords: Any) -> NoReturn:
    """Waits for a later release: its normaliser reads the whole batch."""
    raise later("rnnt_loss_smoothed", "the smoothed loss")


def rnnt_loss_pruned(*arguments: Any, **keywords: Any) -> NoReturn:
    """Waits for a later release."""
    raise later("rnnt_loss_pruned", "the pruned loss")


def get_rnnt_prune_ranges(*arguments: Any, **keywords: Any) -> NoReturn:
    """Waits for a later release, with :func:`rnnt_loss_pruned`."""
    raise later("get_rnnt_prune_ranges", "the pruned loss")


def do_rnnt_pruning(*arguments: Any, **keywords: Any) -> NoReturn:
    """Waits for a later release, with :func:`rnnt_loss_pruned`."""
    raise later("do_rnnt_pruning", "the pruned loss")


def _variant(caller: str, blank: int, rnnt_type: str, delay_penalty: float) -> Variant:
    if delay_penalty < 0.0:
        raise ValueError(
            f"{caller}: delay_penalty is {delay_penalty}, expected 0 or more: k2 ignores a lower one"
        )
    if rnnt_type == "constrained":
        raise later(caller, "rnnt_type 'constrained'")
    if rnnt_type not in ("regular", "modified"):
        raise ValueError(f"{caller}: rnnt_type is {rnnt_type!r}, expected 'regular' or 'modified'")
    make = rnnt if rnnt_type == "regular" else monotonic
    return make(blank, delay_penalty=delay_penalty)


def _simple_sizes(
    caller: str, lm: torch.Tensor, am: torch.Tensor, symbols: torch.Tensor
) -> tuple[int, int, int]:
    if lm.dim() != 3 or am.dim() != 3 or lm.shape[0] != am.shape[0] or lm.shape[2] != am.shape[2]:
        raise ValueError(
            f"{caller}: lm has shape {list(lm.shape)} and am {list(am.shape)}, expected [B, S + 1, C] and "
            "[B, T, C]"
        )
    B, T, S = am.shape[0], am.shape[1], lm.shape[1] - 1
    if list(symbols.shape) != [B, S]:
        raise ValueError(
            f"{caller}: symbols has shape {list(symbols.shape)}, expected [{B}, {S}] because lm has "
            f"{S + 1} rows per utterance"
        )
    return B, T, S
