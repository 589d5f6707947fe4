# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a function to one operator: what is checked and converted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flash_transducer import _call as host
from flash_transducer._call import OPTIONAL, checked_option
from flash_transducer.torch._sources import INTEGERS, Source
from flash_transducer.variants import Variant


def choose_backend(backend: str | None, first: Any, caller: str) -> str:
    """The caller's backend, or that of the device of the first tensor."""
    if backend is None:
        kind: str = first.device.type
        return host.DEFAULT_BACKEND if kind in ("cpu", "meta") else kind
    if not isinstance(backend, str):
        raise TypeError(f"{caller}: backend is {backend!r}, expected a name such as 'cpu'")
    return backend


def to_tensor(value: Any, name: str, caller: str, device: torch.device) -> Tensor:
    """Lists, numbers and NumPy arrays, which share their memory where they can."""
    if not isinstance(value, (list, tuple, int, float, np.ndarray, np.generic)):
        raise TypeError(f"{caller}: {name} is a {type(value).__name__}, expected a torch.Tensor")
    try:
        tensor = torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{caller}: {name} makes no tensor, expected rows of equal length ({error})"
        ) from None
    if tensor.numel() == 0 and name in INTEGERS and not isinstance(value, np.ndarray):
        tensor = tensor.to(torch.int64)
    return tensor.to(device)


def device_of(values: Sequence[Any]) -> torch.device:
    """The device of the first tensor; the host if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            return value.device
    return torch.device("cpu")


def tensors_of(source: Source, caller: str, values: Sequence[Any]) -> tuple[list[Tensor | None], bool]:
    """All tensors of a call, on one device, and whether a backward pass may follow.

    Labels and lengths may be on the host. Refuses a gradient that there is not, rather than leave it out.
    """
    device = device_of(values)
    may_differentiate = torch.is_grad_enabled()
    needs_graph = False
    tensors: list[Tensor | None] = []
    for name, value, optional, differentiable in zip(
        source.tensors, values, source.optional, source.differentiable, strict=True
    ):
        if value is None:
            if not optional:
                raise TypeError(f"{caller}: {source.shown(name)} is None, expected a tensor")
            tensors.append(None)
            continue
        if not isinstance(value, Tensor):
            value = to_tensor(value, source.shown(name), caller, device)
        elif value.device != device and not (name in INTEGERS and value.device.type == "cpu"):
            raise ValueError(
                f"{caller}: {source.shown(name)} is on {value.device} and {source.given[0]} on {device}, "
                "expected one device (labels and lengths may be on the host)"
            )
        if value.layout != torch.strided:
            raise ValueError(
                f"{caller}: {source.shown(name)} has layout {value.layout}, expected torch.strided: every "
                "element is read at its address; pass .to_dense()"
            )
        if may_differentiate and value.requires_grad:
            if not differentiable:
                raise ValueError(
                    f"{caller}: {source.shown(name)} requires a gradient, but the loss has none with "
                    f"respect to it; expected {source.shown(name)}.detach()"
                )
            needs_graph = True
        tensors.append(value)
    return tensors, needs_graph


def _literal(value: Any) -> str:
    """JSON of an option; plain enough for a compiler to follow."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f"{value!r}"


def _text(caller: str, variant: str, backend: str, names: tuple[str, ...], *words: Any) -> str:
    """The text of a call: all options but the numbers."""
    parts = [f'"caller": "{caller}", "backend": {_literal(backend)}']
    for k in range(len(names)):
        parts.append(f'"{names[k]}": {_literal(words[k])}')
    return f'{{{", ".join(parts)}, "variant": {variant}}}'


@lru_cache(maxsize=512, typed=True)  # typed: 1 is not True
def _checked_text(caller: str, variant: str, backend: str, names: tuple[str, ...], *words: Any) -> str:
    checked = [
        None if word is None and name in OPTIONAL else checked_option(caller, name, word)
        for name, word in zip(names, words, strict=True)
    ]
    return _text(caller, variant, backend, names, *checked)


def call_text(caller: str, variant: str, backend: str, names: tuple[str, ...], words: tuple[Any, ...]) -> str:
    """The text of a call, its options checked."""
    if torch.compiler.is_compiling():
        return _text(caller, variant, backend, names, *words)  # the call itself checks again
    if any(isinstance(word, Tensor) for word in words):  # hashed by identity, and may change in place
        return _checked_text.__wrapped__(caller, variant, backend, names, *words)
    try:
        return _checked_text(caller, variant, backend, names, *words)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _checked_text.__wrapped__(caller, variant, backend, names, *words)


def _checked_number(caller: str, name: str, value: Any) -> Any:
    if type(value) is float and name != "seed":
        return value
    number = checked_option(caller, name, value)
    # The operator's integers are signed.
    return number - 2**64 if name == "seed" and number >= 2**63 else number


def checked_numbers(caller: str, names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options that are arguments of their own, checked."""
    if torch.compiler.is_compiling():
        return values  # perhaps symbols
    return tuple([_checked_number(caller, *pair) for pair in zip(names, values, strict=True)])


def check_flag(caller: str, name: str, value: Any) -> None:
    """Refuse what is not a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{caller}: {name} is {value!r}, expected True or False")


def checked_variant(caller: str, variant: Any) -> str:
    """The variant as its JSON, made once."""
    if not isinstance(variant, Variant):
        raise TypeError(
            f"{caller}: variant is a {type(variant).__name__}, expected an ft.Variant such as ft.rnnt()"
        )
    return variant.text


class Options(NamedTuple):
    """Options of a call in the order of its source."""

    words: tuple[Any, ...]
    numbers: tuple[Any, ...] = ()


def prepare(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Any,
    backend: str | None,
    options: Options,
) -> tuple[list[Tensor | None], tuple[Any, ...], bool]:
    """Tensors and options of an operator, checked and in its order, and whether a backward may follow."""
    variant_text = checked_variant(caller, variant)
    tensors, needs_graph = tensors_of(source, caller, values)
    chosen = choose_backend(backend, tensors[0], caller)
    text = call_text(caller, variant_text, chosen, source.words, options.words)
    return tensors, (text, *checked_numbers(caller, source.numbers, options.numbers)), needs_graph


def run_loss(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Any,
    backend: str | None,
    options: Options,
    *,
    inplace_grad: bool = False,
) -> Tensor:
    """Cost of a call, with autograd."""
    check_flag(caller, "inplace_grad", inplace_grad)
    tensors, rest, keep = prepare(source, caller, values, variant, backend, options)
    if inplace_grad and keep:
        _check_inplace(caller, tensors[0])
    operator = getattr(torch.ops.flash_transducer, source.operator).default
    cost: Tensor = operator(*tensors, *rest, inplace_grad, keep)[0]
    return cost


def _check_inplace(caller: str, logits: Any) -> None:
    if not logits.requires_grad:
        return
    of_a_leaf = not torch.compiler.is_compiling() and logits._is_view() and logits._base.is_leaf
    if logits.is_leaf or (of_a_leaf and logits._base.requires_grad):
        raise ValueError(
            f"{caller}: inplace_grad is True and logits is a {'view of a ' if of_a_leaf else ''}leaf that "
            "requires a gradient, expected the output of a layer: the gradient is written over the logits, "
            "which would destroy a parameter"
        )


def run_scores(
    source: Source,
    caller: str,
    values: Sequence[Any],
    variant: Any,
    backend: str | None,
    options: Options,
) -> Tensor:
    """Arc weights of a call, with autograd."""
    tensors, rest, _ = prepare(source, caller, values, variant, backend, options)
    weights: Tensor = getattr(torch.ops.flash_transducer, source.operator).default(*tensors, *rest)
    return weights


def autocast_joint(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Under autocast the joint's float32 inputs are rounded to its type, as those of a linear layer are."""
    kind = device_of(values).type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return values
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value
        for value in values
    )
