# SPDX-License-Identifier: Apache-2.0
"""Says what is missing where PyTorch is; imported before all that needs it."""

try:
    import torch as torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "flash_transducer.torch needs PyTorch 2.4 or newer, which is not installed; pip install torch"
    ) from error
