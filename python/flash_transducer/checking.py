# SPDX-License-Identifier: Apache-2.0
"""Check a variant against first principles on small random lattices.

Each lattice is held against brute-force path enumeration, finite differences, and properties that every
legal variant has. Seeds are fixed, so a failure comes back when asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flash_transducer import _core
from flash_transducer._api import loss, value_and_grad
from flash_transducer._call import DEFAULT_BACKEND
from flash_transducer._lattice import lattice
from flash_transducer.variants import Variant

_STEP = 1e-5


class CheckFailed(AssertionError):
    """A variant, or the backend that computed it, failed :func:`check`."""


@dataclass
class Measure:
    """One checked quantity: the worst error found and the most allowed."""

    name: str
    limit: float
    worst: float = 0.0
    cases: int = 0

    def take(self, error: float) -> None:
        """Take one more case into account; NaN counts as a failure."""
        self.cases += 1
        self.worst = max(self.worst, np.inf if np.isnan(error) else float(error))

    @property
    def passed(self) -> bool:
        """Whether every case stayed within the limit."""
        return self.worst <= self.limit


@dataclass
class Report:
    """What :func:`check` found; prints as a table."""

    variant: Variant
    backend: str
    lattices: int
    feasible: int = 0
    measures: list[Measure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether everything held, on at least one lattice that has a path."""
        return self.feasible > 0 and all(measure.passed for measure in self.measures)

    def __str__(self) -> str:
        title = f"{self.variant.name}, backend {self.backend}: {self.lattices} random lattices, "
        lines = [f"{title}{self.feasible} with a path"]
        for m in self.measures:
            verdict = "ok" if m.passed else "FAILED"
            lines.append(
                f"  {m.name:<42} {m.worst:9.2e}  (at most {m.limit:.0e}, {m.cases} cases)  {verdict}"
            )
        return "\n".join(lines)


@dataclass
class _Lattice:
    """One random utterance, small enough to enumerate."""

    logits: npt.NDArray[np.float64]  # [T, U + 1, K]
    labels: list[int]

    @property
    def batch(self) -> tuple[Any, Any, Any, Any]:
        frames, rows, _ = self.logits.shape
        targets = np.array([self.labels], np.int64).reshape(1, rows - 1)
        return self.logits[None], targets, [frames], [rows - 1]


def _label_range(variant: Variant, vocabulary: int) -> tuple[int, int]:
    """Labels whose columns, offsets included, all exist."""
    offsets = [c.offset for arc in variant.arcs for c in arc.columns if c.kind == "label"]
    low = max([0, *[-offset for offset in offsets]])
    high = min([vocabulary, *[vocabulary + variant.heads - offset for offset in offsets]])
    return low, high


def _vocabularies(variant: Variant) -> list[int]:
    """A few small vocabulary sizes that all positions of the variant fit into."""
    fitting = []
    for vocabulary in [*range(3, 65), 2, 1]:
        node = np.zeros((0, 1, vocabulary + variant.heads))
        try:
            _core.enumerate_paths(variant.table, node, [])
        except ValueError as error:
            refused = error
        else:
            fitting.append(vocabulary)
        if len(fitting) == 4:
            break
    if not fitting:
        raise ValueError(f"ft.check: no vocabulary of 1 to 64 symbols fits the variant: {refused}")
    return fitting


def _draw(variant: Variant, vocabularies: list[int], random: np.random.Generator) -> _Lattice:
    vocabulary = int(random.choice(vocabularies))
    frames = int(random.integers(1, 5 + min(max(arc.dt for arc in variant.arcs), 3)))
    low, high = _label_range(variant, vocabulary)
    count = int(random.integers(0, 4)) if high > low else 0
    labels = [int(label) for label in random.integers(low, max(high, low + 1), count)]
    shape = (frames, count + 1, vocabulary + variant.heads)
    return _Lattice(random.normal(scale=1.5, size=shape), labels)


def _enumerated(variant: Variant, drawn: _Lattice) -> tuple[float, npt.NDArray[np.float64]]:
    """Cost and arc posteriors from every single path."""
    frames, rows, _ = drawn.logits.shape
    paths = _core.enumerate_paths(variant.table, drawn.logits, drawn.labels)
    posterior = np.zeros((frames, rows, len(variant.arcs)))
    if not paths:
        return np.inf, posterior
    weights = np.array([weight for weight, _ in paths])
    total = np.logaddexp.reduce(weights)
    for weight, steps in paths:
        for t, u, arc in steps:
            posterior[t, u, arc] += np.exp(weight - total)
    return -float(total), posterior


def _without_gradient_scales(variant: Variant) -> Variant:
    """The variant with every gradient scale 1: its gradient is that of the cost itself."""
    arcs = tuple(
        replace(arc, columns=tuple(replace(c, grad_scale=1.0) for c in arc.columns)) for arc in variant.arcs
    )
    return replace(variant, arcs=arcs)


def _difference_quotient(
    variant: Variant, drawn: _Lattice, backend: str, random: np.random.Generator
) -> float:
    """Error of the gradient along one random direction, relative to its size."""
    logits, targets, frames, labels = drawn.batch
    direction = random.normal(size=logits.shape)
    _, gradient = value_and_grad(logits, targets, frames, labels, variant, backend=backend)
    ends = [
        loss(logits + sign * _STEP * direction, targets, frames, labels, variant, backend=backend)
        for sign in (1.0, -1.0)
    ]
    expected = (ends[0] - ends[1]) / (2.0 * _STEP)
    return abs(float(np.sum(gradient * direction)) - float(expected)) / max(1.0, abs(float(expected)))


def _cut_error(variant: Variant, arc_posterior: npt.NDArray[np.float64]) -> float:
    """Posterior mass of the arcs that cross each line t + u = n less 1, at worst."""
    frames, rows, _ = arc_posterior.shape
    mass = np.zeros(frames + rows)
    for arc, moved in enumerate(variant.arcs):
        for t in range(frames):
            for u in range(rows):
                mass[t + u : t + u + moved.dt + moved.du] += arc_posterior[t, u, arc]
    return float(np.abs(mass[: frames + rows - 1] - 1.0).max())


def check(variant: Variant, *, lattices: int = 40, seed: int = 0, backend: str | None = None) -> Report:
    """Check a variant by enumeration, finite differences and properties, on random lattices.

    Prints a report. Use it after typing a variant of your own, or after building the library.

    Parameters
    ----------
    variant
        Any legal variant, named or typed.
    lattices
        How many random lattices to draw: up to 7 frames, 3 labels, a few symbols.
    seed
        Of the draw.
    backend
        Which backend to hold against the enumeration; None for the default.

    Returns
    -------
    Report
        The worst error of each quantity.

    Raises
    ------
    CheckFailed
        If an error passes its limit, or no lattice had a path. The message is the report.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> report = ft.check(ft.rnnt(), lattices=5)  # doctest: +ELLIPSIS
    rnnt, backend ...
    >>> report.passed
    True
    """
    if not isinstance(variant, Variant):
        raise TypeError(f"ft.check: variant is a {type(variant).__name__}, expected an ft.Variant")
    name = DEFAULT_BACKEND if backend is None else backend
    random = np.random.default_rng(seed)
    cost = Measure("cost against enumeration", 1e-12)
    infeasible = Measure("lattices without a path give inf and 0", 0.0)
    posterior = Measure("arc posteriors against enumeration", 1e-12)
    cut = Measure("posterior mass across each cut is 1", 1e-12)
    gradient = Measure("gradient against finite differences", 1e-6)
    batched = Measure("the same cost alone and in a batch", 0.0)
    report = Report(variant, name, lattices, measures=[cost, posterior, cut, gradient, infeasible, batched])
    plain = _without_gradient_scales(variant)
    vocabularies = _vocabularies(variant)
    for _ in range(lattices):
        drawn = _draw(variant, vocabularies, random)
        expected, expected_posterior = _enumerated(variant, drawn)
        found = lattice(*drawn.batch, variant, backend=name)
        if np.isinf(expected):
            _, zero = value_and_grad(*drawn.batch, variant, backend=name)
            infeasible.take(0.0 if np.isposinf(found.cost[0]) and not zero.any() else np.inf)
            continue
        report.feasible += 1
        cost.take(abs(float(found.cost[0]) - expected) / max(1.0, abs(expected)))
        posterior.take(float(np.abs(found.arc_posterior[0] - expected_posterior).max()))
        cut.take(_cut_error(variant, found.arc_posterior[0]))
        gradient.take(_difference_quotient(plain, drawn, name, random))
        logits, targets, frames, labels = drawn.batch
        twice = loss(
            np.repeat(logits, 2, 0), np.repeat(targets, 2, 0), frames * 2, labels * 2, variant,
            reduction="none", backend=name,
        )  # fmt: skip
        batched.take(float(np.abs(twice - found.cost[0]).max()))
    print(report)
    if not report.passed:
        raise CheckFailed(f"ft.check failed:\n{report}")
    return report
