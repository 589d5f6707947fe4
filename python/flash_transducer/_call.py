# SPDX-License-Identifier: Apache-2.0
"""What every function of the API does around one call: borrow arrays, allocate outputs, run a backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flash_transducer import _core
from flash_transducer._device import DeviceArrays, arrays_like
from flash_transducer.variants import Variant

# The backend for host arrays when the caller names none.
DEFAULT_BACKEND = "cpu" if "cpu" in _core.backends else "reference"

# Inputs whose empty list, which NumPy takes for floats, means integers.
_INTEGERS = ("targets", "logit_lengths", "encoder_lengths", "target_lengths", "utterance_ids", "band")

_SOURCES = ("logits", "encoder", "predictor", "weight", "bias", "arc_weights")


def numpy_dtype(name: str, caller: str) -> np.dtype[Any]:
    """The NumPy type of a name from the compiled library; bfloat16 needs ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{caller}: a bfloat16 result needs the package ml_dtypes; pip install ml_dtypes"
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def borrow(value: Any, name: str, caller: str) -> _core.Array:
    """Any array without a copy; lists and numbers become NumPy arrays first."""
    if isinstance(value, (list, tuple, int, float, np.generic)):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(
                f"{caller}: {name} is a list that makes no array, expected rows of equal length ({error})"
            ) from None
        if value.size == 0 and name in _INTEGERS:
            value = value.astype(np.int64)
    return _core.Array(value, name, caller)


class Call:
    """One request: inputs by name, options, and outputs as they are asked for."""

    def __init__(self, caller: str, variant: Variant, backend: str | None, inputs: dict[str, Any]) -> None:
        if not isinstance(variant, Variant):
            raise TypeError(
                f"{caller}: variant is a {type(variant).__name__}, expected an ft.Variant such as ft.rnnt()"
            )
        self.caller = caller
        self.variant = variant
        if not isinstance(backend, (str, type(None))):
            raise TypeError(f"{caller}: backend is {backend!r}, expected a name such as 'cpu'")
        shown = {"frame_lengths": _frame_lengths_name(inputs)}
        # Another thread may write to small arrays that a data loader reuses: take them as they are now.
        for name in ("targets", "frame_lengths", "target_lengths"):
            if isinstance(inputs.get(name), np.ndarray):
                inputs[name] = inputs[name].copy()
        for name in _REQUIRED:
            if name in inputs and inputs[name] is None:
                raise TypeError(f"{caller}: {shown.get(name, name)} is None, expected an array")
        self.inputs = {
            name: borrow(value, shown.get(name, name), caller)
            for name, value in inputs.items()
            if value is not None
        }
        on_device = any(name in self.inputs and self.inputs[name].device != "cpu" for name in _SOURCES)
        self.backend = backend or ("cuda" if on_device else DEFAULT_BACKEND)
        if self.backend == "cuda":
            _core.check_backend("cuda", caller)
        self._check_devices(shown)
        self.arrays = self._find_device(inputs)
        self._host = {
            name: np.asarray(inputs[name], dtype=self.inputs[name].dtype)
            for name in _MOVABLE
            if self.arrays and name in self.inputs and self.inputs[name].device == "cpu"
        }
        self.outputs: dict[str, _core.Array] = {}
        self.gradients: dict[str, Any] = {}
        self.options: dict[str, Any] = {}

    def _find_device(self, given: dict[str, Any]) -> DeviceArrays | None:
        """The library for outputs if the source lies on a device."""
        for name in _SOURCES:
            if name in self.inputs and self.inputs[name].device != "cpu":
                return arrays_like(given[name], self.inputs[name].device, self.caller)
        return None

    def _check_devices(self, shown: dict[str, str]) -> None:
        """A backend reads host memory or device memory. Labels and lengths may stay on the host."""
        for name, array in self.inputs.items():
            if self.backend == "cuda" and array.device == "cpu" and name not in _MOVABLE:
                raise ValueError(
                    f"{self.caller}: {shown.get(name, name)} is in host memory, expected a CUDA array "
                    "because backend 'cuda' reads device memory; move it there, or name another backend"
                )
            if self.backend != "cuda" and array.device != "cpu":
                raise ValueError(
                    f"{self.caller}: {shown.get(name, name)} is on {array.device}, expected host memory "
                    f"for backend {self.backend!r}; pass a copy on the host"
                )

    def _moved_inputs(self) -> dict[str, _core.Array]:
        """The inputs, with labels and lengths that lie on the host checked there and copied to the device."""
        if self.arrays is None:
            return self.inputs
        labels = [self.inputs[name] for name in _LABELS if name in self.inputs]
        if self.options.get("validate", True) and all(array.device == "cpu" for array in labels):
            _core.validate(self.caller, self.variant.table, self.inputs, self.outputs, self.options)
        moved = dict(self.inputs)
        for name in _MOVABLE:
            if name in moved and moved[name].device == "cpu":
                moved[name] = _core.Array(self.arrays.moved(self._host[name]), name, self.caller)
        return moved

    def set_options(self, **options: Any) -> None:
        """Take options; None leaves the library's default where the signature's own default is None."""
        for name, value in options.items():
            if value is None and name in OPTIONAL:
                continue
            self.options[name] = checked_option(self.caller, name, value)

    @property
    def cost_dtype(self) -> np.dtype[Any]:
        """float64 if any source input is, else float32."""
        sources = [self.inputs[name].dtype for name in _SOURCES if name in self.inputs]
        return np.dtype(np.float64 if "float64" in sources else np.float32)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an input, or () if its rank is wrong: the call itself then says so."""
        return tuple(self.inputs[name].shape)

    @property
    def nodes(self) -> tuple[int, int, int]:
        """(B, T, U + 1), from the source's shape; zeros where the rank is wrong."""
        if "encoder" in self.inputs:
            batch, frames, *_ = (*self.shape("encoder"), 0, 0)
            rows = (*self.shape("predictor"), 0, 0)[1]
        else:
            source = "logits" if "logits" in self.inputs else "arc_weights"
            batch, frames, rows, *_ = (*self.shape(source), 0, 0, 0)
        return batch, frames, rows

    def add_output(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        """Allocate an output."""
        array = np.empty(shape, dtype) if self.arrays is None else self.arrays.empty(shape, dtype)
        self.outputs[name] = _core.Array(array, name, self.caller)
        return array

    def add_gradient(self, name: str, *, in_place: Any = None) -> Any:
        """Allocate the gradient of an input, in its shape and dtype, or write it over `in_place`."""
        if name not in self.inputs or name not in _DIFFERENTIABLE:
            raise ValueError(
                f"{self.caller}: wrt names {name!r}, expected one of "
                f"{', '.join(sorted(set(self.inputs) & _DIFFERENTIABLE))}, which were given"
            )
        if name in self.gradients:
            return self.gradients[name]
        array = self.inputs[name]
        if in_place is None:
            dtype = numpy_dtype(array.dtype, self.caller)
            self.gradients[name] = self.add_output(f"{name}_gradient", array.shape, dtype)
        elif isinstance(in_place, (list, tuple)):
            raise TypeError(
                f"{self.caller}: inplace_grad is True and {name} is a {type(in_place).__name__}, expected "
                "an array whose memory takes the gradient"
            )
        else:
            self.outputs[f"{name}_gradient"] = array
            self.gradients[name] = in_place
        return self.gradients[name]

    def run(self) -> None:
        """Evaluate what the outputs ask for."""
        options = self.options if self.arrays is None else {**self.options, "stream": self.arrays.stream()}
        inputs = self._moved_inputs()
        _core.evaluate(self.caller, self.backend, self.variant.table, inputs, self.outputs, options)


_REQUIRED = (*(name for name in _SOURCES if name != "bias"), "targets", "frame_lengths", "target_lengths")

# Small arrays that a call on a device may have on the host.
_LABELS = ("targets", "frame_lengths", "target_lengths")
_MOVABLE = (*_LABELS, "band", "utterance_ids")

# Options whose default in the signatures is None, and the types of those that are not words.
OPTIONAL = ("seed", "skip_mass", "workspace_limit", "validate", "threads")
_REALS = ("clamp", "dropout", "skip_mass")
_FLAGS = ("zero_infinity", "from_log_probs", "validate")
_WORDS = ("reduction", "semiring", "activation", "precision")


def checked_option(caller: str, name: str, value: Any) -> Any:
    """The option as a type that the compiled library takes."""
    if name in _REALS:
        if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
            raise TypeError(f"{caller}: {name} is {value!r}, expected a number")
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{caller}: {name} is {value!r}, expected a number ({error})") from None
        if name == "skip_mass" and not 0 <= number < float("inf"):
            raise ValueError(f"{caller}: skip_mass is {number}, expected 0 or more")
        return number
    if name in _WORDS:
        return str(value)  # the library knows the words and names them
    if name in _FLAGS:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{caller}: {name} is {value!r}, expected True or False")
        return bool(value)
    if name in ("workspace_limit", "seed", "threads"):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{caller}: {name} is {value!r}, expected an integer")
        value = int(value.__index__())
        if name == "seed":
            return value % 2**64
        if name == "threads" and not 1 <= value <= 4096:
            raise ValueError(f"{caller}: threads is {value}, expected 1 to 4096, or None for the default")
        if name == "workspace_limit" and not 1 <= value < 2**63:
            raise ValueError(f"{caller}: workspace_limit is {value}, expected a number of bytes, 1 or more")
    return value


_DIFFERENTIABLE = {
    *_SOURCES,
    "arc_scores",
    "start_scores",
    "final_scores",
}


def _frame_lengths_name(inputs: dict[str, Any]) -> str:
    return "encoder_lengths" if "encoder" in inputs else "logit_lengths"
