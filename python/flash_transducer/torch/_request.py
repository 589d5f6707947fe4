# SPDX-License-Identifier: Apache-2.0
"""One operator call on its way into the compiled library: tensors borrowed, outputs allocated.

Tensors cross the border as DLPack capsules, which carry address, type, shape and strides: no copy, no
conversion, nothing of PyTorch's headers. Everything that follows from the options alone is kept for the next
call with the same options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flash_transducer import _core
from flash_transducer.torch._sources import INTEGERS, LABELS, Source
from flash_transducer.variants import Variant


class _Settings(NamedTuple):
    """What the text of a call comes to. `options` is shared between calls: never changed."""

    caller: str
    backend: str
    table: _core.VariantTable
    arcs: int
    planes: int  # of the saved array [B, planes, T, U + 1]; unused on a device
    groups: int
    per_utterance: bool  # costs [B], not a scalar
    options: dict[str, Any]


@lru_cache(maxsize=512)
def _settings(text: str) -> _Settings:
    options = {name: value for name, value in json.loads(text).items() if value is not None}
    caller, backend = options.pop("caller"), options.pop("backend")
    variant = Variant.from_json(json.dumps(options.pop("variant")))
    try:
        planes = _core.saved_layout(backend, variant.table)[0]
    except (ValueError, NotImplementedError):
        planes = 0  # no such backend: the call itself says so, by its own name
    per_utterance = options.get("reduction") == "none"
    sizes = len(variant.arcs), planes, len(variant.groups)
    return _Settings(caller, backend, variant.table, *sizes, per_utterance, options)


class Request:
    """The arguments of one operator call."""

    def __init__(self, source: Source, arguments: Sequence[Any]) -> None:
        count = len(source.tensors)
        self.source = source
        self.tensors = arguments[:count]
        self.settings = _settings(arguments[count])
        self.numbers = arguments[count + 1 : count + 1 + len(source.numbers)]
        self.device = arguments[0].device

    @property
    def cost_dtype(self) -> torch.dtype:
        """float64 if any array of the source is, else float32."""
        given = self.tensors[: len(self.source.given)]
        doubles = any(tensor is not None and tensor.dtype == torch.float64 for tensor in given)
        return torch.float64 if doubles else torch.float32

    @property
    def nodes(self) -> tuple[Any, Any, Any]:
        """(B, T, U + 1); zeros where the rank is wrong, which the call itself then says."""
        shape = self.tensors[0].shape
        if len(self.source.given) > 1:
            shape = (*(*shape[:2], 0, 0)[:2], *self.tensors[1].shape[1:2])
        return (*shape, 0, 0, 0)[:3]

    def named(self) -> dict[str, Tensor]:
        """The tensors that were given."""
        pairs = zip(self.source.tensors, self.tensors, strict=True)
        return {name: tensor for name, tensor in pairs if tensor is not None}

    def options(self) -> dict[str, Any]:
        """The options as the compiled library takes them."""
        options = {**self.settings.options, **dict(zip(self.source.numbers, self.numbers, strict=True))}
        if "seed" in options:
            options["seed"] %= 2**64  # the operator's integers are signed
        return options

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory on the device of the call."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def cost_and_saved(self, keep: bool) -> tuple[Tensor, Tensor]:
        """Memory for the outputs of a loss's forward."""
        batch, frames, rows = self.nodes
        cost = self.empty((batch,) if self.settings.per_utterance else (), self.cost_dtype)
        planes = self.settings.planes
        saved = (batch, planes, frames, rows) if keep and planes else (0,)
        if keep and self.settings.backend == "cuda":
            saved = (self._device_doubles(),)
        return cost, self.empty(saved, torch.float64)

    def _device_doubles(self) -> Any:
        """The saved regions of cuda/plan.cpp in units of 8 bytes; sizes may be symbolic."""
        batch, frames, rows = self.nodes
        settings = self.settings
        real = 8 if self.cost_dtype == torch.float64 else 4
        taps = 0 if self.source.given == ("arc_weights",) else _core.count_taps(settings.table)
        plane = (batch * (frames + 1) * rows + 1) // 2 * 2
        regions = (
            (max(taps, 2) + settings.groups) * plane * real,
            settings.arcs * plane * real,
            4 * batch * rows,
            8 * batch * (frames + 1),
            8 * batch * (frames + 1),
            8 * batch,
            4 * batch,
            4 * batch * frames * ((rows + 31) // 32),
            8 * (batch * frames + 1),
        )
        return sum((size + 63) // 64 * 8 for size in regions)

    def arc_weights(self) -> Tensor:
        """Memory for the output of scores."""
        return self.empty((*self.nodes, self.settings.arcs), self.cost_dtype)

    def gradients(self, wanted: Sequence[bool]) -> dict[str, Tensor]:
        """Memory for the gradients that are wanted, each with its input's shape, type and layout."""
        return {
            name: torch.empty_like(tensor)
            for name, tensor, is_wanted in zip(self.source.gradients, self.tensors, wanted, strict=True)
            if is_wanted
        }

    def run(self, entry: Callable[..., None], outputs: dict[str, Tensor], **more: Tensor) -> None:
        """Call the compiled library on the tensors' device and its current stream."""
        inputs = borrow(zip(self.source.tensors, self.tensors, strict=True), **more)
        results = borrow(outputs.items())
        options = self.options()
        caller, backend, table, *_ = self.settings
        if self.device.type != "cuda":
            entry(caller, backend, table, inputs, results, options)
            return
        with torch.cuda.device(self.device):
            moved = self._moved(inputs, results, options)
            options["stream"] = torch.cuda.current_stream(self.device).cuda_stream
            entry(caller, backend, table, {**inputs, **borrow(moved.items())}, results, options)

    def _moved(
        self, inputs: dict[str, Any], results: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Labels and lengths that lie on the host, checked there if all do, and copied to the device."""
        named = self.named()
        host = {name: named[name] for name in INTEGERS if name in named and named[name].device.type == "cpu"}
        caller, _, table, *_ = self.settings
        if options.get("validate", True) and all(name in host for name in LABELS if name in named):
            _core.validate(caller, table, inputs, results, options)
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in host.items()}


def borrow(named: Iterable[tuple[str, Tensor | None]], **more: Tensor) -> dict[str, Any]:
    """Capsules of the tensors that are there."""
    to_dlpack = torch._C._to_dlpack
    capsules = {name: to_dlpack(tensor) for name, tensor in named if tensor is not None}
    for name, tensor in more.items():
        capsules[name] = to_dlpack(tensor)
    return capsules
