# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other transducer losses have reported, each with its smallest input.

The number after a title is that of the public report, repository first.
"""

import math

import flash_transducer as ft
import ml_dtypes
import numpy as np
import pytest
from batches import (
    assert_rounded_once,
    bits,
    central_differences,
    joint_batch,
    joint_logits,
    log_softmax,
    random_batch,
)

pytestmark = pytest.mark.usefixtures("backend")


def uniform_cost(T, U, V):
    """All logits equal: (T + U) ln V - ln C(T + U - 1, U)."""
    ways = math.lgamma(T + U) - math.lgamma(U + 1) - math.lgamma(T)
    return (T + U) * math.log(V) - ways


def uniform(T, U, V, B=1, dtype=np.float64):
    """All logits equal, without the memory: strides of 0."""
    logits = np.broadcast_to(np.zeros((), dtype), (B, T, U + 1, V))
    return logits, np.ones((B, U), np.int64), [T] * B, [U] * B


def test_one_transcript_too_long_does_not_spoil_the_batch():  # icefall 569, 1011
    logits, targets, _, _ = random_batch(frames=(40, 40, 40), labels=(40, 40, 40), vocabulary=8)
    batch = logits.astype(np.float32), targets, [40, 2, 40], [5, 40, 5]
    costs, gradient = ft.value_and_grad(*batch, ft.monotonic(), reduction="none")
    assert np.isfinite(costs).tolist() == [True, False, True]
    assert costs[1] == np.inf
    assert np.isfinite(gradient).all()
    assert not gradient[1].any()
    assert gradient[0].any()


def test_users_need_no_filter_of_their_own():  # icefall 531
    batch = (*random_batch(frames=(4, 4), labels=(2, 2))[:2], [4, 1], [2, 2])
    total = ft.loss(*batch, ft.monotonic(), reduction="sum", zero_infinity=True)
    mean = ft.loss(*batch, ft.monotonic(), zero_infinity=True)
    assert np.isfinite(total)
    assert mean == total / 2  # the utterance without a path counts in the denominator


@pytest.mark.parametrize("dtype", [np.int64, np.complex64, np.uint8, np.longdouble, object])
def test_an_unsupported_type_raises_and_never_costs_zero(dtype):  # warp-transducer 92
    with pytest.raises(ValueError, match=rf"logits has dtype {np.dtype(dtype).name}, expected float64"):
        ft.loss(np.zeros((1, 3, 2, 4), dtype), [[1]], [3], [1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_double_on_the_rounded_inputs(dtype):  # warp-rnnt 3, NeMo 15996
    logits, *rest = random_batch(frames=(50, 41), labels=(10, 7), vocabulary=50)
    rounded = logits.astype(dtype)
    for variant in (ft.rnnt(), ft.multi_blank([2, 4]), ft.tdt([0, 1, 2])):
        cost, gradient = ft.value_and_grad(rounded, *rest, variant)
        exact_cost, exact = ft.value_and_grad(rounded.astype(np.float64), *rest, variant)
        assert_rounded_once(cost, exact_cost)
        assert_rounded_once(gradient, exact)


def test_largest_half_precision_numbers_and_minus_infinity():  # NeMo 3825
    logits, *rest = random_batch(frames=(6,), labels=(2,), vocabulary=8)
    rows = logits.astype(np.float16)
    rest[0][:] = [[1, 2]]
    rows[..., 4] = -np.inf
    rows[0, 2, :, 5] = 65504
    rows[0, 3, :, 6] = -65504
    cost, gradient = ft.value_and_grad(rows, *rest)
    assert np.isfinite(cost)
    assert np.isfinite(gradient).all()


def test_logits_never_give_a_negative_cost():  # rnnt-speech-recognition 26, warp-transducer 14, 50, 65
    for scale in (1.0, 30.0, 1000.0):
        logits, *rest = random_batch(frames=(6, 4), labels=(3, 2))
        costs = ft.loss(logits * scale, *rest, reduction="none")
        assert (costs >= 0).all()
    assert (ft.loss(logits, *rest, reduction="none", from_log_probs=True) < 0).any()  # what they fed


def test_log_softmax_twice_changes_nothing():  # speechbrain 1339
    batch = random_batch()
    cost, gradient = ft.value_and_grad(*batch)
    again_cost, again = ft.value_and_grad(log_softmax(batch[0]), *batch[1:])
    assert again_cost == pytest.approx(cost, rel=1e-14)
    np.testing.assert_allclose(again, gradient, atol=1e-15)


def test_ten_calls_give_the_same_bits():  # rnnt-speech-recognition 36
    logits, targets = np.zeros((1, 3, 3, 3)), [[1, 2]]
    results = {bits(value) for _ in range(10) for value in ft.value_and_grad(logits, targets, [3], [2])}
    assert len(results) == 2  # one cost, one gradient
    assert not logits.any()


def test_tdt_gradient_with_five_durations():  # NeMo 6536
    variant = ft.tdt([0, 1, 2, 3, 4], sigma=0.05)
    batch = random_batch(variant, frames=(20,), labels=(8,), vocabulary=6)
    _, gradient = ft.value_and_grad(*batch, variant)
    random = np.random.default_rng(0)
    for _ in range(5):
        direction = random.normal(size=batch[0].shape)
        ends = [ft.loss(batch[0] + s * 1e-6 * direction, *batch[1:], variant) for s in (1, -1)]
        assert np.sum(gradient * direction) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)
    small = batch[0].astype(np.float32)
    found = ft.value_and_grad(small, *batch[1:], variant)[1]
    expected = ft.value_and_grad(small.astype(np.float64), *batch[1:], variant)[1]
    assert_rounded_once(found, expected)


def test_more_labels_than_frames_with_large_activations():  # maxwellzh/warp-rnnt 8fe9f86
    encoder, predictor, _, _, *rest = joint_batch(frames=(3,), labels=(7,), hidden=5)
    identity, zeros = np.eye(5), np.zeros(5)
    inputs = encoder * 50, predictor * 50, identity, zeros
    cost, gradients = ft.joint_value_and_grad(*inputs, *rest, activation="identity")
    assert cost == pytest.approx(ft.loss(joint_logits(*inputs, "identity"), *rest), rel=1e-13)
    expected = central_differences(
        lambda x: ft.joint_loss(x, *inputs[1:], *rest, activation="identity"), inputs[0]
    )
    np.testing.assert_allclose(gradients.encoder, expected, atol=1e-6)


def test_torchaudio_printout_of_a_uniform_batch():  # audio 3736
    assert uniform_cost(256, 63, 4096) == pytest.approx(2497.956, abs=5e-4)
    assert ft.loss(*uniform(256, 63, 16)) == pytest.approx(uniform_cost(256, 63, 16), rel=1e-12)


def test_more_than_two_to_the_31_elements():  # audio 3736, 4215, warp-transducer 95
    """Strides of 0 give the shape without the memory; the last utterance equals itself alone."""
    logits, targets, frames, labels = uniform(2, 1, 2**20, B=1025, dtype=np.float16)
    assert logits.size > 2**32
    frames, labels = np.zeros(1025, int), np.zeros(1025, int)
    frames[-1], labels[-1] = 2, 1
    costs = ft.loss(logits, targets, frames, labels, reduction="none")
    assert not costs[:-1].any()
    assert costs[-1] == np.float32(uniform_cost(2, 1, 2**20))


@pytest.mark.parametrize("U", [1023, 1024, 1100, 4096])
def test_transcripts_longer_than_a_block_of_threads(U):  # NeMo 4882, 5929
    cost = ft.loss(*uniform(8, U, 4))
    assert cost == pytest.approx(uniform_cost(8, U, 4), rel=1e-12)


@pytest.mark.parametrize(("T", "U"), [(272, 274), (1, 50), (2, 10), (3, 20)])
def test_more_labels_than_frames_is_legal_for_rnnt(T, U):  # fast_rnnt 20, k2 1271
    assert ft.loss(*uniform(T, U, 4)) == pytest.approx(uniform_cost(T, U, 4), rel=1e-12)


def test_empty_transcripts():  # k2 1149
    batch = (*random_batch(frames=(6, 6, 8), labels=(4, 0, 7))[:2], [6, 5, 8], [4, 0, 7])
    costs = ft.loss(*batch, reduction="none")
    blanks = log_softmax(batch[0])[1, :5, 0, -1]
    assert costs[1] == pytest.approx(-blanks.sum(), rel=1e-14)
    assert np.isfinite(costs).all()
    nothing = batch[0][:, :, :1], np.zeros((3, 0), np.int64), [6, 5, 8], [0, 0, 0]
    assert np.isfinite(ft.value_and_grad(*nothing, reduction="none")[1]).all()
    assert ft.loss(*nothing, reduction="none")[1] == costs[1]


def test_narrow_bands_over_few_frames():  # k2 1271, icefall 1920
    T, U = 3, 20
    wide = np.array([[[0, 10], [5, 15], [10, 20]]])
    assert np.isfinite(ft.loss(*uniform(T, U, 4), band=wide))
    narrow = np.array([[[0, 2], [8, 10]]])  # no frame leads from one to the other
    cost, gradient = ft.value_and_grad(*uniform(2, 10, 4), band=narrow)
    assert cost == np.inf
    assert not gradient.any()


def test_wrong_subsampled_length_names_utterance_and_value():  # icefall 603, audio 2834
    logits, targets, _, _ = uniform(100, 3, 5, B=2)
    with pytest.raises(
        ValueError, match=r"logit_lengths\[1\] is 101, expected .* 0 to 100 because .*T = 100"
    ):
        ft.loss(logits, targets, [97, 101], [3, 3])


def test_longest_length_may_be_below_the_dimension():  # audio 2834, 2196
    logits, targets, frames, labels = random_batch(frames=(97, 50), labels=(3, 2), pad=3)
    cut = logits[:, :97, :4], targets[:, :3], frames, labels
    assert logits.shape[1] == 100
    assert ft.loss(logits, targets, frames, labels) == ft.loss(*cut)


@pytest.mark.parametrize(("T", "U"), [(1, 0), (1, 5), (5, 0), (1, 1)])
def test_one_frame_or_no_label(T, U):  # warp-rnnt cf0c896
    batch = random_batch(frames=(T,), labels=(U,))
    gradient = ft.value_and_grad(*batch)[1]
    expected = central_differences(lambda x: ft.loss(x, *batch[1:]), batch[0])
    np.testing.assert_allclose(gradient, expected, atol=1e-8)
    assert ft.loss(*uniform(T, U, 4)) == pytest.approx(uniform_cost(T, U, 4), rel=1e-14)


def test_lengths_may_be_a_column_of_a_table():  # audio 1391
    logits, targets, frames, labels = random_batch()
    info = np.stack([frames, labels], axis=1)
    assert ft.loss(logits, targets, info[:, 0], info[:, 1]) == ft.loss(logits, targets, frames, labels)


@pytest.mark.parametrize("lengths", [np.int32, np.int64])
@pytest.mark.parametrize("labels", [np.int32, np.int64])
def test_integer_types_may_be_mixed(lengths, labels):  # torchaudio, NeMo and Paddle differ
    logits, y, T, U = random_batch()
    assert ft.loss(logits, y.astype(labels), T.astype(lengths), U.astype(lengths)) == ft.loss(logits, y, T, U)


def test_a_joint_without_the_start_symbol_says_so():  # rnnt 3, warp-transducer 14
    encoder, predictor, *rest = joint_batch()
    with pytest.raises(ValueError, match=r"predictor .* because .* needs U \+ 1\. .*start symbol\?"):
        ft.joint_loss(encoder, predictor[:, 1:], *rest)


@pytest.mark.parametrize(("label", "blank"), [(1, 5), (5, 0), (-1, 0)])
def test_blank_and_labels_out_of_range(label, blank):  # warp-transducer 21
    with pytest.raises(ValueError, match=r"is -1, expected|is 5, expected|reads column 5, expected"):
        ft.loss(np.zeros((1, 3, 2, 5)), [[label]], [3], [1], ft.rnnt(blank))


def test_label_equal_to_blank_adds():  # warp-transducer 93, ai-reference-models 95
    logits = np.random.default_rng(0).normal(size=(1, 2, 2, 3))
    batch = [[1]], [2], [1], ft.rnnt(1)
    expected = central_differences(lambda x: ft.loss(x, *batch), logits)
    np.testing.assert_allclose(ft.value_and_grad(logits, *batch)[1], expected, atol=1e-9)


def test_the_same_call_with_blank_first_and_last():  # the defaults of peers differ
    logits, targets, frames, labels = random_batch()
    first = np.roll(logits, 1, axis=-1)  # columns and labels up by one, the blank around to 0
    assert ft.loss(first, targets + 1, frames, labels, ft.rnnt(0)) == pytest.approx(
        ft.loss(logits, targets, frames, labels), rel=1e-14
    )
    assert ft.loss(logits, targets, frames, labels, ft.rnnt(5)) == ft.loss(logits, targets, frames, labels)
    assert ft.rnnt() == ft.rnnt(fastemit=0.0)  # Paddle's default is 0.001


def test_fastemit_of_the_threads_shape():  # b-flo/warp-transducer 1, warprnnt_numba 4, espnet 4542
    logits, *rest = random_batch(frames=(7,), labels=(4,), vocabulary=5)
    posterior = ft.lattice(logits, *rest).arc_posterior[0, ..., 1]

    def surrogate(x):
        value = ft.loss(x, *rest)
        for u in range(4):
            value -= 0.01 * np.sum(posterior[:, u] * log_softmax(x)[0, :, u, rest[0][0, u]])
        return value

    cost, gradient = ft.value_and_grad(logits, *rest, ft.rnnt(fastemit=0.01))
    np.testing.assert_allclose(gradient, central_differences(surrogate, logits), atol=1e-9)
    assert cost == ft.loss(logits, *rest)


def test_which_number_divides_is_said():  # speechbrain 875, warp-rnnt 30, NeMo 4829, 14710
    batch = random_batch(frames=(8, 4), labels=(3, 1))
    total = ft.loss(*batch, reduction="sum")
    for reduction, count in {"mean": 2, "mean_target": 4, "mean_frame": 12}.items():
        assert ft.loss(*batch, reduction=reduction) == pytest.approx(total / count, rel=1e-15)


def test_gradients_are_as_wide_as_doubles():  # audio 1532
    batch = joint_batch()
    gradients = ft.joint_value_and_grad(*batch, activation="tanh")[1]
    assert all(gradient.dtype == np.float64 for gradient in gradients)


def test_no_gradient_is_made_without_need():  # audio 1707, 2960
    """The logits take no memory here; a gradient of theirs would take 64 GiB."""
    logits, targets, _, _ = uniform(2, 1, 2**20, B=2**12, dtype=np.float32)
    lengths = np.zeros(2**12, int)
    assert ft.loss(logits, targets, lengths, lengths, reduction="sum") == 0.0


def test_minus_infinity_with_knobs_at_zero():  # 0 * -inf in k2 and fast_rnnt
    variants = [ft.rnnt(fastemit=0.0, sigma=0.0, delay_penalty=0.0), ft.hat(fastemit=0.0), ft.bypass(0.0)]
    logits, targets, frames, labels = random_batch(frames=(5,), labels=(2,))
    targets[:] = [[0, 1]]
    logits[..., 3] = -np.inf
    for variant in variants:
        cost, gradient = ft.value_and_grad(logits, targets, frames, labels, variant)
        assert np.isfinite(cost)
        assert np.isfinite(gradient).all()
