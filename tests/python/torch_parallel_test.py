# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel on two ranks with gloo: the gradients of the whole batch."""

import subprocess
import sys

from torch_batches import torch

PROGRAM = """
import os, sys
import torch, flash_transducer as ft
from torch.nn.parallel import DistributedDataParallel

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(3, 4)
        self.predictor = torch.nn.Embedding(6, 4)
        self.output = torch.nn.Linear(4, 6)

    def forward(self, x, targets, frames, labels):
        shifted = torch.nn.functional.pad(targets, (1, 0), value=5)
        return ft.joint_loss(self.encoder(x), self.predictor(shifted), self.output.weight, self.output.bias,
                             targets, frames, labels, activation="tanh", reduction="sum", backend="reference")

def batch():
    torch.manual_seed(1)
    lengths = torch.tensor([6, 5, 4, 6]), torch.tensor([2, 1, 0, 2])
    return torch.randn(4, 6, 3, dtype=torch.float64), torch.randint(0, 5, (4, 2)), *lengths

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = Model().double()
whole = Model().double()
whole.load_state_dict(model.state_dict())
parallel = DistributedDataParallel(model)
for step in range(2):  # twice: buckets are built anew after the first
    parallel.zero_grad()
    whole.zero_grad()
    parallel(*[part[rank::2] for part in batch()]).backward()
    whole(*batch()).backward()
    for one, other in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(2.0 * one.grad, other.grad, rtol=1e-12, atol=1e-12)  # DDP takes the mean
torch.distributed.destroy_process_group()
print("equal on rank", rank)
"""


def test_two_ranks_have_the_gradient_of_the_whole_batch(tmp_path):
    assert torch.distributed.is_gloo_available()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "rendezvous")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(ranks):
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
            assert f"equal on rank {rank}" in output
    finally:
        for process in ranks:
            process.kill()
