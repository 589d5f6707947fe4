# SPDX-License-Identifier: Apache-2.0
"""The losses of other projects under their own names: changing the import is enough.

One module per project, each with that project's argument order, defaults, blank, reductions and shapes:
``torchaudio``, ``warp_transducer``, ``warp_rnnt``, ``k2``, ``fast_rnnt``, ``nemo``, ``espnet``. All take
PyTorch tensors. docs/migration.md shows the line before and the line after.

What holds for every module, whatever its peer does: labels and lengths may be int32 or int64, of any
strides, on the host or on the device; lengths may be smaller than their dimension; costs are float64 for
float64 input and float32 for any other, never half; an utterance without a path costs +inf and has gradient
0; a label that equals the blank counts for both arcs; a second backward pass is right.
"""
