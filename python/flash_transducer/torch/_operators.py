# SPDX-License-Identifier: Apache-2.0
"""The library's calls as operators of PyTorch, in the name space ``flash_transducer``.

Three sources have a loss, two have scores; each is a forward operator and a backward operator:

    loss(tensors, options, inplace_grad, keep) -> cost, saved
    loss_backward(upstream, saved, tensors, options, wanted) -> gradients
    loss_backward_(upstream, saved, tensors, options) -> nothing: writes the logits' gradient over them
    scores(tensors, options) -> arc weights
    scores_backward(weights_gradient, tensors, options, wanted) -> gradients

`saved` is what the backend's forward keeps for its backward, empty if `keep` is false; `wanted` says of each
tensor whether its gradient is made. Options are one text, JSON, in which the variant travels, and the numbers
that may change. Autograd is registered as a kernel of its own: torch.library.register_autograd takes tens of
microseconds a call for a schema of this length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function

from flash_transducer import _core
from flash_transducer.torch._request import Request
from flash_transducer.torch._sources import JOINT_LOSS, JOINT_SCORES, LATTICE_LOSS, LOSS, SCORES, Source

_library = torch.library.Library("flash_transducer", "DEF")


def _loss(source: Source, run: bool, *arguments: Any) -> tuple[Tensor, Tensor]:
    request = Request(source, arguments)
    keep = arguments[-1]
    cost, saved = request.cost_and_saved(keep)
    outputs = {"costs" if request.settings.per_utterance else "total": cost}
    if run and keep:
        request.run(_core.forward, {**outputs, "saved": saved})
    elif run:
        request.run(_core.evaluate, outputs)
    return cost, saved


def _loss_backward(
    source: Source, run: bool, upstream: Tensor, saved: Tensor, *arguments: Any
) -> list[Tensor]:
    request = Request(source, arguments)
    gradients = request.gradients(arguments[-1])
    if run and gradients:
        request.run(_core.backward, gradients, upstream=upstream, saved=saved)
    return list(gradients.values())


def _loss_backward_in_place(
    source: Source, run: bool, upstream: Tensor, saved: Tensor, *arguments: Any
) -> None:
    """The gradient of the logits alone, written over them."""
    request = Request(source, arguments)
    logits = arguments[0]
    torch.autograd.graph.increment_version(logits)
    if run:
        request.run(_core.backward, {"logits_gradient": logits}, upstream=upstream, saved=saved)


def _scores(source: Source, run: bool, *arguments: Any) -> Tensor:
    request = Request(source, arguments)
    weights = request.arc_weights()
    if run:
        request.run(_core.evaluate, {"arc_weights": weights})
    return weights


def _scores_backward(source: Source, run: bool, weights_gradient: Tensor, *arguments: Any) -> list[Tensor]:
    request = Request(source, arguments)
    gradients = request.gradients(arguments[-1])
    if run and gradients:
        request.run(_core.scores_backward, gradients, weights_gradient=weights_gradient)
    return list(gradients.values())


def _define(name: str, arguments: str, result: str, function: Callable[..., Any]) -> None:
    """Declare an operator; `function` is told whether to compute, or to allocate only."""
    tags = (torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag)
    _library.define(f"{name}({arguments}) -> {result}", tags=tags)
    for key in ("CPU", "CUDA"):
        _library.impl(name, partial(function, True), key)
    fake = partial(function, False)
    torch.library.register_fake(f"flash_transducer::{name}", fake, lib=_library)

    def refuse(*given: Any) -> Any:
        raise NotImplementedError(
            f"{_caller(given)}: torch.vmap over it is not supported, expected a batch [B, ...] in one call: "
            'reduction="none" gives the cost of each utterance'
        )

    for key in ("FuncTorchBatched", "Batched"):  # the second by torch.autograd.grad(is_grads_batched=True)
        _library.impl(name, refuse, key)


def _caller(arguments: Sequence[Any]) -> str:
    """The name for messages, from the text of a call."""
    text = next(argument for argument in arguments if isinstance(argument, str))
    caller: str = json.loads(text)["caller"]
    return caller


def _recorder(function: Any) -> Callable[..., Any]:
    """`function.apply` of an autograd.Function, for use in kernels and backward passes.

    These see one level of torch.func at a time, as PyTorch's own do: the method behind Function.apply is
    called, without what apply does for all levels, and PyTorch is told so where there are any.
    """
    apply = super(torch.autograd.Function, function).apply

    def record(*arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return apply(*arguments)
        return apply(*arguments)

    return record


def _differentiable(name: str, function: Any) -> None:
    """Register an autograd.Function, whose forward calls the operator below autograd."""
    below, record = _below_autograd(name), _recorder(function)

    def kernel(*arguments: Any) -> Any:
        return record(*arguments) if torch.is_grad_enabled() else below(*arguments)

    _library.impl(name, kernel, "Autograd")


def _below_autograd(name: str) -> Callable[..., Any]:
    operator = getattr(torch.ops.flash_transducer, name).default

    def call(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    return call


def _spread(arguments: int, wanted: Sequence[bool], gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    """Gradients at the places of their inputs, None elsewhere."""
    made = iter(gradients)
    tensors = [next(made) if is_wanted else None for is_wanted in wanted]
    return (*tensors, *[None] * (arguments - len(tensors)))


def _loss_function(source: Source) -> Any:
    forward_operator = _below_autograd(source.operator)
    count = len(source.tensors)
    end = count + 1 + len(source.numbers)
    operators = torch.ops.flash_transducer
    backward_operator = _backward_operator(source)

    class LossFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
            cost, saved = forward_operator(*arguments)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(saved)
            ctx.save_for_backward(*arguments[:count], saved)
            ctx.options, ctx.inplace, ctx.keep = arguments[count:end], *arguments[end:]
            ctx.spent = False
            return cost, saved

        @staticmethod
        def backward(ctx: Any, upstream: Any, _saved: Any) -> Any:
            arguments = end + 2
            if upstream is None:
                return (None,) * arguments
            if not ctx.keep:
                raise RuntimeError(
                    f"{_caller(ctx.options)}: a backward pass through an operator that was called with "
                    "keep=False, expected True: it kept nothing for this"
                )
            if ctx.spent:
                raise RuntimeError(
                    f"{_caller(ctx.options)}: a second backward pass, but the first wrote the gradient over "
                    "the logits because inplace_grad is True; expected one pass, or inplace_grad=False"
                )
            *tensors, saved = ctx.saved_tensors
            wanted = list(ctx.needs_input_grad[:count])
            if ctx.inplace and wanted[0]:
                ctx.spent = True
                logits, others = tensors[0].detach(), [False, *wanted[1:]]
                made = [logits]
                if any(others):
                    made += backward_operator(upstream, saved, *tensors, *ctx.options, others)
                operators.loss_backward_(upstream, saved, logits, *tensors[1:], *ctx.options)
                return _spread(arguments, wanted, made)
            made = backward_operator(upstream, saved, *tensors, *ctx.options, wanted)
            return _spread(arguments, wanted, made)

    return LossFunction


def _scores_function(source: Source) -> Any:
    forward_operator = _below_autograd(source.operator)
    count = len(source.tensors)
    backward_operator = _backward_operator(source)

    class ScoresFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Tensor:
            ctx.save_for_backward(*arguments[:count])
            ctx.options = arguments[count:]
            weights: Tensor = forward_operator(*arguments)
            return weights

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Any:
            wanted = list(ctx.needs_input_grad[:count])
            made = backward_operator(upstream, *ctx.saved_tensors, *ctx.options, wanted)
            return _spread(count + len(ctx.options), wanted, made)

    return ScoresFunction


def _backward_operator(source: Source) -> Callable[..., Any]:
    """The backward operator, which lets itself be recorded, and refuses when it is differentiated.

    Not a kernel: each kernel written in Python costs 10 microseconds a call.
    """
    operator = getattr(torch.ops.flash_transducer, f"{source.operator}_backward").default

    class GradientFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            ctx.caller = _caller(arguments)
            return tuple(operator(*arguments))

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise NotImplementedError(
                f"{ctx.caller}: its gradient was differentiated, but second derivatives are not supported; "
                "expected one backward pass (detach the gradient where it is used as a value)"
            )

    record = _recorder(GradientFunction)

    def call(*arguments: Any) -> Any:
        return record(*arguments) if torch.is_grad_enabled() else operator(*arguments)

    return call


def _register(source: Source) -> None:
    name = source.operator
    schema = source.schema
    if name.endswith("scores"):
        _define(name, schema, "Tensor", partial(_scores, source))
        backward: Callable[..., Any] = partial(_scores_backward, source)
        before = "Tensor weights_gradient"
    else:
        flags = "bool inplace_grad, bool keep"
        _define(name, f"{schema}, {flags}", "(Tensor, Tensor)", partial(_loss, source))
        before, backward = "Tensor upstream, Tensor saved", partial(_loss_backward, source)
    _define(f"{name}_backward", f"{before}, {schema}, bool[] wanted", "Tensor[]", backward)
    if source is LOSS:
        written = schema.replace("Tensor logits", "Tensor(a!) logits")
        _define("loss_backward_", f"{before}, {written}", "()", partial(_loss_backward_in_place, source))
    _differentiable(name, (_scores_function if name.endswith("scores") else _loss_function)(source))


for _each in (LOSS, JOINT_LOSS, LATTICE_LOSS, SCORES, JOINT_SCORES):
    _register(_each)
