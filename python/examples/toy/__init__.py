# SPDX-License-Identifier: Apache-2.0
"""Parts of the training example: made-up speech, a small model, greedy decoding, reports."""
