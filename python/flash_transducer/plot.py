# SPDX-License-Identifier: Apache-2.0
"""Pictures of lattices, by matplotlib (``pip install 'flash-transducer[plot]'``).

Every function takes a result of ``ft.lattice`` and the index of an utterance and returns a matplotlib
figure, which a notebook shows and ``figure.savefig("lattice.png")`` writes. Nothing here needs a
display, opens a window, or changes matplotlib's global state.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flash_transducer.inspection import Alignment, Lattice

# One hue of Okabe and Ito's palette, which the colour-blind tell apart, per kind of arc.
_SHADES = {
    "label": ("#00558A", "#8CCBF0"),
    "skip": ("#B34E00", "#F0B98C"),
    "blank": ("#C4C4C4", "#ECECEC"),
}
_ORDER = tuple(_SHADES)
_FONT = {"axes.titlesize": 11, "axes.labelsize": 10, "tick": 9}
_MOST_TICKS = 40


def plot_lattice(
    lattice: Lattice,
    utterance: int = 0,
    *,
    alignment: Alignment | Sequence[Alignment] | None = None,
    tokens: Sequence[str] | None = None,
    frame_seconds: float | None = None,
    scale: str = "log",
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Posterior probability that a path visits each node, as a heat map, and the best path over it.

    Parameters
    ----------
    lattice
        What ``ft.lattice`` returned.
    utterance
        Its index in the batch.
    alignment
        What ``ft.align`` returned for the same batch, or the entry of this utterance; drawn as a line.
    tokens
        Name of each label of this utterance, in order (U of them); by default their positions.
    frame_seconds
        Seconds per frame, for a time axis; by default the axis counts frames.
    scale
        "log" shows probabilities down to 1e-4, "linear" only large ones.
    title
        By default the variant, the sizes and the cost.
    axes
        Where to draw; by default a figure of its own.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    ValueError
        If an argument does not fit the lattice.

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> from flash_transducer.plot import plot_lattice
    >>> batch = (np.zeros((1, 6, 3, 5)), [[1, 2]], [6], [2])
    >>> figure = plot_lattice(ft.lattice(*batch), alignment=ft.align(*batch), tokens=["a", "b"])
    >>> figure.axes[0].get_title()
    'rnnt: T = 6, U = 2, cost 9.83 nats'
    """
    frames, labels = lattice_size(lattice, utterance)
    if scale not in ("log", "linear"):
        raise ValueError(f"plot_lattice: scale is {scale!r}, expected 'log' or 'linear'")
    names = _token_names(tokens, labels)
    unit = 1.0 if frame_seconds is None else frame_seconds
    figure, axes = _figure(axes, _heat_map_inches(frames, labels))

    from matplotlib.colors import LogNorm, Normalize

    occupancy = np.asarray(lattice.occupancy[utterance, :frames, : labels + 1]).T  # of a tensor too
    if frames == 0:
        occupancy = np.zeros((labels + 1, 1))
    norm = LogNorm(1e-4, 1.0) if scale == "log" else Normalize(0.0, 1.0)
    image = axes.imshow(
        np.maximum(occupancy, 1e-30) if scale == "log" else occupancy,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",
        norm=norm,
        # Node (t, u) is the cell from t to t + 1, so that an arc of dt frames ends where it should.
        extent=(0.0, max(frames, 1) * unit, -0.5, labels + 0.5),
    )
    chosen = alignment[utterance] if isinstance(alignment, Sequence) else alignment
    if chosen is not None and np.isfinite(chosen.score):
        _draw_path(axes, best_path_nodes(chosen), unit)
    axes.set_xlabel("frame" if frame_seconds is None else "time (s)")
    _label_rows(axes, names, given=tokens is not None)
    extend = "min" if scale == "log" else "neither"
    colorbar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.03, aspect=32, extend=extend)
    colorbar.set_label("probability that a path visits", fontsize=_FONT["axes.labelsize"])
    colorbar.ax.tick_params(labelsize=_FONT["tick"])
    axes.set_title(title if title is not None else _title(lattice, utterance), fontsize=11)
    return figure


def plot_arc_posteriors(
    lattice: Lattice,
    utterance: int = 0,
    *,
    by: str = "arc",
    tokens: Sequence[str] | None = None,
    frame_seconds: float | None = None,
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Expected number of arcs that leave each frame, one curve per arc or per label.

    Parameters
    ----------
    lattice, utterance, tokens, frame_seconds, title, axes
        As :func:`plot_lattice`.
    by
        "arc": one curve per arc of the variant, summed over labels. "label": one curve per label, summed
        over the arcs that emit or skip it: when does each label leave, and how surely?

    Examples
    --------
    >>> import numpy as np
    >>> import flash_transducer as ft
    >>> from flash_transducer.plot import plot_arc_posteriors
    >>> figure = plot_arc_posteriors(ft.lattice(np.zeros((1, 6, 3, 5)), [[1, 2]], [6], [2]))
    >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    ['label, 0 frames', 'blank, 1 frame']
    """
    frames, labels = lattice_size(lattice, utterance)
    if by not in ("arc", "label"):
        raise ValueError(f"plot_arc_posteriors: by is {by!r}, expected 'arc' or 'label'")
    names = _token_names(tokens, labels)
    unit = 1.0 if frame_seconds is None else frame_seconds
    figure, axes = _figure(axes, (_heat_map_inches(frames, labels)[0], 3.0))
    posterior = lattice.arc_posterior[utterance, :frames, : labels + 1]  # [T, U + 1, A]
    if frames == 0:
        frames, posterior = 1, np.zeros((1, *posterior.shape[1:]))
    edges = np.arange(frames + 1) * unit
    if by == "arc":
        # Stacked: labels stand on the axis, where a height is read most easily, and blanks lie on top.
        arcs = lattice.variant.arcs
        below = np.zeros(frames)
        for arc in sorted(range(len(arcs)), key=lambda i: (_ORDER.index(arcs[i].kind), i)):
            above = below + posterior[:, :, arc].sum(axis=1)
            axes.stairs(above, edges, baseline=below, fill=True, linewidth=0.0,
                        color=_arc_colour(arcs, arc), label=arc_title(arcs[arc]))  # fmt: skip
            below = above
        axes.set_ylabel("expected arcs per frame", fontsize=_FONT["axes.labelsize"])
    else:
        from matplotlib import colormaps

        emitting = [i for i, arc in enumerate(lattice.variant.arcs) if arc.du == 1]
        curves = posterior[:, :labels, emitting].sum(axis=2)  # [T, U]
        for u in range(labels):
            colour = colormaps["viridis"](0.92 * u / max(labels - 1, 1))
            axes.stairs(curves[:, u], edges, baseline=None, color=colour, linewidth=1.4)
            axes.stairs(curves[:, u], edges, fill=True, color=colour, alpha=0.25)
            if labels <= _MOST_TICKS and frames:
                peak = int(curves[:, u].argmax())
                axes.annotate(names[u], ((peak + 0.5) * unit, curves[peak, u]), (0, 3),
                              textcoords="offset points", ha="center", va="bottom",
                              rotation=90 if labels > 8 else 0, fontsize=8, color="#222222")  # fmt: skip
        axes.set_ylabel("probability of emission", fontsize=_FONT["axes.labelsize"])
    columns = _legend_columns(figure)
    _finish_curves(axes, frames * unit, frame_seconds, legend=columns if by == "arc" else 0)
    rows = -(-len(lattice.variant.arcs) // columns) if by == "arc" else 0
    shown = title if title is not None else _title(lattice, utterance)
    axes.set_title(shown, fontsize=11, pad=6 + 16 * rows)
    return figure


def plot_utterance(
    lattice: Lattice,
    utterance: int = 0,
    *,
    alignment: Alignment | Sequence[Alignment] | None = None,
    tokens: Sequence[str] | None = None,
    frame_seconds: float | None = None,
    scale: str = "log",
    title: str | None = None,
) -> Figure:
    """:func:`plot_lattice` above :func:`plot_arc_posteriors`, on one time axis; arguments as there."""
    frames, labels = lattice_size(lattice, utterance)
    width, height = _heat_map_inches(frames, labels)
    figure = _picture((width, height + 2.2))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(height, 2.2))
    plot_lattice(lattice, utterance, alignment=alignment, tokens=tokens,
                 frame_seconds=frame_seconds,
        scale=scale, title=title, axes=upper)  # fmt: skip
    plot_arc_posteriors(lattice, utterance, frame_seconds=frame_seconds, title="", axes=lower)
    upper.set_xlabel("")
    return figure


def lattice_size(lattice: Lattice, utterance: int) -> tuple[int, int]:
    """Frames and labels of an utterance."""
    batch = lattice.occupancy.shape[0]
    if not -batch <= utterance < batch:
        raise ValueError(f"utterance is {utterance}, but the lattice holds {batch} of them")
    return int(lattice.frame_lengths[utterance]), int(lattice.target_lengths[utterance])


def best_path_nodes(alignment: Alignment) -> npt.NDArray[np.int64]:
    """``[M + 1, 2]`` nodes (t, u) of the best path, from its first to its last."""
    last = (alignment.end_frame, len(alignment.labels))
    return np.array([*alignment.path[:, :2].tolist(), last], dtype=np.int64)


def arc_title(arc: Any) -> str:
    """An arc in words, such as "label, 2 frames"."""
    kind = arc.kind if arc.kind != "skip" else ("skip label" if arc.du == 1 else "skip frame")
    return f"{kind}, {arc.dt} frame{'' if arc.dt == 1 else 's'}"


def _picture(inches: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'flash-transducer[plot]'") from error

    class Picture(Figure):
        """A figure that notebooks show without pyplot."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return Picture(figsize=inches, dpi=150, layout="constrained")


def _figure(axes: Axes | None, inches: tuple[float, float]) -> tuple[Figure, Any]:
    if axes is not None:
        figure: Any = axes.figure
        return figure, axes
    figure = _picture(inches)
    return figure, figure.add_subplot()


def _heat_map_inches(frames: int, labels: int) -> tuple[float, float]:
    return float(np.clip(0.045 * frames + 4.0, 7.0, 14.0)), float(np.clip(0.19 * labels + 1.8, 3.2, 9.0))


def _token_names(tokens: Sequence[str] | None, labels: int) -> list[str]:
    if tokens is None:
        return [str(u) for u in range(1, labels + 1)]
    if len(tokens) < labels:
        raise ValueError(f"tokens has {len(tokens)} names, but the utterance has U = {labels} labels")
    # A dollar sign would start mathematics in matplotlib.
    return [str(token).replace("$", r"\$") for token in tokens[:labels]]


def _draw_path(axes: Any, nodes: npt.NDArray[np.int64], unit: float) -> None:
    # From the left edge of the first cell through the middle of each; the last node (T, U) is the right edge.
    t = np.minimum(nodes[:, 0] + 0.5, nodes[-1, 0]) * unit
    t, u = np.insert(t, 0, nodes[0, 0] * unit), np.insert(nodes[:, 1], 0, nodes[0, 1])
    axes.plot(t, u, color="white", linewidth=3.4, solid_joinstyle="round")
    axes.plot(t, u, color="#C1272D", linewidth=1.5, solid_joinstyle="round", label="best path")
    legend = axes.legend(loc="upper left", fontsize=9, framealpha=0.92, borderaxespad=0.8)
    legend.get_frame().set_linewidth(0.0)


def _label_rows(axes: Any, names: list[str], *, given: bool) -> None:
    # The name of a label stands where a path crosses from row u to u + 1: there it is emitted.
    step = -(-len(names) // _MOST_TICKS) if names else 1
    shown = range(step - 1 if not given else 0, len(names), step)
    axes.set_yticks([u + 0.5 for u in shown], [names[u] for u in shown])
    axes.tick_params(labelsize=_FONT["tick"], length=3)
    axes.set_ylabel("label, emitted going up", fontsize=_FONT["axes.labelsize"])
    axes.xaxis.label.set_size(_FONT["axes.labelsize"])


def _arc_colour(arcs: Sequence[Any], number: int) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    peers = [i for i, other in enumerate(arcs) if other.kind == arcs[number].kind]
    shades = LinearSegmentedColormap.from_list("shades", _SHADES[arcs[number].kind])
    return shades(peers.index(number) / max(len(peers) - 1, 1))


def _legend_columns(figure: Figure) -> int:
    # An entry takes up to 1.5 inches; the axis labels and the colour bar beside it 1.6.
    return max(int((figure.get_figwidth() - 1.6) / 1.5), 1)


def _finish_curves(axes: Any, end: float, frame_seconds: float | None, *, legend: int) -> None:
    axes.set_xlim(0.0, max(end, 1e-9))
    top = axes.get_ylim()[1]
    axes.set_ylim(0.0, top * (1.05 if legend else 1.3))  # room for the names over the peaks
    axes.set_xlabel("frame" if frame_seconds is None else "time (s)", fontsize=_FONT["axes.labelsize"])
    axes.tick_params(labelsize=_FONT["tick"], length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    if legend:
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=legend, fontsize=9, frameon=False,
                    borderaxespad=0.2, columnspacing=1.4, handlelength=1.2)  # fmt: skip


def _title(lattice: Lattice, utterance: int) -> str:
    frames, labels = lattice_size(lattice, utterance)
    cost = float(lattice.cost[utterance])
    shown = f"cost {cost:.2f} nats" if np.isfinite(cost) else "cost NaN" if np.isnan(cost) else "no path"
    return f"{lattice.variant.name}: T = {frames}, U = {labels}, {shown}"
