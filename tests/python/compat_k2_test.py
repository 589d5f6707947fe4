# SPDX-License-Identifier: Apache-2.0
"""compat.k2 and compat.fast_rnnt against the recursion that k2 documents, written out here on single numbers.

p[s_begin, t_begin] = 0; a label leads to (s + 1, t) ("modified": to (s + 1, t + 1)), a blank to (s, t + 1);
the score is p[s_end, t_end], and on frame t_end there is no label.
"""

import inspect
import math

import pytest
from flash_transducer.compat import fast_rnnt, k2
from torch_batches import torch

TYPES = ("regular", "modified")
WHOLE = [[0, 0, 3, 6], [0, 0, 2, 5]]
BOXES = {
    "whole": WHOLE,
    "late frames": [[0, 2, 3, 6], [0, 1, 2, 5]],
    "late symbols": [[1, 0, 3, 6], [2, 0, 2, 4]],
    "inner": [[1, 1, 3, 6], [0, 2, 1, 4]],
}


def documented_score(px, py, box, *, modified):
    """The recursion of one utterance; px [S, T], py [S + 1, T]."""
    s_begin, t_begin, s_end, t_end = box
    p = {(s_begin, t_begin): px.new_zeros(())}
    for t in range(t_begin, t_end + 1):
        for s in range(s_begin, s_end + 1):
            ways = []
            if (s, t - 1) in p:
                ways.append(p[s, t - 1] + py[s, t - 1])
            before = (s - 1, t - 1) if modified else (s - 1, t)
            if before in p and before[1] < t_end:
                ways.append(p[before] + px[before])
            if ways:
                p[s, t] = torch.logsumexp(torch.stack(ways), 0)
    return p.get((s_end, t_end), px.new_tensor(-math.inf))


def documented_costs(logits, symbols, blank, boxes, rnnt_type, delay_penalty=0.0):
    """Costs [B], and px [B, S, T] and py [B, S + 1, T] to differentiate by."""
    log_probs = logits.log_softmax(-1)
    S = symbols.shape[1]
    px = log_probs[:, :, :S].gather(3, symbols[:, None, :, None].expand(-1, logits.shape[1], -1, 1))
    px = px.squeeze(3).transpose(1, 2)
    py = log_probs[..., blank].transpose(1, 2)
    t = torch.arange(logits.shape[1])
    middle = torch.tensor([(box[3] - 1) / 2 for box in boxes], dtype=px.dtype)
    weighted = px + delay_penalty * (middle[:, None, None] - t)
    modified = rnnt_type == "modified"
    rows = zip(weighted, py, boxes, strict=True)
    return torch.stack([-documented_score(*row, modified=modified) for row in rows]), px, py


def batch(dtype=torch.float64, *, seed=0, T=6, S=3, C=5):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, T, S + 1, C, generator=generator, dtype=torch.float64).to(dtype)
    return logits.requires_grad_(), torch.randint(0, C - 1, (2, S), generator=generator)


def simple_batch(**options):
    logits, symbols = batch(**options)
    logits = logits.detach()
    return logits[:, 0].clone().requires_grad_(), logits[:, :, 0].clone().requires_grad_(), symbols


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("boxes", BOXES.values(), ids=BOXES)
@pytest.mark.parametrize("delay_penalty", [0.0, 0.3])
def test_rnnt_loss_is_the_documented_recursion(rnnt_type, boxes, delay_penalty):
    logits, symbols = batch()
    expected, _, _ = documented_costs(logits, symbols, 4, boxes, rnnt_type, delay_penalty)
    costs = k2.rnnt_loss(logits, symbols, 4, torch.tensor(boxes), rnnt_type, delay_penalty, "none")
    torch.testing.assert_close(costs, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.tensor([2.0, -0.5], dtype=torch.float64)
    found = torch.autograd.grad(costs, logits, upstream)
    torch.testing.assert_close(found, torch.autograd.grad(expected, logits, upstream), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("boxes", BOXES.values(), ids=BOXES)
@pytest.mark.parametrize("delay_penalty", [0.0, 0.3])
def test_simple_loss_is_the_documented_recursion(rnnt_type, boxes, delay_penalty):
    lm, am, symbols = simple_batch()
    logits = am[:, :, None] + lm[:, None]
    expected, px, py = documented_costs(logits, symbols, 4, boxes, rnnt_type, delay_penalty)
    costs, (px_grad, py_grad) = k2.rnnt_loss_simple(
        lm, am, symbols, 4, torch.tensor(boxes), rnnt_type, delay_penalty, "none", True
    )
    torch.testing.assert_close(costs, expected, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(costs.sum(), (am, lm))
    wanted = torch.autograd.grad(expected.sum(), (am, lm), retain_graph=True)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    labels, blanks = torch.autograd.grad(-expected.sum(), (px, py))
    assert px_grad.shape == (2, 3, 7 if rnnt_type == "regular" else 6)
    torch.testing.assert_close(px_grad[:, :, :6], labels, rtol=1e-11, atol=1e-11)
    assert not px_grad[:, :, 6:].any()
    torch.testing.assert_close(py_grad, blanks, rtol=1e-11, atol=1e-11)


def test_simple_loss_is_the_loss_of_the_sum():
    lm, am, symbols = simple_batch(T=9, S=4, C=7)
    whole = k2.rnnt_loss((am[:, :, None] + lm[:, None]).detach(), symbols, 0, reduction="none")
    torch.testing.assert_close(
        k2.rnnt_loss_simple(lm, am, symbols, 0, reduction="none"), whole, rtol=1e-12, atol=1e-12
    )


def test_simple_loss_where_a_product_of_exponentials_underflows():
    """The parts peak 400 nats apart: exp(am - max) exp(lm - max) is 0 in float32 at every symbol."""
    lm, am, symbols = simple_batch(dtype=torch.float32)
    with torch.no_grad():
        am[..., 0] += 200.0
        lm[..., 1] += 200.0
    exact = k2.rnnt_loss(am[:, :, None].double() + lm[:, None].double(), symbols, 4, reduction="none")
    costs = k2.rnnt_loss_simple(lm, am, symbols, 4, reduction="none")
    assert exact.isfinite().all()
    torch.testing.assert_close(costs.double(), exact, rtol=1e-6, atol=0)


def test_simple_loss_without_a_graph():
    lm, am, symbols = simple_batch()
    expected, posteriors = k2.rnnt_loss_simple(lm, am, symbols, 4, return_grad=True)
    with torch.no_grad():
        value, again = k2.rnnt_loss_simple(lm, am, symbols, 4, return_grad=True)
    assert not value.requires_grad
    assert not any(posterior.requires_grad for posterior in (*posteriors, *again))
    torch.testing.assert_close((value, again), (expected.detach(), posteriors), rtol=0, atol=0)


def test_slabs_do_not_change_the_simple_loss(monkeypatch):
    lm, am, symbols = simple_batch(T=7)
    whole = k2.rnnt_loss_simple(lm, am, symbols, 4, reduction="none")
    wanted = torch.autograd.grad(whole.sum(), (am, lm))
    monkeypatch.setattr("flash_transducer.compat._box._SLAB", 2 * 4 * 5 * 3)  # 3 frames at a time
    costs = k2.rnnt_loss_simple(lm, am, symbols, 4, reduction="none")
    torch.testing.assert_close(costs, whole, rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(costs.sum(), (am, lm)), wanted, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("simple", [False, True])
def test_padding_may_hold_anything(simple):
    boxes = torch.tensor(WHOLE)
    if simple:
        lm, am, symbols = simple_batch()
        given = (am, lm)
        with torch.no_grad():
            am[1, 5:], lm[1, 3:], symbols[1, 2:] = math.nan, math.nan, -1
        costs = k2.rnnt_loss_simple(lm, am, symbols, 4, boxes, reduction="none")
        padding = [(am, (1, slice(5, None))), (lm, (1, slice(3, None)))]
    else:
        logits, symbols = batch()
        given = (logits,)
        with torch.no_grad():
            logits[1, 5:], logits[1, :, 3:], symbols[1, 2:] = math.nan, math.nan, -1
        costs = k2.rnnt_loss(logits, symbols, 4, boxes, reduction="none")
        padding = [(logits, (1, slice(5, None))), (logits, (1, slice(None), slice(3, None)))]
    gradients = dict(zip(given, torch.autograd.grad(costs.sum(), given), strict=True))
    assert costs.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert not any(gradients[tensor][where].any() for tensor, where in padding)


@pytest.mark.parametrize("module", [k2, fast_rnnt])
def test_reductions_types_and_shapes(module):
    logits, symbols = batch(torch.float32)
    costs = module.rnnt_loss(logits, symbols, 0, reduction="none")
    assert costs.shape == (2,)
    assert costs.dtype == torch.float32
    assert module.rnnt_loss(logits, symbols, 0).shape == ()
    torch.testing.assert_close(module.rnnt_loss(logits, symbols, 0), costs.mean())
    torch.testing.assert_close(module.rnnt_loss(logits, symbols, 0, reduction="sum"), costs.sum())
    lm, am, symbols = simple_batch(dtype=torch.bfloat16)
    value = module.rnnt_loss_simple(lm, am, symbols, 0)
    value.backward()
    assert (value.shape, value.dtype) == ((), torch.float32)
    assert lm.grad.dtype == am.grad.dtype == torch.bfloat16


def test_a_begin_that_is_not_zero_is_the_same_as_a_slice():
    logits, symbols = batch()
    box = torch.tensor([[1, 2, 3, 6]] * 2)
    inner = k2.rnnt_loss(logits[:, 2:, 1:], symbols[:, 1:], 0, reduction="none")
    torch.testing.assert_close(k2.rnnt_loss(logits, symbols, 0, box, reduction="none"), inner)


def test_no_labels_and_no_path():
    logits, symbols = batch()
    boxes = torch.tensor([[0, 0, 0, 6], [0, 0, 3, 2]])
    costs = k2.rnnt_loss(logits, symbols, 0, boxes, "modified", reduction="none")
    blanks = -logits.log_softmax(-1)[0, :, 0, 0].sum()
    torch.testing.assert_close(costs[0], blanks)
    assert costs[1] == math.inf
    (gradient,) = torch.autograd.grad(costs.sum(), logits)
    assert gradient[0].any()
    assert not gradient[1].any()
    assert k2.rnnt_loss(logits, symbols, 0, boxes).isfinite()  # more labels than frames: "regular" has a path


@pytest.mark.parametrize("module", [k2, fast_rnnt])
@pytest.mark.parametrize(
    "name", ["rnnt_loss_smoothed", "rnnt_loss_pruned", "get_rnnt_prune_ranges", "do_rnnt_pruning"]
)
def test_what_waits_says_so(module, name):
    with pytest.raises(NotImplementedError, match=name):
        getattr(module, name)(logits=None, boundary=None)


@pytest.mark.parametrize("function", ["rnnt_loss", "rnnt_loss_simple"])
def test_constrained_waits(function):
    given = batch() if function == "rnnt_loss" else simple_batch()
    with pytest.raises(NotImplementedError, match=f"{function}: rnnt_type 'constrained'"):
        getattr(k2, function)(*given, 0, rnnt_type="constrained")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rnnt_type": "Regular"}, "rnnt_type is 'Regular', expected 'regular' or 'modified'"),
        ({"reduction": "average"}, "reduction is 'average', expected 'none', 'mean' or 'sum'"),
        ({"delay_penalty": -0.1}, "delay_penalty is -0.1, expected 0 or more"),
        (
            {"boundary": torch.zeros(2, 3, dtype=torch.int64)},
            r"boundary has shape \[2, 3\], expected \[2, 4\]",
        ),
        ({"boundary": torch.zeros(2, 4)}, "boundary has dtype torch.float32, expected int64"),
        ({"boundary": torch.tensor([[0, 0, 3, 6], [0, 0, 4, 6]])}, "boundary of utterance 1 is"),
        ({"boundary": torch.tensor([[0, 4, 3, 3], [0, 0, 3, 6]])}, "boundary of utterance 0 is"),
        ({"termination_symbol": 5}, "5"),
    ],
)
@pytest.mark.parametrize("function", ["rnnt_loss", "rnnt_loss_simple"])
def test_wrong_arguments(function, options, words):
    given = batch() if function == "rnnt_loss" else simple_batch()
    with pytest.raises(ValueError, match=words):
        getattr(k2, function)(*given, **{"termination_symbol": 0, **options})


def test_wrong_shapes_and_symbols():
    lm, am, symbols = simple_batch()
    with pytest.raises(ValueError, match=r"symbols has shape \[2, 2\], expected \[2, 3\]"):
        k2.rnnt_loss_simple(lm, am, symbols[:, 1:], 0)
    with pytest.raises(ValueError, match=r"lm has shape \[2, 4, 4\] and am \[2, 6, 5\]"):
        k2.rnnt_loss_simple(lm[..., 1:], am, symbols, 0)
    with pytest.raises(ValueError, match=r"logits has shape \[2, 6, 5\]"):
        k2.rnnt_loss(am, symbols, 0)
    symbols[1, 2] = 5
    with pytest.raises(ValueError, match=r"symbols\[1, 2\] is 5, expected 0 to 4"):
        k2.rnnt_loss_simple(lm, am, symbols, 0)


def test_the_order_of_arguments_is_the_peers():
    loss = ["logits", "symbols", "termination_symbol", "boundary", "rnnt_type", "delay_penalty", "reduction"]
    assert list(inspect.signature(k2.rnnt_loss).parameters) == loss
    simple = ["lm", "am", *loss[1:], "return_grad"]
    assert list(inspect.signature(k2.rnnt_loss_simple).parameters) == simple
