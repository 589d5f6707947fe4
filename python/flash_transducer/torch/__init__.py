# SPDX-License-Identifier: Apache-2.0
"""The functions of flash_transducer on PyTorch tensors, with autograd.

``ft.loss(tensor, ...)`` and the others come here by themselves; modules and :func:`tiled_loss` live here.
Needs PyTorch 2.4 or newer, any build of it.
"""

# isort: off
from flash_transducer.torch._require import torch as _torch  # noqa: F401  first: says what is missing
from flash_transducer.torch import _operators as _operators  # registers them

# isort: on
from flash_transducer.torch._dense import (
    align,
    lattice,
    lattice_loss,
    loss,
    scores,
    skipped_mass,
    value_and_grad,
)
from flash_transducer.torch._joint import (
    joint_align,
    joint_lattice,
    joint_loss,
    joint_scores,
    joint_value_and_grad,
)
from flash_transducer.torch._modules import JointTransducerLoss, TransducerLoss
from flash_transducer.torch._tiled import tiled_loss

__all__ = [
    "JointTransducerLoss",
    "TransducerLoss",
    "align",
    "joint_align",
    "joint_lattice",
    "joint_loss",
    "joint_scores",
    "joint_value_and_grad",
    "lattice",
    "lattice_loss",
    "loss",
    "scores",
    "skipped_mass",
    "tiled_loss",
    "value_and_grad",
]
