# SPDX-License-Identifier: Apache-2.0
"""Test vectors of other implementations, as JSON files: read, express as a call of ours, compare.

A vector names its project in ``source`` and its conventions in ``params``; what this package cannot express
is skipped with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flash_transducer as ft

_LATER = {
    "constrained": "arcs that read two nodes wait for a later release",
    "rnnt_pruned": "pruned lattices wait for a later release",
    "modified_pruned": "pruned lattices wait for a later release",
    "rnnt_smoothed": "the smoothed normaliser reads the whole batch; it waits for a later release",
    "hat_normaliser_only": "a vector of log-probabilities, not of costs",
}
_KNOWN_PARAMETERS = {
    *("fastemit_lambda", "fastemit_scales_cost", "clamp", "clamp_order", "upstream_grad", "sigma", "omega"),
    *("durations", "big_blank_durations", "big_blank_ids", "delay_penalty", "rnnt_type", "normaliser"),
    *("skip_token_penalty", "skip_token_mode", "skip_frame_penalty", "one_sym_per_frame"),
    *(
        "cost_divided_by_T",
        "left_buffer",
        "right_buffer",
        "wordpiece_ends",
        "alignment",
        "max_shift",
        "eps_weight",
        "last_blank_mode",
    ),
}


class Skip(Exception):
    """The vector cannot be compared; the message says why."""


def find(folder: Path) -> list[Path]:
    """The vectors of a folder. Raises ValueError if there are none."""
    if not folder.is_dir():
        raise ValueError(f"--vectors {folder}: no such folder")
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"--vectors {folder}: holds no .json files")
    return paths


def compare(path: Path) -> dict[str, Any]:
    """Compare costs and gradients of one vector: status, and the worst error or the reason."""
    result: dict[str, Any] = {"name": path.stem}
    try:
        vector = json.loads(path.read_text(encoding="utf-8"))
        error, tolerance = _worst_error(vector)
    except Skip as reason:
        return result | {"status": "skipped", "detail": str(reason)}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        text = f"{type(problem).__name__}: {problem}"
        return result | {"status": "failed", "detail": f"not a usable vector ({' '.join(text.split())})"}
    passed = error <= tolerance
    detail = f"{error:.1e} of {tolerance:.0e} allowed"
    return result | {"status": "passed" if passed else "failed", "detail": detail}


def _variant(name: str, blank: int, params: dict[str, Any]) -> ft.Variant:
    names: Any = ft  # the constructors come from the list of named variants
    common = {
        "blank": blank,
        "fastemit": params.get("fastemit_lambda", 0.0),
        "sigma": params.get("sigma", 0.0),
        "delay_penalty": params.get("delay_penalty", 0.0),
    }
    if name == "tdt" and params.get("omega", 0.0) == 1.0:
        name, common["sigma"] = "rnnt", 0.0  # its branch without durations
    skips = {k: params[k] for k in ("skip_token_penalty", "skip_frame_penalty") if k in params}
    makers: dict[str, Callable[[], Any]] = {
        "rnnt": lambda: names.rnnt(**common),
        "alignment_restricted": lambda: names.rnnt(**common),
        "w_transducer": lambda: names.rnnt(**common),
        "monotonic_align_restrict": lambda: names.monotonic(**common),
        "monotonic": lambda: names.monotonic(**common),
        "modified": lambda: names.monotonic(**common),
        "modified_final_blank": lambda: names.monotonic(final_label=False, **common),
        "multiblank": lambda: names.multi_blank(params["big_blank_durations"], **common),
        "tdt": lambda: names.tdt(params["durations"], **common),
        "hat": lambda: names.hat(**common),
        "star_transducer": lambda: names.star(**skips, **common),
        "bypass_transducer": lambda: names.bypass(mode=params["skip_token_mode"], **skips, **common),
        "target_robust_transducer": lambda: names.target_robust(
            mode=params["skip_token_mode"], **skips, **common
        ),
    }
    if name not in makers:
        raise Skip(f"unknown variant {name}")
    variant: ft.Variant = makers[name]()
    return variant


def _worst_error(vector: dict[str, Any]) -> tuple[float, float]:
    name, params, shape = vector["variant"], vector["params"], vector["shape"]
    if name in _LATER:
        raise Skip(_LATER[name])
    unknown = sorted(set(params) - _KNOWN_PARAMETERS)
    if unknown:
        raise Skip(f"its convention {', '.join(unknown)} is not ours")
    if params.get("clamp_order", "").startswith("multiply"):
        raise Skip("clamps after the incoming gradient is multiplied; ours is clamped before")
    first = vector["blank"] - 1
    if any(column != first - i for i, column in enumerate(params.get("big_blank_ids", []))):
        raise Skip("its big blanks stand at other columns")
    omega = params.get("omega", 0.0)
    if omega not in (0.0, 1.0):
        raise Skip("a random mixture of two losses")
    variant = _variant(name, vector["blank"], params)
    nodes = (shape["B"], shape["T"], shape["U"] + 1)
    logits = _numbers(vector["logits"]).reshape(*nodes, shape["V"])
    if variant.heads:
        durations = _numbers(vector["duration_logits"]).reshape(*nodes, variant.heads)
        logits = np.concatenate([logits, durations], axis=-1)
    lengths = (vector["targets"], vector["logit_lengths"], vector["target_lengths"])
    wrt = vector.get("expected_grad_wrt")
    normalised = vector["normalised"] == "log_probs" or wrt == "log_probs"
    if normalised and vector["normalised"] != "log_probs":
        logits = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    costs, gradient = ft.value_and_grad(
        logits, *lengths, variant, reduction="none",
        clamp=params.get("clamp", 0.0), from_log_probs=normalised,
        **_restrictions(vector),
    )  # fmt: skip
    expected = _numbers(vector["expected_costs"])
    if params.get("fastemit_scales_cost"):
        costs = costs * (1.0 + params["fastemit_lambda"])
    if params.get("cost_divided_by_T"):
        costs = costs / np.array(lengths[1])
    error = _error(costs, expected, relative=True)
    if vector.get("expected_grad") is not None:
        columns = shape["V"]
        wanted = _numbers(vector["expected_grad"]).reshape(*nodes, columns)
        gradient = gradient * np.reshape(params.get("upstream_grad", [1.0]), (-1, 1, 1, 1))
        error = max(error, _error(gradient[..., :columns], wanted))
        if variant.heads and vector.get("expected_duration_grad") is not None:
            heads = _numbers(vector["expected_duration_grad"]).reshape(*nodes, variant.heads)
            error = max(error, _error(gradient[..., columns:], heads))
    return error, float(vector["tolerance"])


def _restrictions(vector: dict[str, Any]) -> dict[str, Any]:
    """What vectors of some projects put in their lattice and we put beside the variant."""
    name, params, shape = vector["variant"], vector["params"], vector["shape"]
    frames, labels = vector["logit_lengths"], vector["target_lengths"]
    if name == "alignment_restricted":
        buffers = (params["left_buffer"], params["right_buffer"])
        ends = np.array(params["wordpiece_ends"])
        return {"arc_scores": ft.masks.alignment_restricted(ends, frames, labels, *buffers)}
    if name == "monotonic_align_restrict":
        # After t frames, u lies between what the alignment had emitted max_shift frames before and after.
        emitted = np.cumsum(np.array(params["alignment"]) != vector["blank"], axis=1)
        emitted = np.pad(emitted, ((0, 0), (1, 0)))  # [B, T + 1]
        t, shift = np.arange(shape["T"]), params["max_shift"]
        first = emitted[:, np.maximum(t - shift, 0)]
        last = emitted[:, np.minimum(t + shift, shape["T"])]
        return {"band": np.stack([first, last], axis=-1)}
    if name == "w_transducer":
        if params["last_blank_mode"] != "allow_ignore":
            raise Skip("a jump to the last blank waits for a later release")
        weight = params["eps_weight"]
        start = np.full((shape["B"], shape["T"]), weight)
        start[:, 0] = 0.0
        final = np.full((shape["B"], shape["T"] + 1), weight)
        for b, end in enumerate(frames):
            final[b, end - 1], final[b, end] = -np.inf, 0.0
        return {"start_scores": start, "final_scores": final}
    return {}


def _numbers(values: Any) -> Any:
    return np.array(values, dtype=np.float64)  # takes the strings "inf" and "nan" too


def _error(found: Any, expected: Any, *, relative: bool = False) -> float:
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = np.maximum(np.abs(expected[finite]), 1.0) if relative else 1.0
    worst = np.max(np.abs(found[finite] - expected[finite]) / scale)
    return float("inf") if np.isnan(worst) else float(worst)
