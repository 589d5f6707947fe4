# SPDX-License-Identifier: Apache-2.0
"""fast_rnnt's ``rnnt_loss`` and ``rnnt_loss_simple``: those of k2, from which the project was split off.

Signatures from k2-fsa/fast_rnnt, fast_rnnt/python/fast_rnnt/rnnt_loss.py (83e4637). Unlike the peer:
utterances without labels, and with more labels than frames in "regular", are taken. The rest, and what waits
for a later release, as ``compat.k2`` says.
"""

from __future__ import annotations

from flash_transducer.compat.k2 import (
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
)

__all__ = [
    "do_rnnt_pruning",
    "get_rnnt_prune_ranges",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
]
