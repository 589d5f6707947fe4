# SPDX-License-Identifier: Apache-2.0
"""A transducer variant as a value, and its two other forms: plain values for the library, and JSON."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from flash_transducer import _core
from flash_transducer.arcs import Arc, Column, Group, LogV1, Position, flag, integer, word

_JSON_FORMAT = 1


@dataclass(frozen=True)
class Variant:
    """A transducer variant: arcs, groups, and how many logit columns follow the vocabulary.

    Parameters
    ----------
    name
        For messages; at most 47 bytes.
    arcs
        1 to 32 :class:`Arc`; their order is that of ``arc_scores`` and ``arc_posterior``.
    groups
        Up to 4 :class:`Group`, numbered from 0.
    heads
        Logit columns after the vocabulary: ``V = K - heads``.

    Raises
    ------
    ValueError
        If the variant is not legal; the message says what to change.

    Examples
    --------
    >>> import flash_transducer as ft
    >>> one_label_per_frame = ft.Variant(
    ...     "mine",
    ...     arcs=[
    ...         ft.Arc(1, 0, ft.Column.fixed(-1, subtract=0), may_finish=True),
    ...         ft.Arc(1, 1, ft.Column.label(subtract=0), may_finish=True),
    ...     ],
    ...     groups=[ft.Group(0, ft.V)],
    ... )
    >>> [arc.name for arc in one_label_per_frame.arcs]
    ['blank(1,0)', 'label(1,1)']
    >>> ft.Variant.from_json(one_label_per_frame.to_json()) == one_label_per_frame
    True
    """

    name: str
    arcs: tuple[Arc, ...]
    groups: tuple[Group, ...] = ()
    heads: int = 0
    # How a named variant was made, for printing; two equal tables are equal however they were made.
    call: ClassVar[str] = ""
    # JSON, made once: what travels where only plain values can. A plain attribute, which compilers can read.
    text: ClassVar[str] = ""

    def __post_init__(self) -> None:
        word(self.name, "Variant: name")
        object.__setattr__(self, "arcs", tuple(self.arcs))
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "heads", integer(self.heads, "Variant: heads"))
        for arc in self.arcs:
            if not isinstance(arc, Arc):
                raise TypeError(f"Variant: an arc is {arc!r}, expected an ft.Arc")
        for group in self.groups:
            if not isinstance(group, Group):
                raise TypeError(f"Variant: a group is {group!r}, expected an ft.Group")
        _ = self.table  # raises if the variant is not legal
        object.__setattr__(self, "text", self.to_json())

    @cached_property
    def table(self) -> _core.VariantTable:
        """The same variant as the compiled library holds it."""
        return _core.VariantTable(_spec(self))

    def __getstate__(self) -> dict[str, Any]:
        """Without the compiled table, which is made again when it is needed."""
        return {key: value for key, value in vars(self).items() if key != "table"}

    def to_json(self) -> str:
        """Text that :meth:`from_json` turns back into an equal variant."""
        return json.dumps({"format": _JSON_FORMAT, "call": self.call, **_spec(self)})

    @staticmethod
    def from_json(text: str) -> Variant:
        """Read what :meth:`to_json` wrote. Raises ValueError for anything else."""
        try:
            data = json.loads(text)
            if data["format"] != _JSON_FORMAT:
                raise ValueError(f"its format is {data['format']!r}, expected {_JSON_FORMAT}")
            variant = from_spec(data)
            return _named_alike(data.get("call"), variant) or variant
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"Variant.from_json: not the JSON of a variant: {error}") from error

    def __repr__(self) -> str:
        if self.call:
            return self.call
        arcs = "".join(f"\n        {arc!r}," for arc in self.arcs)
        groups = "".join(f"\n        {group!r}," for group in self.groups)
        return (
            f"ft.Variant(\n    {self.name!r},\n    arcs=[{arcs}\n    ],\n    groups=[{groups}\n    ],"
            f"\n    heads={self.heads},\n)"
        )


def _position_spec(value: int | Position) -> tuple[int, bool]:
    return (value.offset, True) if isinstance(value, Position) else (value, False)


def _constant_spec(value: float | LogV1) -> tuple[float, float]:
    return (value.value, value.factor) if isinstance(value, LogV1) else (value, 0.0)


def _spec(variant: Variant) -> dict[str, Any]:
    """The variant as plain values, as the bindings and JSON take it."""
    return {
        "name": variant.name,
        "heads": variant.heads,
        "arcs": [
            {
                "dt": arc.dt,
                "du": arc.du,
                "columns": [
                    {
                        "kind": column.kind,
                        "position": _position_spec(column.position),
                        "label_offset": column.offset,
                        "group": column.group,
                        "subtract": list(column.subtract),
                        "add": list(column.add),
                        "grad_scale": column.grad_scale,
                    }
                    for column in arc.columns
                ],
                "constant": _constant_spec(arc.constant),
                "frame_bonus": arc.frame_bonus,
                "may_finish": arc.may_finish,
                "kind": arc.kind,
            }
            for arc in variant.arcs
        ],
        "groups": [
            {
                "begin": _position_spec(group.begin),
                "end": _position_spec(group.end),
                "excluded": next(
                    (_position_spec(c.position) for c in group.exclude if c.kind == "fixed"), None
                ),
                "exclude_label": any(c.kind == "label" for c in group.exclude),
                "normaliser": group.normaliser,
                "clamp": group.clamp,
            }
            for group in variant.groups
        ],
    }


def from_spec(spec: dict[str, Any], *, call: str = "") -> Variant:
    """The variant of a specification in plain values; the reverse of what the bindings take."""

    def position(pair: Any) -> int | Position:
        offset, from_vocabulary = pair
        index = integer(offset, "a position")
        return Position(index) if from_vocabulary else index

    def constant(pair: Any) -> float | LogV1:
        value, factor = pair
        return float(value) if factor == 0.0 else LogV1(float(factor), float(value))

    arcs = [
        Arc(
            arc["dt"],
            arc["du"],
            tuple(
                Column(
                    column["kind"],
                    position=position(column["position"]),
                    offset=column["label_offset"],
                    group=column["group"],
                    subtract=tuple(column["subtract"]),
                    add=tuple(column["add"]),
                    grad_scale=float(column["grad_scale"]),
                )
                for column in arc["columns"]
            ),
            constant=constant(arc["constant"]),
            frame_bonus=arc["frame_bonus"],
            may_finish=arc["may_finish"],
            kind=arc["kind"],
        )
        for arc in spec["arcs"]
    ]
    groups = []
    for group in spec["groups"]:
        exclude = []
        if group["excluded"] is not None:
            exclude.append(Column("fixed", position=position(group["excluded"])))
        if flag(group["exclude_label"], "exclude_label"):
            exclude.append(Column("label"))
        groups.append(
            Group(
                position(group["begin"]),
                position(group["end"]),
                exclude=tuple(exclude),
                normaliser=group["normaliser"],
                clamp=group["clamp"],
            )
        )
    variant = Variant(spec["name"], tuple(arcs), tuple(groups), spec["heads"])
    object.__setattr__(variant, "call", call)
    return variant


def _named_alike(call: Any, variant: Variant) -> Variant | None:
    """The named variant that `call` makes, if it makes this very variant: only then is it a true name."""
    from flash_transducer import _named

    try:
        node = ast.parse(call, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        if node.func.attr not in _named.__all__:
            return None
        arguments = [ast.literal_eval(argument) for argument in node.args]
        keywords = {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}
        named: Variant = getattr(_named, node.func.attr)(*arguments, **keywords)
    except (TypeError, ValueError, SyntaxError):
        return None
    return named if named == variant else None
