# SPDX-License-Identifier: Apache-2.0
"""Memory plans: what a call would allocate, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flash_transducer import _core
from flash_transducer._call import DEFAULT_BACKEND
from flash_transducer.variants import Variant


@dataclass(frozen=True)
class Region:
    """A named piece of memory. ``kind`` is "scratch" (dead after the call) or "saved" (for the backward)."""

    name: str
    shape: str
    kind: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """Bytes a call needs beyond its inputs and gradients.

    Attributes
    ----------
    regions
        Every region, in order.
    scratch_bytes, saved_bytes
        Totals by kind.
    never_made
        Bytes of arrays that other implementations make and this one does not.
    """

    backend: str
    regions: tuple[Region, ...]
    scratch_bytes: int
    saved_bytes: int
    never_made: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "backend": self.backend,
            "regions": [vars(region) for region in self.regions],
            "scratch_bytes": self.scratch_bytes,
            "saved_bytes": self.saved_bytes,
            "never_made": dict(self.never_made),
        }

    def __str__(self) -> str:
        rows = [(r.name, r.shape, r.kind, f"{r.bytes:,}") for r in self.regions]
        rows.append(("total", "", "scratch", f"{self.scratch_bytes:,}"))
        rows.append(("total", "", "saved", f"{self.saved_bytes:,}"))
        rows += [(name, "", "never made", f"{size:,}") for name, size in self.never_made.items()]
        header = ("region", "shape", "kind", "bytes")
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(4)]

        def line(row: tuple[str, ...]) -> str:
            cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
            return "  ".join([*cells, row[3].rjust(widths[3])])

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([f"backend: {self.backend}", line(header), rule, *map(line, rows)])


def make_plan(
    sizes: dict[str, int],
    variant: Variant,
    dtype: str,
    backend: str | None,
    workspace_limit: int | None,
) -> Plan:
    """Ask a backend for its plan."""
    if not isinstance(variant, Variant):
        raise TypeError(f"ft.plan: variant is {variant!r}, expected an ft.Variant such as ft.rnnt()")
    numbers = {**sizes, **({} if workspace_limit is None else {"workspace_limit": workspace_limit})}
    for name, size in numbers.items():
        if isinstance(size, bool) or not hasattr(size, "__index__") or not 0 <= size.__index__() < 2**63:
            raise ValueError(f"ft.plan: {name} is {size!r}, expected an integer from 0 to 2^63 - 1")
    sizes = {name: size.__index__() for name, size in sizes.items()}
    name = DEFAULT_BACKEND if backend is None else backend
    options = {} if workspace_limit is None else {"workspace_limit": workspace_limit}
    try:
        planned = _core.plan(name, {**sizes, "variant": variant.table, "dtype": str(dtype)}, options)
    except ValueError as error:  # sizes that overflow know nothing of their caller
        text = str(error)
        raise ValueError(text if text.startswith("ft.plan") else f"ft.plan: {text}") from None
    if workspace_limit is not None and planned["scratch_bytes"] > workspace_limit:
        raise ValueError(
            f"ft.plan: workspace_limit is {workspace_limit} bytes, expected at least "
            f"{planned['scratch_bytes']} because that is the smallest scratch the {name} backend can "
            "work in"
        )
    return Plan(
        backend=name,
        regions=tuple(Region(**region) for region in planned["regions"]),
        scratch_bytes=planned["scratch_bytes"],
        saved_bytes=planned["saved_bytes"],
        never_made={region["name"]: region["bytes"] for region in planned["never_made"]},
    )
