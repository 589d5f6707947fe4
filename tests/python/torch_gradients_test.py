# SPDX-License-Identifier: Apache-2.0
"""Every gradient of the operators against finite differences in float64, and against the NumPy functions."""

import flash_transducer as ft
import numpy as np
import pytest
from batches import ACTIVATIONS, VARIANTS, central_differences, joint_batch, random_batch
from conventions_test import fastemit_surrogate, with_knobs
from torch_batches import assert_close, leaf, tensors, torch

pytestmark = pytest.mark.usefixtures("backend")
REDUCTIONS = ("none", "sum", "mean", "mean_target", "mean_frame")
RAGGED = {"frames": (3, 2), "labels": (2, 1), "vocabulary": 5}


def gradcheck(function, *inputs):
    return torch.autograd.gradcheck(function, inputs, fast_mode=False)


def extras(batch, variant, seed=1):
    """Arc, start and final scores for a dense batch."""
    random = np.random.default_rng(seed)
    B, T, rows, _ = batch[0].shape
    arrays = (
        random.normal(size=(B, 1, rows, len(variant.arcs))),  # broadcasts over frames
        random.normal(size=(B, T)),
        random.normal(size=(B, T + 1)),
    )
    return dict(zip(("arc_scores", "start_scores", "final_scores"), map(leaf, tensors(arrays)), strict=True))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_dense_logits(name, reduction):
    logits, *batch = tensors(random_batch(VARIANTS[name], **RAGGED))
    assert gradcheck(lambda x: ft.loss(x, *batch, VARIANTS[name], reduction=reduction), leaf(logits))


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_of_arcs_starts_and_ends(name):
    variant = VARIANTS[name]
    arrays = random_batch(variant, **RAGGED)
    logits, *batch = tensors(arrays)
    given = extras(arrays, variant)

    def function(*scores):
        return ft.loss(logits, *batch, variant, reduction="none", **dict(zip(given, scores, strict=True)))

    assert gradcheck(function, *given.values())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_joint_inputs(name, reduction):
    variant = VARIANTS[name]
    arrays = joint_batch(frames=(2, 1), labels=(1, 1), hidden=2, columns=5 + variant.heads)
    inputs, batch = tensors(arrays[:4]), tensors(arrays[4:])
    batch[0] %= 2  # no blank, no big blank

    def function(*joint):
        return ft.joint_loss(*joint, *batch, variant, activation="tanh", reduction=reduction)

    assert gradcheck(function, *map(leaf, inputs))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_dropout_and_predictor_mask(activation):
    arrays = joint_batch(frames=(2, 2), labels=(1, 0), hidden=3, columns=4)
    inputs, batch = tensors(arrays[:4]), tensors(arrays[4:])
    mask = torch.tensor([[0.5, 1.0], [0.0, 1.0]], dtype=torch.float64)

    def function(*joint):
        return ft.joint_loss(
            *joint, *batch, activation=activation, dropout=0.3, seed=2**63 + 5, predictor_mask=mask,
            reduction="sum",
        )  # fmt: skip

    assert gradcheck(function, *map(leaf, inputs))


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_and_lattice_loss_apart(name):
    variant = VARIANTS[name]
    arrays = random_batch(variant, **RAGGED)
    logits, *batch = tensors(arrays)
    given = extras(arrays, variant)
    lengths = batch[1:]
    starts = {key: given[key] for key in ("start_scores", "final_scores")}

    def chained(x, arc_scores, start_scores, final_scores):
        weights = ft.scores(x, *batch, variant, arc_scores=arc_scores)
        return ft.lattice_loss(
            weights, *lengths, variant, start_scores=start_scores, final_scores=final_scores, reduction="none"
        )

    assert gradcheck(chained, leaf(logits), *given.values())
    whole = ft.loss(logits, *batch, variant, reduction="none", arc_scores=given["arc_scores"], **starts)
    assert_close(chained(logits, *given.values()), whole)


def test_joint_scores():
    arrays = joint_batch(frames=(2, 1), labels=(1, 1), hidden=2, columns=4)
    inputs, batch = tensors(arrays[:4]), tensors(arrays[4:])
    upstream = torch.linspace(0.5, 2.0, 2 * 2 * 2 * 2, dtype=torch.float64).view(2, 2, 2, 2)

    def function(*joint):
        weights = ft.joint_scores(*joint, *batch, ft.rnnt(), activation="silu")
        return torch.where(weights.isfinite(), weights * upstream, 0.0).sum()

    assert gradcheck(function, *map(leaf, inputs))


@pytest.mark.parametrize("name", VARIANTS)
def test_fastemit_and_clamp_follow_their_surrogate(name):
    arrays = random_batch(VARIANTS[name], frames=(3,), labels=(2,), vocabulary=6)
    expected = central_differences(fastemit_surrogate(name, arrays, 0.7), arrays[0])
    logits, *batch = tensors(arrays)
    limit, factor = 0.05, 3.0
    for clamp in (0.0, limit):
        x = leaf(logits)
        cost = ft.loss(x, *batch, with_knobs(name, fastemit=0.7), reduction="sum", clamp=clamp)
        assert cost.item() == ft.loss(logits, *batch, VARIANTS[name], reduction="sum").item()
        (factor * cost).backward()
        wanted = expected if clamp == 0.0 else np.clip(expected, -limit, limit)
        if clamp and name == "tdt":  # durations opt out
            wanted = np.concatenate([wanted[..., :6], expected[..., 6:]], axis=-1)
        assert_close(x.grad, factor * wanted, 1e-8)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("semiring", ["log", "max"])
def test_gradients_are_those_of_the_numpy_functions(name, semiring):
    arrays = random_batch(VARIANTS[name])
    logits, *batch = tensors(arrays)
    expected = ft.value_and_grad(*arrays, VARIANTS[name], semiring=semiring)
    x = leaf(logits)
    cost = ft.loss(x, *batch, VARIANTS[name], semiring=semiring)
    cost.backward()
    assert cost.item() == expected[0]
    assert (x.grad.numpy() == expected[1]).all()


def test_value_and_grad_names_and_order():
    arrays = random_batch(**RAGGED)
    logits, *batch = tensors(arrays)
    given = {name: value.detach() for name, value in extras(arrays, ft.rnnt()).items()}
    host = {name: value.numpy() for name, value in given.items()}
    names = ("final_scores", "logits", "arc_scores")
    cost, found = ft.value_and_grad(logits, *batch, wrt=names, **given)
    expected_cost, expected = ft.value_and_grad(*arrays, wrt=names, **host)
    assert cost.item() == expected_cost
    assert not cost.requires_grad
    for one, other in zip(found, expected, strict=True):
        assert (one.numpy() == other).all()
    with pytest.raises(ValueError, match=r"ft.value_and_grad: wrt names 'band', expected one of arc_scores"):
        ft.value_and_grad(logits, *batch, wrt="band", **given)


def test_joint_value_and_grad():
    arrays = joint_batch()
    joint = tensors(arrays)
    for bias in (True, False):
        if not bias:
            joint[3] = None
        host = [None if value is None else value.numpy() for value in joint]
        cost, found = ft.joint_value_and_grad(*joint)
        expected_cost, expected = ft.joint_value_and_grad(*host)
        assert cost.item() == expected_cost
        assert (found.bias is None) == (not bias)
        for one, other in zip(found, expected, strict=True):
            assert one is None or (one.numpy() == other).all()
