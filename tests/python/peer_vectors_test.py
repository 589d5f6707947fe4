# SPDX-License-Identifier: Apache-2.0
"""Costs and gradients of other projects, recorded in tests/data/peer_vectors, each file with its source.

In float64 every vector holds within the tolerance it states: costs relative to max(1, |cost|), gradients
absolute. In the smaller types the expectation is the float64 result on the rounded inputs, rounded once:
bit for bit by the reference, within 2e-5 by the cpu backend.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import flash_transducer as ft
import ml_dtypes
import numpy as np
import pytest
from batches import assert_rounded_once

pytestmark = pytest.mark.usefixtures("backend")

FOLDER = Path(__file__).parent.parent / "data" / "peer_vectors"

SKIPPED = {
    "fast_rnnt_basic_constrained": "the constrained lattice is not built yet",
    "fast_rnnt_ragged_constrained_delay0": "the constrained lattice is not built yet",
    "fast_rnnt_smoothed_am0p333": "the smoothed loss is not built yet",
    "fast_rnnt_smoothed_lm0p1_am0p2_ragged": "the smoothed loss is not built yet",
    "last_hat_normalize": "a normaliser alone, without a lattice",
    "nemo_clamp_upstream_quarter_cpu": "clamps after the incoming gradient, this library before it",
}

SMALL_TYPES = [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def names():
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def floats(values, shape):
    return np.array([float(value) for value in values]).reshape(shape)


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass
class Case:
    """A vector as a call of ours: inputs, how the peer's numbers follow from ours, and the numbers."""

    variant: ft.Variant
    logits: np.ndarray
    targets: np.ndarray
    frames: list
    labels: list
    expected_costs: np.ndarray
    tolerance: float
    expected_gradient: np.ndarray | None = None
    options: dict = field(default_factory=dict)
    cost_scale: np.ndarray | float = 1.0
    gradient_scale: float = 1.0
    compared: np.ndarray | None = None  # entries of the gradient that the vector holds; the others are 0

    def __call__(self, logits):
        batch = logits, self.targets, self.frames, self.labels, self.variant
        costs, gradient = ft.value_and_grad(*batch, reduction="none", **self.options)
        return costs, gradient


def knobs(params):
    return {
        "fastemit": params.get("fastemit_lambda", 0.0),
        "sigma": params.get("sigma", 0.0),
        "delay_penalty": params.get("delay_penalty", 0.0),
    }


def make_variant(vector):
    blank, params = vector["blank"], vector["params"]
    kind = vector["variant"]
    if kind in ("rnnt", "rnnt_pruned", "alignment_restricted", "w_transducer"):
        return ft.rnnt(blank, **knobs(params))
    if kind in ("monotonic", "modified", "modified_pruned", "monotonic_align_restrict"):
        return ft.monotonic(blank, **knobs(params))
    if kind == "modified_final_blank":
        return ft.monotonic(blank, final_label=False)
    if kind == "multiblank":
        ids = [blank - 1 - i for i in range(len(params["big_blank_durations"]))]
        assert params["big_blank_ids"] == ids
        return ft.multi_blank(params["big_blank_durations"], blank, **knobs(params))
    if kind == "tdt":  # the omega branch is the regular transducer on the label head, without sigma
        return ft.rnnt(blank) if params["omega"] else ft.tdt(params["durations"], blank, **knobs(params))
    if kind == "hat":
        return ft.hat(blank)
    if kind == "bypass_transducer":
        return ft.bypass(params["skip_token_penalty"], blank, mode=params["skip_token_mode"])
    if kind == "target_robust_transducer":
        penalties = params["skip_frame_penalty"], params["skip_token_penalty"]
        return ft.target_robust(*penalties, blank, mode=params["skip_token_mode"])
    raise AssertionError(f"variant {kind!r} is neither run nor in the list of skipped vectors")


def align_restrict_band(vector):
    """After t frames, u lies between what the alignment has emitted `shift` frames before and after."""
    shift, frames = vector["params"]["max_shift"], vector["shape"]["T"]
    band = np.zeros((vector["shape"]["B"], frames, 2), np.int64)
    for b, alignment in enumerate(vector["params"]["alignment"]):
        emitted = np.cumsum([0] + [label != vector["blank"] for label in alignment])
        for t in range(frames):
            band[b, t] = emitted[max(t - shift, 0)], emitted[min(t + shift, frames)]
    return band


def dense_from_pruned(vector, pruned):
    """Logits with NaN outside the band, the band, and which nodes are inside."""
    shape = vector["shape"]
    ranges = np.array(vector["ranges"])
    dense = np.full((shape["B"], shape["T"], shape["U"] + 1, shape["V"]), np.nan)
    inside = np.zeros(dense.shape[:3], bool)
    b, t = np.ix_(range(shape["B"]), range(shape["T"]))
    dense[b[..., None], t[..., None], ranges] = pruned
    inside[b[..., None], t[..., None], ranges] = True
    return dense, np.stack([ranges[..., 0], ranges[..., -1]], axis=-1), inside


def add_w_transducer(case, vector):
    """Frames skipped at the start and at the end, each jump at the cost of eps."""
    eps = vector["params"]["eps_weight"]
    batch, frames = case.logits.shape[:2]
    case.options["start_scores"] = np.where(np.arange(frames) == 0, 0.0, eps) * np.ones((batch, 1))
    final = np.full((batch, frames + 1), -np.inf)
    for b, length in enumerate(case.frames):
        final[b, : length - 1] = eps
        final[b, length] = 0.0
    case.options["final_scores"] = final


def make_case(name):
    vector = read(name)
    params, shape = vector["params"], vector["shape"]
    rows = shape.get("s_range", shape["U"] + 1)
    logits = floats(vector["logits"], (shape["B"], shape["T"], rows, shape["V"]))
    gradient = vector["expected_grad"]
    case = Case(
        make_variant(vector),
        logits,
        np.array(vector["targets"], np.int64).reshape(shape["B"], shape["U"]),
        vector["logit_lengths"],
        vector["target_lengths"],
        floats(vector["expected_costs"], shape["B"]),
        vector["tolerance"],
        None if gradient is None else floats(gradient, logits.shape),
    )
    if params.get("fastemit_scales_cost"):
        case.cost_scale = 1.0 + params["fastemit_lambda"]
    if params.get("cost_divided_by_T"):
        case.cost_scale = 1.0 / np.array(case.frames)
    if params.get("clamp"):
        case.options["clamp"] = params["clamp"]
    if "upstream_grad" in params:
        (case.gradient_scale,) = params["upstream_grad"]
    if vector["expected_grad_wrt"] == "log_probs":
        case.logits = log_softmax(logits)
        case.options["from_log_probs"] = True
    if "duration_logits" in vector:
        heads = (*logits.shape[:3], len(params["durations"]))
        durations = floats(vector["expected_duration_grad"], heads)
        if params["omega"]:
            assert not durations.any()  # the durations are not part of that call at all
        else:
            case.logits = np.concatenate([logits, floats(vector["duration_logits"], heads)], axis=-1)
            case.expected_gradient = np.concatenate([case.expected_gradient, durations], axis=-1)
    if "ranges" in vector:
        case.logits, case.options["band"], case.compared = dense_from_pruned(vector, logits)
        case.expected_gradient, _, _ = dense_from_pruned(vector, case.expected_gradient)
    if vector["variant"] == "alignment_restricted":
        buffers = params["left_buffer"], params["right_buffer"]
        mask = ft.masks.alignment_restricted(params["wordpiece_ends"], case.frames, case.labels, *buffers)
        case.options["arc_scores"] = mask
    if vector["variant"] == "monotonic_align_restrict":
        case.options["band"] = align_restrict_band(vector)
    if vector["variant"] == "w_transducer":
        add_w_transducer(case, vector)
    return case


def force_final(case, vector):
    """NeMo's default end: a jump lands on the last frame, whose blank then ends the path.

    That is a final score that depends on the logits, so its gradient reaches them by the chain rule.
    """
    log_probs = log_softmax(case.logits)
    final = case.options["final_scores"].copy()
    lasts = [(b, T - 1, U) for b, (T, U) in enumerate(zip(case.frames, case.labels, strict=True))]
    for node in lasts:
        final[node[0], : node[1]] += log_probs[node][vector["blank"]]
    batch = case.logits, case.targets, case.frames, case.labels, case.variant
    costs, (gradient, ends) = ft.value_and_grad(
        *batch, reduction="none", start_scores=case.options["start_scores"], final_scores=final,
        wrt=("logits", "final_scores"),
    )  # fmt: skip
    for node in lasts:
        one_hot = np.eye(case.logits.shape[-1])[vector["blank"]]
        gradient[node] += ends[node[0], : node[1]].sum() * (one_hot - np.exp(log_probs[node]))
    return costs, gradient


def cost_error(found, expected):
    """Relative to max(1, |expected|); 0 where both are the same infinity."""
    with np.errstate(invalid="ignore"):
        error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    return np.where(found == expected, 0.0, error)


def test_every_file_is_run_or_skipped_by_name():
    assert len(names()) >= 56
    assert set(SKIPPED) <= set(names())
    for name in set(names()) - set(SKIPPED):
        make_case(name)


@pytest.mark.parametrize("name", names())
def test_vector_in_float64(name):
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    case, vector = make_case(name), read(name)
    run = case if vector["params"].get("last_blank_mode") != "force_final" else None
    costs, gradient = run(case.logits) if run else force_final(case, vector)
    assert costs.dtype == gradient.dtype == np.float64
    assert cost_error(costs * case.cost_scale, case.expected_costs).max() <= case.tolerance
    gradient = gradient * case.gradient_scale
    infeasible = np.isinf(case.expected_costs)
    assert not gradient[infeasible].any()
    if case.compared is not None:
        assert not gradient[~case.compared].any()
        gradient, expected = gradient[case.compared], case.expected_gradient[case.compared]
    elif case.expected_gradient is None:
        return
    else:
        expected = case.expected_gradient
    assert np.abs(gradient - expected).max() <= case.tolerance


@pytest.mark.parametrize("name", [name for name in names() if name not in SKIPPED])
@pytest.mark.parametrize("dtype", SMALL_TYPES, ids=str)
def test_vector_in_smaller_types(name, dtype):
    case = make_case(name)
    small = case.logits.astype(dtype)
    case.options["skip_mass"] = 0.0
    costs, gradient = case(small)
    exact_costs, exact_gradient = case(small.astype(np.float64))
    assert costs.dtype == np.float32
    assert gradient.dtype == dtype
    assert_rounded_once(costs, exact_costs)
    assert_rounded_once(gradient, exact_gradient)
