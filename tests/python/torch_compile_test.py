# SPDX-License-Identifier: Apache-2.0
"""The operators in a captured graph: torch.compile, torch.export, and PyTorch's own check of operators."""

import io
import subprocess
import sys

import flash_transducer as ft
import pytest
from batches import joint_batch, random_batch
from flash_transducer.torch._call import call_text
from torch_batches import assert_close, leaf, tensors, torch

DURATIONS = ft.tdt([0, 1, 2])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def compiled(function):
    # The graph and its gradient are captured and run; generating code for the host takes a minute.
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def assert_same_when_compiled(function, *inputs):
    eager, captured = [leaf(value) for value in inputs], [leaf(value) for value in inputs]
    expected, actual = function(*eager), compiled(function)(*captured)
    assert_close(actual, expected)
    expected.backward()
    actual.backward()
    for one, other in zip(captured, eager, strict=True):
        assert_close(one.grad, other.grad)


@pytest.mark.parametrize("variant", [ft.rnnt(), DURATIONS], ids=repr)
def test_loss_compiles_whole(variant):
    logits, *batch = tensors(random_batch(variant))
    assert_same_when_compiled(lambda x: 2.0 * ft.loss(torch.tanh(x), *batch, variant, clamp=0.5), logits)


@pytest.mark.parametrize("name", ["loss", "value_and_grad", "lattice_loss"])
def test_the_very_first_call_may_be_compiled(name):
    """Nothing is made at the first call that a compiler could not follow."""
    program = f"""
import torch, flash_transducer as ft
logits, lengths = torch.randn(1, 4, 3, 2), (torch.tensor([4]), torch.tensor([2]))
batch = (*lengths, ft.rnnt()) if {name!r} == "lattice_loss" else (torch.tensor([[0, 1]]), *lengths)
torch.compile(lambda x: ft.{name}(x, *batch), fullgraph=True, backend="aot_eager")(logits)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_lengths_and_targets_may_be_inputs_of_the_graph():
    logits, *batch = tensors(random_batch())
    function = compiled(lambda x, *rest: ft.loss(x, *rest, reduction="sum"))
    assert_close(function(logits, *batch), ft.loss(logits, *batch, reduction="sum"))
    shorter = (logits[:, :4].contiguous(), batch[0], batch[1].clamp(max=4), batch[2])
    assert_close(function(*shorter), ft.loss(*shorter, reduction="sum"))  # other sizes: traced again


def test_shapes_may_be_symbols():
    function = torch.compile(
        lambda x, *rest: ft.loss(x, *rest).sum(), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for frames in (4, 5, 7):
        logits, *batch = tensors(random_batch(frames=(frames, 3), labels=(2, 1)))
        x, y = leaf(logits), leaf(logits)
        function(x, *batch).backward()
        ft.loss(y, *batch).backward()
        assert_close(x.grad, y.grad)


def test_joint_loss_compiles_whole_with_a_seed_that_changes():
    joint = tensors(joint_batch())

    def function(*inputs, seed=3):
        return ft.joint_loss(*inputs, *joint[4:], activation="tanh", dropout=0.2, seed=seed)

    assert_same_when_compiled(function, *joint[:4])
    captured = compiled(lambda seed: function(*joint[:4], seed=seed))
    for seed in (3, 4, 5):
        assert_close(captured(seed), function(*joint[:4], seed=seed))


def test_scores_lattice_loss_and_value_and_grad_compile_whole():
    logits, *batch = tensors(random_batch(DURATIONS))

    def chained(x):
        return ft.lattice_loss(0.5 * ft.scores(x, *batch, DURATIONS), *batch[1:], DURATIONS)

    assert_same_when_compiled(chained, logits)
    cost, gradient = compiled(lambda x: ft.value_and_grad(x, *batch, DURATIONS))(logits)
    expected_cost, expected = ft.value_and_grad(logits, *batch, DURATIONS)
    assert_close(cost, expected_cost)
    assert_close(gradient, expected)


@pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="PyTorch 2.4 cannot follow an object that a function makes"
)
def test_a_variant_may_be_made_in_the_compiled_function():
    logits, *batch = tensors(random_batch(DURATIONS))
    assert_same_when_compiled(lambda x: ft.loss(x, *batch, ft.tdt((0, 1, 2), fastemit=0.1)), logits)


def test_modules_compile_whole():
    logits, *batch = tensors(random_batch())
    module = ft.torch.TransducerLoss(reduction="sum")
    assert_same_when_compiled(lambda x: module(x, *batch), logits)


def test_gradients_in_place_compile():
    logits, *batch = tensors(random_batch())
    assert_same_when_compiled(lambda x: ft.loss(x * 2.0, *batch, inplace_grad=True), logits)


def test_export_and_save(tmp_path):
    class Criterion(torch.nn.Module):
        def forward(self, logits, targets, logit_lengths, target_lengths):
            return ft.loss(logits, targets, logit_lengths, target_lengths, DURATIONS, reduction="none")

    batch = tuple(tensors(random_batch(DURATIONS)))
    exported = torch.export.export(Criterion(), batch)
    assert "flash_transducer.loss" in str(exported.graph)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    assert_close(loaded(*batch), ft.loss(*batch, DURATIONS, reduction="none"))


@pytest.mark.parametrize("keep", [True, False])
def test_operators_pass_the_checks_of_pytorch(keep):
    def options(variant, **words):
        return call_text("ft.loss", variant.text, ft.backends[-1], tuple(words), tuple(words.values()))

    # Whole lengths: what is kept for the padding of others is not defined.
    dense = tensors(random_batch(DURATIONS, frames=(3, 3), labels=(2, 2)))
    joint = tensors(joint_batch(frames=(3, 3), labels=(2, 2)))
    lengths = dense[2:]
    operators = torch.ops.flash_transducer
    logits = leaf(dense[0]) if keep else dense[0]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")

    def check(operator, *arguments):
        torch.library.opcheck(operator.default, arguments, test_utils=checks)

    mean = options(DURATIONS, reduction="mean")
    check(operators.loss, logits, *dense[1:], *[None] * 4, mean, 0.0, False, keep)
    check(operators.scores, logits, *dense[1:], None, None, options(DURATIONS))
    moves = ft.Variant("moves", [ft.Arc(1, 0, may_finish=True), ft.Arc(0, 1)])  # no group to keep
    weights = ft.scores(*dense, DURATIONS)[..., [1, 3]]
    weights = leaf(weights) if keep else weights
    of_moves = options(moves, reduction="mean")
    check(operators.lattice_loss, weights, *lengths, None, None, of_moves, 0.0, False, keep)
    inputs = [leaf(value) if keep else value for value in joint[:4]]
    tanh = options(ft.rnnt(), reduction="mean", activation="tanh")
    rest = [*joint[4:], *[None] * 6]
    check(operators.joint_loss, *inputs, *rest, tanh, 0.0, 0.1, 5, False, keep)
    silu = options(ft.rnnt(), activation="silu")
    check(operators.joint_scores, *inputs, *joint[4:], *[None] * 4, silu, 0.1, 5)
