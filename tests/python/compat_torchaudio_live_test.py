# SPDX-License-Identifier: Apache-2.0
"""compat.torchaudio against torchaudio itself, on machines that have one whose library loads."""

import inspect
import random

import pytest
from torch_batches import torch

try:
    import torchaudio as peer
    from torchaudio.functional import rnnt_loss as peer_loss
except (ImportError, OSError) as error:  # its wheels need the CUDA libraries of their torch
    pytest.skip(f"torchaudio does not load: {error}", allow_module_level=True)

from flash_transducer.compat import torchaudio as ours


def batch(seed):
    """Sizes, lengths and blank drawn; the lengths reach their dimensions, as torchaudio asks."""
    draw = random.Random(seed)
    B, T, U, V = draw.randint(1, 4), draw.randint(1, 9), draw.randint(0, 5), draw.randint(2, 7)
    frames = [T, *(draw.randint(1, T) for _ in range(B - 1))]
    labels = [U, *(draw.randint(0, U) for _ in range(B - 1))]
    blank = draw.randrange(V)
    names = [label for label in range(V) if label != blank]
    targets = [[draw.choice(names) for _ in range(U)] for _ in range(B)]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, T, U + 1, V, generator=generator)
    integers = (
        torch.tensor(targets, dtype=torch.int32).reshape(B, U),
        torch.tensor(frames, dtype=torch.int32),
        torch.tensor(labels, dtype=torch.int32),
    )
    return logits, integers, blank - V if draw.random() < 0.5 else blank


def value_and_gradient(loss, logits, *rest, **options):
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, *rest, **options)
    upstream = torch.arange(1.0, 1.0 + value.numel()).reshape(value.shape)
    return value, *torch.autograd.grad(value, leaf, upstream)


OPTIONS = [
    *({"reduction": reduction} for reduction in ("none", "sum", "mean")),
    *({"reduction": "none", "clamp": clamp} for clamp in (0.1, 0.0, -0.5)),
    {"reduction": "none", "fused_log_softmax": False, "clamp": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_same_values_gradients_and_shapes(seed, options):
    logits, integers, blank = batch(seed)
    if not options.get("fused_log_softmax", True):
        logits = logits.log_softmax(-1)
    expected = value_and_gradient(peer_loss, logits, *integers, blank=blank, **options)
    found = value_and_gradient(ours.rnnt_loss, logits, *integers, blank=blank, **options)
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(ours.rnnt_loss, peer_loss), (ours.RNNTLoss, peer.transforms.RNNTLoss)],
    ids=["function", "module"],
)
def test_same_signature(mine, theirs):
    pairs = [
        [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
        for function in (mine, theirs)
    ]
    assert pairs[0] == pairs[1]
