# SPDX-License-Identifier: Apache-2.0
"""The same functions from the inputs of the joint network, ``W drop(act(E_t + P_u)) + c``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flash_transducer._api import RNNT
from flash_transducer._call import Call
from flash_transducer._run import check_ignored, run_align, run_lattice, run_loss, run_scores, wrt_names
from flash_transducer._tensors import takes_tensors
from flash_transducer.inspection import Alignment, Lattice
from flash_transducer.variants import Variant

_LOSS_OPTIONS: dict[str, Any] = {
    "reduction": "mean",
    "clamp": 0.0,
    "zero_infinity": False,
    "from_log_probs": False,
    "skip_mass": None,
    "semiring": "log",
    "workspace_limit": None,
    "validate": None,
    "threads": None,
}
_EXTRA_INPUTS = ("arc_scores", "start_scores", "final_scores", "band")


class JointGradients(NamedTuple):
    """Gradients of the joint inputs, each with its input's shape and dtype; bias is None without one."""

    encoder: Any
    predictor: Any
    weight: Any
    bias: Any


def seeded(caller: str, dropout: Any, seed: Any) -> Any:
    """The seed of the dropout mask; 0 where nothing is dropped."""
    if seed is None and isinstance(dropout, (int, float, np.number)) and dropout:
        raise ValueError(
            f"{caller}: dropout is {dropout} and seed is None, expected a seed: the dropout "
            "mask is drawn from it, so that every backend and every shard draws the same"
        )
    return 0 if seed is None else seed


def _joint_call(caller: str, values: dict[str, Any]) -> Call:
    inputs = {
        "encoder": values["encoder"],
        "predictor": values["predictor"],
        "weight": values["weight"],
        "bias": values["bias"],
        "targets": values["targets"],
        "frame_lengths": values["encoder_lengths"],
        "target_lengths": values["target_lengths"],
        "predictor_mask": values["predictor_mask"],
        "utterance_ids": values["utterance_ids"],
        **{name: values.get(name) for name in _EXTRA_INPUTS},
    }
    call = Call(caller, values["variant"], values["backend"], inputs)
    call.set_options(
        activation=values["activation"],
        dropout=values["dropout"],
        seed=seeded(caller, values["dropout"], values["seed"]),
        precision=values["precision"],
        **{name: values[name] for name in _LOSS_OPTIONS if name in values},
    )
    return call


@takes_tensors
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
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    reduction: str = "mean",
    clamp: float = 0.0,
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    inplace_grad: bool = False,
    skip_mass: float | None = None,
    band: Any = None,
    semiring: str = "log",
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """Transducer loss from joint inputs; the logits ``[B, T, U + 1, K]`` never exist as an array.

    Parameters
    ----------
    encoder
        ``[B, T, H]`` encoder output, projected to the joint width.
    predictor
        ``[B, U + 1, H]`` prediction network output, start symbol first.
    weight, bias
        Output layer ``[K, H]`` and ``[K]``; bias may be None.
    targets, target_lengths
        As :func:`flash_transducer.loss`.
    encoder_lengths
        ``[B]`` frames of each utterance.
    activation
        "identity", "relu", "leaky_relu" (slope 0.01), "tanh", "sigmoid", "gelu" (erf form) or "silu".
    dropout, seed, utterance_ids
        Probability of dropping a joint unit, the 64-bit seed of the mask (Philox4x32-10, Salmon et al.
        2011), and ``[B]`` integers that identify utterances in it (default: the batch index).
    predictor_mask
        ``[B, U + 1]`` factors of the predictor rows, not rescaled (HAINAN, Xu et al. 2024).
    precision
        "highest" or "high"; the reference computes in double either way.

    Other options as :func:`flash_transducer.loss`.

    Returns
    -------
    numpy.ndarray or numpy.floating
        Costs in nats, float64 if any of the four inputs is, else float32.

    Raises
    ------
    ValueError
        A shape, a type, a length or a label does not fit; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> encoder, predictor = np.zeros((1, 4, 8)), np.zeros((1, 3, 8))
    >>> weight, bias = np.zeros((5, 8)), np.zeros(5)
    >>> print(f"{ft.joint_loss(encoder, predictor, weight, bias, [[1, 2]], [4], [2]):.4f}")
    7.3540
    """
    del inplace_grad
    return run_loss(_joint_call("ft.joint_loss", dict(locals())))


@takes_tensors
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
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    reduction: str = "mean",
    clamp: float = 0.0,
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    inplace_grad: bool = False,
    skip_mass: float | None = None,
    band: Any = None,
    semiring: str = "log",
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
    wrt: Any = "joint",
) -> tuple[Any, Any]:
    """Loss and gradients from joint inputs; arguments as :func:`joint_loss`.

    Parameters
    ----------
    wrt
        "joint" for a :class:`JointGradients`; or the name of one input ("encoder", "predictor", "weight",
        "bias", "arc_scores", "start_scores", "final_scores"), or a tuple of names ("joint" allowed).

    Returns
    -------
    tuple
        ``(loss, gradients)``.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> encoder, predictor = np.ones((1, 4, 8)), np.ones((1, 3, 8))
    >>> weight, bias = np.zeros((5, 8)), np.zeros(5)
    >>> cost, gradients = ft.joint_value_and_grad(
    ...     encoder, predictor, weight, bias, [[1, 2]], [4], [2]
    ... )
    >>> gradients.weight.shape
    (5, 8)
    """
    del inplace_grad
    values = dict(locals())
    caller = "ft.joint_value_and_grad"
    call = _joint_call(caller, values)
    names = wrt_names(wrt, caller)

    def gradient(name: str) -> Any:
        if name != "joint":
            return call.add_gradient(name)
        parts = {part: None if values[part] is None else call.add_gradient(part)
                 for part in JointGradients._fields}  # fmt: skip
        return JointGradients(**parts)

    gradients = tuple(gradient(name) for name in names)
    value = run_loss(call)
    return value, gradients[0] if isinstance(wrt, str) else gradients


@takes_tensors
def joint_scores(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    from_log_probs: bool = False,
    arc_scores: Any = None,
    band: Any = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """Complete log-weights of all arcs ``[B, T, U + 1, A]`` from joint inputs; see :func:`scores`.

    Arguments as :func:`joint_loss`.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> joint = np.zeros((1, 4, 8)), np.zeros((1, 3, 8)), np.zeros((5, 8)), np.zeros(5)
    >>> ft.joint_scores(*joint, [[1, 2]], [4], [2], ft.rnnt()).shape
    (1, 4, 3, 2)
    """
    return run_scores(_joint_call("ft.joint_scores", dict(locals())))


@takes_tensors
def joint_lattice(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    zero_infinity: bool = False,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
    semiring: str = "log",
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Lattice:
    """Forward, backward, posteriors and costs from joint inputs; see :func:`lattice`.

    Arguments as :func:`joint_loss`.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> joint = np.zeros((1, 4, 8)), np.zeros((1, 3, 8)), np.zeros((5, 8)), np.zeros(5)
    >>> result = ft.joint_lattice(*joint, [[1, 2]], [4], [2])
    >>> print(f"{result.arc_posterior[0, 0, 0, 1]:.4f}")  # 4 of the 10 paths start with a label
    0.4000
    """
    call = _joint_call("ft.joint_lattice", dict(locals()))
    return run_lattice(call, encoder_lengths, target_lengths)


@takes_tensors
def joint_align(
    encoder: Any,
    predictor: Any,
    weight: Any,
    bias: Any,
    targets: Any,
    encoder_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    utterance_ids: Any = None,
    predictor_mask: Any = None,
    precision: str = "highest",
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
    workspace_limit: int | None = None,
    validate: bool | None = None,
    backend: str | None = None,
    threads: int | None = None,
    **ignored: Any,
) -> list[Alignment]:
    """Best paths from joint inputs; see :func:`align`.

    Arguments as :func:`joint_loss`.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> joint = np.zeros((1, 4, 8)), np.zeros((1, 3, 8)), np.zeros((5, 8)), np.zeros(5)
    >>> ft.joint_align(*joint, [[1, 2]], [4], [2])[0].labels.tolist()
    [1, 2]
    """
    values = dict(locals())
    check_ignored("ft.joint_align", ignored)
    return run_align(_joint_call("ft.joint_align", values), targets)
