# SPDX-License-Identifier: Apache-2.0
"""Memory of a loss and its backward, counted: every tensor that PyTorch makes, alive at its peak.

The published case is [32, 188, 91, 1024] in float32, 2.09 GiB of logits: 4.18 GiB at the peak, where a peer
took 6.27 before a fix (NeMo 11144). Here the same with a sixteenth of the columns and of the batch.
"""

import gc
import weakref

import flash_transducer as ft
import pytest
from torch_batches import torch

B, T, U, V = 2, 188, 90, 64
LOGITS = B * T * (U + 1) * V * 4
NODES = B * T * (U + 1)


class Peak(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of storages alive at once, of those that operators return while the mode is on."""

    def __init__(self, *present):
        super().__init__()
        self.alive = {}
        self.peak = 0
        for tensor in present:
            self.count(tensor)

    def count(self, tensor):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address and address not in self.alive:
            self.alive[address] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, address, None)
        self.peak = max(self.peak, sum(self.alive.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.count(value)
        return result


def batch():
    torch.manual_seed(0)
    logits = torch.randn(B, T, U + 1, V)
    return logits, torch.randint(0, V - 1, (B, U)), torch.tensor([T, T - 8]), torch.tensor([U, U - 5])


def peak_of(run, *present):
    gc.collect()
    with Peak(*present) as mode:
        run()
    return mode.peak


@pytest.mark.skipif("cpu" not in ft.backends, reason="the cpu backend is not part of this build")
class TestDense:
    def test_out_of_place_takes_twice_the_logits_and_24_bytes_a_node(self):
        logits, *rest = batch()
        logits.requires_grad_()
        peak = peak_of(lambda: ft.loss(logits, *rest, ft.rnnt(blank=V - 1)).backward(), logits)
        assert 2 * LOGITS < peak <= 2 * LOGITS + 24 * NODES + 1024

    def test_in_place_takes_the_logits_once(self):
        logits, *rest = batch()
        made = logits.requires_grad_() * 1.0
        logits = None
        peak = peak_of(lambda: ft.loss(made, *rest, inplace_grad=True).backward(), made)
        # The gradient flows on through the multiplication, whose own gradient is the second of the two.
        assert peak <= 2 * LOGITS + 24 * NODES + 1024

    def test_in_place_alone_takes_the_logits_once(self):
        logits, *rest = batch()
        peak = peak_of(lambda: ft.value_and_grad(logits, *rest, inplace_grad=True), logits)
        assert LOGITS < peak <= LOGITS + 24 * NODES + 1024

    def test_no_grad_takes_nothing_beyond_the_logits(self):  # torchaudio 1707
        logits, *rest = batch()
        logits.requires_grad_()
        with torch.no_grad():
            peak = peak_of(lambda: ft.loss(logits, *rest), logits)
        assert peak <= LOGITS + 1024

    def test_the_backward_alone_makes_the_gradient_and_nothing_else(self):  # k2 1177
        logits, *rest = batch()
        logits.requires_grad_()
        cost = ft.loss(logits, *rest)
        assert peak_of(lambda: torch.autograd.grad(cost, logits)) <= LOGITS + 1024

    def test_nothing_outlives_the_graph(self):  # NeMo 16260
        logits, *rest = batch()
        logits.requires_grad_()
        alive = weakref.ref(logits)
        ft.loss(logits, *rest).backward()
        logits = None
        gc.collect()
        assert alive() is None


def test_joint_logits_are_never_made():
    torch.manual_seed(0)
    encoder, predictor = (
        torch.randn(B, T, 32, requires_grad=True),
        torch.randn(B, U + 1, 32, requires_grad=True),
    )
    layer = torch.nn.Linear(32, V)
    rest = batch()[1:]
    peak = peak_of(lambda: ft.joint_loss(encoder, predictor, layer.weight, layer.bias, *rest).backward())
    inputs = sum(x.numel() * 4 for x in (encoder, predictor, *layer.parameters()))
    assert peak <= inputs + 24 * NODES + 1024
    assert peak < LOGITS / 2


def test_a_tiled_joint_takes_one_tile():
    torch.manual_seed(0)
    frames, hidden = 48, 32
    encoder = torch.randn(B, frames, hidden, requires_grad=True)
    predictor = torch.randn(B, U + 1, hidden, requires_grad=True)
    layer = torch.nn.Linear(hidden, V)
    rest = torch.randint(0, V - 1, (B, U)), torch.tensor([frames, frames]), torch.tensor([U, U - 5])

    def joint(e, p):
        return layer(torch.tanh(e[:, :, None] * p[:, None]))

    def peak(tile_frames):
        parameters = list(layer.parameters())
        return peak_of(
            lambda: ft.torch.tiled_loss(
                joint, encoder, predictor, *rest, tile_frames=tile_frames, parameters=parameters
            ).backward()
        )

    nodes = B * frames * (U + 1)
    a_frame = B * (U + 1) * 4 * (2 * V + 4 * hidden)  # logits, hidden layers and the gradients of both
    # Arc weights, their gradient and what the lattice keeps: two arcs, 24 bytes.
    of_the_lattice = nodes * (2 * 8 + 2 * 8 + 24)
    assert peak(2) <= 2 * a_frame + of_the_lattice + 65536 < nodes * V * 4
    assert peak(frames) > nodes * V * 4
