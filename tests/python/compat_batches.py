# SPDX-License-Identifier: Apache-2.0
"""A ragged batch of tensors for the drop-in modules, and what the functions of arrays make of it."""

import flash_transducer as ft
import numpy as np
from torch_batches import torch

V = 6


def batch(dtype=torch.float64, *, integers=torch.int32, seed=0):
    """Labels 1 and 2 only: blanks of every module above are elsewhere."""
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(size=(3, 5, 4, V))).to(dtype).requires_grad_()
    targets = torch.from_numpy(random.integers(1, 3, (3, 3))).to(integers)
    return logits, targets, torch.tensor([5, 3, 4]).to(integers), torch.tensor([3, 1, 0]).to(integers)


def of_numpy(logits, *rest, variant, **options):
    """Costs and gradient of the same batch from the functions of arrays."""
    arrays = [tensor.detach().numpy() for tensor in (logits, *rest)]
    costs, gradient = ft.value_and_grad(*arrays, variant, reduction="none", **options)
    return torch.from_numpy(costs), torch.from_numpy(gradient)
