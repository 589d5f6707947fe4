# SPDX-License-Identifier: Apache-2.0
"""Small batches as tensors. Importing this skips a module, with the reason, where PyTorch cannot be used."""

import os

import numpy as np
import pytest

if os.environ.get("TX_SANITIZE", "none") != "none":
    pytest.skip("PyTorch is not built for the sanitizers", allow_module_level=True)
torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def tensors(batch, dtype=torch.float64):
    """NumPy arrays as tensors: floats in `dtype`, integers as they are."""
    made = [torch.from_numpy(np.ascontiguousarray(array)) for array in batch]
    return [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in made]


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def assert_close(actual, expected, tolerance=1e-12):
    """Infinities and NaNs in the same places, finite values within the tolerance."""
    np.testing.assert_allclose(
        torch.as_tensor(actual).detach().double().numpy(),
        torch.as_tensor(expected).detach().double().numpy(),
        rtol=tolerance,
        atol=tolerance,
    )


def mean_gradients(function, *inputs):
    """Cost and gradients of leaves that hold the inputs."""
    leaves = [leaf(value) for value in inputs]
    cost = function(*leaves)
    return cost.detach(), torch.autograd.grad(cost, leaves)
