# SPDX-License-Identifier: Apache-2.0
"""compat.torchaudio, compat.warp_rnnt and compat.espnet: clamps, log-probabilities, packed rows, FastEmit."""

import flash_transducer as ft
import pytest
from compat_batches import V, batch, of_numpy
from flash_transducer.compat import espnet, torchaudio, warp_rnnt, warp_transducer
from torch_batches import torch


def test_torchaudio_clamps_at_unit_scale_and_not_below_zero():
    given = batch()
    _, gradient = of_numpy(*given, variant=ft.rnnt())
    for clamp, expected in ((0.05, gradient.clamp(-0.05, 0.05)), (0.0, gradient), (-0.05, gradient)):
        value = torchaudio.rnnt_loss(*given, clamp=clamp, reduction="sum")
        torch.testing.assert_close(torch.autograd.grad(7 * value, given[0])[0], 7 * expected)


def test_torchaudio_takes_log_probabilities():
    logits, *rest = batch()
    log_probs = logits.detach().log_softmax(-1).requires_grad_()
    costs = torchaudio.rnnt_loss(log_probs, *rest, reduction="none", fused_log_softmax=False)
    torch.testing.assert_close(costs, torchaudio.rnnt_loss(logits, *rest, reduction="none"))
    _, posteriors = of_numpy(log_probs, *rest, variant=ft.rnnt(), from_log_probs=True)
    torch.testing.assert_close(torch.autograd.grad(costs.sum(), log_probs)[0], posteriors)


def log_prob_batch():
    logits, *rest = batch()
    return (logits.detach().log_softmax(-1).requires_grad_(), *rest)


def test_warp_rnnt_reduces_nothing_by_default():
    given = log_prob_batch()
    costs, gradient = of_numpy(*given, variant=ft.rnnt(0), from_log_probs=True)
    for reduction in ("none", None):
        torch.testing.assert_close(warp_rnnt.rnnt_loss(*given, reduction=reduction), costs)
    torch.testing.assert_close(warp_rnnt.rnnt_loss(*given), costs)
    torch.testing.assert_close(torch.autograd.grad(warp_rnnt.rnnt_loss(*given).sum(), given[0])[0], gradient)
    assert warp_rnnt.rnnt_loss(*given, reduction="mean").shape == ()


def test_warp_rnnt_averages_over_frames_before_it_reduces():
    given = log_prob_batch()
    costs = warp_rnnt.rnnt_loss(*given) / given[2]
    torch.testing.assert_close(warp_rnnt.rnnt_loss(*given, True), costs)
    torch.testing.assert_close(warp_rnnt.rnnt_loss(*given, True, "mean"), costs.mean())
    torch.testing.assert_close(warp_rnnt.rnnt_loss(*given, True, "sum"), costs.sum())


@pytest.mark.parametrize("fastemit", [0.0, 0.3])
def test_warp_rnnt_gathers_to_the_same(fastemit):
    given = log_prob_batch()
    options = {"blank": 5, "fastemit_lambda": fastemit}
    value, gathered = (warp_rnnt.rnnt_loss(*given, gather=gather, **options) for gather in (False, True))
    torch.testing.assert_close(value, gathered, rtol=0, atol=0)
    costs, gradient = of_numpy(*given, variant=ft.rnnt(5, fastemit=fastemit), from_log_probs=True)
    torch.testing.assert_close(value, costs)
    torch.testing.assert_close(torch.autograd.grad(gathered.sum(), given[0])[0], gradient)


def packed(padded, frames, labels):
    rows = [
        padded[b, :T, : U + 1].reshape(-1, V) for b, (T, U) in enumerate(zip(frames, labels, strict=True))
    ]
    return torch.cat(rows)


def test_warp_rnnt_compact_is_the_padded_loss():
    log_probs, targets, frames, labels = log_prob_batch()
    expected = warp_rnnt.rnnt_loss(log_probs, targets, frames, labels)
    (gradient,) = torch.autograd.grad(expected.sum(), log_probs)
    lengths = frames.tolist(), labels.tolist()
    rows = packed(log_probs.detach(), *lengths).requires_grad_()
    symbols = torch.cat([targets[b, :U] for b, U in enumerate(lengths[1])])
    costs = warp_rnnt.rnnt_loss(rows, symbols, frames, labels, compact=True)
    torch.testing.assert_close(costs, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(costs.sum(), rows)[0], packed(gradient, *lengths), rtol=0, atol=0
    )
    with pytest.raises(ValueError, match=rf"expected \[{len(rows)}, V\] because compact is True"):
        warp_rnnt.rnnt_loss(rows[1:], symbols, frames, labels, compact=True)
    with pytest.raises(ValueError, match=r"labels has shape \[3\], expected \[4\]"):
        warp_rnnt.rnnt_loss(rows, symbols[1:], frames, labels, compact=True)


def test_warp_rnnt_compact_without_labels():
    rows = torch.randn(7, V, dtype=torch.float64).log_softmax(-1)
    none = torch.zeros(0, dtype=torch.int32)
    costs = warp_rnnt.rnnt_loss(rows, none, torch.tensor([3, 4]), torch.tensor([0, 0]), compact=True)
    torch.testing.assert_close(costs, torch.stack([-rows[:3, 0].sum(), -rows[3:, 0].sum()]))


def test_espnet_reports_the_plain_cost_and_weights_the_gradient():
    given = batch()
    value = espnet.RNNTLoss(blank=0, fastemit_lambda=0.5, reduction="sum")(*given)
    costs, gradient = of_numpy(*given, variant=ft.rnnt(0, fastemit=0.5))
    torch.testing.assert_close(value, costs.sum().reshape(1))
    torch.testing.assert_close(torch.autograd.grad(value, given[0])[0], gradient)
    torch.testing.assert_close(value, warp_transducer.RNNTLoss(reduction="sum")(*given))
