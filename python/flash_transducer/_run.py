# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a prepared call: what dense and joint functions have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from flash_transducer import _core
from flash_transducer._call import Call
from flash_transducer.inspection import Alignment, Lattice, host_integers, make_alignments


def run_loss(call: Call) -> Any:
    """Evaluate a call whose options name a reduction; returns costs [B] or a scalar."""
    if call.options.get("reduction") == "none":
        costs = call.add_output("costs", (call.nodes[0],), call.cost_dtype)
        call.run()
        return costs
    total = call.add_output("total", (), call.cost_dtype)
    call.run()
    return total[()]


def wrt_names(wrt: Any, caller: str) -> tuple[str, ...]:
    """Names of `wrt`, given one or a tuple of them."""
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt) if isinstance(wrt, (tuple, list)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{caller}: wrt is {wrt!r}, expected a name such as 'logits' or a tuple")
    return names


def run_scores(call: Call) -> Any:
    """Evaluate the arc weights of a call."""
    shape = (*call.nodes, len(call.variant.arcs))
    weights = call.add_output("arc_weights", shape, call.cost_dtype)
    call.run()
    return weights


def run_lattice(call: Call, frame_lengths: Any, target_lengths: Any) -> Lattice:
    """Evaluate all lattice quantities of a call."""
    batch, frames, rows = call.nodes
    arcs = len(call.variant.arcs)
    result = Lattice(
        alpha=call.add_output("alpha", (batch, frames + 1, rows), np.float64),
        beta=call.add_output("beta", (batch, frames + 1, rows), np.float64),
        arc_posterior=call.add_output("arc_posterior", (batch, frames, rows, arcs), np.float64),
        occupancy=call.add_output("occupancy", (batch, frames, rows), np.float64),
        cost=call.add_output("costs", (batch,), call.cost_dtype),
        variant=call.variant,
        frame_lengths=host_integers(frame_lengths),
        target_lengths=host_integers(target_lengths),
    )
    call.run()
    return result


def check_ignored(caller: str, options: dict[str, Any]) -> None:
    """`zero_infinity` and `semiring` of :func:`lattice` are taken, and change nothing for a best path."""
    for name in options:
        if name not in ("zero_infinity", "semiring"):
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    if options.get("semiring", "max") not in ("log", "max"):
        raise ValueError(f"{caller}: semiring is {options['semiring']!r}, expected one of 'log', 'max'")


def run_align(call: Call, targets: Any) -> list[Alignment]:
    """Evaluate the best paths of a call, by the reference whatever the backend."""
    if call.arrays is not None:
        raise ValueError(
            f"{call.caller}: the source is on a device, expected host memory because best paths are followed "
            "there; pass a copy on the host"
        )
    _core.check_backend(call.backend, call.caller)
    paths = _core.best_paths(call.caller, call.variant.table, call.inputs, call.options)
    return make_alignments(paths, targets, call.variant)
