# SPDX-License-Identifier: Apache-2.0
"""Lengths, types, reductions, gradients in place, and the joint source: activations, dropout, masks."""

import flash_transducer as ft
import ml_dtypes
import numpy as np
import pytest
from batches import (
    ACTIVATIONS,
    VARIANTS,
    assert_rounded_once,
    bits,
    central_differences,
    dropout_factors,
    joint_batch,
    joint_logits,
    philox4x32_10,
    random_batch,
)

pytestmark = pytest.mark.usefixtures("backend")

TYPES = [np.dtype(t) for t in (np.float64, np.float32, ml_dtypes.bfloat16, np.float16)]


def strided(values, dtype, layout):
    values = np.array(values, dtype)
    if layout == "column of a table":
        return np.stack([values, values + 100], axis=1)[:, 0]
    if layout == "reversed":
        return values[::-1].copy()[::-1]
    return values


@pytest.mark.parametrize("layout", ["plain", "column of a table", "reversed"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths_and_labels_of_both_types_and_any_stride(dtype, layout):
    logits, targets, frames, labels = random_batch(pad=2)
    expected = ft.loss(logits, targets, frames, labels, reduction="none")
    lengths = strided(frames, dtype, layout), strided(labels, dtype, layout)
    table = np.asfortranarray(targets.astype(dtype))
    assert bits(ft.loss(logits, table, *lengths, reduction="none")) == bits(expected)
    lists = targets.tolist(), frames.tolist(), labels.tolist()
    assert bits(ft.loss(logits, *lists, reduction="none")) == bits(expected)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_costs_are_float64_only_if_the_logits_are(dtype):
    logits, *rest = random_batch()
    small = logits.astype(dtype)
    expected = np.float64 if dtype == np.float64 else np.float32
    for reduction in ("none", "sum", "mean", "mean_target", "mean_frame"):
        value, gradient = ft.value_and_grad(small, *rest, reduction=reduction)
        assert value.dtype == expected
        assert np.shape(value) == ((3,) if reduction == "none" else ())
        assert gradient.dtype == dtype
        assert ft.loss(small, *rest, reduction=reduction).dtype == expected
    assert ft.scores(small, *rest, ft.rnnt()).dtype == expected
    assert ft.lattice(small, *rest).cost.dtype == expected


@pytest.mark.parametrize("wide", range(5))
def test_joint_costs_are_float64_if_any_of_the_four_inputs_is(wide):
    types = [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)]
    if wide < 4:
        types[wide] = np.dtype(np.float64)
    batch = joint_batch()
    mixed = [x.astype(t) for x, t in zip(batch[:4], types, strict=True)]
    cost, gradients = ft.joint_value_and_grad(*mixed, *batch[4:])
    assert cost.dtype == (np.float64 if wide < 4 else np.float32)
    assert [gradient.dtype for gradient in gradients] == types
    exact = [x.astype(np.float64) for x in mixed]
    exact_cost, exact_gradients = ft.joint_value_and_grad(*exact, *batch[4:])
    assert_rounded_once(cost, exact_cost)
    for found, expected in zip(gradients, exact_gradients, strict=True):
        assert_rounded_once(found, expected)


def test_reductions():
    batch = random_batch()
    costs, unit = ft.value_and_grad(*batch, reduction="none")
    for reduction, count in {"sum": 1, "mean": 3, "mean_target": 3, "mean_frame": 12}.items():
        value, gradient = ft.value_and_grad(*batch, reduction=reduction)
        assert value == pytest.approx(costs.sum() / count, rel=1e-15)
        np.testing.assert_allclose(gradient, unit / count, rtol=1e-14)
    assert ft.loss(*batch) == ft.loss(*batch, reduction="mean")


def test_totals_add_costs_in_double_before_rounding():
    logits, *rest = random_batch(frames=(5,) * 40, labels=(2,) * 40)
    small = logits.astype(np.float32)
    exact = ft.loss(small.astype(np.float64), *rest, reduction="none")
    total = np.float64(0.0)
    for cost in exact:
        total += cost
    assert ft.loss(small, *rest, reduction="sum") == np.float32(total)
    assert np.float32(total) != ft.loss(small, *rest, reduction="none").cumsum(dtype=np.float32)[-1]


def test_means_over_nothing():
    no_labels = random_batch(frames=(3, 2), labels=(0, 0))
    costs = ft.loss(*no_labels, reduction="none")
    assert ft.loss(*no_labels, reduction="mean_target") == pytest.approx(costs.sum(), rel=1e-15)
    no_frames = random_batch(frames=(0, 0), labels=(0, 0))
    assert ft.loss(*no_frames, reduction="mean_frame") == 0.0
    empty = np.zeros((0, 3, 2, 4)), np.zeros((0, 1), np.int64), [], []
    for reduction in ("sum", "mean", "mean_target", "mean_frame"):
        value, gradient = ft.value_and_grad(*empty, reduction=reduction)
        assert value == 0.0
        assert gradient.shape == (0, 3, 2, 4)
    assert ft.loss(*empty, reduction="none").shape == (0,)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_gradient_in_place_has_the_same_bits(name, dtype):
    variant = VARIANTS[name]
    logits, *rest = random_batch(variant, pad=1)
    logits = logits.astype(dtype)
    value, gradient = ft.value_and_grad(logits, *rest, variant, clamp=0.2)
    memory = logits.transpose(2, 0, 3, 1).copy().transpose(1, 3, 0, 2)  # an odd layout of the same values
    found, returned = ft.value_and_grad(memory, *rest, variant, clamp=0.2, inplace_grad=True)
    assert found == value
    assert returned is memory
    assert bits(memory) == bits(gradient)


# The joint source


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_their_derivatives(activation):
    batch = joint_batch()
    logits = joint_logits(*batch[:4], activation)
    cost, gradients = ft.joint_value_and_grad(*batch, activation=activation)
    assert cost == pytest.approx(ft.loss(logits, *batch[4:]), rel=1e-13)
    for i, gradient in enumerate(gradients):

        def of_one(x, i=i):
            inputs = [*batch[:i], x, *batch[i + 1 :]]
            return ft.joint_loss(*inputs, activation=activation)

        np.testing.assert_allclose(gradient, central_differences(of_one, batch[i]), rtol=0, atol=1e-8)


def test_derivative_of_relu_is_zero_at_zero():
    encoder, predictor, weight, bias, *rest = joint_batch()
    zeros = np.zeros_like(encoder), np.zeros_like(predictor)
    for activation, moves in {"relu": False, "identity": True, "leaky_relu": True}.items():
        gradients = ft.joint_value_and_grad(*zeros, weight, bias, *rest, activation=activation)[1]
        assert gradients.encoder.any() == moves
        assert gradients.predictor.any() == moves
    leaky = ft.joint_value_and_grad(*zeros, weight, bias, *rest, activation="leaky_relu")[1].encoder
    plain = ft.joint_value_and_grad(*zeros, weight, bias, *rest, activation="identity")[1].encoder
    np.testing.assert_allclose(leaky, 0.01 * plain, rtol=1e-12)


def test_without_a_bias():
    encoder, predictor, weight, bias, *rest = joint_batch()
    cost, gradients = ft.joint_value_and_grad(encoder, predictor, weight, None, *rest)
    zero_cost, zero = ft.joint_value_and_grad(encoder, predictor, weight, np.zeros_like(bias), *rest)
    assert cost == zero_cost
    assert gradients.bias is None
    assert bits(gradients.weight) == bits(zero.weight)


def test_philox_known_answers():
    """Random123's known answers: zeros, and all bits set."""
    assert philox4x32_10((0,) * 4, (0,) * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = philox4x32_10((2**32 - 1,) * 4, (2**32 - 1,) * 2)
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-5])
@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 + 5, 2**64 - 1])
def test_dropout_mask_is_the_published_rule(seed, p):
    batch = joint_batch(hidden=19)
    factors = dropout_factors(seed, range(2), 4, 3, 19, p)
    logits = joint_logits(*batch[:4], "tanh", factors)
    cost = ft.joint_loss(*batch, activation="tanh", dropout=p, seed=seed)
    assert cost == pytest.approx(ft.loss(logits, *batch[4:]), rel=1e-13)


def test_dropout_threshold_is_rounded_to_the_nearest_lane_value():
    """A unit of lane value k is dropped at p = (k + 0.6) / 65536, threshold k + 1, and not at k + 0.4."""
    one = np.array([[[1.0]]]), np.array([[[2.0]]]), np.array([[3.0], [0.0]]), np.zeros(2)
    batch = *one, np.zeros((1, 0), int), [1], [0]
    for seed in range(5):
        lane = philox4x32_10((0, 0, 0, 0), (seed, 0))[0] & 0xFFFF
        for part, kept in [(0.4, True), (0.5, False), (0.6, False)]:
            p = (lane + part) / 65536
            logit = 3.0 * 3.0 / (1.0 - p) if kept else 0.0
            expected = np.logaddexp(logit, 0.0)  # the blank is column 1
            cost = ft.joint_loss(*batch, dropout=p, seed=seed, activation="identity")
            assert cost == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("ids", [[7, 3], [0, 0], [2**31, 2**40 + 1]])
def test_dropout_follows_the_utterance_ids(ids):
    batch = joint_batch(frames=(4, 4), labels=(2, 2))
    options = {"activation": "tanh", "dropout": 0.4, "seed": 11, "reduction": "none"}
    costs = ft.joint_loss(*batch, utterance_ids=np.array(ids), **options)
    factors = dropout_factors(11, ids, 4, 3, 9, 0.4)
    expected = ft.loss(joint_logits(*batch[:4], "tanh", factors), *batch[4:], reduction="none")
    np.testing.assert_allclose(costs, expected, rtol=1e-13)
    second = [x[1:] if i not in (2, 3) else x for i, x in enumerate(batch)]
    alone = ft.joint_loss(*second, utterance_ids=[ids[1]], **options)
    assert bits(alone) == bits(costs[1:])


def test_dropout_gradient():
    batch = joint_batch()
    options = {"activation": "gelu", "dropout": 0.3, "seed": 5}
    gradients = ft.joint_value_and_grad(*batch, **options)[1]
    for i, gradient in enumerate(gradients):

        def of_one(x, i=i):
            return ft.joint_loss(*batch[:i], x, *batch[i + 1 :], **options)

        np.testing.assert_allclose(gradient, central_differences(of_one, batch[i]), rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", [np.float64, np.float32, bool])
def test_predictor_mask_multiplies_without_rescaling(kind):
    batch = joint_batch()
    mask = np.array([[1, 0, 1], [0, 1, 1]], kind)
    if kind is not bool:
        mask = mask * kind(0.5)
    cost, gradients = ft.joint_value_and_grad(*batch, predictor_mask=mask)
    logits = joint_logits(*batch[:4], mask=mask.astype(np.float64))
    assert cost == pytest.approx(ft.loss(logits, *batch[4:]), rel=1e-13)
    assert not gradients.predictor[0, 1].any()

    def of_predictor(x):
        return ft.joint_loss(batch[0], x, *batch[2:], predictor_mask=mask)

    expected = central_differences(of_predictor, batch[1])
    np.testing.assert_allclose(gradients.predictor, expected, rtol=0, atol=1e-8)


def test_padding_of_joint_inputs_may_be_nan():
    batch = joint_batch(frames=(4, 3), labels=(2, 1))
    mask = np.ones((2, 3))
    value, clean = ft.joint_value_and_grad(*batch, predictor_mask=mask)
    batch[0][1, 3:] = np.nan
    batch[1][1, 2:] = np.nan
    mask[1, 2:] = np.nan
    batch[4][1, 1:] = -5
    found, gradients = ft.joint_value_and_grad(*batch, predictor_mask=mask)
    assert found == value
    for gradient, before in zip(gradients, clean, strict=True):
        assert bits(gradient) == bits(before)
    assert not gradients.encoder[1, 3:].any()
    assert not gradients.predictor[1, 2:].any()
