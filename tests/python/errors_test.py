# SPDX-License-Identifier: Apache-2.0
"""Bad input: messages name the function, what was given, what was expected and why; nothing else changes."""

import flash_transducer as ft
import numpy as np
import pytest
from batches import bits

Z = np.zeros


def dense(function=ft.loss, **changed):
    """A call of a function of dense logits: a good batch with some arguments changed."""
    arguments = {
        "logits": Z((2, 4, 3, 5)),
        "targets": np.array([[1, 2], [2, 1]]),
        "logit_lengths": np.array([4, 3]),
        "target_lengths": np.array([2, 1]),
        "variant": ft.rnnt(),
    }
    return function(**{**arguments, **changed})


def joint(function=ft.joint_loss, **changed):
    arguments = {
        "encoder": Z((2, 4, 6)),
        "predictor": Z((2, 3, 6)),
        "weight": Z((5, 6)),
        "bias": Z(5),
        "targets": np.array([[1, 2], [2, 1]]),
        "encoder_lengths": np.array([4, 3]),
        "target_lengths": np.array([2, 1]),
        "variant": ft.rnnt(),
    }
    return function(**{**arguments, **changed})


DENSE = [
    ({"logits": Z((4, 3, 5))}, r"logits has shape \[4, 3, 5\], expected 4 axes \[B, T, U \+ 1, K\]"),
    (
        {"logits": Z((2, 4, 2, 5))},
        r"logits has shape \[2, 4, 2, 5\], expected \[2, 4, 3, 5\] because targets has U = 2 columns "
        r"and the joint needs U \+ 1\. Did the prediction network get its start symbol\?",
    ),
    ({"logits": Z((2, 4, 3, 0))}, r"logits has shape .* expected at least one column"),
    ({"logits": Z((2, 4, 3, 5), int)}, r"logits has dtype int64, expected float64, float32"),
    ({"logits": Z((2, 4, 3, 5), complex)}, r"logits has dtype complex128, expected float64.* or float16$"),
    ({"logits": Z((2, 4, 3, 5), object)}, r"logits has dtype object, expected float64"),
    ({"logits": Z((1,) * 9)}, r"logits has 9 axes, expected at most 4"),
    ({"targets": [[1, 5], [2, 1]]}, r"targets\[0, 1\] is 5, expected a label from 0 to 4 because .*V = 5"),
    ({"targets": [[1, 2], [-1, 1]]}, r"targets\[1, 0\] is -1, expected a label from 0 to 4"),
    ({"targets": Z((2, 2))}, r"targets has dtype float64, expected int32 or int64"),
    ({"targets": Z((2, 2), np.uint8)}, r"targets has dtype uint8, expected int32 or int64"),
    ({"targets": [1, 2]}, r"targets has shape \[2\], expected 2 axes \[B, U\]"),
    ({"targets": [[1, 2]]}, r"targets has shape \[1, 2\], expected \[2, 2\] because the batch has B = 2"),
    ({"targets": [[1], [1, 2]]}, r"targets is a list that makes no array, expected rows of equal length"),
    ({"logit_lengths": [4, 5]}, r"logit_lengths\[1\] is 5, expected a value from 0 to 4 because .*T = 4"),
    ({"logit_lengths": [4, -1]}, r"logit_lengths\[1\] is -1, expected a value from 0 to 4"),
    ({"logit_lengths": [4]}, r"logit_lengths has shape \[1\], expected \[2\] because the batch has B = 2"),
    ({"logit_lengths": [[4, 3]]}, r"logit_lengths has shape \[1, 2\], expected 1 axes \[B\]"),
    ({"logit_lengths": [4.0, 3.0]}, r"logit_lengths has dtype float64, expected int32 or int64"),
    ({"target_lengths": [3, 1]}, r"target_lengths\[0\] is 3, expected .* 0 to 2 because targets has U = 2"),
    ({"target_lengths": [2, -1]}, r"target_lengths\[1\] is -1, expected a value from 0 to 2"),
    ({"variant": ft.rnnt(5)}, r"arc 0 reads column 5, expected a value from 0 to 4 because .*V = 5"),
    ({"variant": ft.rnnt(-6)}, r"arc 0 reads column V - 6 = -1, expected a value from 0 to 4"),
    (
        {"variant": ft.tdt([0, 1, 2, 3, 4])},
        r"variant tdt: the logits have K = 5 columns, expected more than 5",
    ),
    ({"reduction": "avg"}, r"reduction is 'avg', expected one of 'none', 'sum', 'mean'"),
    ({"reduction": None}, r"reduction is 'None', expected one of"),
    ({"semiring": "min"}, r"semiring is 'min', expected one of 'log', 'max'"),
    ({"backend": "gpu"}, r"backend is 'gpu', expected 'reference', 'cpu' or 'cuda'"),
    ({"clamp": -1.0}, r"clamp is -1, expected 0 \(off\) or a positive number"),
    ({"clamp": np.nan}, r"clamp is nan, expected 0"),
    ({"skip_mass": np.nan}, r"skip_mass is nan"),
    ({"workspace_limit": 10}, r"workspace_limit is 10 bytes, expected at least \d+"),
    ({"workspace_limit": -1}, r"workspace_limit is -1, expected a number of bytes, 1 or more"),
    (
        {"arc_scores": Z((2, 4, 3, 3))},
        r"arc_scores has shape \[2, 4, 3, 3\], expected one that broadcasts to .* = \[2, 4, 3, 2\]",
    ),
    ({"arc_scores": Z((2, 4, 3, 2), int)}, r"arc_scores has dtype int64, expected float64"),
    ({"band": Z((2, 4, 3), int)}, r"band has shape \[2, 4, 3\], expected \[2, 4, 2\] because it holds"),
    ({"band": Z((2, 4, 2))}, r"band has dtype float64, expected int32 or int64"),
    ({"start_scores": Z((2, 5))}, r"start_scores has shape \[2, 5\], expected \[2, 4\] because"),
    ({"final_scores": Z((2, 4))}, r"final_scores has shape \[2, 4\], expected \[2, 5\] because .*T \+ 1"),
]

JOINT = [
    ({"encoder": Z((4, 6))}, r"encoder has shape \[4, 6\], expected 3 axes \[B, T, H\]"),
    (
        {"predictor": Z((2, 2, 6))},
        r"predictor has shape \[2, 2, 6\], expected \[2, 3, 6\] because .*Did the prediction network",
    ),
    ({"predictor": Z((2, 3, 7))}, r"predictor has shape \[2, 3, 7\], expected \[2, 3, 6\] because encoder"),
    ({"predictor": Z((1, 3, 6))}, r"predictor has shape \[1, 3, 6\], expected \[2, 3, 6\] because encoder"),
    ({"weight": Z((5, 7))}, r"weight has shape \[5, 7\], expected \[5, 6\] because encoder"),
    ({"weight": Z((0, 6)), "bias": None}, r"weight has shape \[0, 6\], expected at least one row"),
    ({"bias": Z(4)}, r"bias has shape \[4\], expected \[5\] because weight has K = 5 rows"),
    ({"encoder": Z((2, 4, 6), int)}, r"encoder has dtype int64, expected float64"),
    ({"weight": Z((5, 6), complex)}, r"weight has dtype complex128, expected float64"),
    ({"activation": "swish"}, r"activation is 'swish', expected one of 'identity', 'relu'"),
    ({"dropout": 0.5}, r"dropout is 0.5 and seed is None, expected a seed"),
    ({"dropout": 1.0, "seed": 1}, r"dropout is 1, expected a probability from 0 up to, not including, 1"),
    ({"dropout": np.nan, "seed": 1}, r"dropout is nan, expected a probability"),
    ({"utterance_ids": [1, 2, 3]}, r"utterance_ids has shape \[3\], expected \[2\]"),
    ({"utterance_ids": [1.0, 2.0]}, r"utterance_ids has dtype float64, expected int32 or int64"),
    ({"predictor_mask": Z((2, 2))}, r"predictor_mask has shape \[2, 2\], expected \[2, 3\] because"),
    ({"precision": "low"}, r"precision is 'low', expected one of 'highest', 'high'"),
    ({"encoder_lengths": [4, 9]}, r"encoder_lengths\[1\] is 9, expected a value from 0 to 4"),
    ({"targets": [[1, 5], [2, 1]]}, r"targets\[0, 1\] is 5, expected a label from 0 to 4"),
    ({"variant": ft.rnnt(7)}, r"arc 0 reads column 7, expected a value from 0 to 4"),
]

WRONG_TYPES = [
    ({"logits": None}, r"ft\.loss: logits is None, expected an array"),
    ({"logits": {}}, r"ft\.loss: logits is a dict, expected a NumPy array"),
    ({"targets": {1}}, r"ft\.loss: targets is a set, expected a NumPy array"),
    ({"target_lengths": None}, r"ft\.loss: target_lengths is None, expected an array"),
    ({"variant": "rnnt"}, r"ft\.loss: variant is a str, expected an ft\.Variant such as ft\.rnnt\(\)"),
    ({"clamp": "x"}, r"ft\.loss: clamp is 'x', expected a number"),
    ({"workspace_limit": "1G"}, r"ft\.loss: workspace_limit is '1G', expected an integer"),
    ({"zero_infinity": "no"}, r"ft\.loss: zero_infinity is 'no', expected True or False"),
]


@pytest.mark.parametrize(("changed", "message"), DENSE)
def test_bad_dense_input(changed, message):
    with pytest.raises(ValueError, match=rf"^ft\.loss: (variant rnnt: )?{message}"):
        dense(**changed)
    assert dense() == pytest.approx(dense(reduction="sum") / 2)  # the next call works


@pytest.mark.parametrize(("changed", "message"), JOINT)
def test_bad_joint_input(changed, message):
    with pytest.raises(ValueError, match=rf"^ft\.joint_loss: (variant rnnt: )?{message}"):
        joint(**changed)


@pytest.mark.parametrize(("changed", "message"), WRONG_TYPES)
def test_wrong_types(changed, message):
    with pytest.raises(TypeError, match=message):
        dense(**changed)


@pytest.mark.parametrize("name", ["value_and_grad", "scores", "lattice", "align"])
def test_every_dense_function_names_itself(name):
    with pytest.raises(ValueError, match=rf"^ft\.{name}: logits has shape \[2, 4, 2, 5\], expected"):
        dense(getattr(ft, name), logits=Z((2, 4, 2, 5)))
    with pytest.raises(ValueError, match=rf"^ft\.{name}: targets\[0, 1\] is 5"):
        dense(getattr(ft, name), targets=[[1, 5], [2, 1]])


@pytest.mark.parametrize("name", ["value_and_grad", "scores", "lattice", "align"])
def test_every_joint_function_names_itself(name):
    function = getattr(ft, f"joint_{name}")
    with pytest.raises(ValueError, match=rf"^ft\.joint_{name}: predictor has shape \[2, 2, 6\], expected"):
        joint(function, predictor=Z((2, 2, 6)))
    with pytest.raises(ValueError, match=rf"^ft\.joint_{name}: encoder_lengths\[1\] is 9"):
        joint(function, encoder_lengths=[4, 9])


def test_bad_arc_weights():
    weights = Z((2, 4, 3, 2))
    with pytest.raises(ValueError, match=r"^ft\.lattice_loss: arc_weights has .* expected 3 entries"):
        ft.lattice_loss(weights, [4, 3], [2, 1], ft.tdt([0, 1]))
    with pytest.raises(ValueError, match=r"^ft\.lattice_loss: arc_weights has shape .* expected 4 axes"):
        ft.lattice_loss(weights[0], [4, 3], [2, 1], ft.rnnt())
    with pytest.raises(ValueError, match=r"^ft\.lattice_loss: logit_lengths\[1\] is 9"):
        ft.lattice_loss(weights, [4, 9], [2, 1], ft.rnnt())


def test_backends_that_are_not_built():
    for backend in ("cpu", "cuda"):
        if backend in ft.backends:
            continue
        with pytest.raises(ft.NotBuilt, match=rf"ft\.loss: backend '{backend}' is not part of this build"):
            dense(backend=backend)


def test_wrt_that_cannot_be():
    for wrt in ("foo", "arc_scores", "targets", ("logits", "foo")):
        with pytest.raises(ValueError, match=r"ft\.value_and_grad: wrt names '\w+', expected one of logits"):
            dense(ft.value_and_grad, wrt=wrt)
    for wrt in ((), 3, (3,)):
        with pytest.raises(TypeError, match=r"ft\.value_and_grad: wrt is .*, expected a name"):
            dense(ft.value_and_grad, wrt=wrt)
    with pytest.raises(ValueError, match=r"ft\.joint_value_and_grad: wrt names 'bias', expected one of enc"):
        joint(ft.joint_value_and_grad, bias=None, wrt="bias")


def test_blank_is_asked_of_the_variant():
    for function in (ft.loss, ft.value_and_grad, ft.align):
        message = (
            rf"^ft\.{function.__name__}: blank is an argument of the variant, as in ft\.rnnt\(blank=0\)$"
        )
        with pytest.raises(TypeError, match=message):
            dense(function, blank=0)


def test_names_given_twice_share_one_gradient():
    first, second = dense(ft.value_and_grad, wrt=("logits", "logits"))[1]
    assert first is second
    whole, weight = joint(ft.joint_value_and_grad, wrt=("joint", "weight"))[1]
    assert whole.weight is weight


def test_inplace_needs_memory_of_its_own():
    read_only = Z((2, 4, 3, 5))
    read_only.flags.writeable = False
    shared = np.lib.stride_tricks.as_strided(Z((4, 3, 5)), (2, 4, 3, 5), (0, 120, 40, 8))
    for logits, why in [(read_only, "is read-only"), (shared, "has elements that share memory")]:
        with pytest.raises(
            ValueError, match=rf"ft\.value_and_grad: the gradient of logits {why}.*pass a copy"
        ):
            dense(ft.value_and_grad, logits=logits, inplace_grad=True)
        assert not logits.any()
    with pytest.raises(TypeError, match=r"inplace_grad is True and logits is a list, expected an array"):
        dense(ft.value_and_grad, logits=Z((2, 4, 3, 5)).tolist(), inplace_grad=True)


def test_a_refused_call_leaves_its_inputs_alone():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 4, 3, 5))
    before = bits(logits)
    for inplace_grad in (False, True):
        with pytest.raises(ValueError, match=r"targets\[1, 0\]"):
            dense(ft.value_and_grad, logits=logits, targets=[[1, 2], [9, 9]], inplace_grad=inplace_grad)
        assert bits(logits) == before


def test_a_good_call_leaves_its_inputs_alone():
    batch = np.random.default_rng(0).normal(size=(2, 4, 3, 5)), np.array([[1, 2], [2, 1]]), [4, 3], [2, 1]
    before = bits(batch[0]), bits(batch[1])
    ft.value_and_grad(*batch, clamp=0.1)
    ft.lattice(*batch)
    ft.align(*batch)
    assert (bits(batch[0]), bits(batch[1])) == before


def test_values_that_are_defined_are_no_errors():
    """U = 0, T = 0, an empty batch, no path and NaN have values of their own."""
    assert np.isfinite(ft.loss(Z((1, 3, 1, 5)), Z((1, 0), int), [3], [0]))
    assert ft.loss(Z((1, 0, 1, 5)), Z((1, 0), int), [0], [0]) == 0.0
    assert ft.loss(Z((0, 3, 2, 5)), Z((0, 1), int), [], []) == 0.0
    assert ft.loss(Z((1, 1, 3, 5)), [[1, 2]], [1], [2], ft.monotonic()) == np.inf
    assert np.isnan(ft.loss(Z((1, 2, 2, 5)) * np.nan, [[1]], [2], [1]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: ft.plan(-1, 2, 3, 4), r"ft\.plan: batch is -1, expected an integer from 0 to 2"),
        (lambda: ft.plan(1, 2, 3, 4, dtype="int8"), r"ft\.plan: dtype is 'int8', expected float64"),
        (lambda: ft.plan(1, 2, 3, 0), r"ft\.plan: variant rnnt: the logits have K = 0 columns"),
        (lambda: ft.plan(8, 9, 9, 9, workspace_limit=1), r"ft\.plan: workspace_limit is 1 bytes, expected"),
        (lambda: ft.masks.diagonal_band([4], [2], -1), r"width is -1, expected 0 or more"),
        (lambda: ft.masks.diagonal_band([-4], [2], 1), r"logit_lengths holds -4, expected lengths of 0"),
        (lambda: ft.masks.diagonal_band([4], [2, 3], 1), r"expected the same number"),
        (lambda: ft.masks.diagonal_band([4.0], [2], 1), r"expected \[B\] integers"),
        (lambda: ft.masks.alignment_restricted([[0, 1]], [3], [2], 0, 0), r"at least 3 columns because"),
        (lambda: ft.masks.alignment_restricted([[0, 1]], [3], [1], -1, 0), r"left is -1 .*0 or more"),
        (lambda: ft.masks.alignment_restricted([[0.0]], [3], [0], 0, 0), r"expected \[B, U \+ 1\] integers"),
    ],
)
def test_plans_and_masks(bad, message):
    with pytest.raises(ValueError, match=message):
        bad()
