# SPDX-License-Identifier: Apache-2.0
"""Where the functions of the API hand over to ``flash_transducer.torch``: when the source is a tensor."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def is_tensor(value: Any) -> bool:
    """Whether it is a torch.Tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def takes_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """Let the function of the same name in ``flash_transducer.torch`` answer for tensors."""
    name = function.__name__
    first = function.__code__.co_varnames[0]

    @functools.wraps(function)
    def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
        if "blank" in kwargs:  # a keyword of most other losses
            blank = kwargs["blank"]
            raise TypeError(f"ft.{name}: blank is an argument of the variant, as in ft.rnnt(blank={blank!r})")
        if is_tensor(args[0] if args else kwargs.get(first)):
            from flash_transducer import torch

            result: R = getattr(torch, name)(*args, **kwargs)
            return result
        return function(*args, **kwargs)

    return dispatch
