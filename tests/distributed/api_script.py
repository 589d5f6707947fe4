# SPDX-License-Identifier: Apache-2.0
"""What each rank of a world asserts of flash_transducer.distributed; prints one line if all of it holds."""

import sys

import flash_transducer as ft
import flash_transducer.distributed as ftd
import numpy as np

random = np.random.default_rng(5)
B, T, U, K, H = 9, 8, 4, 11, 6
logits = random.normal(size=(B, T, U + 1, K))
targets = random.integers(0, K - 1, (B, U))
frames, labels = random.integers(3, T + 1, B), random.integers(0, U + 1, B)

group = None
if "mpi4py" in sys.argv:
    from mpi4py import MPI

    group = MPI.COMM_WORLD
if "torch" in sys.argv:
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    group = torch.distributed.group.WORLD
ranks = ftd.group_of(group)
owned = ftd.shard(frames, labels, ranks.size)[ranks.rank]
part = (logits[owned], targets[owned], frames[owned], labels[owned])
common = {"group": group, "utterances": owned}

for reduction in ("none", "sum", "mean", "mean_target", "mean_frame"):
    value, gradient = ftd.value_and_grad(*part, reduction=reduction, **common)
    want, want_gradient = ft.value_and_grad(logits, targets, frames, labels, reduction=reduction)
    np.testing.assert_array_equal(value, want[owned] if reduction == "none" else want)
    np.testing.assert_array_equal(gradient, want_gradient[owned])
    assert ftd.loss(*part, reduction="sum", **common) == ft.loss(
        logits, targets, frames, labels, reduction="sum"
    )

encoder, predictor = random.normal(size=(B, T, H)), random.normal(size=(B, U + 1, H))
weight, bias = random.normal(size=(K, H)), random.normal(size=K)
joint = (encoder[owned], predictor[owned], weight, bias, *part[1:])
whole = (encoder, predictor, weight, bias, targets, frames, labels)
for dropout in (0.0, 0.25):
    options = {"dropout": dropout, "seed": 3}
    want, want_gradients = ft.joint_value_and_grad(*whole, **options)
    alone = ftd.joint_value_and_grad(*whole, group=ftd.Alone(), reproducible=True, **options)[1]
    for reproducible in (False, True):
        value, gradients = ftd.joint_value_and_grad(*joint, reproducible=reproducible, **common, **options)
        assert value == want
        np.testing.assert_array_equal(gradients.encoder, want_gradients.encoder[owned])
        np.testing.assert_allclose(gradients.weight, want_gradients.weight, rtol=0, atol=1e-14)
        np.testing.assert_allclose(gradients.bias, want_gradients.bias, rtol=0, atol=1e-14)
        if reproducible:
            np.testing.assert_array_equal(gradients.weight, alone.weight)
            np.testing.assert_array_equal(gradients.bias, alone.bias)

# A part that is not legal is heard of everywhere: found by the compiled library, and before it.
last = ranks.size - 1
for bad in (logits[owned][0], "no array"):
    try:
        ftd.loss(bad if ranks.rank == last else part[0], *part[1:], **common)
    except (ValueError, TypeError) as error:
        assert ranks.rank == last or f"rank {last}: " in str(error), error
    else:
        raise AssertionError("nothing was raised")
print(f"rank {ranks.rank} of {ranks.size} is right")
