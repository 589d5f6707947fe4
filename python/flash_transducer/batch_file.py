# SPDX-License-Identifier: Apache-2.0
"""Batch files: one batch of inputs as a safetensors file, read without trusting it.

A file holds ``logits`` ``[B, T, U+1, K]``, or ``encoder`` ``[B, T, H]``, ``predictor``
``[B, U+1, H]``, ``weight`` ``[K, H]`` and ``bias`` ``[K]``; and always ``targets`` ``[B, U]``,
``logit_lengths`` ``[B]`` (``encoder_lengths`` means the same) and ``target_lengths`` ``[B]``.
It may hold ``arc_scores``, ``start_scores``, ``final_scores`` and ``band``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_DENSE = {"logits": ("B", "T", "U+1", "K")}
_JOINT = {
    "encoder": ("B", "T", "H"),
    "predictor": ("B", "U+1", "H"),
    "weight": ("K", "H"),
    "bias": ("K",),
}
_COMMON = {"targets": ("B", "U"), "logit_lengths": ("B",), "target_lengths": ("B",)}
_OPTIONAL = ("arc_scores", "start_scores", "final_scores", "band")
_OPTIONAL_RANKS = {"start_scores": 2, "final_scores": 2, "band": 3}
_FLOATS = ("F64", "F32", "F16", "BF16")
_INTEGERS = ("I64", "I32")


class BatchFileError(ValueError):
    """A batch file that cannot be used; the message is one line and says what to do."""


@dataclass(frozen=True)
class Batch:
    """Inputs of one call of ``ft.loss`` or ``ft.joint_loss``.

    Attributes
    ----------
    source
        The arrays that the scores come from: ``logits``, or the four of the joint source.
    targets, logit_lengths, target_lengths
        As ``ft.loss`` takes them.
    options
        What the file holds of ``arc_scores``, ``start_scores``, ``final_scores`` and ``band``.
    """

    source: dict[str, Array]
    targets: Array  # [B, U]
    logit_lengths: Array  # [B]
    target_lengths: Array  # [B]
    options: dict[str, Array]

    @property
    def is_joint(self) -> bool:
        """Whether the scores come from an encoder and a predictor, not from logits."""
        return "logits" not in self.source

    @property
    def num_utterances(self) -> int:
        """B."""
        return int(self.targets.shape[0])

    def arguments(self, begin: int = 0, end: int | None = None) -> tuple[Array, ...]:
        """Positional arguments of ``ft.loss`` or ``ft.joint_loss``, for some utterances."""
        rows = slice(begin, end)
        whole = ("weight", "bias")
        source = [a if name in whole else a[rows] for name, a in self.source.items()]
        return (*source, self.targets[rows], self.logit_lengths[rows], self.target_lengths[rows])

    def keywords(self, begin: int = 0, end: int | None = None) -> dict[str, Array]:
        """Keyword arguments to go with :meth:`arguments`."""
        # arc_scores broadcasts, so its batch axis may be missing or 1.
        one_for_all = {
            name
            for name, a in self.options.items()
            if name == "arc_scores" and (a.ndim < 4 or a.shape[0] == 1)
        }
        return {n: a if n in one_for_all else a[begin:end] for n, a in self.options.items()}


def read_batch(path: str | os.PathLike[str]) -> Batch:
    """Read a batch file.

    Raises
    ------
    BatchFileError
        If the file is missing or damaged, or a tensor is missing or has the wrong shape or type.
    ModuleNotFoundError
        If ``safetensors`` is not installed.
    """
    tensors, names = _read_tensors(Path(path))
    if "encoder_lengths" in tensors:
        lengths = tensors.setdefault("logit_lengths", tensors["encoder_lengths"])
        if not np.array_equal(lengths, tensors["encoder_lengths"]):
            raise BatchFileError(
                f"{path}: logit_lengths and encoder_lengths differ; they are two names for the same lengths, "
                "so keep one"
            )
    return _make_batch(str(path), tensors, names)


def write_batch(path: str | os.PathLike[str], tensors: Mapping[str, Array]) -> None:
    """Write arrays as a batch file, after the checks that :func:`read_batch` makes."""
    from safetensors.numpy import save_file

    _make_batch(str(path), dict(tensors), list(tensors))
    save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, os.fspath(path))


def _read_tensors(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Read the tensors that a batch can have, and the names of all that are there."""
    try:
        import safetensors
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "batch files need safetensors: pip install 'flash-transducer[cli]'"
        ) from error
    if path.is_dir():
        raise BatchFileError(f"{path}: is a directory; name a .safetensors file in it")
    if not path.exists():
        raise BatchFileError(f"{path}: no such file")
    if not path.is_file():
        raise BatchFileError(f"{path}: not a regular file; safetensors files are mapped into memory")
    known = {*_DENSE, *_JOINT, *_COMMON, *_OPTIONAL, "encoder_lengths"}
    tensors = {}
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  not a dict
                if name in known:  # others, such as a token list, are left unread
                    tensors[name] = _read_tensor(file, name, path)
            found = list(file.keys())
    except safetensors.SafetensorError as error:
        size = path.stat().st_size
        raise BatchFileError(
            f"{path}: not a usable safetensors file ({_one_line(error)}; {size:,} bytes). "
            "Was it cut short, or is it another format?"
        ) from error
    except OSError as error:
        raise BatchFileError(f"{path}: cannot be read ({_one_line(error)})") from error
    if not tensors:
        raise BatchFileError(f"{path}: none of the expected tensors is there. {_found(found)}")
    return tensors, found


def _read_tensor(file: Any, name: str, path: Path) -> Array:
    dtype = file.get_slice(name).get_dtype()
    if dtype not in (*_FLOATS, *_INTEGERS):
        raise BatchFileError(
            f"{path}: {name} has dtype {dtype}; supported are {', '.join(_FLOATS)} for scores and "
            f"{', '.join(_INTEGERS)} for labels and lengths"
        )
    try:
        return np.asarray(file.get_tensor(name))
    except (AttributeError, TypeError, ImportError) as error:
        raise BatchFileError(
            f"{path}: {name} has dtype {dtype}, which NumPy lacks here: pip install ml_dtypes"
        ) from error
    except BaseException as error:
        # The library panics, outside Exception, when the tensor does not fit into memory.
        if type(error).__name__ != "PanicException":
            raise
        raise BatchFileError(
            f"{path}: {name} cannot be loaded ({_one_line(error)}); does it fit into memory?"
        ) from None


def _make_batch(path: str, tensors: dict[str, Array], names: list[str]) -> Batch:
    joint_given = [name for name in _JOINT if name in tensors]
    if "logits" in tensors and joint_given:
        raise BatchFileError(
            f"{path}: holds both logits and {', '.join(joint_given)}; keep one source of scores"
        )
    source = _JOINT if joint_given else _DENSE
    missing = [name for name in (*source, *_COMMON) if name not in tensors]
    if missing:
        either = " (or encoder, predictor, weight and bias)" if "logits" in missing else ""
        raise BatchFileError(f"{path}: {', '.join(missing)}{either} missing. {_found(names)}")
    sizes: dict[str, tuple[str, int]] = {}
    for name, axes in {**source, **_COMMON}.items():
        _check(path, name, tensors[name], axes, sizes, integers=name in _COMMON)
    for name, rank in _OPTIONAL_RANKS.items():
        batch = tensors["targets"].shape[0]
        if name in tensors and (tensors[name].ndim != rank or tensors[name].shape[0] != batch):
            raise BatchFileError(
                f"{path}: {name} has shape {list(tensors[name].shape)}, expected {rank} axes of which the "
                f"first is B = {batch}, as in targets"
            )
    scores = tensors.get("arc_scores")
    if scores is not None and scores.ndim == 4 and scores.shape[0] not in (1, tensors["targets"].shape[0]):
        raise BatchFileError(
            f"{path}: arc_scores has shape {list(scores.shape)}, expected a first axis of 1 or of B = "
            f"{tensors['targets'].shape[0]}, as in targets"
        )
    return Batch(
        source={name: tensors[name] for name in source},
        targets=tensors["targets"],
        logit_lengths=tensors["logit_lengths"],
        target_lengths=tensors["target_lengths"],
        options={name: tensors[name] for name in _OPTIONAL if name in tensors},
    )


def _check(
    path: str,
    name: str,
    array: Array,
    axes: tuple[str, ...],
    sizes: dict[str, tuple[str, int]],
    *,
    integers: bool,
) -> None:
    shape, wanted = list(array.shape), f"[{', '.join(axes)}]"
    if array.ndim != len(axes):
        raise BatchFileError(f"{path}: {name} has shape {shape}, expected {wanted}")
    is_integer = np.issubdtype(array.dtype, np.integer)
    if is_integer != integers:
        kind = "integers (int32 or int64)" if integers else "floating-point numbers"
        raise BatchFileError(f"{path}: {name} has dtype {array.dtype}, expected {kind}")
    for axis, size in zip(axes, shape, strict=True):
        # "U" of targets is "U+1" less one.
        key, value = ("U+1", size + 1) if axis == "U" else (axis, size)
        first, known = sizes.setdefault(key, (name, value))
        if value != known:
            hint = (
                " Did the prediction network get its start symbol?"
                if axis == "U" and value == known + 1
                else ""
            )
            raise BatchFileError(
                f"{path}: {name} has shape {shape}, expected {wanted} with {axis} = "
                f"{known - (axis == 'U')} because {first} has {key} = {known}.{hint}"
            )


def _found(names: list[str]) -> str:
    shown = ", ".join(repr(name)[1:-1][:60] for name in sorted(names)[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"Found: {shown}{more}." if names else "It holds no tensors."


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()).removeprefix("Error while deserializing header: ")
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 160 else text[:157] + "..."
