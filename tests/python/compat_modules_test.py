# SPDX-License-Identifier: Apache-2.0
"""What all drop-in modules promise: defaults, order of arguments, reductions, types, and errors."""

import inspect
import math

import flash_transducer as ft
import pytest
from compat_batches import V, batch, of_numpy
from flash_transducer.compat import (
    espnet,
    nemo,
    torchaudio,
    warp_rnnt,
    warp_transducer,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch_batches import torch

# name, peer's loss, the variant that it computes by default, shape of a reduced cost
DEFAULTS = {
    "torchaudio function": (torchaudio.rnnt_loss, ft.rnnt(), ()),
    "torchaudio module": (torchaudio.RNNTLoss(), ft.rnnt(), ()),
    "warp_transducer function": (warp_transducer.rnnt_loss, ft.rnnt(0), (1,)),
    "warp_transducer module": (warp_transducer.RNNTLoss(), ft.rnnt(0), (1,)),
    "espnet function": (espnet.rnnt_loss, ft.rnnt(0, fastemit=0.001), (1,)),
    "espnet module": (espnet.RNNTLoss(), ft.rnnt(0, fastemit=0.001), (1,)),
    "nemo function": (nemo.rnnt_loss, ft.rnnt(0), (1,)),
    "nemo module": (nemo.RNNTLossNumba(), ft.rnnt(0), (1,)),
    "nemo multi-blank": (nemo.MultiblankRNNTLossNumba(5, [2, 3]), ft.multi_blank([2, 3], 5), (1,)),
    "nemo tdt": (nemo.TDTLossNumba(3, [0, 1]), ft.tdt([0, 1], 3), (1,)),
}
MODULES = {
    "torchaudio": torchaudio.RNNTLoss,
    "warp_transducer": warp_transducer.RNNTLoss,
    "espnet": espnet.RNNTLoss,
    "nemo": nemo.RNNTLossNumba,
    "nemo multi-blank": lambda **options: nemo.MultiblankRNNTLossNumba(5, [2, 3], **options),
    "nemo tdt": lambda **options: nemo.TDTLossNumba(3, [0, 1], **options),
}


@pytest.mark.parametrize(("loss", "variant", "shape"), DEFAULTS.values(), ids=DEFAULTS)
def test_defaults_are_the_mean_over_the_batch(loss, variant, shape):
    given = batch()
    costs, gradient = of_numpy(*given, variant=variant)
    value = loss(*given)
    assert value.shape == shape
    torch.testing.assert_close(value.reshape(()), costs.mean())
    value.backward()
    torch.testing.assert_close(given[0].grad, gradient / 3)


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_reductions_of_modules(make):
    logits, *rest = batch()
    costs = make(reduction="none")(logits, *rest)
    assert costs.shape == (3,)
    for reduction, expected in (("sum", costs.sum()), ("mean", costs.mean())):
        torch.testing.assert_close(make(reduction=reduction)(logits, *rest).reshape(()), expected)
    with pytest.raises(ValueError, match="reduction is 'mean_volume', expected 'none', 'mean' or 'sum'"):
        make(reduction="mean_volume")(logits, *rest)


@pytest.mark.parametrize("loss", [row[0] for row in DEFAULTS.values()], ids=DEFAULTS)
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_types(loss, integers, dtype):
    """Costs are never half: a peer's half cost passes 65504 at some two thousand frames."""
    given = batch(dtype, integers=integers)
    value = loss(*given)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    value.backward()
    assert given[0].grad.dtype == dtype
    exact = loss(given[0].detach().double(), *given[1:])
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss", [row[0] for row in DEFAULTS.values()], ids=DEFAULTS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_types_that_are_not_supported_raise(loss, dtype):
    given = batch()
    with pytest.raises((ValueError, TypeError), match="dtype"):
        loss(torch.zeros(3, 5, 4, V, dtype=dtype), *given[1:])


@pytest.mark.parametrize("loss", [row[0] for row in DEFAULTS.values()], ids=DEFAULTS)
def test_wrong_inputs_raise(loss):
    logits, targets, frames, labels = batch()
    with pytest.raises(ValueError, match="expected"):  # the start symbol is missing
        loss(logits[:, :, :3], targets, frames, labels)
    with pytest.raises(ValueError, match="expected"):
        loss(logits, targets, frames + 1, labels)
    with pytest.raises(ValueError, match="expected"):
        loss(logits, targets + V, frames, labels)
    with pytest.raises((ValueError, TypeError), match="expected"):
        loss(logits, targets.double(), frames, labels)
    with pytest.raises((ValueError, TypeError)):
        loss(logits, targets, frames, labels[:2])


@pytest.mark.parametrize("loss", [row[0] for row in DEFAULTS.values()], ids=DEFAULTS)
def test_strides_padding_and_lengths_below_the_dimension(loss):
    logits, targets, frames, labels = batch()
    expected = loss(logits, targets, frames, labels)
    wide = torch.full((3, 7, 6, 2 * V), math.nan, dtype=torch.float64)
    wide[:, :5, :4, ::2] = logits.detach()
    wide = wide[..., ::2].requires_grad_()
    padded = torch.full((3, 5), -1, dtype=targets.dtype)
    padded[:, :3] = targets
    pairs = torch.stack([frames, labels], dim=1)
    value = loss(wide, padded, pairs[:, 0], pairs[:, 1])
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
    (gradient,) = torch.autograd.grad(value, wide)
    assert gradient.isfinite().all()
    assert not gradient[:, 5:].any()


@pytest.mark.parametrize("loss", [row[0] for row in DEFAULTS.values()], ids=DEFAULTS)
def test_two_backward_passes(loss):
    given = batch()
    value = loss(*given)
    once = torch.autograd.grad(value, given[0], torch.full_like(value, 2.0), retain_graph=True)[0]
    again = torch.autograd.grad(value, given[0], torch.full_like(value, -3.0))[0]
    torch.testing.assert_close(once * -1.5, again)


class LargeTensors(TorchDispatchMode):
    """The memory of `size` bytes or more that operators return, by its address."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.found = {}  # holds the tensors, so that no address comes twice

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() >= self.size:
                self.found[tensor.untyped_storage().data_ptr()] = tensor
        return result


@pytest.mark.parametrize("loss", [row[0] for row in DEFAULTS.values()], ids=DEFAULTS)
def test_the_gradient_is_the_only_other_array_of_the_logits_size(loss):
    logits, *rest = batch()
    logits = logits.detach().repeat(1, 1, 1, 8).requires_grad_()  # wider than what is kept per node
    with LargeTensors(logits.untyped_storage().nbytes()) as large:
        (gradient,) = torch.autograd.grad(loss(logits, *rest), logits)
    large.found.pop(logits.data_ptr(), None)
    assert list(large.found) == [gradient.data_ptr()]


def test_a_label_that_equals_the_blank_counts_for_both_arcs():
    """warp-transducer's CPU gradient keeps one of the two parts (its report 93)."""
    logits = torch.randn(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    rest = torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1])
    loss = warp_transducer.RNNTLoss(blank=1, reduction="sum")
    assert torch.autograd.gradcheck(lambda x: loss(x, *rest), (logits,))


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_modules_print_what_they_were_given_and_keep_no_tensors(make):
    module = make(reduction="sum")
    assert "reduction='sum'" in repr(module)
    assert "blank=" in repr(module)
    given = batch()
    module(*given).backward()
    assert not module.state_dict()
    assert not any(isinstance(value, torch.Tensor) for value in vars(module).values())


BATCH = ["logits", "targets", "logit_lengths", "target_lengths"]
PACKED = ["log_probs", "labels", "frames_lengths", "labels_lengths"]
WARP = ["acts", "labels", "act_lens", "label_lens", "blank", "reduction"]
SIGNATURES = [
    (
        torchaudio.rnnt_loss,
        [*BATCH, "blank", "clamp", "reduction", "fused_log_softmax"],
        (-1, -1, "mean", True),
    ),
    (torchaudio.RNNTLoss, ["blank", "clamp", "reduction", "fused_log_softmax"], (-1, -1.0, "mean", True)),
    (warp_transducer.rnnt_loss, WARP, (0, "mean")),
    (warp_transducer.RNNTLoss, ["blank", "reduction"], (0, "mean")),
    (
        warp_rnnt.rnnt_loss,
        [*PACKED, "average_frames", "reduction", "blank", "gather", "fastemit_lambda", "compact"],
        (False, "none", 0, False, 0.0, False),
    ),
    (espnet.rnnt_loss, [*WARP, "fastemit_lambda"], (0, "mean", 0.001)),
    (espnet.RNNTLoss, ["blank", "fastemit_lambda", "reduction"], (0, 0.001, "mean")),
    (nemo.rnnt_loss, [*WARP, "fastemit_lambda", "clamp"], (0, "mean", 0.0, 0.0)),
    (nemo.RNNTLossNumba, ["blank", "reduction", "fastemit_lambda", "clamp"], (0, "mean", 0.0, -1)),
    (
        nemo.MultiblankRNNTLossNumba,
        ["blank", "big_blank_durations", "reduction", "fastemit_lambda", "clamp", "sigma"],
        ("mean", 0.0, -1, 0.0),
    ),
    (
        nemo.TDTLossNumba,
        ["blank", "durations", "reduction", "fastemit_lambda", "clamp", "sigma", "omega"],
        (None, "mean", 0.0, -1, 0.0, 0.0),
    ),
    (nemo.FlashRNNTLoss, ["blank", "fastemit_lambda", "clamp", "max_joint_rows"], (0.0, -1.0, 200_000)),
]


@pytest.mark.parametrize(("function", "names", "defaults"), SIGNATURES)
def test_the_order_of_arguments_and_the_defaults_are_the_peers(function, names, defaults):
    parameters = inspect.signature(function).parameters.values()
    assert [parameter.name for parameter in parameters] == names
    assert tuple(p.default for p in parameters if p.default is not p.empty) == defaults
