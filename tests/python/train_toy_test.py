# SPDX-License-Identifier: Apache-2.0
"""The training example: it learns, goes on after an interruption, and decodes every variant.

Its loss curve is that of the same model trained with a plain lattice (plain_lattice.py).
"""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import flash_transducer as ft
import numpy as np
import pytest
from torch_batches import torch

pytest.importorskip("jiwer", reason="jiwer is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("rich", reason="rich is not installed")

import plain_lattice
import train_toy
from toy.data import NEW_WORDS, SPLITS, TOKENS, TRAINING_WORDS, make_batch, make_utterance
from toy.decode import Token, arc_frames, arc_weights, decode, greedy
from toy.model import VARIANTS, make_scheme
from toy.report import score
from toy.training import Run, Settings, train

SMALL = {"batch_size": 4}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses_of(settings, steps, loss=None, nudge=0.0):
    """Losses of a run; `nudge` changes the initial weights by this relative amount."""
    run = Run(settings, loss)
    if nudge:
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter *= 1 + nudge * (2 * torch.rand(parameter.shape, generator=random) - 1)
    return np.array([run.step() for _ in range(steps)])


# --- data ---------------------------------------------------------------------------------------------


def test_new_words_are_new():
    assert not set(NEW_WORDS) & set(TRAINING_WORDS)
    for split, words in (("new words", NEW_WORDS), ("known words", TRAINING_WORDS)):
        assert {word for i in range(50) for word in make_utterance(0, split, i).text.split()} <= set(words)
    texts = [[make_utterance(0, split, i).text for i in range(20)] for split in SPLITS]
    assert not set(texts[0]) & set(texts[1])


def test_every_utterance_has_room_for_one_label_per_frame():
    for index in range(200):
        utterance = make_utterance(3, "train", index)
        assert len(utterance.labels) <= -(-len(utterance.features) // 4)


def test_padding_does_not_change_what_the_encoder_says():
    run = Run(Settings())
    utterances = [make_utterance(0, "train", index) for index in range(6)]
    together, lengths = run.model.encode(*batch_inputs(utterances))
    assert len(set(lengths.tolist())) > 1
    for row, length, utterance in zip(together, lengths, utterances, strict=True):
        alone, one = run.model.encode(*batch_inputs([utterance]))
        assert one == length
        torch.testing.assert_close(row[:length], alone[0], rtol=1e-5, atol=1e-6)


def batch_inputs(utterances):
    batch = make_batch(utterances)
    return batch.features, batch.frames


# --- training -----------------------------------------------------------------------------------------


def test_a_short_run_learns_and_reports(tmp_path, capsys):
    options = ["--steps", "40", "--batch-size", "4", "--test-utterances", "4", "--output", str(tmp_path)]
    assert train_toy.main(options) == 0
    assert "new words: word error rate" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert np.mean(report["losses"][-5:]) < 0.6 * np.mean(report["losses"][:5])
    for picture in ("loss.png", "lattice.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_the_commands_of_the_page_are_understood():
    page = Path(__file__).resolve().parents[2] / "docs" / "training.md"
    commands = re.findall(r"^python python/examples/train_toy.py ?([^#\n]*)", page.read_text(), re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        train_toy.parse(shlex.split(command))


def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_bits(tmp_path):
    settings = Settings(variant="tdt", **SMALL)
    whole = Run(settings)
    assert train(whole, 12, tmp_path / "whole.pt", lambda _: None)

    def interrupt(_):
        if len(first.losses) == 5:
            os.kill(os.getpid(), signal.SIGINT)

    first = Run(settings)
    handler = signal.getsignal(signal.SIGINT)
    assert not train(first, 12, tmp_path / "state.pt", interrupt)
    assert len(first.losses) == 5
    assert signal.getsignal(signal.SIGINT) is handler

    second = Run(settings)
    second.load(tmp_path / "state.pt")
    assert train(second, 12, tmp_path / "state.pt", lambda _: None)
    assert second.losses == whole.losses
    expected = whole.model.state_dict()
    for name, value in second.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    run = Run(Settings(**SMALL))
    run.step()
    run.save(tmp_path / "state.pt")
    run.step()

    def fail(_state, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        run.save(tmp_path / "state.pt")
    other = Run(Settings(**SMALL))
    other.load(tmp_path / "state.pt")
    assert other.losses == run.losses[:1]


def test_a_state_of_other_settings_is_refused(tmp_path, capsys):
    run = Run(Settings(variant="hat", **SMALL))
    run.save(tmp_path / "state.pt")
    assert train_toy.main(["--batch-size", "4", "--output", str(tmp_path)]) == 2
    assert "trained with variant = hat, and rnnt is asked for" in capsys.readouterr().err


def test_eight_utterances_are_learnt_by_heart():
    """FastEmit, because greedy decoding needs a model that is sure of when to write, not of what alone."""
    run = Run(Settings(batch_size=8, utterances=8, fastemit=0.1))
    for _ in range(200):
        run.step()
    assert score(run, "train", 8).word_error_rate == 0.0


# --- decoding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_arc_weights_are_those_of_the_loss(name):
    """Weight and frames of every arc, for every next label, as `ft.scores` has them."""
    scheme = make_scheme(name)
    logits = torch.randn(
        1,
        9,
        2,
        scheme.symbols + scheme.durations,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    ours = arc_weights(logits[0, 0, 0], scheme)
    frames = arc_frames(scheme)
    found = torch.full_like(ours, -torch.inf)
    for label in range(len(TOKENS)):
        scores = ft.scores(
            logits, torch.tensor([[label]]), torch.tensor([9]), torch.tensor([1]), scheme.variant
        )
        for arc, weight in zip(scheme.variant.arcs, scores[0, 0, 0], strict=True):
            symbols = torch.arange(scheme.symbols)[:, None].expand_as(frames)
            wanted = symbols == label if arc.du else symbols >= len(TOKENS)
            place = (wanted & (frames == arc.dt)).nonzero()
            assert len(place) == 1, arc
            found[tuple(place[0])] = weight
    torch.testing.assert_close(ours, found)


def plant(scheme, frames, random):
    """Logits ``[T, U + 1, K]`` with one path that every node on it prefers, and the tokens it writes."""
    moves = arc_frames(scheme)
    label_may_finish = any(arc.may_finish for arc in scheme.variant.arcs if arc.du)
    t, written, marks = 0, [], []
    while t < frames:
        # Two labels at one frame at most, where the variant allows several.
        crowded = len([token for token in written if token.frame == t]) >= 2
        possible = [
            (symbol, duration)
            for symbol in range(scheme.symbols)
            for duration in range(moves.shape[1])
            if (dt := int(moves[symbol, duration])) <= frames - t
            and (dt > 0 or (symbol < len(TOKENS) and not crowded))
            and (t + dt < frames or symbol >= len(TOKENS) or label_may_finish)
        ]
        # Blanks and labels alike often, so that every kind of arc is taken.
        blanks = [arc for arc in possible if arc[0] >= len(TOKENS)]
        labels = [arc for arc in possible if arc[0] < len(TOKENS)]
        among = (labels if random.random() < 0.5 else blanks) or blanks or labels
        symbol, duration = among[random.integers(len(among))]
        marks.append((t, len(written), symbol, duration))
        if symbol < len(TOKENS):
            written.append(Token(symbol, t))
        t += int(moves[symbol, duration])
    logits = torch.zeros(frames, len(written) + 1, scheme.symbols + scheme.durations)
    logits[..., scheme.blank] = -3.0 if scheme.variant.name == "hat" else 0.0
    for t, u, symbol, duration in marks:
        logits[t, u, symbol] += 8.0
        if scheme.durations:
            logits[t, u, scheme.symbols + duration] += 8.0
    return logits, written


@pytest.mark.parametrize("name", VARIANTS)
def test_a_planted_path_is_decoded(name):
    scheme = make_scheme(name)
    random = np.random.default_rng(5)
    lengths = set()
    for _ in range(20):
        logits, written = plant(scheme, 12, random)
        assert greedy(12, lambda t, so_far, logits=logits: logits[t, len(so_far)], scheme) == written
        lengths.add(len(written))
        if not written:
            continue
        # The best path of the loss for these labels writes them at the same frames.
        batch = logits[None], torch.tensor([[token.label for token in written]]), torch.tensor([12])
        best = ft.align(*batch, torch.tensor([len(written)]), scheme.variant)[0]
        assert best.frames.tolist() == [token.frame for token in written]
    assert len(lengths) > 3


def test_tdt_takes_the_best_blank_that_moves():
    """The duration 0 is the likeliest, and a blank cannot have it."""
    scheme = make_scheme("tdt")
    logits = torch.zeros(scheme.symbols + scheme.durations)
    logits[scheme.blank] = 9.0
    logits[scheme.symbols + 0] = 5.0
    logits[scheme.symbols + 2] = 3.0
    visited = []
    assert greedy(7, lambda t, _: visited.append(t) or logits, scheme) == []
    assert visited == [0, 2, 4, 6]


def test_decoding_ends_when_a_model_only_writes():
    scheme = make_scheme("rnnt")
    logits = torch.zeros(scheme.symbols)
    logits[0] = 9.0
    tokens = greedy(3, lambda *_: logits, scheme)
    assert [token.frame for token in tokens] == [0] * 10 + [1] * 10 + [2] * 10


def test_decoding_feeds_each_label_to_the_predictor():
    """Token by token the same logits as the predictor gives for the whole sentence."""
    run = Run(Settings(batch_size=8, utterances=8, fastemit=0.1))
    for _ in range(80):
        run.step()
    batch = make_batch([make_utterance(0, "train", 1)])
    with torch.no_grad():
        encoder, lengths = run.model.encode(batch.features, batch.frames)
        tokens = decode(run.model, batch, run.scheme)[0]
        labels = torch.tensor([[run.model.blank, *(token.label for token in tokens)]])
        logits = run.model.join(encoder[0][:, None], run.model.predict(labels)[0])  # [T, U + 1, K]
    assert tokens
    again = greedy(int(lengths), lambda t, so_far: logits[t, len(so_far)], run.scheme)
    assert again == tokens


# --- beside a plain lattice ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_first_loss_and_gradients_are_those_of_a_plain_lattice(name):
    settings = Settings(variant=name, skip_mass=0.0, **SMALL)
    run = Run(settings)
    batch = make_batch([make_utterance(0, "train", index) for index in range(4)])
    parameters = list(run.model.parameters())
    ours = run.loss(run.model, batch)
    plain = plain_lattice.loss(run.model, batch, run.scheme)
    torch.testing.assert_close(ours.double(), plain, rtol=1e-6, atol=0.0)
    pairs = zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(plain, parameters), strict=True)
    for mine, other in pairs:
        assert float((mine - other).norm() / other.norm()) < 1e-5


def smooth(losses):
    """Means over 20 steps."""
    return np.convolve(losses, np.full(20, 1 / 20), mode="valid")


def distance(one, other):
    """Mean distance of two smoothed loss curves, relative to the second."""
    return float(np.mean(np.abs(smooth(one) - smooth(other))) / np.mean(smooth(other)))


# The largest relative error of rounding to the type of the products.
NUDGES = {"float32": 2.0**-24, "bfloat16": 2.0**-9}


@pytest.mark.parametrize("dtype", NUDGES)
def test_the_loss_curve_is_that_of_a_plain_lattice_within_noise(dtype, record_property):
    """With and without skipping, no farther than twice what a nudge of the initial weights makes.

    tests/bench/compare_training.py compares longer trainings.
    """
    steps = 40
    scheme = make_scheme("rnnt")

    def plain(model, batch):
        return plain_lattice.loss(model, batch, scheme)

    expected = losses_of(Settings(dtype=dtype, **SMALL), steps, plain)
    nudged = losses_of(Settings(dtype=dtype, **SMALL), steps, plain, NUDGES[dtype])
    noise = distance(nudged, expected)
    assert noise > 0
    note = f"{dtype}, {steps} steps, last loss {smooth(expected)[-1]:.4f}: nudged {noise:.1e}"
    for name, skip_mass in (("skipping", None), ("no skipping", 0.0)):
        ours = losses_of(Settings(dtype=dtype, skip_mass=skip_mass, **SMALL), steps)
        note += f", {name} {distance(ours, expected):.1e} (last {smooth(ours)[-1]:.4f})"
        assert distance(ours, expected) < 2 * noise, note
    record_property("note", note)
