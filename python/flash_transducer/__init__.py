# SPDX-License-Identifier: Apache-2.0
"""Exact, fast and readable losses for transducer (RNN-T family) speech models."""

from flash_transducer._core import __version__

__all__ = ["__version__"]
