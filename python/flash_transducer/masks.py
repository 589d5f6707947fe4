# SPDX-License-Identifier: Apache-2.0
"""Restrictions of the lattice: arc masks and bands.

Both are computed on the host from small integer arrays; pass the result as ``arc_scores`` or ``band``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# More frames than any utterance has; two of them still fit into 64 bits.
_LONGEST = 2**60


def _vector(value: Any, name: str, function: str) -> npt.NDArray[np.int64]:
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)  # NumPy takes an empty list for floats
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"ft.masks.{function}: {name} has shape {list(array.shape)} and dtype {array.dtype}, "
            "expected [B] integers"
        )
    if array.size and array.min() < 0:
        raise ValueError(f"ft.masks.{function}: {name} holds {array.min()}, expected lengths of 0 or more")
    return array.astype(np.int64)


def alignment_restricted(
    word_ends: Any, logit_lengths: Any, target_lengths: Any, left: int, right: int
) -> npt.NDArray[np.float32]:
    """Arc scores of alignment-restricted RNN-T: 0 where an arc is allowed, -inf elsewhere.

    Label u (from 1) may be emitted at frame t if ``max(word_ends[u] - left, 0) <= t`` and
    ``t <= min(word_ends[u] + right, T - 1)``. A blank may leave (t, u) for t + 1 < T if
    ``max(word_ends[u] - left, 0) <= t``, and, while labels are left, ``t <= word_ends[u + 1] + right - 1``.
    The blank that ends the path is always allowed.

    Parameters
    ----------
    word_ends
        ``[B, U + 1]`` integers: the frame at which each label ends; column 0 belongs to the start and
        is usually 0. Padding is not read.
    logit_lengths, target_lengths
        ``[B]`` integers, T_b and U_b.
    left, right
        Frames a label may come early or late.

    Returns
    -------
    numpy.ndarray
        ``[B, T, U + 1, 2]`` float32 with T the largest length, in the arc order of ``ft.rnnt``: blank,
        label.

    Notes
    -----
    Mahadeokar et al. 2021, "Alignment restricted streaming recurrent neural network transducer",
    arXiv 2011.03072, with the rule of torchaudio's early prototype.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> ft.masks.alignment_restricted([[0, 1]], [3], [1], left=0, right=0)[0, :, 0, 1]
    array([-inf,   0., -inf], dtype=float32)
    """
    ends = np.asarray(word_ends)
    if ends.ndim != 2 or ends.dtype.kind not in "iu":
        raise ValueError(
            f"ft.masks.alignment_restricted: word_ends has shape {list(ends.shape)} and dtype "
            f"{ends.dtype}, expected [B, U + 1] integers"
        )
    if not all(isinstance(frames, (int, np.integer)) for frames in (left, right)):
        raise TypeError(
            f"ft.masks.alignment_restricted: left is {left!r} and right is {right!r}, expected integers"
        )
    if left < 0 or right < 0:
        raise ValueError(
            f"ft.masks.alignment_restricted: left is {left} and right is {right}, expected 0 or more"
        )
    # In 64 bits, and no buffer wider than any utterance: sums below cannot wrap around.
    ends = np.clip(ends.astype(np.int64), -_LONGEST, _LONGEST)
    left, right = min(int(left), _LONGEST), min(int(right), _LONGEST)
    frames = _vector(logit_lengths, "logit_lengths", "alignment_restricted")
    labels = _vector(target_lengths, "target_lengths", "alignment_restricted")
    if len(frames) != len(ends) or len(labels) != len(ends):
        raise ValueError(
            f"ft.masks.alignment_restricted: word_ends has {len(ends)} rows, logit_lengths "
            f"{len(frames)} and target_lengths {len(labels)}, expected the same number"
        )
    if len(ends) and labels.max() + 1 > ends.shape[1]:
        raise ValueError(
            f"ft.masks.alignment_restricted: word_ends has shape {list(ends.shape)}, expected at least "
            f"{labels.max() + 1} columns because the longest target has {labels.max()} labels"
        )
    scores = np.full((len(ends), frames.max(initial=0), ends.shape[1], 2), -np.inf, np.float32)
    for b in range(len(ends)):
        last = frames[b] - 1
        t = np.arange(frames[b])
        for u in range(labels[b] + 1):
            earliest = max(ends[b, u] - left, 0)
            latest = last - 1
            if u < labels[b]:
                latest = min(ends[b, u + 1] + right - 1, latest)
                next_end = ends[b, u + 1]
                emits = (max(next_end - left, 0) <= t) & (t <= min(next_end + right, last))
                scores[b, t[emits], u, 1] = 0.0
            blanks = (earliest <= t) & (t <= latest)
            scores[b, t[blanks], u, 0] = 0.0
        if frames[b] > 0:
            scores[b, last, labels[b], 0] = 0.0
    return scores


def diagonal_band(logit_lengths: Any, target_lengths: Any, width: int) -> npt.NDArray[np.int64]:
    """Nodes within ``width`` labels of the straight line from (0, 0) to (T, U).

    Parameters
    ----------
    logit_lengths, target_lengths
        ``[B]`` integers, T_b and U_b.
    width
        Labels allowed on either side of the line, 0 or more.

    Returns
    -------
    numpy.ndarray
        ``[B, T, 2]`` int64 with T the largest length: first and last u allowed at each frame, both
        inclusive, clipped to [0, U_b]. Padding frames hold (0, 0).

    Examples
    --------
    >>> import flash_transducer as ft
    >>> ft.masks.diagonal_band([4], [2], width=1)[0].tolist()
    [[0, 1], [0, 2], [0, 2], [0, 2]]
    """
    if not isinstance(width, (int, np.integer)):
        raise TypeError(f"ft.masks.diagonal_band: width is {width!r}, expected an integer")
    if width < 0:
        raise ValueError(f"ft.masks.diagonal_band: width is {width}, expected 0 or more")
    frames = _vector(logit_lengths, "logit_lengths", "diagonal_band")
    labels = _vector(target_lengths, "target_lengths", "diagonal_band")
    if len(frames) != len(labels):
        raise ValueError(
            f"ft.masks.diagonal_band: logit_lengths has {len(frames)} entries and target_lengths "
            f"{len(labels)}, expected the same number"
        )
    band = np.zeros((len(frames), frames.max(initial=0), 2), np.int64)
    for b in range(len(frames)):
        if frames[b] == 0:
            continue
        line = np.arange(frames[b]) * labels[b] / frames[b]
        band[b, : frames[b], 0] = np.clip(np.floor(line) - width, 0, labels[b])
        band[b, : frames[b], 1] = np.clip(np.ceil(line) + width, 0, labels[b])
    return band
