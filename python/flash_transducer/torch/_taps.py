# SPDX-License-Identifier: Apache-2.0
"""What a person looks at, from tensors: lattice quantities and best paths. No graph, no operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flash_transducer import _core
from flash_transducer._run import check_ignored
from flash_transducer.inspection import Alignment, Lattice, make_alignments
from flash_transducer.torch._call import Options, prepare
from flash_transducer.torch._request import Request, borrow
from flash_transducer.torch._sources import Source
from flash_transducer.variants import Variant


def _request(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Variant,
    backend: str | None,
    options: Options,
) -> Request:
    tensors, rest, _ = prepare(source, caller, values, variant, backend, options)
    return Request(source, (*tensors, *rest))


def run_lattice(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Variant,
    backend: str | None,
    options: Options,
) -> Lattice:
    """Evaluate all lattice quantities, float64 tensors on the source's device."""
    request = _request(source, caller, values, variant, backend, options)
    batch, frames, rows = request.nodes
    double = torch.float64
    outputs: dict[str, Any] = {
        "alpha": request.empty((batch, frames + 1, rows), double),
        "beta": request.empty((batch, frames + 1, rows), double),
        "arc_posterior": request.empty((batch, frames, rows, len(variant.arcs)), double),
        "occupancy": request.empty((batch, frames, rows), double),
        "costs": request.empty((batch,), request.cost_dtype),
    }
    request.run(_core.evaluate, outputs)
    lengths: dict[str, Any] = {
        name: request.named()[name].detach().to(torch.int64) for name in ("frame_lengths", "target_lengths")
    }
    cost = outputs.pop("costs")
    return Lattice(**outputs, cost=cost, variant=variant, **lengths)


def run_skipped_mass(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Variant,
    backend: str | None,
    options: Options,
) -> Tensor:
    """Evaluate what the gradient leaves out, [B] float64."""
    request = _request(source, caller, values, variant, backend, options)
    mass = request.empty((request.nodes[0],), torch.float64)
    request.run(_core.evaluate, {"skipped_mass": mass})
    return mass


def run_align(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Variant,
    backend: str | None,
    options: Options,
    ignored: dict[str, Any],
) -> list[Alignment]:
    """Best paths, by the reference on the host whatever the backend; their arrays as tensors."""
    check_ignored(caller, ignored)
    request = _request(source, caller, values, variant, backend, options)
    _core.check_backend(request.settings.backend, caller)
    host = {name: tensor.detach().cpu() for name, tensor in request.named().items()}
    paths = _core.best_paths(caller, variant.table, borrow(host.items()), request.options())
    found = make_alignments(paths, host["targets"].numpy(), variant)
    return [_with_tensors(alignment) for alignment in found]


def _with_tensors(alignment: Alignment) -> Alignment:
    arrays = ("frames", "labels", "scores", "arcs", "path")
    made: dict[str, Any] = {name: torch.from_numpy(getattr(alignment, name).copy()) for name in arrays}
    return dataclasses.replace(alignment, **made)
