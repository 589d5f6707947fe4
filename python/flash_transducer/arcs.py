# SPDX-License-Identifier: Apache-2.0
"""The parts of a variant: positions on the logit axis, constants, columns, arcs and groups.

The weight of an arc at node ``(t, u)`` is the sum of its columns, less or plus the log-normalisers its
columns name, plus a constant and ``frame_bonus * ((T - 1) / 2 - t)`` (docs/math.md#arc-weight).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

ArcKind = Literal["blank", "label", "skip"]
Normaliser = Literal["softmax", "bernoulli", "none"]


def integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is {value!r}, expected an integer")
    index = int(value.__index__())
    if abs(index) >= 2**31:
        raise ValueError(f"{what} is {index}, expected an integer between -2**31 and 2**31")
    return index


@dataclass(frozen=True)
class Position:
    """A place on the logit axis that counts from the vocabulary size V: ``V + offset``.

    Write ``ft.V``, ``ft.V + 2`` or ``ft.V - 1``. V is known when a call brings logits with K columns:
    ``V = K - heads``.
    """

    offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", integer(self.offset, "ft.V: the offset"))

    def __add__(self, step: int) -> Position:
        return Position(self.offset + step)

    def __sub__(self, step: int) -> Position:
        return Position(self.offset - step)

    def __repr__(self) -> str:
        if self.offset == 0:
            return "ft.V"
        return f"ft.V {'+' if self.offset > 0 else '-'} {abs(self.offset)}"


V = Position()


@dataclass(frozen=True)
class LogV1:
    """``value + factor * log(V - 1)``, a constant of an arc. Made by :func:`log_v1`; adds to numbers."""

    factor: float
    value: float = 0.0

    def __add__(self, other: float | LogV1) -> LogV1:
        if isinstance(other, LogV1):
            return LogV1(self.factor + other.factor, self.value + other.value)
        return LogV1(self.factor, self.value + float(other))

    __radd__ = __add__

    def __neg__(self) -> LogV1:
        return LogV1(-self.factor, -self.value)

    def __sub__(self, other: float | LogV1) -> LogV1:
        return self + (-other)

    def __repr__(self) -> str:
        term = f"ft.log_v1({self.factor!r})"
        return term if self.value == 0.0 else f"{self.value!r} + {term}"


def log_v1(factor: float) -> LogV1:
    """``factor * log(V - 1)`` as a constant of an arc."""
    return LogV1(float(factor))


def word(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r}, expected a string")
    return value


def _position(value: int | Position, what: str) -> int | Position:
    """Below 0 counts from V; integers from 0 stay integers."""
    if isinstance(value, Position):
        return value
    index = integer(value, what)
    return Position(index) if index < 0 else index


def _groups(value: Any, what: str) -> tuple[int, ...]:
    items = (value,) if hasattr(value, "__index__") else value
    groups = tuple(sorted(integer(item, what) for item in items))
    if len(set(groups)) < len(groups):
        raise ValueError(f"{what} is {groups}, expected each group once: its normaliser counts once")
    return groups


def flag(value: Any, what: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what} is {value!r}, expected True or False")
    return bool(value)


@dataclass(frozen=True)
class Column:
    """One term of an arc's weight. Make it with :meth:`fixed`, :meth:`label` or :meth:`log_sum`.

    ``subtract`` and ``add`` are indices of the groups whose log-normaliser is subtracted or added;
    ``grad_scale`` multiplies the derivative of the column, normalisers included (FastEmit).
    """

    kind: Literal["fixed", "label", "log_sum"]
    position: int | Position = 0
    offset: int = 0
    group: int = 0
    subtract: tuple[int, ...] = ()
    add: tuple[int, ...] = ()
    grad_scale: float = 1.0

    def __post_init__(self) -> None:
        what = f"Column.{word(self.kind, 'Column: kind')}"
        object.__setattr__(self, "position", _position(self.position, f"{what}: position"))
        object.__setattr__(self, "offset", integer(self.offset, f"{what}: offset"))
        object.__setattr__(self, "group", integer(self.group, f"{what}: group"))
        object.__setattr__(self, "subtract", _groups(self.subtract, f"{what}: subtract"))
        object.__setattr__(self, "add", _groups(self.add, f"{what}: add"))
        object.__setattr__(self, "grad_scale", float(self.grad_scale))

    @staticmethod
    def fixed(
        position: int | Position, *, subtract: Any = (), add: Any = (), grad_scale: float = 1.0
    ) -> Column:
        """The logit at a fixed column."""
        return Column(
            "fixed",
            position=position,
            subtract=subtract,
            add=add,
            grad_scale=grad_scale,
        )

    @staticmethod
    def label(offset: int = 0, *, subtract: Any = (), add: Any = (), grad_scale: float = 1.0) -> Column:
        """The logit at the next label plus ``offset``; an arc that reads it is absent at u = U."""
        return Column(
            "label",
            offset=offset,
            subtract=subtract,
            add=add,
            grad_scale=grad_scale,
        )

    @staticmethod
    def log_sum(group: int, *, subtract: Any = (), add: Any = (), grad_scale: float = 1.0) -> Column:
        """The log-sum-exp of the columns of a group, whatever that group's normaliser."""
        return Column(
            "log_sum",
            group=group,
            subtract=subtract,
            add=add,
            grad_scale=grad_scale,
        )

    def __repr__(self) -> str:
        first = {
            "fixed": repr(self.position),
            "label": "" if self.offset == 0 else repr(self.offset),
            "log_sum": repr(self.group),
        }[self.kind]
        parts = [first] if first else []
        parts += [f"subtract={self.subtract}"] if self.subtract else []
        parts += [f"add={self.add}"] if self.add else []
        parts += [f"grad_scale={self.grad_scale!r}"] if self.grad_scale != 1.0 else []
        return f"ft.Column.{self.kind}({', '.join(parts)})"


@dataclass(frozen=True)
class Arc:
    """A move ``(t, u) -> (t + dt, u + du)``, with ``du`` 0 or 1, and the terms of its weight.

    Parameters
    ----------
    dt, du
        Frames consumed (>= 0) and labels emitted (0 or 1); at least one must be positive.
    columns
        Up to two :class:`Column` whose values add up.
    constant
        A number, ``ft.log_v1(a)``, or their sum.
    frame_bonus
        Times ``(T - 1) / 2 - t``.
    may_finish
        Whether the arc may land on t = T.
    kind
        "blank", "label" or "skip", for names and tables; by default "label" if du is 1, else "blank".
    """

    dt: int
    du: int
    columns: tuple[Column, ...] = ()
    constant: float | LogV1 = field(default=0.0, kw_only=True)
    frame_bonus: float = field(default=0.0, kw_only=True)
    may_finish: bool = field(default=False, kw_only=True)
    kind: ArcKind | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        columns = (self.columns,) if isinstance(self.columns, Column) else tuple(self.columns)
        for column in columns:
            if not isinstance(column, Column):
                raise TypeError(f"Arc: a column is {column!r}, expected an ft.Column")
        kind = self.kind if self.kind is not None else ("label" if self.du == 1 else "blank")
        word(kind, "Arc: kind")
        constant = self.constant
        if not isinstance(constant, LogV1):
            constant = float(constant)
        elif constant.factor == 0.0:
            constant = constant.value  # the same number, so an equal variant
        object.__setattr__(self, "dt", integer(self.dt, "Arc: dt"))
        object.__setattr__(self, "du", integer(self.du, "Arc: du"))
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "constant", constant)
        object.__setattr__(self, "frame_bonus", float(self.frame_bonus))
        object.__setattr__(self, "may_finish", flag(self.may_finish, "Arc: may_finish"))
        object.__setattr__(self, "kind", kind)

    @property
    def name(self) -> str:
        """Kind and move, such as "blank(1,0)"."""
        return f"{self.kind}({self.dt},{self.du})"

    def __repr__(self) -> str:
        parts = [repr(self.dt), repr(self.du)]
        parts += [f"({''.join(f'{c!r}, ' for c in self.columns).rstrip()})"] if self.columns else []
        parts += [f"constant={self.constant!r}"] if self.constant != 0.0 else []
        parts += [f"frame_bonus={self.frame_bonus!r}"] if self.frame_bonus != 0.0 else []
        parts += ["may_finish=True"] if self.may_finish else []
        parts.append(f"kind={self.kind!r}")
        return f"ft.Arc({', '.join(parts)})"


@dataclass(frozen=True)
class Group:
    """Logit columns ``[begin, end)`` less the excluded ones, with their normaliser.

    Parameters
    ----------
    begin, end
        Positions; below 0 they count from V, and ``ft.V + i`` is allowed.
    exclude
        Columns taken out: at most one ``Column.fixed`` and at most ``Column.label()``.
    normaliser
        "softmax": Z is the log-sum-exp of the columns. "bernoulli": the softplus of the one column.
        "none": Z = 0.
    clamp
        False: gradients of columns in ``[begin, end)`` are never clamped.
    """

    begin: int | Position
    end: int | Position
    exclude: tuple[Column, ...] = field(default=(), kw_only=True)
    normaliser: Normaliser = field(default="softmax", kw_only=True)
    clamp: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        exclude = (self.exclude,) if isinstance(self.exclude, Column) else tuple(self.exclude)
        fixed = [c for c in exclude if isinstance(c, Column) and c.kind == "fixed"]
        label = [c for c in exclude if isinstance(c, Column) and c.kind == "label"]
        if len(fixed) + len(label) != len(exclude) or len(fixed) > 1 or len(label) > 1:
            raise ValueError(
                f"Group: exclude is {exclude!r}, expected at most one Column.fixed(i) and at most "
                "one Column.label()"
            )
        if label and label[0].offset != 0:
            raise ValueError(
                f"Group: exclude has Column.label({label[0].offset}), expected Column.label(): only "
                "the next label itself can be excluded"
            )
        word(self.normaliser, "Group: normaliser")
        object.__setattr__(self, "begin", _position(self.begin, "Group: begin"))
        object.__setattr__(self, "end", _position(self.end, "Group: end"))
        object.__setattr__(self, "exclude", tuple(fixed + label))
        object.__setattr__(self, "clamp", flag(self.clamp, "Group: clamp"))

    def __repr__(self) -> str:
        parts = [repr(self.begin), repr(self.end)]
        if self.exclude:
            parts.append(f"exclude=({''.join(f'{c!r}, ' for c in self.exclude).rstrip()})")
        parts += [f"normaliser={self.normaliser!r}"] if self.normaliser != "softmax" else []
        parts += [] if self.clamp else ["clamp=False"]
        return f"ft.Group({', '.join(parts)})"
