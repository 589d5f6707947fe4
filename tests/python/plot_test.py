# SPDX-License-Identifier: Apache-2.0
"""Pictures: what they show is what the lattice holds, and drawing them disturbs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import flash_transducer as ft
import numpy as np
import pytest

pytest.importorskip("matplotlib")
from flash_transducer.plot import (
    best_path_nodes,
    plot_arc_posteriors,
    plot_lattice,
    plot_utterance,
)

VARIANTS = [ft.rnnt(), ft.monotonic(), ft.tdt([0, 1, 2, 3, 4]), ft.star(), ft.bypass()]


def make_batch(variant: ft.Variant) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(2, 12, 5, 7 + variant.heads))
    return logits, rng.integers(0, 6, (2, 4)), [12, 8], [4, 3], variant


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_the_heat_map_shows_the_occupancy_of_valid_nodes_only(variant: ft.Variant) -> None:
    lattice = ft.lattice(*make_batch(variant))
    for utterance, (frames, labels) in enumerate([(12, 4), (8, 3)]):
        figure = plot_lattice(lattice, utterance, scale="linear")
        shown = figure.axes[0].images[0].get_array()
        assert shown.shape == (labels + 1, frames)
        np.testing.assert_array_equal(shown, lattice.occupancy[utterance, :frames, : labels + 1].T)


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_the_line_goes_from_start_to_end_by_arcs_of_the_variant(variant: ft.Variant) -> None:
    batch = make_batch(variant)
    for alignment, end in zip(ft.align(*batch), [(12, 4), (8, 3)], strict=True):
        nodes = best_path_nodes(alignment)
        assert tuple(nodes[0]) == (0, 0)
        assert tuple(nodes[-1]) == end
        moves = {(arc.dt, arc.du) for arc in variant.arcs}
        assert {tuple(step) for step in np.diff(nodes, axis=0).tolist()} <= moves


def test_a_label_at_the_first_frame_is_drawn_straight_up() -> None:
    logits = np.zeros((1, 4, 3, 3))
    logits[0, 0, :2, 0] = 9.0
    batch = (logits, np.array([[0, 0]]), [4], [2])
    alignment = ft.align(*batch)[0]
    assert alignment.frames.tolist() == [0, 0]
    line = plot_lattice(ft.lattice(*batch), alignment=alignment).axes[0].lines[-1]
    assert line.get_xydata()[:4].tolist() == [[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [0.5, 2.0]]


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_stacked_arcs_add_up_to_the_arcs_of_each_frame(variant: ft.Variant) -> None:
    lattice = ft.lattice(*make_batch(variant))
    axes = plot_arc_posteriors(lattice).axes[0]
    top = axes.patches[-1].get_data().values
    np.testing.assert_allclose(top, lattice.arc_posterior[0].sum(axis=(1, 2)), rtol=1e-12)
    assert len(axes.get_legend().get_texts()) == len(variant.arcs)


def test_curves_by_label_hold_one_emission_each() -> None:
    axes = plot_arc_posteriors(ft.lattice(*make_batch(ft.rnnt())), by="label").axes[0]
    areas = [patch.get_data().values.sum() for patch in axes.patches[::2]]
    np.testing.assert_allclose(areas, np.ones(4), rtol=1e-12)


def test_token_names_stand_on_the_label_axis_whatever_they_hold() -> None:
    tokens = ["$x_{", "▁a", "", "<b>"]
    figure = plot_lattice(ft.lattice(*make_batch(ft.rnnt())), tokens=tokens)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [r"\$x_{", "▁a", "", "<b>"]
    figure.draw_without_rendering()


def test_a_frame_length_gives_an_axis_in_seconds() -> None:
    figure = plot_utterance(ft.lattice(*make_batch(ft.rnnt())), frame_seconds=0.04)
    assert figure.axes[1].get_xlabel() == "time (s)"
    assert figure.axes[1].get_xlim() == pytest.approx((0.0, 0.48))


@pytest.mark.parametrize(("frames", "labels"), [(1, 0), (1, 1), (400, 90), (0, 0), (3, 0)])
def test_lattices_of_every_size_can_be_drawn(frames: int, labels: int, tmp_path: Path) -> None:
    logits = np.random.default_rng(1).normal(size=(1, max(frames, 1), labels + 1, 4))
    batch = (logits, np.zeros((1, labels), np.int64), [frames], [labels])
    figure = plot_utterance(ft.lattice(*batch), alignment=ft.align(*batch))
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_a_lattice_without_a_path_is_drawn_and_says_so() -> None:
    batch = (np.zeros((1, 2, 4, 5)), [[1, 2, 3]], [2], [3], ft.monotonic())
    figure = plot_utterance(ft.lattice(*batch), alignment=ft.align(*batch))
    assert figure.axes[0].get_title().endswith("no path")
    figure.draw_without_rendering()


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
def test_no_text_is_cut_off(variant: ft.Variant) -> None:
    batch = make_batch(variant)
    tokens = ["incomprehensibility", "a", "b", "c"]
    figure = plot_utterance(ft.lattice(*batch), alignment=ft.align(*batch), tokens=tokens)
    figure.draw_without_rendering()
    canvas = figure.bbox
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box.x0 >= canvas.x0 - 1
        assert box.y0 >= canvas.y0 - 1
        assert box.x1 <= canvas.x1 + 1
        assert box.y1 <= canvas.y1 + 1


def test_drawing_leaves_the_global_state_of_matplotlib_alone() -> None:
    code = (
        "import sys, numpy as np, flash_transducer as ft, matplotlib\n"
        "from flash_transducer.plot import plot_utterance\n"
        "before = matplotlib.rcParams.copy()  # dict() would choose a backend\n"
        "figure = plot_utterance(ft.lattice(np.zeros((1, 4, 2, 3)), [[1]], [4], [1]))\n"
        "assert figure._repr_png_().startswith(b'\\x89PNG')\n"
        "assert dict(dict.items(before)) == dict(dict.items(matplotlib.rcParams))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'flash-transducer\[plot\]'"):
        plot_lattice(ft.lattice(*make_batch(ft.rnnt())))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"utterance": 2}, "utterance is 2, but the lattice holds 2"),
        ({"scale": "square"}, "scale is 'square', expected 'log' or 'linear'"),
        ({"tokens": ["a"]}, "tokens has 1 names, but the utterance has U = 4 labels"),
    ],
)
def test_what_does_not_fit_is_said(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_lattice(ft.lattice(*make_batch(ft.rnnt())), **arguments)
