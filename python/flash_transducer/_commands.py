# SPDX-License-Identifier: Apache-2.0
"""What each command of the command line does; ``cli`` holds their options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import flash_transducer as ft
from flash_transducer import demo as demonstration
from flash_transducer._core import instruction_set
from flash_transducer._terminal import print_json, print_table, progress
from flash_transducer._variant_options import example_variants, variant_from_options
from flash_transducer.batch_file import Batch, read_batch

_JOINT_ONLY = "the file holds logits; --activation is for encoder and predictor"


def _source_keywords(batch: Batch, options: Any) -> dict[str, Any]:
    keywords: dict[str, Any] = {"from_log_probs": options.from_log_probs}
    if options.activation is not None:
        if not batch.is_joint:
            raise ValueError(f"--activation {options.activation}: {_JOINT_ONLY}")
        keywords["activation"] = options.activation
    return keywords


def loss(options: Any) -> int:
    """Costs of a batch file, utterance by utterance."""
    variant = variant_from_options(options)
    batch = read_batch(options.batch)
    function: Any = ft.joint_loss if batch.is_joint else ft.loss
    keywords = _source_keywords(batch, options) | {
        "reduction": "none",
        "zero_infinity": options.zero_infinity,
        "semiring": options.semiring,
    }
    costs: list[float] = []
    with progress("costs", batch.num_utterances) as advance:
        for b in range(batch.num_utterances):
            try:
                arguments = batch.arguments(b, b + 1)
                part = function(*arguments, variant, **batch.keywords(b, b + 1), **keywords)
            except (ValueError, TypeError):
                # The whole batch has the same fault and names the utterance by its number in the file.
                function(*batch.arguments(), variant, **batch.keywords(), **keywords)
                raise
            costs += [float(cost) for cost in part]
            advance()
    frames, labels = (np.asarray(a).tolist() for a in (batch.logit_lengths, batch.target_lengths))
    total = float(np.sum(costs)) if costs else 0.0
    mean = total / len(costs) if costs else 0.0
    if options.json:
        result = {"variant": repr(variant), "costs": costs, "sum": total, "mean": mean}
        print_json(result | {"logit_lengths": frames, "target_lengths": labels})
        return 0
    rows = [
        (str(b), str(frames[b]), str(labels[b]), f"{cost:.6f}", f"{cost / max(labels[b], 1):.4f}")
        for b, cost in enumerate(costs)
    ]
    print_table(("utterance", "frames", "labels", "cost (nats)", "per label"), rows, title=f"{variant}")
    print(f"sum {total:.6f}   mean {mean:.6f}")
    if any(math.isinf(cost) for cost in costs):
        print("inf: no path fits the lengths; --zero-infinity counts these as 0")
    return 0


def plan(options: Any) -> int:
    """Memory of a shape, or balance and time of a corpus over ranks."""
    if options.ranks is not None or options.lengths is not None:
        return _plan_ranks(options)
    if options.shape is None:
        raise ValueError("plan needs --shape B T U V [H], or --ranks N --lengths FILE")
    if len(options.shape) not in (4, 5):
        raise ValueError(f"--shape has {len(options.shape)} numbers, expected B T U V or B T U V H")
    variant = variant_from_options(options)
    B, T, U, V, *H = options.shape
    result = ft.plan(
        B,
        T,
        U,
        V + variant.heads,
        H[0] if H else None,
        variant=variant,
        dtype=options.dtype,
        max_rows=options.max_rows,
        workspace_limit=options.workspace_limit,
    )
    if options.json:
        print_json(result.as_dict())
        return 0
    rows = [(r.name, r.shape, r.kind, f"{r.bytes:,}", _human(r.bytes)) for r in result.regions]
    rows += [
        ("total", "", kind, f"{size:,}", _human(size))
        for kind, size in (("scratch", result.scratch_bytes), ("saved", result.saved_bytes))
    ]
    rows += [(name, "", "never made", f"{n:,}", _human(n)) for name, n in result.never_made.items()]
    print_table(("region", "shape", "kind", "bytes", ""), rows, title=f"{variant}, backend {result.backend}")
    print("scratch is free after the call, saved is kept for the backward pass")
    if any("wave" in region.shape for region in result.regions):
        print("wave: the utterances whose lattices are in memory at a time")
    return 0


def _plan_ranks(options: Any) -> int:
    """How a list of lengths divides over ranks, and how long each computes."""
    from flash_transducer import _ranks_plan

    if options.ranks is None or options.lengths is None or options.shape is not None:
        raise ValueError("--ranks and --lengths go together, without --shape")
    lengths = np.array(demonstration.read_lengths(Path(options.lengths)), np.int64)
    frames, labels = lengths[:, 0], lengths[:, 1]
    rows = frames * (labels + 1)
    columns, variant = options.columns, variant_from_options(options)
    if options.seconds_per_row is not None:
        model = _ranks_plan.CostModel(options.seconds_per_row, 0.0)
    else:
        model = _ranks_plan.measure(frames, labels, columns, options.hidden, variant)
    found = []
    for ranks in options.ranks:
        entry = _ranks_plan.divide(rows, ranks, model)
        if options.batch_frames is not None:
            split = _ranks_plan.divide_batches(frames, rows, options.batch_frames, ranks)
            entry |= {f"batch_{name}": value for name, value in split.items()}
        found.append(entry)
    per_call = {
        way: _ranks_plan.bytes_per_rank(0, columns, options.hidden, reproducible=way == "reproducible")
        for way in ("plain", "reproducible")
    }
    if options.json:
        print_json(
            {
                "utterances": len(rows),
                "rows": int(rows.sum()),
                "seconds_per_row": model.seconds_per_row,
                "seconds_per_utterance": model.seconds_per_utterance,
                "bytes_per_call": per_call,
                "bytes_per_utterance": 16,
                "plans": found,
            }
        )
        return 0
    batched = options.batch_frames is not None
    header = ["ranks", "largest rows", "imbalance", "seconds, mean", "seconds, largest"]
    header += ["per batch", "worst batch"] if batched else []
    table = [
        (
            f"{e['ranks']}", f"{e['rows_largest']:,}", f"{e['imbalance']:.4f}", f"{e['seconds_mean']:.1f}",
            f"{e['seconds_largest']:.1f}",
            *((f"{e['batch_imbalance']:.3f}", f"{e['batch_imbalance_worst']:.3f}") if batched else ()),
        )
        for e in found
    ]  # fmt: skip
    print_table(header, table, title=f"{len(rows):,} utterances, {int(rows.sum()):,} lattice rows, {variant}")
    print(
        f"one core: {model.seconds_per_row:.3g} s a row, {model.seconds_per_utterance:.3g} s an utterance\n"
        f"sent by a rank in one call: {per_call['plain']:,} bytes (reproducible: "
        f"{per_call['reproducible']:,}) and 16 per utterance of its own"
    )
    return 0


def _human(size: int) -> str:
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = next(units)
    while value >= 1024 and unit != "PiB":
        value, unit = value / 1024, next(units)
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def check(options: Any) -> int:
    """The installed build against first principles, and against vectors of other implementations."""
    from flash_transducer import peer_vectors

    vectors = peer_vectors.find(Path(options.vectors)) if options.vectors else []
    variants = example_variants()
    results: list[dict[str, Any]] = []
    with progress("checks", len(variants) + len(vectors)) as advance:
        for variant in variants:
            results.append(_check_variant(variant, options.lattices))
            advance()
        for path in vectors:
            results.append(peer_vectors.compare(path))
            advance()
    failed = sum(result["status"] == "failed" for result in results)
    counts = {
        status: sum(result["status"] == status for result in results)
        for status in ("passed", "failed", "skipped")
    }
    about = {
        "version": ft.__version__,
        "backends": list(ft.backends),
        "instruction_set": instruction_set(),
        "gpu_architectures": [],
    }
    if options.json:
        print_json(about | counts | {"checks": results})
        return 1 if failed else 0
    print(f"flash-transducer {ft.__version__}")
    print(f"backends: {', '.join(ft.backends)}")
    print(f"instruction set of the cpu backend: {instruction_set()}")
    print("GPU architectures: none (this build has no CUDA backend)")
    rows = [(r["name"], r["status"], r["detail"]) for r in results]
    print_table(("check", "", "worst error, or why not"), rows)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if failed else 0


def _check_variant(variant: ft.Variant, lattices: int) -> dict[str, Any]:
    import contextlib
    import io

    name = f"{variant} on {lattices} random lattices"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            report = ft.check(variant, lattices=lattices)
    except ft.CheckFailed as error:
        return {"name": name, "status": "failed", "detail": " ".join(str(error).split())}
    worst = max(report.measures, key=lambda measure: measure.worst / max(measure.limit, 1e-300))
    detail = f"{worst.worst:.1e} of {worst.limit:.0e} allowed ({worst.name})"
    return {"name": name, "status": "passed", "detail": detail}


def inspect(options: Any) -> int:
    """A picture of one lattice, and when its labels leave."""
    from flash_transducer.plot import plot_utterance

    output = Path(options.output)
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--output {output}: expected a name that ends in .png, .svg or .pdf")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}")
    variant = variant_from_options(options)
    number, names = options.utterance, None
    if options.batch is None:
        utterance = demonstration.make_utterance(90, 24, number)
        names = list(demonstration.VOCABULARY)
        columns = len(names) + 1 + variant.heads
        spare = max(columns - utterance.logits.shape[2], 0)
        logits = np.pad(utterance.logits[:, :, :columns], ((0, 0), (0, 0), (0, spare)))
        frames, rows = utterance.logits.shape[:2]
        batch = Batch(
            {"logits": logits[None]},
            utterance.labels[None],
            np.array([frames]),
            np.array([rows - 1]),
            {},
        )
        number = 0
    else:
        batch = read_batch(options.batch)
    if number >= batch.num_utterances:
        raise ValueError(f"--utterance {number}: the file holds {batch.num_utterances}, numbered from 0")
    if options.tokens is not None:
        names = Path(options.tokens).read_text(encoding="utf-8").splitlines()
    arguments: Any = (*batch.arguments(number, number + 1), variant)
    keywords = batch.keywords(number, number + 1) | _source_keywords(batch, options)
    lattice = (ft.joint_lattice if batch.is_joint else ft.lattice)(*arguments, **keywords)
    alignment = (ft.joint_align if batch.is_joint else ft.align)(*arguments, **keywords)[0]
    labels = batch.targets[number, : int(batch.target_lengths[number])].tolist()
    tokens = [names[i] if names and 0 <= i < len(names) else str(i) for i in labels]
    seconds = options.frame_seconds
    figure = plot_utterance(
        lattice, alignment=alignment, tokens=tokens, frame_seconds=seconds, scale=options.scale
    )
    figure.savefig(output)
    expected = demonstration.mean_emission_frames(lattice)
    times: list[dict[str, Any]] = [
        {
            "token": tokens[u],
            "best_frame": int(alignment.frames[u]) if u < len(alignment.frames) else None,
            "mean_frame": float(expected[u]),
            "arc": variant.arcs[alignment.arcs[u]].name if u < len(alignment.arcs) else None,
        }
        for u in range(len(labels))
    ]
    cost = float(lattice.cost[0])
    if options.json:
        print_json({"picture": str(output), "cost": cost, "best_path": alignment.score, "tokens": times})
        return 0
    table = [(t["token"], str(t["best_frame"]), f"{t['mean_frame']:.2f}", str(t["arc"])) for t in times]
    print_table(("token", "best path's frame", "mean frame", "arc"), table, title=f"{variant}")
    share = math.exp(min(alignment.score + cost, 0.0)) if math.isfinite(cost) else math.nan
    print(f"cost {cost:.4f} nats; the best path holds {share:.2g} of the probability")
    print(f"picture: {output}")
    return 0


def demo(options: Any) -> int:
    """Four variants on utterances of real lengths."""
    lengths_file = Path(options.lengths) if options.lengths else demonstration.find_lengths_file()
    lengths = demonstration.choose_lengths(demonstration.read_lengths(lengths_file), options.utterances)
    seeds = range(options.seed, options.seed + len(lengths))
    steps = len(lengths) * (1 + len(demonstration.variants()))
    with progress("costs and gradients", steps) as advance:
        utterances = []
        for (frames, labels), seed in zip(lengths, seeds, strict=True):
            utterances.append(demonstration.make_utterance(frames, labels, seed))
            advance()
        rows = [row.as_dict() for row in demonstration.run(utterances, advance)]
    if options.json:
        pictures = _demo_pictures(utterances, options)
        print_json({"variants": rows, "pictures": [str(path) for path in pictures]})
        return 0
    hours = sum(frames for frames, _ in lengths) * demonstration.FRAME_SECONDS
    words = sum(labels for _, labels in lengths)
    print(
        f"{len(lengths)} utterances of LibriSpeech lengths, {hours:.0f} s of audio, {words:,} labels; "
        "made-up scores."
    )
    columns = ("variant", "cost per label", "mean delay", "gradient norm", "time")
    table = [
        (
            row["variant"],
            f"{row['cost_per_label']:.3f} nats",
            f"{row['mean_delay_ms']:+.0f} ms",
            f"{row['gradient_norm']:.2f}",
            f"{row['seconds']:.2f} s",
        )
        for row in rows
    ]
    print_table(columns, table)
    if any(row["cost_per_label"] < 0 for row in rows):
        print("Below 0: skip arcs take no probability from the symbols, so that of all outputs exceeds 1.")
    pictures = _demo_pictures(utterances, options)
    print("Pictures of one utterance's lattice:")
    for path in pictures:
        print(f"  {path}")
    return 0


def _demo_pictures(utterances: list[demonstration.Utterance], options: Any) -> list[Path]:
    # Short enough that every word has its name in the picture.
    shown = min(utterances, key=lambda utterance: abs(len(utterance.labels) - 30))
    return demonstration.write_pictures(shown, Path(options.output))
