# SPDX-License-Identifier: Apache-2.0
"""Arrays on a CUDA device: where outputs come from, and which stream a call joins.

The library allocates no arrays of its own. For CuPy arrays, and for others that speak DLPack (JAX's), outputs
are CuPy arrays; ``jax.dlpack.from_dlpack`` takes them without a copy. Tensors of PyTorch get tensors.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class DeviceArrays(Protocol):
    """What a call needs of an array library."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        """Memory on the device."""

    def moved(self, array: npt.NDArray[Any]) -> Any:
        """A copy of a host array on the device."""

    def stream(self) -> int:
        """Address of the stream that the library works on now."""


class _Torch:
    def __init__(self, index: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", index)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, np.dtype(dtype).name), device=self._device)

    def moved(self, array: npt.NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.array(array)).to(self._device)

    def stream(self) -> int:
        address: int = self._torch.cuda.current_stream(self._device).cuda_stream
        return address


class _Cupy:
    def __init__(self, index: int) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device(index)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        with self._device:
            return self._cupy.empty(shape, dtype)

    def moved(self, array: npt.NDArray[Any]) -> Any:
        with self._device:
            return self._cupy.asarray(array)

    def stream(self) -> int:
        with self._device:
            address: int = self._cupy.cuda.get_current_stream().ptr
            return address


def arrays_like(value: Any, device: str, caller: str) -> DeviceArrays:
    """The library for the outputs of a call whose source is ``value`` on ``device``, such as "cuda:0"."""
    index = int(device.partition(":")[2] or 0)
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        return _Torch(index)
    if hasattr(value, "block_until_ready"):  # JAX works on streams of its own
        value.block_until_ready()
    try:
        return _Cupy(index)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{caller}: the results for a {type(value).__name__} on {device} are CuPy arrays; "
            "pip install cupy-cuda13x"
        ) from None
