# SPDX-License-Identifier: Apache-2.0
"""Every vector of tests/data/peer_vectors through the drop-in module of the project it came from.

Each is called as its project is called: its label types, blank, scale of costs, order of clamping. What came
from a project without a module goes through the loss of tensors; what waits for a later release is skipped
by name.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from flash_transducer import torch as ft_torch
from flash_transducer.compat import (
    fast_rnnt,
    k2,
    nemo,
    torchaudio,
    warp_rnnt,
    warp_transducer,
)
from peer_vectors_test import SKIPPED as NOT_YET
from peer_vectors_test import cost_error, floats, make_case, names
from torch_batches import torch

FOLDER = Path(__file__).parent.parent / "data" / "peer_vectors"

SKIPPED = {
    **NOT_YET,
    "fast_rnnt_pruned_modified": "rnnt_loss_pruned is not built yet",
    "fast_rnnt_pruned_regular": "rnnt_loss_pruned is not built yet",
    "k2_hat_blank0": "rnnt_loss_pruned is not built yet",
    "nemo_clamp_upstream_quarter_cpu": "NeMo's CPU code clamps after the incoming gradient, its CUDA before",
}
# Parts of a project that none of its modules here has, and projects without one.
BY_LOSS = (
    *("monotonic_", "optimized_transducer_", "speechbrain_", "uol_", "warp_rna_"),
    *("nemo_w_transducer_", "torchaudio_ar_"),
)


def tensor(values, shape):
    return torch.from_numpy(floats(values, shape))


def lengths(vector, dtype):
    """Targets and both lengths as a peer's integers."""
    shape = vector["shape"]["B"], vector["shape"]["U"]
    return (
        torch.tensor(vector["targets"], dtype=dtype).reshape(shape),
        torch.tensor(vector["logit_lengths"], dtype=dtype),
        torch.tensor(vector["target_lengths"], dtype=dtype),
    )


def by_torchaudio(vector, logits):
    return torchaudio.rnnt_loss(logits, *lengths(vector, torch.int32), vector["blank"], reduction="none")


def by_warp_transducer(vector, logits):
    module = warp_transducer.RNNTLoss(blank=vector["blank"], reduction="none")
    return module(logits, *lengths(vector, torch.int32))


def by_warp_rnnt(vector, log_probs):
    return warp_rnnt.rnnt_loss(log_probs, *lengths(vector, torch.int32), blank=vector["blank"])


def boundary(vector):
    pairs = zip(vector["target_lengths"], vector["logit_lengths"], strict=True)
    return torch.tensor([[0, 0, symbols, frames] for symbols, frames in pairs])


def by_k2(module):
    def call(vector, logits):
        params = vector["params"]
        return module.rnnt_loss(
            logits,
            lengths(vector, torch.int64)[0],
            vector["blank"],
            boundary(vector),
            params["rnnt_type"],
            params.get("delay_penalty", 0.0),
            reduction="none",
        )

    return call


def by_nemo(vector, acts):
    params = vector["params"]
    options = {
        "fastemit_lambda": params.get("fastemit_lambda", 0.0),
        "clamp": params.get("clamp", -1),
        "reduction": None,
    }
    if "big_blank_durations" in params:
        durations, sigma = params["big_blank_durations"], params["sigma"]
        module = nemo.MultiblankRNNTLossNumba(vector["blank"], durations, sigma=sigma, **options)
    elif "durations" in params:
        sampled = {"sigma": params["sigma"], "omega": params["omega"]}
        module = nemo.TDTLossNumba(vector["blank"], params["durations"], **sampled, **options)
    else:
        module = nemo.RNNTLossNumba(vector["blank"], **options)
    return module(acts, *lengths(vector, torch.int64))


CALLS = {
    "edge": [by_warp_transducer],  # recorded from warp-transducer
    "fast_rnnt": [by_k2(fast_rnnt), by_k2(k2)],
    "nemo": [by_nemo],
    "torchaudio": [by_torchaudio],
    "warp_rnnt": [by_warp_rnnt],
    "warp_transducer": [by_warp_transducer],
}


def calls(name):
    return next(calls for start, calls in CALLS.items() if name.startswith(f"{start}_"))


def inputs(name, vector):
    """What the peer is given, and the gradient it must return, or None."""
    shape = vector["shape"]
    nodes = shape["B"], shape["T"], shape["U"] + 1
    given = tensor(vector["logits"], (*nodes, shape["V"]))
    gradient = vector["expected_grad"]
    expected = None if gradient is None else tensor(gradient, given.shape)
    if "duration_logits" in vector:
        heads = (*nodes, len(vector["params"]["durations"]))
        given = torch.cat([given, tensor(vector["duration_logits"], heads)], dim=-1)
        expected = torch.cat([expected, tensor(vector["expected_duration_grad"], heads)], dim=-1)
    if name.startswith("warp_rnnt_"):
        given = given.log_softmax(-1)
    elif vector["expected_grad_wrt"] == "log_probs":  # the peer's C++ has it, its Python that of logits
        leaf = given.clone().requires_grad_()
        (expected,) = torch.autograd.grad(leaf.log_softmax(-1), leaf, expected)
    return given.requires_grad_(), expected


def check(vector, costs, given, expected):
    assert costs.dtype == torch.float64
    expected_costs = floats(vector["expected_costs"], len(costs))
    assert cost_error(costs.detach().numpy(), expected_costs).max() <= vector["tolerance"]
    upstream = torch.tensor(vector["params"].get("upstream_grad", [1.0]), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(costs, given, upstream.expand(len(costs)))
    infeasible = costs.isinf()
    assert not gradient[infeasible].any()
    if expected is not None:
        assert (gradient - expected).abs().max() <= vector["tolerance"]


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith(BY_LOSS)])
def test_vector_by_its_own_project(name):
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    vector = read(name)
    for call in calls(name):
        given, expected = inputs(name, vector)
        check(vector, call(vector, given), given, expected)


def tensors(options):
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}


@pytest.mark.parametrize("name", [name for name in names() if name.startswith(BY_LOSS)])
def test_vector_by_the_loss_of_tensors(name):
    case, vector = make_case(name), read(name)
    given = torch.from_numpy(case.logits).requires_grad_()
    options = tensors(case.options)
    if vector["params"].get("last_blank_mode") == "force_final":
        options["final_scores"] = with_last_blank(options["final_scores"], given, vector)
    batch = torch.from_numpy(case.targets), torch.tensor(case.frames), torch.tensor(case.labels)
    costs = ft_torch.loss(given, *batch, case.variant, reduction="none", **options)
    (gradient,) = torch.autograd.grad(costs.sum(), given)
    scaled = costs.detach().numpy() * case.cost_scale
    assert cost_error(scaled, case.expected_costs).max() <= case.tolerance
    if case.expected_gradient is not None:
        assert np.abs(gradient.numpy() - case.expected_gradient).max() <= case.tolerance


def with_last_blank(final, logits, vector):
    """NeMo's default end: a jump lands on the last frame, and that frame's blank ends the path."""
    scores = logits.log_softmax(-1)[..., vector["blank"]]
    rows = []
    for b, (T, U) in enumerate(zip(vector["logit_lengths"], vector["target_lengths"], strict=True)):
        rows.append(final[b] + scores[b, T - 1, U] * (torch.arange(final.shape[1]) < T))
    return torch.stack(rows)


def test_every_vector_is_run_or_skipped_by_name():
    assert set(SKIPPED) <= set(names())
    for name in set(names()) - set(SKIPPED):
        assert name.startswith(BY_LOSS) or calls(name)


def test_the_simple_loss_gives_the_vector_of_its_sum():
    vector = read("fast_rnnt_basic_regular")
    shape = vector["shape"]
    am = tensor(vector["am"], (1, shape["T"], shape["V"])).requires_grad_()
    lm = tensor(vector["lm"], (1, shape["U"] + 1, shape["V"])).requires_grad_()
    symbols = lengths(vector, torch.int64)[0]
    expected = inputs("fast_rnnt_basic_regular", vector)[1]
    for module in (k2, fast_rnnt):
        costs = module.rnnt_loss_simple(lm, am, symbols, vector["blank"], reduction="none")
        gradients = torch.autograd.grad(costs.sum(), (am, lm))
        assert cost_error(costs.detach().numpy(), np.array(vector["expected_costs"])).max() <= 1e-9
        assert (gradients[0] - expected.sum(2)).abs().max() <= 1e-9
        assert (gradients[1] - expected.sum(1)).abs().max() <= 1e-9
