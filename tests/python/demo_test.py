# SPDX-License-Identifier: Apache-2.0
"""The demonstration: real lengths, scores with a path in them, four variants, pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flash_transducer import demo

SAMPLE = Path(__file__).parents[1] / "data" / "librispeech_lengths.csv"


def test_the_sample_names_its_source_and_is_the_installed_one() -> None:
    assert "csukuangfj/transducer-loss-benchmarking" in SAMPLE.read_text(encoding="utf-8")
    lengths = demo.read_lengths(SAMPLE)
    assert len(lengths) == 200
    assert all(0 < labels < frames < 1000 for frames, labels in lengths)
    assert demo.find_lengths_file().read_bytes() == SAMPLE.read_bytes()


def test_lengths_are_chosen_from_short_to_long() -> None:
    lengths = demo.read_lengths(SAMPLE)
    chosen = demo.choose_lengths(lengths, 10)
    assert chosen == sorted(chosen)
    assert len(chosen) == 10
    assert demo.choose_lengths(lengths, 999) == sorted(lengths)


def test_the_same_seed_makes_the_same_utterance() -> None:
    one, two, other = (demo.make_utterance(60, 12, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.logits, two.logits)
    assert not np.array_equal(one.logits, other.logits)
    assert len(one.tokens) == 12


def test_every_variant_finds_the_emissions_that_the_scores_were_made_from() -> None:
    utterance = demo.make_utterance(120, 30, 0)
    rows = list(demo.run([utterance], lambda: None))
    assert [row.variant.name for row in rows] == ["rnnt", "tdt", "hat", "star"]
    for row in rows:
        figures = row.as_dict()
        assert row.labels == 30
        assert abs(figures["mean_delay_ms"]) < 120.0  # 3 of 120 frames
        assert figures["cost_per_label"] < 4.0  # a uniform path costs more than log 32 a label
        assert 0.1 < figures["gradient_norm"] < 100.0


@pytest.mark.parametrize(("frames", "labels"), [(1, 0), (1, 1), (5, 5), (3, 9)])
def test_short_and_crowded_utterances_have_finite_costs(frames: int, labels: int) -> None:
    for row in demo.run([demo.make_utterance(frames, labels, 3)], lambda: None):
        assert np.isfinite(row.cost)


def test_each_variant_gets_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = demo.write_pictures(demo.make_utterance(40, 8, 0), tmp_path / "new" / "folder")
    assert [path.name for path in paths] == [f"lattice_{name}.png" for name in ("rnnt", "tdt", "hat", "star")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frames\n3\n", "expected the columns frames,labels"),
        ("frames,labels\n3,x\n", "expected the columns frames,labels"),
        ("frames,labels\n", "holds no utterances"),
        ("frames,labels\n0,1\n", "frames must be at least 1"),
    ],
)
def test_a_bad_lengths_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "lengths.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        demo.read_lengths(tmp_path / "lengths.csv")
