# SPDX-License-Identifier: Apache-2.0
"""What a person wants to see of a lattice: posteriors, best paths, entropy, emission times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flash_transducer import _core
from flash_transducer._call import Call
from flash_transducer.variants import Variant


@dataclass(frozen=True)
class Lattice:
    """Lattice quantities of a batch; see :func:`flash_transducer.lattice`.

    In the max semiring alpha and beta are best scores, arc_posterior is 1 on the best path and 0 elsewhere.
    """

    alpha: npt.NDArray[np.float64]  # [B, T + 1, U + 1]
    beta: npt.NDArray[np.float64]  # [B, T + 1, U + 1]
    arc_posterior: npt.NDArray[np.float64]  # [B, T, U + 1, A]
    occupancy: npt.NDArray[np.float64]  # [B, T, U + 1]
    cost: npt.NDArray[Any]  # [B]
    variant: Variant
    frame_lengths: npt.NDArray[np.int64]  # [B] T_b
    target_lengths: npt.NDArray[np.int64]  # [B] U_b


@dataclass(frozen=True)
class Alignment:
    """Best path of one utterance: one entry per arc that emits or skips a label.

    Attributes
    ----------
    frames
        ``[N]`` frame at which each label leaves.
    labels
        ``[N]`` the label, from ``targets``.
    scores
        ``[N]`` log-weight of the arc, in nats.
    arcs
        ``[N]`` index into ``variant.arcs``.
    score
        Log-weight of the whole path, blanks included; -inf without a path, NaN if a path reads NaN.
    path
        ``[M, 3]`` every arc of the path in order, blanks included: its source node (t, u) and its index.
    start_frame, end_frame
        Times at which the path starts at u = 0 and ends at u = U: 0 and T_b, unless start or final scores
        were given; -1 without a path.
    """

    frames: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    arcs: npt.NDArray[np.int64]
    score: float
    path: npt.NDArray[np.int64]
    start_frame: int
    end_frame: int


@dataclass(frozen=True)
class Inspection:
    """Statistics of one utterance's lattice, in the log semiring.

    Attributes
    ----------
    alignment
        The best path.
    cost
        In nats.
    entropy
        Of the distribution over paths, in nats; NaN where no path exists.
    expected_frames
        ``[U]`` mean frame at which each label is emitted or skipped.
    arc_counts
        ``[A]`` expected number of times each arc is taken.
    group_occupancy
        ``[T, U + 1, G]`` how much each group's normaliser counts at a node.
    """

    alignment: Alignment
    cost: float
    entropy: float
    expected_frames: npt.NDArray[np.float64]
    arc_counts: npt.NDArray[np.float64]
    group_occupancy: npt.NDArray[np.float64]


def _alignment(path: dict[str, Any], labels: npt.NDArray[np.int64], variant: Variant) -> Alignment:
    emits = np.array([variant.arcs[arc].du == 1 for arc in path["arc"]], dtype=bool)
    positions = path["u"][emits]
    return Alignment(
        frames=path["t"][emits],
        labels=labels[positions],
        scores=path["weight"][emits],
        arcs=path["arc"][emits],
        score=path["score"],
        path=np.stack([path["t"], path["u"], path["arc"]], axis=1),
        start_frame=path["start_frame"] if path["exists"] else -1,
        end_frame=path["end_frame"] if path["exists"] else -1,
    )


def host_integers(array: Any) -> npt.NDArray[np.int64]:
    """Copy labels or lengths, from any array on the host."""
    if not isinstance(array, (np.ndarray, list, tuple)):
        array = np.from_dlpack(array)
    return np.asarray(array).astype(np.int64)


def make_alignments(paths: list[dict[str, Any]], targets: Any, variant: Variant) -> list[Alignment]:
    """Alignments from the best paths of the compiled library."""
    labels = host_integers(targets)
    return [_alignment(path, labels[b], variant) for b, path in enumerate(paths)]


def inspect(
    logits: Any,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    variant: Variant,
    *,
    from_log_probs: bool = False,
    arc_scores: Any = None,
    start_scores: Any = None,
    final_scores: Any = None,
    band: Any = None,
) -> list[Inspection]:
    """Statistics of every utterance's lattice, by the reference; arguments as ``ft.lattice``.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> from flash_transducer.inspection import inspect
    >>> result = inspect(np.zeros((1, 2, 2, 3)), [[1]], [2], [1], ft.rnnt())[0]
    >>> print(f"{result.entropy:.4f}")  # two equally likely paths: log 2
    0.6931
    >>> result.expected_frames.round(6).tolist()
    [0.5]
    """
    inputs = {
        "logits": logits,
        "targets": targets,
        "frame_lengths": logit_lengths,
        "target_lengths": target_lengths,
        "arc_scores": arc_scores,
        "start_scores": start_scores,
        "final_scores": final_scores,
        "band": band,
    }
    call = Call("ft.inspection.inspect", variant, "reference", inputs)
    call.set_options(from_log_probs=from_log_probs)
    found = _core.inspect(call.caller, variant.table, call.inputs, call.options)
    labels = host_integers(targets)
    results = []
    for b, entry in enumerate(found):
        rows = len(entry["expected_frames"]) + 1
        groups = len(variant.groups)
        size = entry["group_occupancy"].size
        frames = size // (rows * groups) if groups else 0
        results.append(
            Inspection(
                alignment=_alignment(entry["best_path"], labels[b], variant),
                cost=entry["cost"],
                entropy=entry["entropy"],
                expected_frames=entry["expected_frames"],
                arc_counts=entry["arc_counts"],
                group_occupancy=entry["group_occupancy"].reshape(frames, rows, groups),
            )
        )
    return results
