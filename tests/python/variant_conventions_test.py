# SPDX-License-Identifier: Apache-2.0
"""Details of variants, bands, scores, semirings and alignments that an implementation has to decide."""

import flash_transducer as ft
import numpy as np
import pytest
from batches import (
    VARIANTS,
    bits,
    central_differences,
    lattice_cost,
    log_softmax,
    moves,
    random_batch,
)

pytestmark = pytest.mark.usefixtures("backend")

NAMED = pytest.mark.parametrize("name", VARIANTS)
INF = np.inf


def one(variant=None, frames=4, labels=2, **more):
    return random_batch(variant, frames=(frames,), labels=(labels,), **more)


def two_arcs(*columns, groups, heads=0):
    """RNN-T moves with columns of one's own: a blank, then one label arc for each."""
    blank = ft.Arc(1, 0, ft.Column.fixed(-1), may_finish=True)
    return ft.Variant("typed", [blank, *[ft.Arc(0, 1, c) for c in columns]], groups, heads)


# Columns and groups


def test_a_group_without_the_next_label_excludes_nothing_at_the_last_row():
    rest = ft.Group(0, ft.V, exclude=(ft.Column.fixed(-1), ft.Column.label()), normaliser="none")
    variant = ft.Variant("typed", [ft.Arc(1, 0, ft.Column.log_sum(0), may_finish=True),
                                   ft.Arc(0, 1, ft.Column.label())], [rest])  # fmt: skip
    batch = one(frames=1, labels=1, vocabulary=5)
    batch[1][:] = 2
    weights = ft.scores(*batch, variant)[0, 0, :, 0]
    x = batch[0][0, 0]
    assert weights[0] == pytest.approx(np.logaddexp.reduce(x[0, [0, 1, 3]]), rel=1e-15)
    assert weights[1] == pytest.approx(np.logaddexp.reduce(x[1, [0, 1, 2, 3]]), rel=1e-15)


def test_an_arc_that_reads_the_next_label_is_absent_at_the_last_row():
    weights = ft.scores(*one(), ft.rnnt())
    assert (weights[0, :, 2, 1] == -INF).all()
    assert np.isfinite(weights[0, :, :2, 1]).all()


def test_hat_has_no_arc_for_a_label_that_is_the_blank():
    batch = one(labels=1)
    batch[1][:] = 5
    for options in ({}, {"from_log_probs": True}):
        assert (ft.scores(*batch, ft.hat(), **options)[0, :, 0, 1] == -INF).all()
        assert ft.loss(*batch, ft.hat(), **options) == INF


def test_a_label_outside_a_group_that_is_not_softmax_keeps_its_arc():
    batch = one(labels=1)
    batch[1][:] = 4
    for group in (ft.Group(0, 2, normaliser="none"), ft.Group(0, 1, normaliser="bernoulli")):
        variant = two_arcs(ft.Column.label(subtract=0), groups=[group])
        assert np.isfinite(ft.scores(*batch, variant)[0, :, 0, 1]).all()
    variant = two_arcs(ft.Column.label(subtract=0), groups=[ft.Group(0, 2)])
    assert (ft.scores(*batch, variant)[0, :, 0, 1] == -INF).all()


def test_a_label_with_an_offset_reads_past_the_vocabulary():
    variant = two_arcs(ft.Column.label(6), groups=[], heads=6)
    batch = one(variant, labels=1)
    weights = ft.scores(*batch, variant)
    np.testing.assert_array_equal(weights[0, :, 0, 1], batch[0][0, :, 0, batch[1][0, 0] + 6])
    shifted = two_arcs(ft.Column.label(7), groups=[], heads=6)
    batch[1][:] = 5
    with pytest.raises(ValueError, match=r"targets\[0, 0\] is 5 .*label \+ 7 = 12, expected .*0 to 11"):
        ft.loss(*batch, shifted)


def test_arcs_of_an_empty_softmax_or_log_sum_are_absent_and_bernoulli_is_not():
    batch = one(labels=1)
    batch[0][0, 1, 0] = -INF
    assert (ft.scores(*batch, ft.rnnt())[0, 1, 0] == -INF).all()
    log_sum = two_arcs(ft.Column.log_sum(0), groups=[ft.Group(0, 3, normaliser="none")])
    assert ft.scores(*batch, log_sum)[0, 1, 0, 1] == -INF
    bernoulli = two_arcs(ft.Column.label(subtract=0), groups=[ft.Group(3, 4, normaliser="bernoulli")])
    batch = one(labels=1)
    batch[0][0, 1, 0, 3] = -INF  # Z = log(1 + exp(-inf)) = 0
    assert ft.scores(*batch, bernoulli)[0, 1, 0, 1] == batch[0][0, 1, 0, batch[1][0, 0]]
    alone = ft.Group(2, 3, exclude=ft.Column.fixed(2))
    variant = two_arcs(ft.Column.log_sum(0), groups=[alone])
    assert (ft.scores(*one(labels=1), variant)[..., 1] == -INF).all()


def test_sigma_is_subtracted_once_where_a_symbol_is_scored():
    knobs = {
        "rnnt": [1, 1],
        "monotonic": [1, 1],
        "multi_blank": [1, 1, 1, 1],
        "tdt": [1, 1, 1, 1, 1],
        "hat": [1, 1],
        "star": [1, 1, 0],
        "bypass": [1, 1, 1],
        "target_robust": [1, 1, 0, 1],
    }
    make = {
        "multi_blank": lambda **k: ft.multi_blank([2, 3], **k),
        "tdt": lambda **k: ft.tdt([0, 1, 2], **k),
    }
    for name, times in knobs.items():
        build = make.get(name, getattr(ft, name))
        batch = one(build())
        plain, lowered = ft.scores(*batch, build()), ft.scores(*batch, build(sigma=0.25))
        there = np.isfinite(plain)
        assert there.any(axis=(0, 1, 2)).all()
        expected = plain - 0.25 * np.array(times)
        np.testing.assert_allclose(lowered[there], expected[there], rtol=0, atol=1e-14, err_msg=name)
    constant = ft.scores(*batch, ft.bypass(mode="constant", sigma=0.25))
    assert (constant[0, :, :2, 2] == -1.0).all()


def test_delay_penalty_is_on_every_arc_that_emits_and_uses_the_length():
    batch = random_batch(ft.tdt([0, 1]), frames=(5, 3), labels=(1, 1))
    plain, delayed = (ft.scores(*batch, ft.tdt([0, 1], delay_penalty=d)) for d in (0.0, 0.5))
    for b, T in enumerate((5, 3)):
        bonus = 0.5 * ((T - 1) / 2 - np.arange(T))
        expected = plain[b, :T, 0] + bonus[:, None] * [0, 1, 1]
        np.testing.assert_allclose(delayed[b, :T, 0], expected, atol=1e-14)
        assert np.isfinite(expected).sum() == 3 * T - 1  # the last frame has no label of duration 1


def test_bypass_modes():
    batch = one(labels=1)
    batch[1][:] = 1
    p = np.exp(log_softmax(batch[0]))[0, :, 0]
    expected = {
        "sumexcl": np.log(p[:, [0, 2, 3, 4]].sum(axis=-1)),
        "sum": np.log(p[:, :5].sum(axis=-1)),
        "mean": np.log(p[:, :5].sum(axis=-1) / 5),
        "constant": 0.0,
    }
    for mode, value in expected.items():
        weights = ft.scores(*batch, ft.bypass(-0.75, mode=mode))
        np.testing.assert_allclose(weights[0, :, 0, 2], value - 0.75, atol=1e-14)


def test_order_and_names_of_arcs():
    assert [arc.name for arc in ft.target_robust().arcs] == [
        "blank(1,0)", "label(0,1)", "skip(1,0)", "skip(0,1)"]  # fmt: skip
    names = [arc.name for arc in ft.tdt([2, 0, 1]).arcs]
    assert names == ["blank(1,0)", "blank(2,0)", "label(0,1)", "label(1,1)", "label(2,1)"]
    batch = one(ft.tdt([2, 0, 1]))
    d = log_softmax(batch[0][..., -3:])[0, 0, 0]
    p = log_softmax(batch[0][..., :-3])[0, 0, 0]
    weights = ft.scores(*batch, ft.tdt([2, 0, 1]))[0, 0, 0]
    label = batch[1][0, 0]
    expected = [p[-1] + d[2], p[-1] + d[0], p[label] + d[1], p[label] + d[2], p[label] + d[0]]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)
    # The standard blank first among equals, then big blank i at column blank - 1 - i.
    variant = ft.multi_blank([1, 2, 1])
    assert [arc.name for arc in variant.arcs] == ["blank(1,0)"] * 3 + ["blank(2,0)", "label(0,1)"]
    batch = one(variant, vocabulary=8)
    p = log_softmax(batch[0])[0, 0, 0]
    weights = ft.scores(*batch, variant)[0, 0, 0]
    np.testing.assert_allclose(weights[:4], [p[7], p[6], p[4], p[5]], rtol=1e-14)


def test_clamp_is_off_for_every_column_in_the_range_of_a_group_that_opts_out():
    arcs = [ft.Arc(1, 0, ft.Column.fixed(-1, subtract=0), may_finish=True),
            ft.Arc(0, 1, ft.Column.label(subtract=0))]  # fmt: skip
    free = ft.Group(1, 4, exclude=ft.Column.fixed(2), clamp=False, normaliser="none")
    variant = ft.Variant("typed", arcs, [ft.Group(0, ft.V), free])
    batch = one()
    unit = ft.value_and_grad(*batch, variant)[1]
    found = ft.value_and_grad(*batch, variant, clamp=0.01)[1]
    expected = np.clip(unit, -0.01, 0.01)
    expected[..., 1:4] = unit[..., 1:4]
    assert (np.abs(unit[..., 1:4]) > 0.01).any()
    assert bits(found) == bits(expected)


# Bands, start and final scores


def band_of(rows):
    return np.array([rows], np.int64)


def test_band_is_inclusive_and_clipped_and_never_holds_the_last_frame():
    batch = one()
    for rows in ([[0, 2]] * 4, [[-7, 2**40]] * 4, [[-1, 3]] * 4):
        assert ft.loss(*batch, band=band_of(rows)) == ft.loss(*batch)
    narrow = [[0, 0], [0, 1], [1, 1], [1, 2]]
    weights = ft.scores(*batch, ft.rnnt())[0]
    expected = lattice_cost(weights, moves(ft.rnnt()), 4, 2, band=narrow)
    cost, gradient = ft.value_and_grad(*batch, band=band_of(narrow))
    assert cost == pytest.approx(expected, rel=1e-14)
    for t, (low, high) in enumerate(narrow):
        outside = [u for u in range(3) if not low <= u <= high]
        assert not gradient[0, t, outside].any()
    # (T, U) has no row of its own: monotonic may step there from outside any later band.
    last = band_of([[0, 0], [0, 1], [0, 1], [1, 1]])
    assert np.isfinite(ft.loss(*batch, ft.monotonic(), band=last))


def test_band_with_first_above_last_allows_nothing():
    batch = one()
    for t in range(4):
        rows = [[0, 2]] * 4
        rows[t] = [2, 1]
        assert ft.loss(*batch, band=band_of(rows)) == INF
    skips_a_frame = ft.multi_blank([2])
    rows = [[0, 2], [2, 1], [0, 2], [0, 2]]
    assert np.isfinite(ft.loss(*batch, skips_a_frame, band=band_of(rows)))


def test_a_node_outside_the_band_neither_starts_nor_ends():
    batch = one(labels=0)
    ends = {"start_scores": np.zeros((1, 4)), "final_scores": np.zeros((1, 5))}
    weights = ft.scores(*batch, ft.rnnt())[0]
    rows = [[0, 0], [1, 0], [0, 0], [1, 0]]
    cost = ft.loss(*batch, band=band_of(rows), **ends)
    # Only (0, 0), (2, 0) and the end are left, and no blank leads from one of them to the next.
    assert cost == pytest.approx(-np.log(2.0), rel=1e-14)
    expected = lattice_cost(weights, moves(ft.rnnt()), 4, 0, start=[0] * 4, final=[0] * 5, band=rows)
    assert cost == pytest.approx(expected, rel=1e-14)


@NAMED
def test_start_and_final_scores_replace_the_default_ends(name):
    variant = VARIANTS[name]
    batch = random_batch(variant)
    random = np.random.default_rng(3)
    start, final = random.normal(size=(3, 5)), random.normal(size=(3, 6))
    start[0, 1] = final[1, 2] = -INF
    costs = ft.loss(*batch, variant, reduction="none", start_scores=start, final_scores=final)
    weights = ft.scores(*batch, variant)
    for b, (T, U) in enumerate(zip(batch[2], batch[3], strict=True)):
        expected = lattice_cost(weights[b], moves(variant), T, U, start=start[b], final=final[b])
        assert costs[b] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("wrt", ["arc_scores", "start_scores", "final_scores"])
def test_gradients_of_scores_are_minus_posteriors(wrt):
    batch = one(ft.tdt([0, 1, 2]), frames=3, labels=2)
    random = np.random.default_rng(3)
    scores = {
        "arc_scores": random.normal(size=(1, 3, 1, 5)),  # broadcast over u: summed over it
        "start_scores": random.normal(size=(1, 3)),
        "final_scores": random.normal(size=(1, 4)),
    }
    variant = ft.tdt([0, 1, 2], fastemit=0.5)  # does not scale them
    gradient = ft.value_and_grad(*batch, variant, wrt=wrt, clamp=1e-3, **scores)[1]

    def cost(x):
        return ft.loss(*batch, variant, **{**scores, wrt: x})

    assert gradient.shape == scores[wrt].shape
    np.testing.assert_allclose(gradient, central_differences(cost, scores[wrt]), rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (4, 1, 5), (2, 1, 1, 1), (1, 4, 3, 1), (2, 4, 3, 5)])
def test_arc_scores_broadcast(shape):
    variant = ft.tdt([0, 1, 2])
    batch = random_batch(variant, frames=(4, 3), labels=(2, 1))
    scores = np.random.default_rng(3).normal(size=shape)
    full = np.broadcast_to(scores, (2, 4, 3, 5)).copy()
    cost, gradient = ft.value_and_grad(*batch, variant, arc_scores=scores, wrt="arc_scores")
    full_cost, full_gradient = ft.value_and_grad(*batch, variant, arc_scores=full, wrt="arc_scores")
    assert cost == full_cost
    axes = tuple(range(4 - len(shape)))
    summed = full_gradient.sum(axis=axes)
    kept = tuple(i for i, n in enumerate(shape) if n == 1)
    np.testing.assert_allclose(gradient, summed.sum(axis=kept, keepdims=True), rtol=1e-13, atol=1e-15)


def test_a_path_may_have_no_arc():
    batch = one(frames=1, labels=0)
    start, final = np.array([[0.5]]), np.array([[0.25, 2.0]])
    blank = log_softmax(batch[0])[0, 0, 0, -1]
    cost = ft.loss(*batch, start_scores=start, final_scores=final)
    assert cost == pytest.approx(-np.logaddexp(0.5 + 0.25, 0.5 + blank + 2.0), rel=1e-14)
    found = ft.lattice(*batch, start_scores=start, final_scores=final)
    assert found.occupancy[0, 0, 0] == pytest.approx(1.0)
    assert found.arc_posterior[0, 0, 0, 0] == pytest.approx(np.exp(0.5 + blank + 2.0 + cost), rel=1e-14)


# Semirings, scores, lattice, alignments


@NAMED
def test_max_semiring_is_the_best_path(name):
    variant = VARIANTS[name]
    batch = random_batch(variant)
    costs, gradient = ft.value_and_grad(*batch, variant, semiring="max", reduction="none")
    paths = ft.align(*batch, variant)
    found = ft.lattice(*batch, variant, semiring="max")
    for b, path in enumerate(paths):
        assert costs[b] == pytest.approx(-path.score, rel=1e-15)
        assert set(np.unique(found.arc_posterior[b])) <= {0.0, 1.0}
        weights = ft.scores(*batch, variant)[b]
        taken = found.arc_posterior[b] == 1.0
        assert weights[taken].sum() == pytest.approx(path.score, rel=1e-13)
    assert (costs[:2] > ft.loss(*batch, variant, reduction="none")[:2]).all()

    def cost(x):
        return ft.loss(x, *batch[1:], variant, semiring="max", reduction="sum")

    np.testing.assert_allclose(gradient, central_differences(cost, batch[0]), rtol=0, atol=1e-8)


def test_ties_are_broken_from_the_end():
    uniform = np.zeros((1, 4, 3, 5)), [[1, 2]], [4], [2]
    # At every node the incoming blank, of index 0, is preferred, so the labels come first.
    assert ft.align(*uniform)[0].frames.tolist() == [0, 0]
    # Two arcs of the same move and weight: the lower index.
    column = ft.Column.label(subtract=0)
    twice = two_arcs(column, column, groups=[ft.Group(0, ft.V)])
    assert ft.align(*uniform, twice)[0].arcs.tolist() == [1, 1]
    # The earliest end, and a start before any arc.
    free = np.zeros((1, 4, 1, 5)), np.zeros((1, 0), int), [4], [0]
    options = {"from_log_probs": True, "start_scores": np.zeros((1, 4)), "final_scores": np.zeros((1, 5))}
    posterior = ft.lattice(*free, semiring="max", **options)
    assert not posterior.arc_posterior.any()
    assert posterior.occupancy[0, :, 0].tolist() == [1, 0, 0, 0]
    options["final_scores"] = np.array([[-INF, -INF, 0.0, 0.0, 0.0]])
    posterior = ft.lattice(*free, semiring="max", **options)
    assert not posterior.arc_posterior.any()  # starts and ends at t = 2
    assert posterior.occupancy[0, :, 0].tolist() == [0, 0, 1, 0]


@NAMED
def test_scores_are_complete_and_lattice_loss_reads_the_moves_only(name):
    variant = VARIANTS[name]
    batch = random_batch(variant)
    extra = np.random.default_rng(4).normal(size=(1, 5, 1, len(variant.arcs)))
    weights = ft.scores(*batch, variant, arc_scores=extra)
    bare = ft.scores(*batch, variant)
    there = np.isfinite(bare)
    np.testing.assert_array_equal(there, np.isfinite(weights))
    np.testing.assert_allclose(weights[there], (bare + extra)[there], rtol=1e-14)
    for b, (T, U) in enumerate(zip(batch[2], batch[3], strict=True)):
        assert (weights[b, T:] == -INF).all()
        assert (weights[b, :, U + 1 :] == -INF).all()
    skeleton = ft.Variant(
        "moves", [ft.Arc(a.dt, a.du, may_finish=a.may_finish, constant=9.0) for a in variant.arcs]
    )
    for reduction in ("none", "mean"):
        expected = ft.loss(*batch, variant, arc_scores=extra, reduction=reduction)
        found = ft.lattice_loss(weights, *batch[2:], skeleton, reduction=reduction)
        assert bits(found) == bits(expected)


@NAMED
def test_lattice_conventions(name):
    variant = VARIANTS[name]
    batch = random_batch(variant, pad=1)
    random = np.random.default_rng(5)
    start, final = random.normal(size=(3, 6)), random.normal(size=(3, 7))
    found = ft.lattice(*batch, variant, start_scores=start, final_scores=final)
    weights = ft.scores(*batch, variant)
    for b, (T, U) in enumerate(zip(batch[2], batch[3], strict=True)):
        alpha, beta, cost = found.alpha[b], found.beta[b], found.cost[b]
        assert alpha[0, 0] == pytest.approx(start[b, 0], rel=1e-14)
        assert beta[T, U] == pytest.approx(final[b, T], rel=1e-14)
        total = np.logaddexp.reduce(alpha[: T + 1, U] + final[b, : T + 1])
        assert cost == pytest.approx(-total, rel=1e-13)
        assert (alpha[T + 1 :] == -INF).all()
        assert (beta[:, U + 1 :] == -INF).all()
        assert (beta[T, :U] == -INF).all()
        mass = np.exp(alpha + beta + cost)
        np.testing.assert_allclose(found.occupancy[b, :T], mass[:T], atol=1e-13)
        assert not found.occupancy[b, T:].any()
        assert not found.arc_posterior[b, T:].any()
        assert not found.arc_posterior[b, :, U + 1 :].any()
        for t, u, a in np.ndindex(T, U + 1, len(variant.arcs)):
            arc = variant.arcs[a]
            to = t + arc.dt, u + arc.du
            lands = to[0] <= T and to[1] <= U and (to[0] < T or arc.may_finish)
            gamma = np.exp(alpha[t, u] + weights[b, t, u, a] + beta[to] + cost) if lands else 0.0
            assert found.arc_posterior[b, t, u, a] == pytest.approx(gamma, abs=1e-13)


def test_lattice_of_an_utterance_without_a_path():
    found = ft.lattice(*one(frames=1), ft.monotonic())
    assert found.cost[0] == INF
    assert not found.arc_posterior.any()
    assert not found.occupancy.any()


def test_align_lists_labels_and_skips():
    variant = ft.bypass(5.0)  # a reward: skip every token
    batch = random_batch(frames=(4, 3), labels=(2, 1))
    weights = ft.scores(*batch, variant)
    for b, path in enumerate(ft.align(*batch, variant)):
        count = batch[3][b]
        assert path.arcs.tolist() == [2] * count
        assert path.labels.tolist() == batch[1][b, :count].tolist()
        expected = [weights[b, t, u, 2] for u, t in enumerate(path.frames)]
        np.testing.assert_array_equal(path.scores, expected)
    nothing = ft.align(*one(frames=1), ft.monotonic())[0]
    assert nothing.score == -INF
    assert len(nothing.frames) == len(nothing.labels) == len(nothing.scores) == len(nothing.arcs) == 0
