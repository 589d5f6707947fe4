# SPDX-License-Identifier: Apache-2.0
"""Types, strides, lengths and mistakes: what users of other losses have reported, on tensors.

The number after a title is that of the public report, repository first.
"""

import math

import flash_transducer as ft
import numpy as np
import pytest
from batches import joint_batch, random_batch
from torch_batches import assert_close, leaf, tensors, torch

pytestmark = pytest.mark.usefixtures("backend")


def batch_of(dtype=torch.float64, **sizes):
    logits, *rest = tensors(random_batch(**sizes), dtype)
    return logits, rest


def gradient(x, *batch, **options):
    x = leaf(x)
    ft.loss(x, *batch, **options).backward()
    return x.grad


def uniform_cost(T, U, V):
    ways = math.lgamma(T + U) - math.lgamma(U + 1) - math.lgamma(T)
    return (T + U) * math.log(V) - ways


def test_one_utterance_without_a_path_does_not_spoil_the_batch():  # icefall 569, 1011
    logits, targets = tensors(random_batch(frames=(40, 40, 40), labels=(40, 40, 40), vocabulary=8)[:2])
    batch = targets, torch.tensor([40, 2, 40]), torch.tensor([5, 40, 5])
    x = leaf(logits.float())
    costs = ft.loss(x, *batch, ft.monotonic(), reduction="none")
    assert costs.isfinite().tolist() == [True, False, True]
    assert costs[1] == math.inf
    costs.sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[1].any()
    assert x.grad[0].any()


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_target", "mean_frame"])
def test_zero_infinity_needs_no_filter_and_has_a_defined_denominator(reduction):  # icefall 531
    logits, targets = tensors(random_batch(frames=(4, 4), labels=(2, 2))[:2])
    batch = targets, torch.tensor([4, 1]), torch.tensor([2, 2])
    total = ft.loss(logits, *batch, ft.monotonic(), reduction="sum", zero_infinity=True)
    cost = ft.loss(logits, *batch, ft.monotonic(), reduction=reduction, zero_infinity=True)
    assert_close(cost, total / {"sum": 1, "mean": 2, "mean_target": 4, "mean_frame": 5}[reduction])
    assert cost.isfinite()


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.uint8, torch.int8])
def test_an_unsupported_type_raises_and_never_costs_zero(dtype):  # warp-transducer 92, edgedict 36
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"ft.loss: logits has dtype {name}, expected float64, float32"):
        ft.loss(torch.zeros(1, 3, 2, 4).to(dtype), [[1]], [3], [1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_costs_are_float32_of_the_rounded_inputs(dtype):  # warp-transducer 42, NeMo 15996
    logits, batch = batch_of(dtype, frames=(50, 41), labels=(10, 7), vocabulary=50)
    x = leaf(logits)
    cost = ft.loss(x, *batch)
    cost.backward()
    assert cost.dtype == torch.float32
    assert x.grad.dtype == dtype
    exact = leaf(logits.double())
    expected = ft.loss(exact, *batch, backend="reference")
    expected.backward()
    assert_close(cost, expected, 1e-6)
    # One rounding of the gradient, and what the backward may leave out.
    largest = exact.grad.abs().max().item()
    left_out = 2.0 * ft.skipped_mass(x, *batch).max().item() / 2
    assert (x.grad.double() - exact.grad).abs().max().item() <= largest * torch.finfo(dtype).eps + left_out


def test_log_probabilities_may_be_given_as_logits():  # speechbrain 1339
    logits, batch = batch_of()
    x, y = leaf(logits), leaf(logits)
    cost, again = ft.loss(x, *batch), ft.loss(torch.log_softmax(y, -1), *batch)
    cost.backward()
    again.backward()
    assert_close(cost, again)
    assert_close(x.grad, y.grad)
    z = leaf(torch.log_softmax(logits, -1))
    assert_close(ft.loss(z, *batch, from_log_probs=True), cost)


def test_ten_calls_are_the_same_and_change_no_input():  # rnnt-speech-recognition 36
    logits = torch.zeros(1, 3, 3, 3)
    batch = torch.tensor([[1, 2]]), torch.tensor([3]), torch.tensor([2])
    found = {ft.loss(logits, *batch).item() for _ in range(10)}
    assert len(found) == 1
    assert not logits.any()
    assert found.pop() == pytest.approx(uniform_cost(3, 2, 3), rel=1e-6)


@pytest.mark.parametrize("T", [272, 1, 2])
def test_more_labels_than_frames_are_legal(T):  # fast_rnnt 20
    U = {272: 274, 1: 50, 2: 10}[T]
    logits = torch.zeros(1, 1, 1, 1, dtype=torch.float64).expand(1, T, U + 1, 4)
    cost = ft.loss(logits, torch.ones(1, U, dtype=torch.int64), [T], [U])
    assert cost.item() == pytest.approx(uniform_cost(T, U, 4), rel=1e-12)


def test_empty_transcripts():  # k2 1149
    logits, batch = batch_of(frames=(4, 3, 5), labels=(4, 0, 7))
    assert ft.loss(logits, *batch, reduction="none").isfinite().all()
    blanks = -torch.log_softmax(logits[:, :, :1], -1)[..., 0, -1]
    none = torch.zeros(3, 0, dtype=torch.int64)
    costs = ft.loss(logits[:, :, :1], none, batch[1], torch.zeros(3, dtype=torch.int64), reduction="none")
    assert_close(
        costs, torch.stack([row[:length].sum() for row, length in zip(blanks, (4, 3, 5), strict=True)])
    )


@pytest.mark.parametrize(("T", "U"), [(1, 0), (1, 5), (5, 0)])
def test_the_smallest_lattices(T, U):  # warp-rnnt cf0c896
    logits = torch.zeros(1, T, U + 1, 3, dtype=torch.float64)
    cost = ft.loss(logits, torch.ones(1, U, dtype=torch.int64), [T], [U])
    assert cost.item() == pytest.approx(uniform_cost(T, U, 3), rel=1e-12)


def test_more_than_1024_labels():  # NeMo 4882, 5929
    for U in (1023, 1024, 1100):
        logits = torch.zeros(1, 1, 1, 1, dtype=torch.float64).expand(1, 8, U + 1, 4)
        cost = ft.loss(logits, torch.ones(1, U, dtype=torch.int64), [8], [U])
        assert cost.item() == pytest.approx(uniform_cost(8, U, 4), rel=1e-12)


def test_any_strides():  # torchaudio 1391
    logits, (targets, frames, labels) = batch_of()
    info = torch.stack([frames, labels, torch.zeros_like(frames)], dim=1)
    wide = torch.stack([targets, targets + 100], dim=-1)
    turned = logits.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert turned.stride() != logits.stride()
    x = leaf(turned)
    cost = ft.loss(x, wide[..., 0], info[:, 0], info[:, 1])
    cost.backward()
    assert cost.item() == ft.loss(logits, targets, frames, labels).item()
    assert (x.grad == gradient(logits, targets, frames, labels)).all()
    flipped = logits.flip(0)[[2, 1, 0]]
    assert ft.loss(flipped, targets, frames, labels) == cost


@pytest.mark.parametrize("lengths", [torch.int32, torch.int64])
@pytest.mark.parametrize("labels", [torch.int32, torch.int64])
def test_integer_types_may_be_mixed(lengths, labels):  # torchaudio, NeMo and Paddle differ
    logits, (targets, T, U) = batch_of()
    expected = ft.loss(logits, targets, T, U)
    assert ft.loss(logits, targets.to(labels), T.to(lengths), U) == expected
    assert ft.loss(logits, targets.to(labels), T, U.to(lengths)) == expected


def test_lists_and_arrays_beside_a_tensor():
    logits, (targets, T, U) = batch_of()
    expected = ft.loss(logits, targets, T, U)
    assert ft.loss(logits, targets.tolist(), T.tolist(), U.numpy()) == expected
    assert ft.loss(target_lengths=U, targets=targets.tolist(), logits=logits, logit_lengths=T) == expected
    assert ft.torch.loss(logits.numpy(), targets.numpy(), T.numpy(), U.numpy()) == expected
    with pytest.raises(ValueError, match=r"ft.loss: targets makes no tensor, expected rows of equal length"):
        ft.loss(logits, [[1, 2], [1]], T, U)
    with pytest.raises(TypeError, match=r"ft.loss: logit_lengths is a str, expected a torch.Tensor"):
        ft.loss(logits, targets, "5", U)


def test_lengths_below_the_dimension_and_above_it():  # torchaudio 2834, 2196, conformer 37
    logits, (targets, _, _) = batch_of(frames=(100, 100), labels=(4, 4))
    assert ft.loss(logits, targets, torch.tensor([97, 80]), torch.tensor([3, 2])).isfinite()
    with pytest.raises(ValueError, match=r"ft.loss: logit_lengths\[1\] is 101, expected .* 100"):
        ft.loss(logits, targets, torch.tensor([97, 101]), torch.tensor([3, 2]))


def test_a_prediction_network_without_its_start_symbol():  # iamjanvijay 3, warp-transducer 14
    logits, (targets, T, U) = batch_of()
    with pytest.raises(ValueError, match=r"ft.loss: logits has shape .* expected .* start symbol"):
        ft.loss(logits[:, :, 1:], targets, T, U)
    encoder, predictor, *rest = tensors(joint_batch())
    with pytest.raises(ValueError, match=r"ft.joint_loss: predictor has shape .*start symbol"):
        ft.joint_loss(encoder, predictor[:, 1:], *rest)


@pytest.mark.parametrize("padding", [-1, 6, 2**31 - 1])
def test_padding_may_hold_any_id_and_a_label_may_not(padding):  # warp-transducer 21
    logits, (targets, T, U) = batch_of()
    expected = ft.loss(logits, targets, T, U)
    padded = targets.clone()
    padded[1, 1:] = padding
    padded[2] = padding
    assert ft.loss(logits, padded, T, U) == expected
    padded[0, 1] = padding
    with pytest.raises(ValueError, match=rf"ft.loss: targets\[0, 1\] is {padding}, expected"):
        ft.loss(logits, padded, T, U)


def test_padding_may_hold_nan_and_gets_no_gradient():
    logits, batch = batch_of()
    expected = gradient(logits, *batch)
    spoilt = logits.clone()
    spoilt[1, 3:] = math.nan
    spoilt[2, :, 1:] = math.nan
    found = gradient(spoilt, *batch)
    assert (found == expected).all()
    assert not found[1, 3:].any()


def test_a_label_equal_to_blank_adds_both_contributions():  # warp-transducer 93
    logits, _ = batch_of(frames=(2,), labels=(1,), vocabulary=3)
    batch = torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1])
    torch.autograd.gradcheck(lambda x: ft.loss(x, *batch, ft.rnnt(blank=1)), leaf(logits), fast_mode=False)


def test_views_that_are_not_plain_memory():
    logits, batch = batch_of()
    one = leaf(torch.randn(1, 1, 1, 6, dtype=torch.float64))
    spread = one.expand(logits.shape)  # strides of 0
    ft.loss(spread, *batch).backward()
    assert_close(one.grad, gradient(spread.contiguous(), *batch).sum((0, 1, 2), keepdim=True))
    negated = torch.conj(torch.complex(logits, logits)).imag  # the sign is a mark, not in memory
    assert negated.is_neg()
    assert ft.loss(negated, *batch) == ft.loss(-logits, *batch)
    with torch.inference_mode():
        assert ft.loss(logits * 1.0, *batch) == ft.loss(logits, *batch)


def test_an_empty_batch_costs_nothing():
    logits = leaf(torch.zeros(0, 4, 3, 5))
    lengths = torch.zeros(0, dtype=torch.int64)
    cost = ft.loss(logits, torch.zeros(0, 2, dtype=torch.int64), lengths, lengths)
    cost.backward()
    assert cost == 0.0
    assert logits.grad.shape == logits.shape


def test_infinite_and_extreme_logits():  # NeMo 3825
    logits, batch = batch_of(torch.float16)
    logits[0, 0, 0, 5] = 65504.0
    logits[:, :, :, 4] = -math.inf
    x = leaf(logits)
    cost = ft.loss(x, *batch)
    cost.backward()
    assert cost.isfinite()
    assert x.grad.isfinite().all()


def test_reductions_and_clamp_before_scaling():  # NeMo 3550, speechbrain 875
    logits, (targets, T, U) = batch_of()
    costs = ft.loss(logits, targets, T, U, reduction="none")
    divisors = {"sum": 1, "mean": 3, "mean_target": U.sum(), "mean_frame": T.sum()}
    for reduction, divisor in divisors.items():
        assert_close(ft.loss(logits, targets, T, U, reduction=reduction), costs.sum() / divisor)
    x = leaf(logits)
    (10.0 * ft.loss(x, targets, T, U, reduction="sum", clamp=0.01)).backward()
    assert x.grad.abs().max().item() == pytest.approx(0.1, rel=1e-12)


def test_mistakes_are_named():
    logits, (targets, T, U) = batch_of()
    cases = [
        (TypeError, "targets is None, expected a tensor", (logits, None, T, U), {}),
        (TypeError, "variant is a str, expected an ft.Variant", (logits, targets, T, U, "rnnt"), {}),
        (
            ValueError,
            "reduction is 'avg', expected one of 'none'",
            (logits, targets, T, U),
            {"reduction": "avg"},
        ),
        (TypeError, "clamp is 'x', expected a number", (logits, targets, T, U), {"clamp": "x"}),
        (ValueError, "reduction is 'None', expected one", (logits, targets, T, U), {"reduction": None}),
        (ValueError, "semiring is '1', expected one of", (logits, targets, T, U), {"semiring": 1}),
        (ValueError, "logits has layout torch.sparse_coo", (logits.to_sparse(), targets, T, U), {}),
        (TypeError, "zero_infinity is 1, expected True", (logits, targets, T, U), {"zero_infinity": 1}),
        (ValueError, "backend is 'gpu', expected", (logits, targets, T, U), {"backend": "gpu"}),
        (ValueError, "targets has dtype float64, expected int32", (logits, targets.double(), T, U), {}),
        (
            ValueError,
            "band has dtype float64",
            (logits, targets, T, U),
            {"band": torch.zeros(3, 5, 2).double()},
        ),
    ]
    for error, message, arguments, options in cases:
        with pytest.raises(error, match=f"ft.loss: {message}"):
            ft.loss(*arguments, **options)
    with pytest.raises(ValueError, match=r"predictor_mask requires a gradient, but the loss has none"):
        ft.joint_loss(*tensors(joint_batch()), predictor_mask=torch.ones(2, 3, requires_grad=True))
    with pytest.raises(ValueError, match=r"ft.joint_loss: dropout is 0.5 and seed is None, expected a seed"):
        ft.joint_loss(*tensors(joint_batch()), dropout=0.5)
    with pytest.raises(ValueError, match=r"arc_scores is on meta and logits on cpu, expected one device"):
        ft.loss(logits, targets, T, U, arc_scores=torch.zeros(1, device="meta"))


def test_an_option_may_be_a_tensor_that_changes():
    joint = tensors(joint_batch())
    seed = torch.tensor(3)
    for number in (3, 4, 5):
        expected = ft.joint_loss(*joint, dropout=0.5, seed=number)
        assert ft.joint_loss(*joint, dropout=0.5, seed=seed) == expected
        seed += 1
    logits, batch = batch_of()
    clamp = torch.tensor(0.5)
    _, loose = ft.value_and_grad(logits, *batch, clamp=clamp)
    clamp *= 0.01
    _, tight = ft.value_and_grad(logits, *batch, clamp=clamp)
    assert tight.abs().max() < loose.abs().max()


def test_shapes_without_memory():
    batch = [tensor.to("meta") for tensor in tensors(joint_batch())]
    assert ft.joint_loss(*batch).device.type == "meta"
    logits, rest = batch_of()
    costs = ft.loss(logits.to("meta"), *(tensor.to("meta") for tensor in rest), reduction="none")
    assert costs.shape == logits.shape[:1]


def test_taps_and_best_paths_are_those_of_the_numpy_functions():
    arrays = random_batch()
    batch = tensors(arrays)
    batch[0].requires_grad_()
    found, expected = ft.lattice(*batch), ft.lattice(*arrays)
    for name in ("alpha", "beta", "arc_posterior", "occupancy", "cost", "frame_lengths", "target_lengths"):
        np.testing.assert_array_equal(getattr(found, name).numpy(), getattr(expected, name))
        assert not getattr(found, name).requires_grad
    for one, other in zip(ft.align(*batch), ft.align(*arrays), strict=True):
        assert isinstance(one.frames, torch.Tensor)
        assert one.frames.tolist() == other.frames.tolist()
        assert one.score == other.score
    joint = joint_batch()
    one, other = ft.joint_align(*tensors(joint))[0], ft.joint_align(*joint)[0]
    assert one.labels.tolist() == other.labels.tolist()
    found, expected = ft.joint_lattice(*tensors(joint)), ft.joint_lattice(*joint)
    np.testing.assert_array_equal(found.alpha.numpy(), expected.alpha)
    assert ft.skipped_mass(*batch).tolist() == ft.skipped_mass(*arrays).tolist()


def test_signatures_are_those_of_the_numpy_functions():
    import inspect

    for name in ft.torch.__all__:
        if hasattr(ft, name):
            one = inspect.signature(getattr(ft.torch, name)).parameters
            other = inspect.signature(getattr(ft, name)).parameters
            assert [(p.name, p.kind, p.default) for p in one.values()] == [
                (p.name, p.kind, p.default) for p in other.values()
            ], name
