# SPDX-License-Identifier: Apache-2.0
"""Exact, fast and readable losses for transducer (RNN-T family) speech models.

>>> import flash_transducer as ft
>>> ft.tdt([0, 1, 2])
ft.tdt([0, 1, 2])
"""

import importlib
from typing import Any

from flash_transducer import _named, masks
from flash_transducer._api import (
    lattice_loss,
    loss,
    plan,
    scores,
    skipped_mass,
    value_and_grad,
)
from flash_transducer._core import NotBuilt, Unsupported, __version__, backends
from flash_transducer._joint import (
    JointGradients,
    joint_align,
    joint_lattice,
    joint_loss,
    joint_scores,
    joint_value_and_grad,
)
from flash_transducer._lattice import align, lattice
from flash_transducer._named import *  # noqa: F403  the list of named variants decides
from flash_transducer.arcs import Arc, Column, Group, V, log_v1
from flash_transducer.checking import CheckFailed, check
from flash_transducer.inspection import Alignment, Lattice
from flash_transducer.memory_plan import Plan
from flash_transducer.variants import Variant

__all__ = [
    "Alignment",
    "Arc",
    "CheckFailed",
    "Column",
    "Group",
    "JointGradients",
    "Lattice",
    "NotBuilt",
    "Plan",
    "Unsupported",
    "V",
    "Variant",
    "__version__",
    "align",
    "backends",
    "check",
    "joint_align",
    "joint_lattice",
    "joint_loss",
    "joint_scores",
    "joint_value_and_grad",
    "lattice",
    "lattice_loss",
    "log_v1",
    "loss",
    "masks",
    "plan",
    "scores",
    "skipped_mass",
    "value_and_grad",
]
__all__ += _named.__all__


def __getattr__(name: str) -> Any:
    """Import ``ft.torch`` where it is first used: PyTorch is optional, and slow to import."""
    if name != "torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("flash_transducer.torch")
