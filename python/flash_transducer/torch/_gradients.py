# SPDX-License-Identifier: Apache-2.0
"""Values with gradients and no graph: the same two operators, called one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flash_transducer._joint import JointGradients
from flash_transducer._run import wrt_names
from flash_transducer.torch._call import Options, check_flag, prepare
from flash_transducer.torch._sources import Source


def run_value_and_grad(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Any,
    backend: str | None,
    options: Options,
    wrt: Any,
    *,
    inplace_grad: bool = False,
) -> tuple[Tensor, Any]:
    """(cost, gradients), where gradients follow `wrt`: a name or a tuple of names."""
    check_flag(caller, "inplace_grad", inplace_grad)
    names = wrt_names(wrt, caller)
    tensors, rest, _ = prepare(source, caller, values, variant, backend, options)
    parts = _parts(source, caller, names, dict(zip(source.tensors, tensors, strict=True)))
    in_place = inplace_grad and "logits" in parts
    with torch.no_grad():
        cost, found = _evaluate(source, tensors, rest, parts, in_place)
    gradients = tuple(
        JointGradients(*(found.get(part) for part in JointGradients._fields))
        if name == "joint"
        else found[name]
        for name in names
    )
    return cost, gradients[0] if isinstance(wrt, str) else gradients


def _parts(source: Source, caller: str, names: tuple[str, ...], given: dict[str, Tensor | None]) -> list[str]:
    """Inputs whose gradients are wanted; "joint" stands for those of the joint network that were given."""
    possible = [
        name
        for name, differentiable in zip(source.tensors, source.differentiable, strict=True)
        if differentiable and given[name] is not None
    ]
    joint = [name for name in JointGradients._fields if name in possible]
    for name in names:
        if name not in possible and not (name == "joint" and joint):
            raise ValueError(
                f"{caller}: wrt names {name!r}, expected one of "
                f"{', '.join(sorted(possible))}, which were given"
            )
    return [part for name in names for part in (joint if name == "joint" else [name])]


def _evaluate(
    source: Source,
    tensors: Sequence[Tensor | None],
    rest: tuple[Any, ...],
    parts: list[str],
    in_place: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    operators = torch.ops.flash_transducer
    cost, saved = getattr(operators, source.operator).default(*tensors, *rest, False, True)
    upstream = torch.ones_like(cost)
    wanted = [name in parts and not (in_place and name == "logits") for name in source.tensors]
    found: dict[str, Any] = {}
    if any(wanted):
        operator = getattr(operators, f"{source.operator}_backward").default
        made = operator(upstream, saved, *tensors, *rest, wanted)
        names = (name for name, is_wanted in zip(source.tensors, wanted, strict=True) if is_wanted)
        found.update(zip(names, made, strict=True))
    if in_place:  # last: the others are made from the logits
        operators.loss_backward_.default(upstream, saved, *tensors, *rest)
        found["logits"] = tensors[0]
    return cost, found
