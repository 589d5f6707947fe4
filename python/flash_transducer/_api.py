# SPDX-License-Identifier: Apache-2.0
"""Losses and their gradients from dense logits, whole and in two halves.

Shapes in the letters of docs/notation.md: B utterances, T frames, U labels (U + 1 positions), V symbols with
blank, K logit columns, A arcs. Costs are natural-log units (nats).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flash_transducer import _named as named
from flash_transducer._call import Call
from flash_transducer._run import (
    run_loss,
    run_scores,
    wrt_names,
)
from flash_transducer._tensors import takes_tensors
from flash_transducer.memory_plan import Plan, make_plan
from flash_transducer.variants import Variant

RNNT: Variant = named.rnnt()


def dense_call(
    caller: str,
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    backend: str | None,
    **more: Any,
) -> Call:
    """A call on dense logits; `more` are the optional inputs."""
    inputs = {
        "logits": logits,
        "targets": targets,
        "frame_lengths": logit_lengths,
        "target_lengths": target_lengths,
        **more,
    }
    return Call(caller, variant, backend, inputs)


@takes_tensors
def loss(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    """Transducer loss: minus the log of the summed probability of all alignments.

    Parameters
    ----------
    logits
        ``[B, T, U + 1, K]``, float64, float32, bfloat16 or float16, any strides. Unnormalised; the
        variant says how columns are normalised.
    targets
        ``[B, U]`` int32 or int64 labels in ``[0, V)``; entries past ``target_lengths`` are not read.
    logit_lengths, target_lengths
        ``[B]`` int32 or int64: frames T_b and labels U_b of each utterance, at most T and U.
    variant
        Which transducer: ``ft.rnnt()``, ``ft.tdt([0, 1, 2])``, ... or an ``ft.Variant`` of your own.
    reduction
        "none": costs ``[B]``. "sum"; "mean": over the batch; "mean_target": sum over utterances divided
        by the sum of target lengths; "mean_frame": divided by the sum of frames.
    clamp
        Above 0: each element of the logit gradient is clamped to ``[-clamp, clamp]`` at unit scale, before
        reduction and incoming gradient multiply it.
    zero_infinity
        Utterances without a path (cost +inf) count as cost 0.
    from_log_probs
        The logits are log-probabilities already: no group is normalised.
    arc_scores
        Extra log-weights that broadcast to ``[B, T, U + 1, A]``; -inf forbids an arc.
    start_scores, final_scores
        ``[B, T]`` log-weights of starting at (t, 0) and ``[B, T + 1]`` of ending at (t, U), in place of
        starting at t = 0 and ending at t = T.
    inplace_grad
        Of use to autograd and :func:`value_and_grad` only.
    skip_mass
        Share of the occupancy that the gradient may leave out, which bounds its error (docs/math.md); None
        is 1e-7 for float32, 1e-5 for the 16-bit types and 0 for float64. The reference leaves out none.
    band
        ``[B, T, 2]`` first and last u allowed at each frame, inclusive.
    semiring
        "log" sums over paths; "max" takes the best one.
    workspace_limit
        Most bytes of scratch memory the call may use.
    validate
        Labels and lengths on the host are always checked.
    backend
        "cpu", "reference" (double precision, sequential), or None for the default: "cpu" if it was built.
    threads
        Threads of the cpu backend; None for OMP_NUM_THREADS or the cores there are. Changes no bit.

    Returns
    -------
    numpy.ndarray or numpy.floating
        Costs in nats, float64 if the logits are, else float32. +inf where no path exists, NaN where a
        path reads NaN or +inf.

    Raises
    ------
    ValueError
        A shape, a type, a length or a label does not fit; the message names it.

    Notes
    -----
    docs/math.md derives the sums; the regular transducer is Graves 2012, arXiv 1211.3711.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> logits = np.zeros((1, 4, 3, 5))  # B = 1, T = 4, U = 2, V = 5, all symbols equally likely
    >>> cost = ft.loss(logits, [[1, 2]], [4], [2])
    >>> print(f"{cost:.4f}")  # 6 arcs of 1/5 along each of 10 paths: 6 ln 5 - ln 10
    7.3540
    """
    del inplace_grad
    call = dense_call(
        "ft.loss", logits, targets, logit_lengths, target_lengths, variant, backend,
        arc_scores=arc_scores, start_scores=start_scores, final_scores=final_scores, band=band,
    )  # fmt: skip
    call.set_options(
        reduction=reduction, clamp=clamp, zero_infinity=zero_infinity,
        from_log_probs=from_log_probs, skip_mass=skip_mass, semiring=semiring,
        workspace_limit=workspace_limit, validate=validate, threads=threads,
    )  # fmt: skip
    return run_loss(call)


@takes_tensors
def value_and_grad(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    wrt: Any = "logits",
) -> tuple[Any, Any]:
    """Loss and its gradient; arguments as :func:`loss`.

    Parameters
    ----------
    wrt
        "logits", "arc_scores", "start_scores" or "final_scores", or a tuple of them.
    inplace_grad
        Write the logit gradient over the logits, which must be writable, and return that same array.

    Returns
    -------
    tuple
        ``(loss, gradient)``; a tuple of names gives a tuple of gradients. Each gradient has the shape and
        dtype of what was given; padding and utterances without a path get exactly 0. With reduction "none"
        it is the gradient of the sum.

    Raises
    ------
    ValueError
        As :func:`loss`, or if ``wrt`` names something that was not given.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> cost, gradient = ft.value_and_grad(np.zeros((1, 4, 3, 5)), [[1, 2]], [4], [2])
    >>> gradient.shape
    (1, 4, 3, 5)
    >>> print(np.abs(gradient.sum(axis=-1)).max() < 1e-15)  # a softmax row sums to 0
    True
    """
    caller = "ft.value_and_grad"
    call = dense_call(
        caller, logits, targets, logit_lengths, target_lengths, variant, backend,
        arc_scores=arc_scores, start_scores=start_scores, final_scores=final_scores, band=band,
    )  # fmt: skip
    call.set_options(
        reduction=reduction, clamp=clamp, zero_infinity=zero_infinity,
        from_log_probs=from_log_probs, skip_mass=skip_mass, semiring=semiring,
        workspace_limit=workspace_limit, validate=validate, threads=threads,
    )  # fmt: skip
    names = wrt_names(wrt, caller)
    if not isinstance(inplace_grad, (bool, np.bool_)):
        raise TypeError(f"{caller}: inplace_grad is {inplace_grad!r}, expected True or False")
    gradients = tuple(
        call.add_gradient(name, in_place=logits if inplace_grad and name == "logits" else None)
        for name in names
    )
    value = run_loss(call)
    return value, gradients[0] if isinstance(wrt, str) else gradients


@takes_tensors
def skipped_mass(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
    skip_mass: float | None = None,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """Occupancy that the gradient leaves out under ``skip_mass``; arguments as :func:`loss`.

    No element of an utterance's gradient is wrong by more than this, times the variant's gain (2 for the
    regular transducer), times the reduction's scale.

    Returns
    -------
    numpy.ndarray
        ``[B]``, in expected visits; 0 for the reference.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> logits = np.random.default_rng(0).normal(0, 4, (1, 40, 11, 5)).astype(np.float32)
    >>> batch = logits, [[1, 2] * 5], [40], [10]
    >>> bool(ft.skipped_mass(*batch, skip_mass=1e-3)[0] <= 1e-3 * 50)  # a path has 50 arcs
    True
    """
    call = dense_call(
        "ft.skipped_mass", logits, targets, logit_lengths, target_lengths, variant, backend,
        arc_scores=arc_scores, start_scores=start_scores, final_scores=final_scores, band=band,
    )  # fmt: skip
    call.set_options(from_log_probs=from_log_probs, skip_mass=skip_mass, threads=threads)
    mass = call.add_output("skipped_mass", (call.nodes[0],), np.float64)
    call.run()
    return mass


@takes_tensors
def scores(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    band: Any = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """Complete log-weights of all arcs: columns, normalisers, constants, frame bonus and arc scores.

    Arguments as :func:`loss`. Put something of your own between this and :func:`lattice_loss`.

    Returns
    -------
    numpy.ndarray
        ``[B, T, U + 1, A]`` in the order of ``variant.arcs``, float64 if the logits are, else float32;
        -inf where no arc exists and in padding, NaN where an arc reads NaN or +inf.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> weights = ft.scores(np.zeros((1, 4, 3, 5)), [[1, 2]], [4], [2], ft.rnnt())
    >>> weights.shape, round(float(weights[0, 0, 0, 0]), 4)  # log 1/5
    ((1, 4, 3, 2), -1.6094)
    """
    call = dense_call(
        "ft.scores", logits, targets, logit_lengths, target_lengths, variant, backend,
        arc_scores=arc_scores, band=band,
    )  # fmt: skip
    call.set_options(from_log_probs=from_log_probs, threads=threads)
    return run_scores(call)


@takes_tensors
def lattice_loss(
    arc_weights: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    reduction: str = "mean",
    zero_infinity: bool = False,
    start_scores: Any = None,
    final_scores: Any = None,
    semiring: str = "log",
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """Loss from complete arc weights, as :func:`scores` gives them; of the variant, reads the moves only.

    A band given to :func:`scores` has become -inf on arcs. Start and final scores of nodes outside it
    are the caller's to set to -inf.

    Parameters
    ----------
    arc_weights
        ``[B, T, U + 1, A]``; -inf forbids an arc.
    logit_lengths, target_lengths, reduction, zero_infinity, start_scores, final_scores, semiring
        As :func:`loss`, and so are backend and threads.

    Returns
    -------
    numpy.ndarray or numpy.floating
        As :func:`loss`.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> batch = np.zeros((1, 4, 3, 5)), [[1, 2]], [4], [2]
    >>> weights = ft.scores(*batch, ft.rnnt())
    >>> bool(ft.lattice_loss(weights, [4], [2], ft.rnnt()) == ft.loss(*batch))
    True
    """
    inputs = {
        "arc_weights": arc_weights,
        "frame_lengths": logit_lengths,
        "target_lengths": target_lengths,
        "start_scores": start_scores,
        "final_scores": final_scores,
    }
    call = Call("ft.lattice_loss", variant, backend, inputs)
    call.set_options(reduction=reduction, zero_infinity=zero_infinity, semiring=semiring, threads=threads)
    return run_loss(call)


def plan(
    B: int,
    T: int,
    U: int,
    K: int,
    H: int | None = None,
    *,
    variant: Variant = RNNT,
    dtype: str = "float32",
    backend: str | None = None,
    max_rows: int | None = None,
    workspace_limit: int | None = None,
) -> Plan:
    """Memory that loss and gradient of a batch would take, without running it.

    Parameters
    ----------
    B, T, U, K, H
        Utterances, frames, labels, logit columns, and joint width (None for dense logits).
    variant
        The number of arcs and groups counts.
    dtype
        Storage type of the inputs.
    backend
        None for the default: "cpu" if it was built, else "reference".
    max_rows
        Bound on the lattice rows of the batch, for callers who know more than ``B * T * (U + 1)``.
    workspace_limit
        Most bytes of scratch.

    Returns
    -------
    Plan
        Named regions and bytes; prints as a table.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> plan = ft.plan(8, 100, 20, 500, 512)
    >>> plan.never_made["logits"]  # [8, 100, 21, 500] float32
    33600000
    """
    return make_plan(
        {"batch": B, "frames": T, "labels": U, "columns": K, "hidden": H or 0,
         "max_rows": max_rows or 0},
        variant, dtype, backend, workspace_limit,
    )  # fmt: skip
