# SPDX-License-Identifier: Apache-2.0
"""The cuda backend from Python: CuPy arrays and PyTorch tensors against the reference on the host."""

import importlib
import os
import subprocess
import sys

import flash_transducer as ft
import numpy as np
import pytest
from batches import VARIANTS, joint_batch, random_batch

SANITIZED = os.environ.get("TX_SANITIZE", "none") != "none"


def libraries_with_a_device():
    """(name, to the device, to NumPy) of the array libraries that see one."""
    found = []
    if SANITIZED:  # neither library is built for the sanitizers
        return found
    try:
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            found.append(("torch", lambda x: torch.from_numpy(np.array(x)).cuda(), lambda x: x.cpu().numpy()))
    except ModuleNotFoundError:
        pass
    try:
        cupy = importlib.import_module("cupy")
        if cupy.cuda.runtime.getDeviceCount() > 0:
            found.append(("cupy", cupy.asarray, cupy.asnumpy))
    except Exception:  # CuPy says in its own ways that there is no driver
        pass
    return found


LIBRARIES = libraries_with_a_device()
if not LIBRARIES and os.environ.get("TX_REQUIRE_CUDA", "0") != "0":
    pytest.fail("TX_REQUIRE_CUDA is set, and neither torch nor cupy sees a device", pytrace=False)

needs_device = pytest.mark.skipif(not LIBRARIES, reason="no CUDA device that torch or cupy sees")


@pytest.fixture(params=LIBRARIES or [None], ids=[name for name, *_ in LIBRARIES] or ["none"])
def library(request):
    return request.param


@needs_device
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_dense_gradients_equal_the_reference(library, name, dtype):
    _, to_device, to_host = library
    variant = VARIANTS[name]
    logits, targets, frames, labels = random_batch(variant, frames=(40, 17, 33), labels=(12, 5, 0))
    logits = logits.astype(dtype)
    want, gradient = ft.value_and_grad(
        logits, targets, frames, labels, variant, reduction="mean_frame", clamp=0.25, backend="reference"
    )
    found, found_gradient = ft.value_and_grad(
        to_device(logits), targets, frames, labels, variant, reduction="mean_frame", clamp=0.25
    )
    tolerance = 1e-11 if dtype is np.float64 else 2e-5
    np.testing.assert_allclose(to_host(found), want, rtol=tolerance)
    np.testing.assert_allclose(
        to_host(found_gradient), gradient, rtol=0, atol=tolerance * np.abs(gradient).max()
    )


@needs_device
def test_joint_gradients_equal_the_reference(library):
    _, to_device, to_host = library
    *source, targets, frames, labels = joint_batch(frames=(30, 21), labels=(9, 4), hidden=24, columns=33)
    source = [array.astype(np.float32) for array in source]
    want, gradients = ft.joint_value_and_grad(
        *source, targets, frames, labels, activation="tanh", dropout=0.1, seed=5, backend="reference"
    )
    found, found_gradients = ft.joint_value_and_grad(
        *map(to_device, source), targets, frames, labels, activation="tanh", dropout=0.1, seed=5
    )
    np.testing.assert_allclose(to_host(found), want, rtol=1e-5)
    for one, other in zip(found_gradients, gradients, strict=True):
        np.testing.assert_allclose(to_host(one), other, rtol=0, atol=2e-5 * np.abs(other).max())


def torch_with_a_device():
    if SANITIZED:
        pytest.skip("PyTorch is not built for the sanitizers")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    return torch


@pytest.mark.parametrize("name", VARIANTS)
def test_autograd_of_pytorch_equals_the_reference(name):
    torch = torch_with_a_device()
    variant = VARIANTS[name]
    logits, targets, frames, labels = random_batch(variant, frames=(40, 17, 33), labels=(12, 5, 0))
    want, gradient = ft.value_and_grad(logits, targets, frames, labels, variant, backend="reference")
    tensor = torch.from_numpy(logits).cuda().requires_grad_()
    for small in ((targets, frames, labels), [torch.from_numpy(x).cuda() for x in (targets, frames, labels)]):
        tensor.grad = None
        loss = ft.loss(tensor, *small, variant)
        (3.0 * loss).backward()
        np.testing.assert_allclose(loss.item(), want, rtol=1e-11)
        np.testing.assert_allclose(tensor.grad.cpu().numpy(), 3.0 * gradient, rtol=0, atol=1e-11)
    weights = ft.scores(tensor, targets, frames, labels, variant)
    loss = ft.lattice_loss(weights, frames, labels, variant)
    (through,) = torch.autograd.grad(loss, tensor)
    np.testing.assert_allclose(through.cpu().numpy(), gradient, rtol=0, atol=1e-10)


def test_autograd_of_the_joint_source():
    torch = torch_with_a_device()
    *source, targets, frames, labels = joint_batch(frames=(30, 21), labels=(9, 4), hidden=24, columns=33)
    want, gradients = ft.joint_value_and_grad(*source, targets, frames, labels, backend="reference")
    tensors = [torch.from_numpy(array).cuda().requires_grad_() for array in source]
    loss = ft.joint_loss(*tensors, targets, frames, labels)
    loss.backward()
    np.testing.assert_allclose(loss.item(), want, rtol=1e-11)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        np.testing.assert_allclose(tensor.grad.cpu().numpy(), gradient, rtol=0, atol=1e-11)


def test_pytorch_keeps_what_the_plan_says():
    if "cuda" not in ft.backends:
        pytest.skip("backend 'cuda' is not part of this build")
    torch = torch_with_a_device()
    for variant in VARIANTS.values():
        logits, targets, frames, labels = random_batch(variant, frames=(7, 5), labels=(3, 2))
        tensor = torch.from_numpy(logits.astype(np.float32)).cuda().requires_grad_()
        saved = ft.loss(tensor, targets, frames, labels, variant).grad_fn.saved_tensors[-1]
        batch, steps, rows, columns = logits.shape
        plan = ft.plan(batch, steps, rows - 1, columns, variant=variant, backend="cuda")
        assert saved.numel() * 8 == plan.saved_bytes


@needs_device
def test_labels_and_lengths_may_be_anywhere(library):
    _, to_device, to_host = library
    logits, targets, frames, labels = random_batch()
    want = ft.loss(logits, targets, frames, labels, reduction="none")
    small = [targets.astype(np.int32), frames, labels.astype(np.int32)]
    for places in range(8):
        given = [to_device(x) if places >> i & 1 else x for i, x in enumerate(small)]
        found = ft.loss(to_device(logits), *given, reduction="none")
        np.testing.assert_allclose(to_host(found), want, rtol=1e-12)


@needs_device
def test_messages_of_the_host_hold_on_the_device(library):
    _, to_device, _ = library
    logits, targets, frames, labels = random_batch()
    with pytest.raises(ValueError, match=r"ft\.loss: logit_lengths\[0\] is 50, expected a value from 0 to 5"):
        ft.loss(to_device(logits), targets, frames * 10, labels)
    with pytest.raises(ValueError, match=r"ft\.loss: logits is on cuda:0, expected host memory for backend"):
        ft.loss(to_device(logits), targets, frames, labels, backend="reference")
    with pytest.raises(ValueError, match=r"ft\.loss: arc_scores is in host memory, expected a CUDA array"):
        ft.loss(to_device(logits), targets, frames, labels, arc_scores=np.zeros(2))


def test_host_arrays_are_refused():
    if "cuda" not in ft.backends:
        with pytest.raises(ft.NotBuilt, match=r"ft\.loss: backend 'cuda' is not part of this build"):
            ft.loss(*random_batch(), backend="cuda")
    else:
        with pytest.raises(ValueError, match=r"ft\.loss: logits is in host memory, expected a CUDA array"):
            ft.loss(*random_batch(), backend="cuda")


def test_the_package_imports_without_loading_the_module():
    code = "import sys, flash_transducer; print('flash_transducer._cuda' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_plan_needs_no_device():
    if "cuda" not in ft.backends:
        pytest.skip("backend 'cuda' is not part of this build")
    plan = ft.plan(32, 188, 90, 1024, backend="cuda", dtype="bfloat16")
    rows = 32 * 188 * 91
    assert plan.saved_bytes <= 24 * rows
    assert plan.scratch_bytes <= 64 << 20
