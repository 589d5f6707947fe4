# SPDX-License-Identifier: Apache-2.0
"""What autograd may ask: several passes, no pass, checkpoints, transforms, autocast."""

import flash_transducer as ft
import pytest
from batches import joint_batch, random_batch
from flash_transducer.torch._call import call_text
from torch_batches import assert_close, leaf, tensors, torch

LOSS = torch.ops.flash_transducer


def batch_of(dtype=torch.float64):
    logits, *rest = tensors(random_batch(), dtype)
    return logits, rest


def called(function):
    """Names of the operators and of what allocates while the function runs."""
    names = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Record():
        function()
    return names


def test_two_passes_with_different_upstream_gradients_add_up():  # k2 1106, warp-rnnt 12
    logits, batch = batch_of()
    x = leaf(logits)
    cost = ft.loss(x, *batch)
    (unit,) = torch.autograd.grad(cost, x, retain_graph=True)
    (2.0 * cost).backward(retain_graph=True)
    (3.0 * cost).backward()
    assert_close(x.grad, 5.0 * unit)


@pytest.mark.parametrize("factor", [-2.0, 0.0])
def test_upstream_gradients_of_any_sign(factor):
    logits, batch = batch_of()
    x = leaf(logits)
    unit = torch.autograd.grad(ft.loss(x, *batch, reduction="none").sum(), x)[0]
    costs = ft.loss(x, *batch, reduction="none")
    weights = torch.tensor([factor, 1.0, 0.0], dtype=torch.float64)
    (costs * weights).sum().backward()
    assert_close(x.grad, unit * weights[:, None, None, None])


def test_the_second_pass_in_place_raises_and_the_first_is_right():
    logits, batch = batch_of()
    weight = leaf(torch.tensor(1.5, dtype=torch.float64))
    expected = torch.autograd.grad(ft.loss(logits * weight, *batch), weight)[0]

    scaled = logits * weight
    address = scaled.data_ptr()
    cost = ft.loss(scaled, *batch, inplace_grad=True)
    cost.backward(retain_graph=True)
    assert_close(weight.grad, expected)
    assert_close(scaled, torch.autograd.grad(ft.loss(x := leaf(logits * 1.5), *batch), x)[0])
    assert scaled.data_ptr() == address
    with pytest.raises(
        RuntimeError, match=r"ft.loss: a second backward pass, but the first wrote .* inplace_grad"
    ):
        cost.backward()


def test_in_place_gradients_refuse_a_leaf_and_tell_who_needs_the_logits():  # torchaudio 1532
    logits, batch = batch_of()
    with pytest.raises(ValueError, match="inplace_grad is True and logits is a leaf"):
        ft.loss(leaf(logits), *batch, inplace_grad=True)
    with pytest.raises(TypeError, match=r"ft.loss: inplace_grad is 'yes', expected True or False"):
        ft.loss(logits, *batch, inplace_grad="yes")
    for view in (lambda x: x.view(x.shape), lambda x: x[:], lambda x: x.transpose(1, 2).transpose(1, 2)):
        parameter = leaf(logits)
        with pytest.raises(ValueError, match="inplace_grad is True and logits is a view of a leaf"):
            ft.loss(view(parameter), *batch, inplace_grad=True)
        ft.loss(view(parameter * 1.0), *batch, inplace_grad=True).backward()
        assert_close(parameter, logits, 0.0)
    x = leaf(logits)
    activated = torch.tanh(x)  # its backward reads its own output
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ft.loss(activated, *batch, inplace_grad=True).backward()
    ft.loss(logits, *batch, inplace_grad=True)  # no gradient is wanted: nothing is written
    assert_close(logits, batch_of()[0])


def test_logits_changed_between_the_passes_are_noticed():
    logits, batch = batch_of()
    x = leaf(logits) * 1.0
    cost = ft.loss(x, *batch)
    x.detach().add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        cost.backward()


def test_nothing_is_kept_or_computed_for_what_needs_no_gradient():  # torchaudio 1707
    logits, batch = batch_of()
    x = leaf(logits)
    with torch.no_grad():
        names = called(lambda: ft.loss(x, *batch))
    assert names == ["flash_transducer.loss.default"]
    assert LOSS.loss(x, *batch, *[None] * 4, *options(), False, False)[1].numel() == 0

    joint = tensors(joint_batch())
    encoder = leaf(joint[0])
    cost = ft.joint_loss(encoder, *joint[1:])
    made = []
    original = torch.empty_like
    try:
        torch.empty_like = lambda tensor, **more: made.append(tensor.shape) or original(tensor, **more)
        cost.backward()
    finally:
        torch.empty_like = original
    assert made == [encoder.shape]


def options():
    text = call_text("ft.loss", ft.rnnt().text, ft.backends[-1], ("reduction",), ("mean",))
    return text, 0.0


def test_a_graph_holds_no_tensor_outside_save_for_backward():
    logits, batch = batch_of()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        cost = ft.loss(leaf(logits), *batch)
    held = [value for value in vars(cost.grad_fn).values() if isinstance(value, torch.Tensor)]
    assert held == []
    B, T, rows, _ = logits.shape
    shapes = [tuple(tensor.shape) for tensor in packed]
    assert shapes.count(tuple(logits.shape)) == 1
    if "cpu" in ft.backends:
        assert (B, 3, T, rows) in shapes  # 24 bytes a node
        assert packed[shapes.index((B, 3, T, rows))].element_size() == 8


def test_second_derivatives_are_refused_when_they_are_taken():
    logits, batch = batch_of()
    x = leaf(logits)
    (gradient,) = torch.autograd.grad(ft.loss(x, *batch), x, create_graph=True)
    assert_close(gradient, torch.autograd.grad(ft.loss(x, *batch), x)[0])
    with pytest.raises(NotImplementedError, match=r"ft.loss: .* second derivatives are not supported"):
        gradient.square().sum().backward()
    weights = ft.scores(x, *batch, ft.rnnt())
    (gradient,) = torch.autograd.grad(weights[weights.isfinite()].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"ft.scores: .* second derivatives are not supported"):
        gradient.square().sum().backward()


def test_functional_gradient():
    logits, batch = batch_of()
    x = leaf(logits)
    expected = torch.autograd.grad(ft.loss(x, *batch), x)[0]
    assert_close(torch.func.grad(lambda y: ft.loss(y, *batch))(logits), expected)
    _, pullback = torch.func.vjp(lambda y: ft.loss(y, *batch), logits)
    assert_close(pullback(torch.tensor(3.0, dtype=torch.float64))[0], 3.0 * expected)


def test_vmap_is_refused():
    logits, batch = batch_of()
    with pytest.raises(NotImplementedError, match=r"ft.loss: torch.vmap over it is not supported"):
        torch.vmap(lambda x: ft.loss(x, *batch))(torch.stack([logits, logits]))
    with pytest.raises(NotImplementedError, match=r"torch.vmap over it is not supported"):
        torch.func.jacrev(lambda x: ft.loss(x, *batch, reduction="none"))(logits)
    x = leaf(logits)
    costs = ft.loss(x, *batch, reduction="none")
    with pytest.raises(NotImplementedError, match=r"ft.loss: torch.vmap over it is not supported"):
        torch.autograd.grad(costs, x, torch.eye(len(costs)).double(), is_grads_batched=True)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(use_reentrant):
    logits, batch = batch_of()
    x, y = leaf(logits), leaf(logits)
    ft.loss(torch.tanh(x), *batch).backward()
    torch.utils.checkpoint.checkpoint(
        lambda z: ft.loss(torch.tanh(z), *batch), y, use_reentrant=use_reentrant
    ).backward()
    assert (x.grad == y.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_leaves_logits_as_they_are(dtype):  # warp-transducer 42, NeMo 15996
    logits, batch = batch_of(torch.float32)
    layer = torch.nn.Linear(6, 6)
    with torch.autocast("cpu", dtype=dtype):
        made = layer(logits)
        cost = ft.loss(made, *batch)
    assert made.dtype == dtype
    assert cost.dtype == torch.float32
    cost.backward()
    assert layer.weight.grad.dtype == torch.float32
    exact = ft.loss(made.detach().double(), *batch, backend="reference")
    assert_close(cost, exact, 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_joint_inputs_as_a_linear_layer_does(dtype):
    joint = tensors(joint_batch(), torch.float32)
    inputs = [leaf(value) for value in joint[:4]]
    with torch.autocast("cpu", dtype=dtype):
        cost = ft.joint_loss(*inputs, *joint[4:])
    cost.backward()
    rounded = [leaf(value.detach().to(dtype)) for value in inputs]
    expected = ft.joint_loss(*rounded, *joint[4:])
    expected.backward()
    assert cost.item() == expected.item()
    for one, other in zip(inputs, rounded, strict=True):
        assert one.grad.dtype == torch.float32
        assert (one.grad == other.grad.float()).all()


def test_modules_print_themselves_and_keep_no_tensor():
    module = ft.torch.TransducerLoss(ft.tdt([0, 1, 2]), reduction="sum", clamp=1.0)
    assert repr(module) == "TransducerLoss(ft.tdt([0, 1, 2]), reduction='sum', clamp=1.0)"
    logits, *batch = tensors(random_batch(ft.tdt([0, 1, 2])))
    x = leaf(logits)
    assert module(x, *batch) == ft.loss(x, *batch, ft.tdt([0, 1, 2]), reduction="sum", clamp=1.0)
    assert list(module.state_dict()) == []
    assert not any(isinstance(value, torch.Tensor) for value in vars(module).values())
    with pytest.raises(
        TypeError, match=r"TransducerLoss: unexpected option 'blank', expected one of reduction"
    ):
        ft.torch.TransducerLoss(blank=0)
    with pytest.raises(TypeError, match=r"TransducerLoss: clamp is 'x', expected a number"):
        ft.torch.TransducerLoss(clamp="x")
    with pytest.raises(TypeError, match=r"TransducerLoss: inplace_grad is 1, expected True or False"):
        ft.torch.TransducerLoss(inplace_grad=1)
    joint = tensors(joint_batch())
    module = ft.torch.JointTransducerLoss(activation="tanh", dropout=0.5)
    assert module(*joint, seed=3) == ft.joint_loss(*joint, activation="tanh", dropout=0.5, seed=3)
    assert module.eval()(*joint) == ft.joint_loss(*joint, activation="tanh")
    import copy
    import pickle

    assert repr(pickle.loads(pickle.dumps(module))) == repr(copy.deepcopy(module)) == repr(module)
