# SPDX-License-Identifier: Apache-2.0
"""A loss through a joint network of any kind, a few frames at a time.

    forward    for each tile of frames, without a graph: logits = joint(encoder tile, predictor) and their
               arc weights; then the lattice of whole utterances on the arc weights [B, T, U+1, A]
    backward   the lattice's gradient with respect to the arc weights; then for each tile the logits again,
               with a graph, and the gradient pushed through them

The logits of one tile, [B, tile, U+1, K], are the most that ever exists. Work: the joint network runs twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flash_transducer._api import RNNT
from flash_transducer.torch._call import Options, checked_variant, run_loss, run_scores, to_tensor
from flash_transducer.torch._sources import LATTICE_LOSS, SCORES
from flash_transducer.variants import Variant


def tiled_loss(
    joint: Callable[[Tensor, Tensor], Tensor],
    encoder: Tensor,
    predictor: Tensor,
    targets: Tensor,
    encoder_lengths: Tensor,
    target_lengths: Tensor,
    variant: Variant = RNNT,
    *,
    tile_frames: int = 8,
    parameters: Sequence[Tensor] | None = None,
    reduction: str = "mean",
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Tensor | None = None,
    start_scores: Tensor | None = None,
    final_scores: Tensor | None = None,
    semiring: str = "log",
    backend: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """Loss through any joint network, whose ``[B, T, U + 1, K]`` output never exists whole.

    Cost and gradients are those of ``ft.loss(joint(encoder, predictor), ...)``: of encoder, predictor, the
    network's parameters and all scores. The network runs twice, the second time with the random numbers and
    the autocast of the first.

    Parameters
    ----------
    joint
        Maps ``[B, t, ...]`` of the encoder and the whole predictor ``[B, U + 1, ...]`` to logits
        ``[B, t, U + 1, K]``, each frame by itself, whatever t. A module or a function.
    encoder, predictor
        ``[B, T, ...]`` and ``[B, U + 1, ...]``.
    tile_frames
        Frames of one tile.
    parameters
        Tensors that ``joint`` reads and whose gradients are wanted; by default a module's own parameters.

    Others as :func:`flash_transducer.loss`.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> import torch
    >>> layer = torch.nn.Linear(8, 5)
    >>> def gated(encoder, predictor):
    ...     return layer(encoder[:, :, None].sigmoid() * predictor[:, None])
    >>> encoder, predictor = torch.zeros(1, 4, 8), torch.zeros(1, 3, 8)
    >>> batch = torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
    >>> cost = ft.torch.tiled_loss(gated, encoder, predictor, *batch, parameters=list(layer.parameters()))
    >>> cost.backward()
    >>> tuple(layer.weight.grad.shape)
    (5, 8)
    """
    caller = "ft.torch.tiled_loss"
    if isinstance(tile_frames, bool) or not isinstance(tile_frames, int) or tile_frames < 1:
        raise ValueError(f"{caller}: tile_frames is {tile_frames!r}, expected a number of frames, 1 or more")
    checked_variant(caller, variant)
    if not callable(joint):
        raise TypeError(f"{caller}: joint is a {type(joint).__name__}, expected a module or a function")
    for name, value in (("encoder", encoder), ("predictor", predictor)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{caller}: {name} is a {type(value).__name__}, expected a torch.Tensor")
    if encoder.dim() < 2 or predictor.dim() < 2 or encoder.shape[0] != predictor.shape[0]:
        raise ValueError(
            f"{caller}: encoder has shape {list(encoder.shape)} and predictor {list(predictor.shape)}, "
            "expected [B, T, ...] and [B, U + 1, ...]"
        )
    if parameters is None:
        own = joint.parameters() if isinstance(joint, torch.nn.Module) else ()
        parameters = [parameter for parameter in own if parameter.requires_grad]
    targets, encoder_lengths, target_lengths = (
        value if isinstance(value, Tensor) else to_tensor(value, name, caller, encoder.device)
        for name, value in (
            ("targets", targets),
            ("encoder_lengths", encoder_lengths),
            ("target_lengths", target_lengths),
        )
    )
    if arc_scores is not None:
        if not isinstance(arc_scores, Tensor):
            arc_scores = to_tensor(arc_scores, "arc_scores", caller, encoder.device)
        nodes = (encoder.shape[0], encoder.shape[1], predictor.shape[1], len(variant.arcs))
        sizes = _padded(arc_scores.shape, 4)
        if len(sizes) != 4 or any(size not in (1, node) for size, node in zip(sizes, nodes, strict=True)):
            raise ValueError(
                f"{caller}: arc_scores has shape {list(arc_scores.shape)}, expected one that broadcasts to "
                f"[B, T, U + 1, A] = {list(nodes)}"
            )
    weights = _TiledScores.apply(
        _Tiles(
            joint,
            targets,
            encoder_lengths,
            target_lengths,
            variant,
            tile_frames,
            from_log_probs,
            backend,
            threads,
        ),
        encoder,
        predictor,
        arc_scores,
        *parameters,
    )
    values = (weights, encoder_lengths, target_lengths, start_scores, final_scores)
    options = Options((False, threads, reduction, zero_infinity, None, semiring, None, None), (0.0,))
    return run_loss(LATTICE_LOSS, caller, values, variant, backend, options)


@dataclass(frozen=True)
class _Tiles:
    """How a tile's arc weights are made."""

    joint: Callable[[Tensor, Tensor], Tensor]
    targets: Tensor
    frame_lengths: Tensor
    target_lengths: Tensor
    variant: Variant
    tile_frames: int
    from_log_probs: bool
    backend: str | None
    threads: int | None

    def spans(self, frames: int) -> list[slice]:
        return [slice(t, min(t + self.tile_frames, frames)) for t in range(0, frames, self.tile_frames)]

    def frame_bonus(self, frames: int, device: torch.device) -> Tensor | None:
        """[B, T, 1, A] the arcs' bonus, which counts frames of the whole utterance; None if there is none."""
        factors = [arc.frame_bonus for arc in self.variant.arcs]
        if not any(factors):
            return None
        middle = (self.frame_lengths.to(device=device, dtype=torch.float64) - 1.0) / 2.0
        before = middle[:, None] - torch.arange(frames, device=device)
        return before[:, :, None, None] * torch.tensor(factors, dtype=torch.float64, device=device)

    def weights(self, encoder: Tensor, predictor: Tensor, extra: Sequence[Tensor], span: slice) -> Tensor:
        """Arc weights of one tile, [B, tile, U+1, A]."""
        logits = self.joint(encoder, predictor)
        rows = (encoder.shape[0], encoder.shape[1], predictor.shape[1])
        shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if not isinstance(logits, Tensor) or logits.dim() != 4 or tuple(logits.shape[:3]) != rows:
            raise ValueError(
                f"ft.torch.tiled_loss: joint returned logits of shape {shape}, expected "
                f"[{rows[0]}, {rows[1]}, {rows[2]}, K] for {rows[1]} frames of the encoder"
            )
        lengths = (self.frame_lengths - span.start).clamp(0, rows[1])
        made = run_scores(
            SCORES, "ft.torch.tiled_loss", (logits, self.targets, lengths, self.target_lengths, None, None),
            _within_a_tile(self.variant), self.backend, Options((self.from_log_probs, self.threads)),
        )  # fmt: skip
        for addend in extra:
            addend = addend.to(made.dtype)
            # A masked arc is absent whatever its logits hold: NaN and -inf would make NaN.
            made = torch.where(addend == -torch.inf, addend, made + addend)
        return made


def _within_a_tile(variant: Variant) -> Variant:
    """The same weights, but existing wherever the utterance ends: the lattice sees to its end."""
    arcs = [replace(arc, dt=min(arc.dt, 1), may_finish=True, frame_bonus=0.0) for arc in variant.arcs]
    return Variant(variant.name, tuple(arcs), variant.groups, variant.heads)


def _tile_of(scores: Tensor | None, span: slice) -> Tensor | None:
    """The part of something that broadcasts to [B, T, U+1, A]."""
    if scores is None or scores.dim() < 3 or scores.shape[-3] == 1:
        return scores
    return scores[..., span, :, :]


class _Surroundings:
    """Random numbers and autocast as they are now, to have them again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_device = device.type == "cuda"
        self.host_state = torch.get_rng_state()
        self.device_state = torch.cuda.get_rng_state(device) if self.on_device else None
        self.autocast = torch.is_autocast_enabled(device.type)
        self.dtype = torch.get_autocast_dtype(device.type)

    def autocast_again(self) -> torch.autocast:
        # Without the cache: a weight cast while no graph was recorded would be used where one is.
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.autocast, cache_enabled=False)

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng([self.device] if self.on_device else []), self.autocast_again():
            torch.set_rng_state(self.host_state)
            if self.device_state is not None:
                torch.cuda.set_rng_state(self.device_state, self.device)
            yield


class _TiledScores(torch.autograd.Function):
    """Arc weights of all tiles; parameters are arguments so that autograd asks for their gradients."""

    @staticmethod
    def forward(
        ctx: Any, tiles: _Tiles, encoder: Tensor, predictor: Tensor, arc_scores: Any, *parameters: Any
    ) -> Tensor:
        bonus = tiles.frame_bonus(encoder.shape[1], encoder.device)
        spans = tiles.spans(encoder.shape[1])
        surroundings, weights = [], []
        for span in spans:
            surroundings.append(_Surroundings(encoder.device))
            extra = [part for part in (_tile_of(bonus, span), _tile_of(arc_scores, span)) if part is not None]
            with surroundings[-1].autocast_again():
                weights.append(tiles.weights(encoder[:, span], predictor, extra, span))
        ctx.save_for_backward(encoder, predictor, arc_scores, *parameters)
        ctx.tiles, ctx.spans, ctx.surroundings = tiles, spans, surroundings
        if not weights:
            shape = (encoder.shape[0], 0, predictor.shape[1], len(tiles.variant.arcs))
            return encoder.new_empty(shape, dtype=_summed(encoder))
        return torch.cat(weights, dim=1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Any:
        encoder, predictor, arc_scores, *parameters = ctx.saved_tensors
        _, *needed = ctx.needs_input_grad
        totals: list[Any] = [
            torch.zeros_like(value, dtype=_summed(value)) if value is not None and need else None
            for value, need in zip((encoder, predictor, arc_scores, *parameters), needed, strict=True)
        ]
        for span, surroundings in zip(ctx.spans, ctx.surroundings, strict=True):
            tile = encoder[:, span].detach().requires_grad_(needed[0])
            rows = predictor.detach().requires_grad_(needed[1])
            inputs = [tile, rows, *parameters]
            with torch.enable_grad(), surroundings.again():
                weights = ctx.tiles.weights(tile, rows, (), span)
            wanted = [k for k, need in enumerate((needed[0], needed[1], *needed[3:])) if need]
            if wanted and weights.requires_grad:
                found = torch.autograd.grad(
                    weights, [inputs[k] for k in wanted], upstream[:, span], allow_unused=True
                )
                for k, gradient in zip(wanted, found, strict=True):
                    if gradient is not None:
                        total = totals[k if k < 2 else k + 1]
                        (total[:, span] if k == 0 else total).add_(gradient)
            if totals[2] is not None:
                part: Any = _tile_of(totals[2], span)
                part.add_(upstream[:, span].sum_to_size(_padded(part.shape, upstream.dim())).view(part.shape))
        given = (encoder, predictor, arc_scores, *parameters)
        return None, *(
            total if total is None else total.to(value.dtype)
            for total, value in zip(totals, given, strict=True)
        )


def _summed(value: Tensor) -> torch.dtype:
    """Type in which the tiles' gradients are summed: 16 bits would round at every tile."""
    return torch.promote_types(value.dtype, torch.float32)


def _padded(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + tuple(shape)
