# SPDX-License-Identifier: Apache-2.0
"""Small batches, and a few functions of NumPy alone that results are held against."""

import math

import flash_transducer as ft
import ml_dtypes
import numpy as np
from flash_transducer import _call

VARIANTS = {
    "rnnt": ft.rnnt(),
    "monotonic": ft.monotonic(),
    "multi_blank": ft.multi_blank([2, 3]),
    "tdt": ft.tdt([0, 1, 2]),
    "hat": ft.hat(),
    "star": ft.star(-0.5),
    "bypass": ft.bypass(-0.5),
    "target_robust": ft.target_robust(-0.5, -0.7),
}


def random_batch(variant=None, *, seed=0, frames=(5, 3, 4), labels=(2, 1, 0), vocabulary=6, pad=0, low=0):
    """(logits, targets, frame lengths, target lengths) in float64; no label is a blank or big blank."""
    random = np.random.default_rng(seed)
    columns = vocabulary + (0 if variant is None else variant.heads)
    shape = (len(frames), max(frames) + pad, max(labels) + pad + 1, columns)
    targets = random.integers(low, max(vocabulary - 3, low + 1), (len(frames), max(labels) + pad))
    return random.normal(size=shape), targets, np.array(frames), np.array(labels)


def joint_batch(*, seed=0, frames=(4, 3), labels=(2, 1), hidden=9, columns=5):
    """(encoder, predictor, weight, bias, targets, frame lengths, target lengths) in float64."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, columns - 1, (len(frames), max(labels)))
    return (
        random.normal(size=(len(frames), max(frames), hidden)),
        random.normal(size=(len(frames), max(labels) + 1, hidden)),
        random.normal(size=(columns, hidden)),
        random.normal(size=columns),
        targets,
        np.array(frames),
        np.array(labels),
    )


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def lattice_cost(weights, moves, frames, labels, *, start=None, final=None, band=None):
    """Minus the log-sum over paths of one utterance, by the plain recursion on a dictionary of nodes.

    `weights[t, u, a]` are complete arc weights; `moves` lists (dt, du, may_finish).
    """

    def allowed(t, u):
        return band is None or t == frames or band[t][0] <= u <= band[t][1]

    alpha = {}
    for t in range(frames + 1):
        for u in range(labels + 1):
            terms = []
            if u == 0 and t < frames:
                terms.append((0.0 if t == 0 else -np.inf) if start is None else start[t])
            for a, (dt, du, may_finish) in enumerate(moves):
                if (t - dt, u - du) in alpha and t - dt < frames and (t < frames or may_finish):
                    terms.append(alpha[t - dt, u - du] + weights[t - dt, u - du, a])
            alpha[t, u] = np.logaddexp.reduce(terms) if terms and allowed(t, u) else -np.inf
    ends = [0.0 if t == frames else -np.inf for t in range(frames + 1)] if final is None else final
    return -np.logaddexp.reduce([alpha[t, labels] + ends[t] for t in range(frames + 1)])


def moves(variant):
    return [(arc.dt, arc.du, arc.may_finish) for arc in variant.arcs]


def central_differences(function, x, step=1e-5):
    """Gradient of a scalar function, element by element, in float64."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2.0 * step)
    return gradient


def bits(array):
    """Bytes of an array's elements: equal if and only if bitwise the same."""
    return np.ascontiguousarray(array).tobytes()


def assert_rounded_once(found, exact):
    """`found` is the double-precision result `exact` in a smaller type.

    The reference rounds once, to the bit. The cpu backend computes with float32 exponentials: 2e-5, and for
    the 16-bit types one step of the type besides.
    """
    found, exact = np.asarray(found), np.asarray(exact)
    expected = exact.astype(found.dtype)
    if _call.DEFAULT_BACKEND == "reference":
        assert bits(found) == bits(expected)
        return
    step = 0.0 if found.dtype.itemsize == 4 else float(ml_dtypes.finfo(found.dtype).eps)
    as_double = [x.astype(np.float64) for x in (found, expected)]
    np.testing.assert_allclose(*as_double, rtol=max(step, 2e-5), atol=2e-5)


def philox4x32_10(counter, key):
    """Ten rounds of Philox-4x32 on Python integers (Salmon et al. 2011, doi:10.1145/2063384.2063405)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c[0], 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high_1 ^ c[1] ^ k[0], low_1, high_0 ^ c[3] ^ k[1], low_0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def dropout_factors(seed, ids, frames, rows, hidden, p):
    """[B, T, U + 1, H] factors 0 or 1 / (1 - p) by the published rule of this library."""
    factors = np.zeros((len(ids), frames, rows, hidden))
    threshold = math.floor(65536 * p + 0.5)
    for b, t, u, h in np.ndindex(factors.shape):
        words = philox4x32_10((h // 8, u, t, ids[b] % 2**32), (seed % 2**32, seed >> 32))
        lane = h % 8
        value = words[lane // 2] >> (16 if lane % 2 else 0) & 0xFFFF
        factors[b, t, u, h] = 1.0 / (1.0 - p) if value >= threshold else 0.0
    return factors


ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "leaky_relu": lambda x: np.where(x < 0, 0.01 * x, x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def joint_logits(encoder, predictor, weight, bias, activation="relu", factors=1.0, mask=None):
    """[B, T, U + 1, K] of the joint network, materialised."""
    masked = predictor if mask is None else predictor * mask[..., None]
    hidden = ACTIVATIONS[activation](encoder[:, :, None] + masked[:, None]) * factors
    return hidden @ weight.T + bias
