# SPDX-License-Identifier: Apache-2.0
"""Faults found by trying to break the package, each a test of its kind."""

import dataclasses
import sys
import threading
import time

import flash_transducer as ft
import numpy as np
import pytest
from flash_transducer.inspection import inspect

pytestmark = pytest.mark.usefixtures("backend")

BATCH = (np.zeros((1, 4, 3, 5)), np.array([[1, 2]]), [4], [2])


def test_a_joint_of_width_zero_is_refused():
    joint = np.zeros((1, 2, 0)), np.zeros((1, 2, 0)), np.zeros((5, 0)), np.zeros(5)
    for function in (ft.joint_loss, ft.joint_value_and_grad, ft.joint_lattice, ft.joint_align):
        with pytest.raises(ValueError, match=r"encoder has shape \[1, 2, 0\], expected at least one unit"):
            function(*joint, [[1]], [2], [1])


def test_lengths_that_another_thread_writes_to_are_read_once():
    logits, targets, lengths = np.zeros((1, 20, 7, 10)), np.ones((1, 6), int), np.array([20])
    stop = time.monotonic() + 2.0

    def flip():
        while time.monotonic() < stop:
            lengths[0] = 10**6
            lengths[0] = 20

    thread = threading.Thread(target=flip)
    thread.start()
    while time.monotonic() < stop:
        try:
            ft.value_and_grad(logits, targets, lengths, [6])
        except ValueError as error:
            assert "logit_lengths[0] is 1000000" in str(error)
    thread.join()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64])
def test_masks_do_not_wrap_around(dtype):
    ends = np.array([[0, 1, 2]])
    expected = ft.masks.alignment_restricted(ends, [4], [2], 2, 1)
    np.testing.assert_array_equal(ft.masks.alignment_restricted(ends.astype(dtype), [4], [2], 2, 1), expected)
    no_limit = ft.masks.alignment_restricted(ends.astype(dtype), [4], [2], sys.maxsize, 2**70)
    assert ft.loss(*BATCH, arc_scores=no_limit) == ft.loss(*BATCH)


def test_masks_want_whole_numbers_of_frames():
    with pytest.raises(TypeError, match="left is nan"):
        ft.masks.alignment_restricted(np.array([[0, 1, 2]]), [4], [2], float("nan"), 1)
    with pytest.raises(TypeError, match=r"width is 0\.5"):
        ft.masks.diagonal_band([4], [2], 0.5)


def test_a_variant_prints_as_what_it_is():
    named = ft.tdt([0, 1], sigma=0.1)
    assert repr(ft.Variant.from_json(named.to_json())) == repr(named) == "ft.tdt([0, 1], sigma=0.1)"
    edited = ft.Variant.from_json(ft.rnnt().to_json().replace('"frame_bonus": 0.0', '"frame_bonus": 3.0'))
    assert edited != ft.rnnt()
    assert repr(edited).startswith("ft.Variant(")
    assert repr(dataclasses.replace(ft.rnnt(), heads=2)).startswith("ft.Variant(")


def test_the_name_in_json_is_never_executed():
    text = ft.rnnt().to_json().replace("ft.rnnt()", "print.rnnt(__import__('os'))")
    assert repr(ft.Variant.from_json(text)).startswith("ft.Variant(")


def test_flags_are_true_or_false():
    with pytest.raises(ValueError, match="may_finish is 'false'"):
        ft.Variant.from_json(ft.rnnt().to_json().replace('"may_finish": false', '"may_finish": "false"'))
    with pytest.raises(TypeError, match="may_finish is 'no'"):
        ft.Arc(1, 0, may_finish="no")
    with pytest.raises(TypeError, match="clamp is 1"):
        ft.Group(0, ft.V, clamp=1)
    with pytest.raises(TypeError, match="inplace_grad is 'no'"):
        ft.value_and_grad(*BATCH, inplace_grad="no")


def test_a_deep_text_is_no_variant():
    with pytest.raises(ValueError, match="not the JSON of a variant"):
        ft.Variant.from_json("[" * 100_000)


def test_a_group_is_named_once():
    with pytest.raises(ValueError, match=r"subtract is \(0, 0\), expected each group once"):
        ft.Column.fixed(-1, subtract=(0, 0))


def test_align_checks_the_options_it_ignores():
    with pytest.raises(ValueError, match="semiring is 'garbage'"):
        ft.align(*BATCH, semiring="garbage")


def test_plan_takes_integers_of_numpy_and_no_others():
    assert ft.plan(np.int64(3), 4, 2, 5).as_dict() == ft.plan(3, 4, 2, 5).as_dict()
    for wrong in (2**63, -1, True, 1.5):
        with pytest.raises(ValueError, match="batch is"):
            ft.plan(wrong, 4, 2, 5)
    with pytest.raises(ValueError, match="workspace_limit is 'x'"):
        ft.plan(3, 4, 2, 5, workspace_limit="x")
    with pytest.raises(TypeError, match="variant is 'rnnt'"):
        ft.plan(3, 4, 2, 5, variant="rnnt")


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
def test_skip_mass_is_a_number_of_zero_or_more(wrong):
    with pytest.raises(ValueError, match="skip_mass is"):
        ft.value_and_grad(*BATCH, skip_mass=wrong)


def test_a_backend_is_a_name():
    with pytest.raises(TypeError, match="backend is 1"):
        ft.loss(*BATCH, backend=1)


def test_without_a_path_no_frame_is_expected():
    (found,) = inspect(np.zeros((1, 1, 3, 5)), [[1, 2]], [1], [2], ft.monotonic())
    assert np.isnan(found.expected_frames).all()
