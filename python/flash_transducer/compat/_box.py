# SPDX-License-Identifier: Apache-2.0
"""k2's ``boundary``: paths that run from (begin frame, begin symbol) to (end frame, end symbol).

The weights of all arcs are computed where they stand, so that the delay penalty counts frames from 0; then
the box is moved to the origin, which is where a lattice of this library starts. Also the arc weights of the
simple loss: w = am[t] + lm[s] at the symbol, less log sum over c of exp(am[t, c] + lm[s, c]). That sum takes
B T (S + 1) C additions, some frames at a time, and is computed again in the backward: memory is B T (S + 1),
not times C.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from flash_transducer.torch import lattice_loss
from flash_transducer.variants import Variant

# Elements of one slab of sums: 2^22 floats are 16 MiB.
_SLAB = 1 << 22


class Box:
    """The four columns of a boundary, ``[B]`` int64 each; the whole lattice where none was given."""

    def __init__(
        self, caller: str, boundary: torch.Tensor | None, B: int, T: int, S: int, device: torch.device
    ) -> None:
        self.starts_at_zero = True
        if boundary is None:
            boundary = torch.tensor([0, 0, S, T], device=device).expand(B, 4)
        elif list(boundary.shape) != [B, 4]:
            raise ValueError(
                f"{caller}: boundary has shape {list(boundary.shape)}, expected [{B}, 4]: begin symbol, "
                "begin frame, end symbol and end frame of each utterance"
            )
        elif boundary.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{caller}: boundary has dtype {boundary.dtype}, expected int64")
        else:
            if boundary.device.type == "cpu":
                _check_inside(caller, boundary, T, S)
            # Waits for a boundary on a device: nearly all begin at 0 and need no scores of their own.
            self.starts_at_zero = not bool(boundary[:, :2].any())
        boundary = boundary.to(device=device, dtype=torch.int64)
        self.begin_symbol, self.begin_frame, self.end_symbol, self.end_frame = boundary.unbind(1)

    def loss(self, weights: torch.Tensor, variant: Variant, reduction: str) -> torch.Tensor:
        """Loss of arc weights ``[B, T, S + 1, 2]`` inside the box."""
        frames, symbols = self.end_frame, self.end_symbol
        if not self.starts_at_zero:
            B, T, rows = weights.shape[:3]
            frames, symbols = frames - self.begin_frame, symbols - self.begin_symbol
            device = weights.device
            b = torch.arange(B, device=device)[:, None, None]
            t = (self.begin_frame[:, None] + torch.arange(T, device=device)).clamp(max=T - 1)
            s = (self.begin_symbol[:, None] + torch.arange(rows, device=device)).clamp(max=rows - 1)
            weights = weights[b, t[:, :, None], s[:, None, :]]
        return lattice_loss(weights, frames, symbols, variant, reduction=reduction)

    def posterior(self, weights: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Arc posteriors ``[B, T, S + 1, 2]``: minus the gradient of the costs."""
        leaf = weights.detach().requires_grad_()
        with torch.enable_grad():
            total = self.loss(leaf, variant, "sum")
        (gradient,) = torch.autograd.grad(total, leaf)
        return -gradient

    def additive_weights(
        self,
        caller: str,
        am: torch.Tensor,
        lm: torch.Tensor,
        symbols: torch.Tensor,
        blank: int,
        delay_penalty: float,
    ) -> torch.Tensor:
        """Arc weights ``[B, T, S + 1, 2]`` of the logits ``am[:, :, None] + lm[:, None]``, blanks first."""
        dtype = torch.float64 if torch.float64 in (am.dtype, lm.dtype) else torch.float32
        T, S = am.shape[1], lm.shape[1] - 1
        device = am.device
        t, s = torch.arange(T, device=device), torch.arange(S + 1, device=device)
        # Padding may hold anything and takes no gradient.
        am = am.to(dtype).masked_fill((t >= self.end_frame[:, None])[..., None], 0.0)
        lm = lm.to(dtype).masked_fill((s > self.end_symbol[:, None])[..., None], 0.0)
        symbols = symbols.long().masked_fill(s[:S] >= self.end_symbol[:, None], 0)
        _check_symbols(caller, symbols, am.shape[2], blank)
        log_z = _log_normalisers(am, lm)
        blanks = am[:, :, None, blank] + lm[:, None, :, blank] - log_z
        index = symbols[:, None, :].expand(-1, T, -1)
        label_lm = lm[:, :S].gather(2, symbols[:, :, None]).transpose(1, 2)
        labels = am.gather(2, index) + label_lm - log_z[:, :, :S]
        if delay_penalty:
            middle = (self.end_frame.to(dtype)[:, None] - 1) / 2
            labels = labels + delay_penalty * (middle - t)[:, :, None]
        labels = torch.nn.functional.pad(labels, (0, 1), value=-torch.inf)
        return torch.stack([blanks, labels], dim=-1)


def _log_normalisers(am: torch.Tensor, lm: torch.Tensor) -> torch.Tensor:
    """``[B, T, S + 1]``, slab by slab."""

    def slab(frames: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(frames[:, :, None] + rows[:, None], dim=-1)

    frames = max(1, _SLAB // max(1, am.shape[0] * lm.shape[1] * lm.shape[2]))
    parts = [checkpoint(slab, part, lm, use_reentrant=False) for part in am.split(frames, dim=1)]
    return torch.cat(parts, dim=1)


def _check_inside(caller: str, boundary: torch.Tensor, T: int, S: int) -> None:
    for b, (first_s, first_t, last_s, last_t) in enumerate(boundary.tolist()):
        if not (0 <= first_s <= last_s <= S and 0 <= first_t <= last_t <= T):
            raise ValueError(
                f"{caller}: boundary of utterance {b} is {[first_s, first_t, last_s, last_t]}, expected 0 <= "
                f"begin symbol <= end symbol <= {S} and 0 <= begin frame <= end frame <= {T}"
            )


def _check_symbols(caller: str, symbols: torch.Tensor, C: int, blank: int) -> None:
    if not -C <= blank < C:
        raise ValueError(f"{caller}: termination_symbol is {blank}, expected 0 to {C - 1}")
    if symbols.device.type != "cpu":
        return
    wrong = ((symbols < 0) | (symbols >= C)).nonzero()
    if len(wrong):
        b, s = wrong[0].tolist()
        raise ValueError(
            f"{caller}: symbols[{b}, {s}] is {int(symbols[b, s])}, expected 0 to {C - 1} because am has "
            f"{C} classes"
        )
