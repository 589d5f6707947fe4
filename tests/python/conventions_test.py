# SPDX-License-Identifier: Apache-2.0
"""What implementations disagree on, and what this one does: FastEmit, clamp, ends, NaN, padding."""

import flash_transducer as ft
import numpy as np
import pytest
from batches import (
    VARIANTS,
    bits,
    central_differences,
    joint_batch,
    lattice_cost,
    log_softmax,
    moves,
    random_batch,
)

pytestmark = pytest.mark.usefixtures("backend")

NAMED = pytest.mark.parametrize("name", VARIANTS)


def with_knobs(name, **knobs):
    made = {
        "multi_blank": lambda: ft.multi_blank([2, 3], **knobs),
        "tdt": lambda: ft.tdt([0, 1, 2], **knobs),
        "star": lambda: ft.star(-0.5, **knobs),
        "bypass": lambda: ft.bypass(-0.5, **knobs),
        "target_robust": lambda: ft.target_robust(-0.5, -0.7, **knobs),
    }
    return made[name]() if name in made else getattr(ft, name)(**knobs)


def log_p_next_label(name, logits, label):
    """Log p(next label) at every node that has one; blank is the last of the vocabulary."""
    vocabulary = logits[..., : logits.shape[-1] - VARIANTS[name].heads]
    if name != "hat":
        return log_softmax(vocabulary)[..., label]
    return log_softmax(vocabulary[..., :-1])[..., label] - np.logaddexp(0.0, vocabulary[..., -1])


def fastemit_surrogate(name, batch, strength):
    """Function of logits: nll + strength * sum stopgrad(gamma of label arcs) * (-log p(next label))."""
    _, targets, frames, labels = batch
    variant = VARIANTS[name]
    posterior = ft.lattice(*batch, variant).arc_posterior[0]
    is_label = [arc.kind == "label" for arc in variant.arcs]
    gamma = posterior[..., is_label].sum(axis=-1)

    def surrogate(x):
        value = ft.loss(x, targets, frames, labels, variant, reduction="sum")
        for u in range(labels[0]):
            value -= strength * np.sum(gamma[:, u] * log_p_next_label(name, x[0, :, u], targets[0, u]))
        return value

    return surrogate


@NAMED
def test_fastemit_is_the_gradient_of_its_surrogate_and_cost_is_plain(name):
    batch = random_batch(VARIANTS[name], frames=(3,), labels=(2,), vocabulary=6)
    cost, gradient = ft.value_and_grad(*batch, with_knobs(name, fastemit=0.7), reduction="sum")
    assert cost == ft.loss(*batch, VARIANTS[name], reduction="sum")
    expected = central_differences(fastemit_surrogate(name, batch, 0.7), batch[0])
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-8)
    plain = ft.value_and_grad(*batch, VARIANTS[name], reduction="sum")[1]
    assert np.abs(gradient - plain).max() > 1e-2  # the knob does something


@NAMED
def test_fastemit_of_zero_changes_no_bit(name):
    batch = random_batch(VARIANTS[name])
    cost, gradient = ft.value_and_grad(*batch, with_knobs(name, fastemit=0.0))
    plain_cost, plain = ft.value_and_grad(*batch, VARIANTS[name])
    assert cost == plain_cost
    assert bits(gradient) == bits(plain)


@NAMED
def test_clamp_acts_on_each_element_at_unit_scale_after_fastemit(name):
    batch = random_batch(VARIANTS[name], frames=(3,), labels=(2,), vocabulary=6)
    variant = with_knobs(name, fastemit=0.7)
    limit = 0.05
    expected = central_differences(fastemit_surrogate(name, batch, 0.7), batch[0])
    free = slice(6, None) if name == "tdt" else slice(0, 0)  # durations opt out, as in NeMo
    assert np.abs(expected).max() > 2 * limit
    kept = expected[..., free].copy()
    expected = np.clip(expected, -limit, limit)
    expected[..., free] = kept
    gradient = ft.value_and_grad(*batch, variant, reduction="sum", clamp=limit)[1]
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-8)


def test_clamp_comes_before_the_factor_of_the_reduction():
    batch = random_batch()
    unit = ft.value_and_grad(*batch, reduction="sum")[1]
    count, frames, labels = 3, batch[2].sum(), batch[3].sum()
    for reduction, factor in [("mean", count), ("mean_frame", frames), ("mean_target", labels)]:
        gradient = ft.value_and_grad(*batch, reduction=reduction, clamp=0.1)[1]
        np.testing.assert_allclose(gradient, np.clip(unit, -0.1, 0.1) / factor, rtol=1e-14)
    assert (np.abs(unit) > 0.1).any()


def test_only_blank_ends_rnnt_and_both_end_monotonic():
    batch = random_batch(frames=(1,), labels=(1,))
    logits, targets = batch[:2]
    p = log_softmax(logits)[0, 0]
    label, blank = targets[0, 0], -1
    assert ft.loss(*batch) == pytest.approx(-(p[0, label] + p[1, blank]), rel=1e-14)
    assert ft.loss(*batch, ft.monotonic()) == pytest.approx(-p[0, label], rel=1e-14)
    assert ft.loss(*batch, ft.monotonic(final_label=False)) == np.inf


def test_blank_ends_tdt_and_a_label_only_if_asked():
    variant = ft.tdt([0, 1])
    batch = random_batch(variant, frames=(1,), labels=(1,))
    p, d = log_softmax(batch[0][..., :-2])[0, 0], log_softmax(batch[0][..., -2:])[0, 0]
    label = batch[1][0, 0]
    by_blank = p[0, label] + d[0, 0] + p[1, -1] + d[1, 1]
    by_label = p[0, label] + d[0, 1]
    assert ft.loss(*batch, variant) == pytest.approx(-by_blank, rel=1e-14)
    paper = ft.loss(*batch, ft.tdt([0, 1], final_label=True))
    assert paper == pytest.approx(-np.logaddexp(by_blank, by_label), rel=1e-14)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "hat"])  # HAT: no label arc then
def test_target_equal_to_blank_adds_both_contributions(name):
    variant = VARIANTS[name]
    logits, targets, frames, labels = random_batch(variant, frames=(3,), labels=(1,), vocabulary=6)
    targets[:] = 5  # the blank

    def cost(x):
        return ft.loss(x, targets, frames, labels, variant)

    gradient = ft.value_and_grad(logits, targets, frames, labels, variant)[1]
    np.testing.assert_allclose(gradient, central_differences(cost, logits), rtol=0, atol=1e-8)


def infeasible_in_the_middle():
    logits, targets, _, _ = random_batch(frames=(4, 2, 4), labels=(2, 3, 2))
    return logits, targets, np.array([4, 2, 4]), np.array([2, 3, 2])


def test_no_path_gives_inf_and_zero_gradient_and_leaves_the_others_alone():
    batch = infeasible_in_the_middle()
    costs, gradient = ft.value_and_grad(*batch, ft.monotonic(), reduction="none")
    assert costs[1] == np.inf
    assert not gradient[1].any()
    for b in (0, 2):
        alone = tuple(x[b : b + 1] for x in batch)
        cost, single = ft.value_and_grad(*alone, ft.monotonic(), reduction="none")
        assert bits(cost) == bits(costs[b : b + 1])
        assert bits(single) == bits(gradient[b : b + 1])
    assert ft.loss(*batch, ft.monotonic()) == np.inf


def test_zero_infinity_zeroes_the_cost_and_keeps_the_denominators():
    batch = infeasible_in_the_middle()
    costs = ft.loss(*batch, ft.monotonic(), reduction="none")
    kept = costs[0] + costs[2]
    denominators = {"sum": 1, "mean": 3, "mean_target": 7, "mean_frame": 10}
    unit = ft.value_and_grad(*batch, ft.monotonic(), reduction="none")[1]
    for reduction, count in denominators.items():
        cost, gradient = ft.value_and_grad(*batch, ft.monotonic(), reduction=reduction, zero_infinity=True)
        assert cost == pytest.approx(kept / count, rel=1e-15)
        np.testing.assert_allclose(gradient, unit / count, rtol=1e-14)
    zeroed = ft.loss(*batch, ft.monotonic(), reduction="none", zero_infinity=True)
    assert zeroed.tolist() == [costs[0], 0.0, costs[2]]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 2, 5])  # a label, one that only the normaliser reads, the blank
def test_nan_makes_its_utterance_nan_and_no_other(poison, column):
    batch = random_batch(frames=(4, 4, 3), labels=(2, 2, 1))
    batch[1][1] = [0, 1]
    clean_costs, clean = ft.value_and_grad(*batch, reduction="none")
    batch[0][1, 2, 1, column] = poison
    costs, gradient = ft.value_and_grad(*batch, reduction="none")
    assert np.isnan(costs).tolist() == [False, True, False]
    assert np.isnan(gradient[1]).all()
    for b in (0, 2):
        assert costs[b] == clean_costs[b]
        assert bits(gradient[b]) == bits(clean[b])
    assert np.isnan(ft.loss(*batch))
    assert np.isnan(ft.loss(*batch, reduction="none", zero_infinity=True)[1])


def test_nan_that_no_path_reads_does_not_count():
    logits, targets, frames, labels = random_batch(frames=(4,), labels=(2,))
    clean_cost, clean = ft.value_and_grad(logits, targets, frames, labels, ft.monotonic())
    for t, u in [(0, 1), (0, 2), (1, 2), (3, 0)]:  # u > t, and too late to reach the end
        logits[0, t, u] = np.nan
    cost, gradient = ft.value_and_grad(logits, targets, frames, labels, ft.monotonic())
    assert cost == clean_cost
    assert bits(gradient) == bits(clean)
    assert not gradient[0, 0, 1:].any()


def test_nan_behind_a_mask_of_minus_infinity_does_not_count():
    batch = random_batch(frames=(4,), labels=(2,))
    mask = np.zeros((1, 4, 3, 2))
    mask[0, 1, 1] = -np.inf  # nothing leaves the node (1, 1)
    clean = ft.value_and_grad(*batch, arc_scores=mask)
    batch[0][0, 1, 1] = np.nan
    cost, gradient = ft.value_and_grad(*batch, arc_scores=mask)
    assert cost == clean[0]
    assert bits(gradient) == bits(clean[1])


def test_nan_wins_over_an_infinite_cost():
    logits, targets, frames, labels = random_batch(frames=(3,), labels=(1,))
    logits[0, :, 0, targets[0, 0]] = -np.inf  # no label: no path of probability above 0
    assert ft.loss(logits, targets, frames, labels) == np.inf
    logits[0, 1, 0, -1] = np.nan
    cost, gradient = ft.value_and_grad(logits, targets, frames, labels)
    assert np.isnan(cost)
    assert np.isnan(gradient).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["arc_scores", "start_scores", "final_scores"])
def test_nan_in_scores_makes_all_gradients_of_its_utterance_nan(where, poison):
    batch = random_batch(frames=(3, 3), labels=(1, 1))
    scores = {
        "arc_scores": np.zeros((2, 3, 2, 2)),
        "start_scores": np.zeros((2, 3)),
        "final_scores": np.zeros((2, 4)),
    }
    names = ("logits", *scores)
    clean_costs, clean = ft.value_and_grad(*batch, **scores, wrt=names, reduction="none")
    scores[where][1][(1, 0, 1) if where == "arc_scores" else 1] = poison
    costs, gradients = ft.value_and_grad(*batch, **scores, wrt=names, reduction="none")
    assert np.isnan(costs).tolist() == [False, True]
    for gradient, before in zip(gradients, clean, strict=True):
        assert np.isnan(gradient[1]).all()
        assert bits(gradient[0]) == bits(before[0])
    assert costs[0] == clean_costs[0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nan_in_an_encoder_row_reaches_the_shared_gradients(dropout):
    batch = joint_batch(frames=(4, 3), labels=(2, 2))
    options = {"reduction": "none", "dropout": dropout, "seed": 3, "activation": "tanh"}
    clean_costs, clean = ft.joint_value_and_grad(*batch, **options)
    batch[0][1, 1] = np.nan
    costs, gradients = ft.joint_value_and_grad(*batch, **options)
    assert np.isnan(costs).tolist() == [False, True]
    assert np.isnan(gradients.weight).all()
    assert np.isnan(gradients.bias).all()
    assert np.isnan(gradients.encoder[1, :3]).all()
    assert not gradients.encoder[1, 3].any()  # padding
    assert np.isnan(gradients.predictor[1]).all()
    assert costs[0] == clean_costs[0]
    assert bits(gradients.encoder[0]) == bits(clean.encoder[0])
    assert bits(gradients.predictor[0]) == bits(clean.predictor[0])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ["identity", "relu", "leaky_relu", "tanh", "sigmoid", "gelu", "silu"])
def test_a_dropped_unit_is_not_read(activation, dtype, poison):
    arrays = joint_batch(frames=(4,), labels=(0,))
    batch = [*(array.astype(dtype) for array in arrays[:4]), *arrays[4:]]
    options = {"dropout": 0.5, "seed": 3, "activation": activation}
    batch[0] = np.abs(batch[0])  # where relu has a slope
    batch[1] = np.abs(batch[1])
    clean_cost, clean = ft.joint_value_and_grad(*batch, **options)
    dropped = clean.encoder == 0.0
    assert 0 < dropped.sum() < dropped.size
    batch[0][dropped] = poison
    cost, gradients = ft.joint_value_and_grad(*batch, **options)
    assert cost == clean_cost
    for gradient, before in zip(gradients, clean, strict=True):
        assert bits(gradient) == bits(before)


@NAMED
def test_minus_infinity_is_probability_zero(name):
    variant = VARIANTS[name]
    batch = random_batch(variant, frames=(4,), labels=(2,))
    batch[0][0, 1, :, 3] = -np.inf  # a symbol that is neither label nor blank
    batch[1][:] = [[0, 1]]
    cost, gradient = ft.value_and_grad(*batch, variant)
    assert np.isfinite(cost)
    assert np.isfinite(gradient).all()
    assert not gradient[0, 1, :, 3].any()
    batch[0][0, 1, :, 3] = -1e4  # probability 0 in double precision as well
    assert cost == pytest.approx(ft.loss(*batch, variant), rel=1e-15)


def test_log_probs_are_read_as_they_are():
    batch = random_batch()
    log_probs = log_softmax(batch[0])
    cost, gradient = ft.value_and_grad(log_probs, *batch[1:], from_log_probs=True, reduction="sum")
    assert cost == pytest.approx(ft.loss(*batch, reduction="sum"), rel=1e-14)
    posterior = ft.lattice(*batch).arc_posterior
    expected = np.zeros_like(gradient)
    for b, t, u in np.ndindex(posterior.shape[:3]):
        expected[b, t, u, -1] -= posterior[b, t, u, 0]
        if u < batch[3][b]:
            expected[b, t, u, batch[1][b, u]] -= posterior[b, t, u, 1]
    np.testing.assert_allclose(gradient, expected, atol=1e-14)
    # Unnormalised input is taken at its word: every normaliser is 0, HAT's Bernoulli included.
    doubled = ft.scores(*batch, ft.hat(), from_log_probs=True)
    assert doubled[0, 0, 0, 0] == batch[0][0, 0, 0, -1]
    assert doubled[0, 0, 0, 1] == batch[0][0, 0, 0, batch[1][0, 0]]


@NAMED
def test_padding_may_hold_anything_and_gets_zero(name):
    variant = VARIANTS[name]
    arcs = len(variant.arcs)
    batch = random_batch(variant, pad=2)
    logits, targets, frames, labels = batch
    random = np.random.default_rng(1)
    scores = {
        "arc_scores": random.normal(size=(*logits.shape[:3], arcs)),
        "start_scores": random.normal(size=logits.shape[:2]),
        "final_scores": random.normal(size=(3, logits.shape[1] + 1)),
    }
    band = np.tile(np.array([0, 9]), (*logits.shape[:2], 1))
    names = ("logits", *scores)

    def run():
        options = {"band": band, "wrt": names, "reduction": "none", **scores}
        return ft.value_and_grad(logits, targets, frames, labels, variant, **options)

    clean_costs, clean = run()
    for b, (T, U) in enumerate(zip(frames, labels, strict=True)):
        for array in (logits, scores["arc_scores"]):
            array[b, T:] = np.nan
            array[b, :, U + 1 :] = np.nan
        scores["start_scores"][b, T:] = np.nan
        scores["final_scores"][b, T + 1 :] = np.nan
        targets[b, U:] = [-(2**40), 10**12, 7, -1][: targets.shape[1] - U]
        band[b, T:] = [[-(2**50), 2**50]]
    costs, gradients = run()
    assert bits(costs) == bits(clean_costs)
    assert np.isfinite(costs).all()
    for gradient, before in zip(gradients, clean, strict=True):
        assert bits(gradient) == bits(before)
    for b, (T, U) in enumerate(zip(frames, labels, strict=True)):
        assert not gradients[0][b, T:].any()
        assert not gradients[0][b, :, U + 1 :].any()
        assert not gradients[1][b, T:].any()
        assert not gradients[1][b, :, U + 1 :].any()
        assert not gradients[2][b, T:].any()
        assert not gradients[3][b, T + 1 :].any()


@NAMED
def test_no_frames_is_feasible_only_without_labels(name):
    variant = VARIANTS[name]
    batch = random_batch(variant, frames=(0, 0, 3), labels=(0, 1, 1))
    ends = {"start_scores": np.full((3, 3), np.nan), "final_scores": np.full((3, 4), np.nan)}
    ends["start_scores"][2], ends["final_scores"][2] = 0.0, 0.0
    for options in ({}, ends):  # start and final scores are not read where T = 0
        costs, gradient = ft.value_and_grad(*batch, variant, reduction="none", **options)
        assert costs[:2].tolist() == [0.0, np.inf]
        assert np.isfinite(costs[2])
        assert not gradient[:2].any()


@NAMED
def test_cost_is_the_sum_over_paths_of_the_arc_weights(name):
    variant = VARIANTS[name]
    batch = random_batch(variant)
    costs = ft.loss(*batch, variant, reduction="none")
    weights = ft.scores(*batch, variant)
    for b, (T, U) in enumerate(zip(batch[2], batch[3], strict=True)):
        assert costs[b] == pytest.approx(lattice_cost(weights[b], moves(variant), T, U), rel=1e-13)
