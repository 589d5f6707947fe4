# SPDX-License-Identifier: Apache-2.0
"""A loss over a batch whose utterances lie on several processes.

Each rank calls the same function with the utterances that it owns, any number of them, and gets what
one process with the whole batch would get: costs and gradients of its own utterances, the reduced cost of
all, and the gradients of ``weight`` and ``bias`` summed over all.

>>> import flash_transducer.distributed as ftd
>>> [owned.tolist() for owned in ftd.shard([9, 4, 5, 1], [2, 1, 1, 0], 2)]
[[0], [1, 2, 3]]

A group of ranks is an MPI communicator of this package or of mpi4py, or a process group of PyTorch, which
``torchrun`` makes; without one it is the world of the program, a single process where there is no launcher.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flash_transducer import _core
from flash_transducer._api import RNNT
from flash_transducer._call import Call
from flash_transducer._joint import JointGradients
from flash_transducer._ranks import Alone, Mpi4py, TorchGroup, launcher, mpi_world
from flash_transducer.variants import Variant

__all__ = [
    "Group",
    "group_of",
    "joint_loss",
    "joint_value_and_grad",
    "loss",
    "shard",
    "value_and_grad",
    "world",
]


class Group(Protocol):
    """Ranks that communicate. All of them call each method, in the same order."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def sum(self, values: Any) -> None:
        """Replace each element of a float64 or int64 buffer by its sum over the ranks."""

    def maximum(self, values: Any) -> None:
        """Replace each element of an int32 buffer by its maximum over the ranks."""

    def gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank."""


_world: Group | None = None


def world() -> Group:
    """All ranks of this program, by whatever launched it: mpirun, torchrun, or nothing (one rank).

    Raises
    ------
    ModuleNotFoundError
        If a launcher started several processes and what they need to communicate is not there.
    """
    global _world  # one for the life of the program: making it is collective
    if _world is None:
        found = launcher(os.environ)
        if found is None:
            _world = Alone()
        elif found.kind == "torch":
            _world = TorchGroup.of_environment()
        else:
            _world = mpi_world(found)
    return _world


def group_of(group: Any = None) -> Group:
    """The group that a communicator stands for: ours, mpi4py's, a PyTorch process group, or None."""
    if group is None:
        return world()
    ours = all(hasattr(group, name) for name in ("rank", "size", "sum", "maximum", "gather"))
    if ours and not callable(group.rank):
        return group  # type: ignore[no-any-return]
    if hasattr(group, "Get_rank"):
        return Mpi4py(group)
    if hasattr(group, "rank") and callable(group.rank):
        return TorchGroup(group)
    raise TypeError(
        f"ft.distributed: group is a {type(group).__name__}, expected an mpi4py communicator, a process "
        "group of torch.distributed, or None for all ranks of the program"
    )


def shard(frames: Any, labels: Any, ranks: int) -> list[npt.NDArray[np.int64]]:
    """Which utterances each rank should own: longest first onto the least loaded, by lattice rows.

    Parameters
    ----------
    frames, labels
        T and U of each utterance.
    ranks
        Number of ranks.

    Returns
    -------
    list of numpy.ndarray
        Indices of each rank's utterances, ascending; empty where there are fewer utterances than ranks.
    """
    frames, labels = np.asarray(frames, np.int64), np.asarray(labels, np.int64)
    if frames.ndim != 1 or frames.shape != labels.shape:
        raise ValueError(
            f"ft.distributed.shard: frames has shape {list(frames.shape)} and labels {list(labels.shape)}, "
            "expected one axis each, of the same length"
        )
    owners = np.asarray(_core.shard((frames * (labels + 1)).tolist(), ranks, []), np.int64)
    return [np.flatnonzero(owners == rank) for rank in range(ranks)]


def loss(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    group: Any = None,
    utterances: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """``ft.loss`` of a batch that lies on several ranks; collective.

    Parameters
    ----------
    logits, targets, logit_lengths, target_lengths, variant
        As :func:`flash_transducer.loss`, for the utterances of this rank; ``B = 0`` is legal.
    group
        The ranks (see :func:`group_of`).
    utterances
        Number of each local utterance in the whole batch, distinct over all ranks: the order in which the
        total is summed. Default: numbered through in the order of the ranks.
    **options
        As :func:`flash_transducer.loss`; the same on every rank.

    Returns
    -------
    numpy.ndarray or numpy.floating
        Costs of this rank's utterances with ``reduction="none"``, else the reduced cost of all.
    """
    inputs = _dense_inputs(logits, targets, logit_lengths, target_lengths)
    return _run("ft.distributed.loss", inputs, variant, group, utterances, False, options, ())[0]


def value_and_grad(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    group: Any = None,
    utterances: Sequence[int] | None = None,
    wrt: Any = "logits",
    **options: Any,
) -> tuple[Any, Any]:
    """Loss of all, and gradients of this rank's utterances; arguments as :func:`loss`."""
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    inputs = _dense_inputs(logits, targets, logit_lengths, target_lengths)
    value, gradients = _run(
        "ft.distributed.value_and_grad", inputs, variant, group, utterances, False, options, names
    )
    return value, gradients[wrt] if isinstance(wrt, str) else tuple(gradients[name] for name in names)


def joint_loss(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    group: Any = None,
    utterances: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """``ft.joint_loss`` of a batch that lies on several ranks; arguments as there and as :func:`loss`.

    ``weight`` and ``bias`` are the same on every rank. Dropout ids default to ``utterances``, so the mask is
    that of the whole batch.
    """
    inputs = _joint_inputs(encoder, predictor, weight, bias, targets, encoder_lengths, target_lengths)
    return _run("ft.distributed.joint_loss", inputs, variant, group, utterances, False, options, ())[0]


def joint_value_and_grad(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    group: Any = None,
    utterances: Sequence[int] | None = None,
    reproducible: bool = False,
    **options: Any,
) -> tuple[Any, JointGradients]:
    """Loss of all and gradients; arguments as :func:`joint_loss`.

    Parameters
    ----------
    reproducible
        Give ``weight`` and ``bias`` gradients of the same bits for any number of ranks and any assignment.
        Takes 28 bytes for each of their elements, and a pass over them for each utterance.

    Returns
    -------
    tuple
        The value, and a ``JointGradients`` whose ``encoder`` and ``predictor`` are this rank's and whose
        ``weight`` and ``bias`` are summed over all ranks. Do not sum those again (DistributedDataParallel
        averages gradients: leave the output layer out of it).
    """
    inputs = _joint_inputs(encoder, predictor, weight, bias, targets, encoder_lengths, target_lengths)
    names = tuple(name for name in JointGradients._fields if inputs[name] is not None)
    value, gradients = _run(
        "ft.distributed.joint_value_and_grad",
        inputs,
        variant,
        group,
        utterances,
        reproducible,
        options,
        names,
    )
    return value, JointGradients(*(gradients.get(name) for name in JointGradients._fields))


def _dense_inputs(logits: Any, targets: Any, frames: Any, labels: Any) -> dict[str, Any]:
    return {"logits": logits, "targets": targets, "frame_lengths": frames, "target_lengths": labels}


def _joint_inputs(
    encoder: Any, predictor: Any, weight: Any, bias: Any, targets: Any, frames: Any, labels: Any
) -> dict[str, Any]:
    return {
        "encoder": encoder,
        "predictor": predictor,
        "weight": weight,
        "bias": bias,
        "targets": targets,
        "frame_lengths": frames,
        "target_lengths": labels,
    }


_INPUTS = ("arc_scores", "start_scores", "final_scores", "band")
_JOINT_INPUTS = ("predictor_mask", "utterance_ids")
_OPTIONS = (
    "reduction", "clamp", "zero_infinity", "from_log_probs", "skip_mass", "semiring", "workspace_limit",
    "threads",
)  # fmt: skip
_JOINT_OPTIONS = ("activation", "dropout", "seed", "precision")


def _prepare(
    caller: str,
    inputs: dict[str, Any],
    variant: Variant,
    options: dict[str, Any],
    names: tuple[str, ...],
) -> tuple[Call, Any]:
    """The call of this rank and the array that takes the value."""
    joint = "encoder" in inputs
    given = dict(options)
    backend = given.pop("backend", None)
    for name in _INPUTS + (_JOINT_INPUTS if joint else ()):
        inputs[name] = given.pop(name, None)
    known = _OPTIONS + (_JOINT_OPTIONS if joint else ())
    for name in given:
        if name not in known:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
    if given.get("dropout") and given.get("seed") is None:
        raise ValueError(f"{caller}: dropout is {given['dropout']} and seed is None, expected a seed")
    call = Call(caller, variant, backend, inputs)
    call.set_options(**given)
    if given.get("reduction", "mean") == "none":
        value = call.add_output("costs", (call.nodes[0],), call.cost_dtype)
    else:
        value = call.add_output("total", (), call.cost_dtype)
    for name in names:
        call.add_gradient(name)
    return call, value


def _run(
    caller: str,
    inputs: dict[str, Any],
    variant: Variant,
    group: Any,
    utterances: Sequence[int] | None,
    reproducible: bool,
    options: dict[str, Any],
    names: tuple[str, ...],
) -> tuple[Any, dict[str, Any]]:
    ranks = group_of(group)
    try:
        call, value = _prepare(caller, inputs, variant, options, names)
        numbers = [] if utterances is None else [int(number) for number in utterances]
    except Exception as error:
        # The others are waiting in the first exchange of distributed_loss, where a first byte of 1 and a text
        # say that this rank's part is not legal.
        ranks.gather(b"\x01" + str(error).encode())
        raise
    _core.distributed_loss(
        caller,
        call.backend,
        variant.table,
        call.inputs,
        call.outputs,
        call.options,
        ranks,
        numbers,
        reproducible,
    )
    return (value if value.ndim else value[()]), call.gradients
