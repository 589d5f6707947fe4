# SPDX-License-Identifier: Apache-2.0
"""The lattice behind a loss of dense logits: posteriors and best paths.

Shapes in the letters of docs/notation.md: B utterances, T frames, U labels (U + 1 positions), A arcs.
"""

from __future__ import annotations

from typing import Any

from flash_transducer._api import RNNT, dense_call
from flash_transducer._run import check_ignored, run_align, run_lattice
from flash_transducer._tensors import takes_tensors
from flash_transducer.inspection import Alignment, Lattice
from flash_transducer.variants import Variant


@takes_tensors
def lattice(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    """Forward and backward log-sums, posteriors of arcs and nodes, and costs; arguments as :func:`loss`.

    Returns
    -------
    Lattice
        alpha and beta ``[B, T + 1, U + 1]`` (nats, start and final scores included, -inf where unreachable
        and in padding), arc_posterior ``[B, T, U + 1, A]``, occupancy ``[B, T, U + 1]``, all float64, and
        cost ``[B]``.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> result = ft.lattice(np.zeros((1, 4, 3, 5)), [[1, 2]], [4], [2])
    >>> print(f"{result.arc_posterior[0, 0, 0, 1]:.4f}")  # 4 of the 10 paths start with a label
    0.4000
    """
    call = dense_call(
        "ft.lattice", logits, targets, logit_lengths, target_lengths, variant, backend,
        arc_scores=arc_scores, start_scores=start_scores, final_scores=final_scores, band=band,
    )  # fmt: skip
    call.set_options(
        zero_infinity=zero_infinity, from_log_probs=from_log_probs, semiring=semiring,
        workspace_limit=workspace_limit, validate=validate, threads=threads,
    )  # fmt: skip
    return run_lattice(call, logit_lengths, target_lengths)


@takes_tensors
def align(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant = RNNT,
    *,
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
    """Best path of each utterance, as token timestamps; arguments as :func:`lattice`.

    Ties go to the earliest end, then at each node to a start, then to the incoming arc of lowest index.

    Returns
    -------
    list of Alignment
        One entry of each array per emitted or skipped label. Empty with score -inf where there is no path.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> logits = np.zeros((1, 3, 2, 4))
    >>> logits[0, 1, 0, 2] = 5.0  # label 2 is likely at frame 1
    >>> ft.align(logits, [[2]], [3], [1])[0].frames.tolist()
    [1]
    """
    check_ignored("ft.align", ignored)
    call = dense_call(
        "ft.align", logits, targets, logit_lengths, target_lengths, variant, backend,
        arc_scores=arc_scores, start_scores=start_scores, final_scores=final_scores, band=band,
    )  # fmt: skip
    call.set_options(
        from_log_probs=from_log_probs, workspace_limit=workspace_limit, validate=validate, threads=threads
    )
    return run_align(call, targets)
