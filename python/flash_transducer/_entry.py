# SPDX-License-Identifier: Apache-2.0
"""One batch file of a corpus: costs in float64, and on request gradients, posteriors and alignments."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import flash_transducer as ft
from flash_transducer._call import Call
from flash_transducer._manifest import Entry
from flash_transducer.batch_file import Batch
from flash_transducer.variants import Variant

_NAN = "the cost is NaN: the scores hold NaN or +inf where a path reads them"


class EntryError(ValueError):
    """A file, or an utterance of it, that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """What is computed of each file."""

    variant: Variant
    backend: str
    options: dict[str, Any]  # of the call
    grad: Path | None = None
    posteriors: Path | None = None
    align: Path | None = None
    keep_going: bool = False


def evaluate(entry: Entry, batch: Batch, settings: Settings) -> list[dict[str, Any]]:
    """One result for each utterance; raises EntryError at the first bad one unless `keep_going`."""
    everyone = np.arange(batch.num_utterances)
    bad: dict[int, str] = {}
    try:
        outputs = _run(batch, everyone, settings)
    except (ValueError, TypeError) as error:
        bad = _find_bad(batch, settings)
        if not settings.keep_going or not bad:
            where = f"utterance {min(bad)}: " if bad else ""
            raise EntryError(f"{entry.path}: {where}{_one_line(error)}") from error
        outputs = _run(batch, np.setdiff1d(everyone, list(bad)), settings)
    for b, cost in enumerate(outputs["costs"]):
        if b not in bad and math.isnan(cost):
            if not settings.keep_going:
                raise EntryError(f"{entry.path}: utterance {b}: {_NAN}")
            bad[b] = _NAN
    _write_outputs(entry, batch, outputs, bad, settings)
    frames, labels = (np.asarray(a).tolist() for a in (batch.logit_lengths, batch.target_lengths))
    results = []
    for b in range(batch.num_utterances):
        result = {"line": entry.line, "file": entry.file, "utterance": b, **entry.fields}
        result |= {"frames": frames[b], "labels": labels[b]}
        if b in bad:
            result["error"] = bad[b]
        else:
            cost = float(outputs["costs"][b])
            result["cost"] = cost if math.isfinite(cost) else str(cost)
        results.append(result)
    return results


def failed_file(entry: Entry, error: Exception) -> list[dict[str, Any]]:
    """The one result of a file that cannot be read."""
    return [{"line": entry.line, "file": entry.file, **entry.fields, "error": _one_line(error)}]


def _one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _pick(batch: Batch, chosen: Sequence[int] | np.ndarray) -> Batch:
    """Some utterances of a batch; all of them without a copy."""
    if len(chosen) == batch.num_utterances:
        return batch
    whole = ("weight", "bias")
    one_for_all = {
        n for n, a in batch.options.items() if n == "arc_scores" and (a.ndim < 4 or a.shape[0] == 1)
    }
    return Batch(
        {n: a if n in whole else a[chosen] for n, a in batch.source.items()},
        batch.targets[chosen],
        batch.logit_lengths[chosen],
        batch.target_lengths[chosen],
        {n: a if n in one_for_all else a[chosen] for n, a in batch.options.items()},
    )


def _call(batch: Batch, settings: Settings) -> Call:
    inputs = {
        **batch.source,
        "targets": batch.targets,
        "frame_lengths": batch.logit_lengths,
        "target_lengths": batch.target_lengths,
        **batch.options,
    }
    call = Call("flash-transducer-run", settings.variant, settings.backend, inputs)
    call.set_options(reduction="none", **settings.options)
    return call


def _run(batch: Batch, chosen: np.ndarray, settings: Settings) -> dict[str, Any]:
    """All outputs, rows of utterances that were not chosen 0."""
    part = _pick(batch, chosen)
    call = _call(part, settings)
    found: dict[str, Any] = {"costs": call.add_output("costs", (len(chosen),), np.float64)}
    if settings.grad is not None:
        for name in batch.source:
            found[f"{name}_gradient"] = call.add_gradient(name)
    if settings.posteriors is not None:
        count, frames, rows = call.nodes
        arcs = len(call.variant.arcs)
        found["arc_posterior"] = call.add_output("arc_posterior", (count, frames, rows, arcs), np.float64)
        found["occupancy"] = call.add_output("occupancy", (count, frames, rows), np.float64)
    call.run()
    if part is batch:
        return found
    spread: dict[str, Any] = {}
    for name, array in found.items():
        if name in ("weight_gradient", "bias_gradient"):
            spread[name] = array
            continue
        spread[name] = np.zeros((batch.num_utterances, *array.shape[1:]), array.dtype)
        spread[name][chosen] = array
    return spread


def _find_bad(batch: Batch, settings: Settings) -> dict[int, str]:
    """Each utterance by itself: which ones are not legal, and why."""
    bad = {}
    for b in range(batch.num_utterances):
        call = _call(_pick(batch, [b]) if batch.num_utterances > 1 else batch, settings)
        call.add_output("costs", (1,), np.float64)
        try:
            call.run()
        except (ValueError, TypeError) as error:
            bad[b] = _one_line(error)
    return bad


def _write_outputs(
    entry: Entry, batch: Batch, outputs: dict[str, Any], bad: dict[int, str], settings: Settings
) -> None:
    name = f"{entry.line:08d}-{Path(entry.file).stem}"
    if settings.grad is not None:
        gradients = {n: a for n, a in outputs.items() if n.endswith("_gradient")}
        _write_tensors(settings.grad / f"{name}.safetensors", gradients)
    if settings.posteriors is not None:
        tensors = {n: outputs[n] for n in ("arc_posterior", "occupancy")}
        _write_tensors(settings.posteriors / f"{name}.safetensors", tensors)
    if settings.align is not None:
        good = [b for b in range(batch.num_utterances) if b not in bad]
        part = _pick(batch, good)
        function: Any = ft.joint_align if batch.is_joint else ft.align
        options = {
            n: v for n, v in settings.options.items() if n in ("from_log_probs", "activation", "threads")
        }
        paths = function(*part.arguments(), settings.variant, **part.keywords(), **options) if good else []
        lines = [
            json.dumps(
                {
                    "utterance": b,
                    "score": path.score if math.isfinite(path.score) else str(path.score),
                    "frames": np.asarray(path.frames).tolist(),
                    "labels": np.asarray(path.labels).tolist(),
                    "arcs": np.asarray(path.arcs).tolist(),
                    "scores": np.asarray(path.scores).tolist(),
                }
            )
            for b, path in zip(good, paths, strict=True)
        ]
        write_atomically(settings.align / f"{name}.jsonl", "".join(line + "\n" for line in lines).encode())


def _write_tensors(path: Path, tensors: dict[str, Any]) -> None:
    from safetensors.numpy import save

    write_atomically(path, save({n: np.ascontiguousarray(a) for n, a in tensors.items()}))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is never seen half-written."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
