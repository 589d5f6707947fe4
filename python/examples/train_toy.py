#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small transducer on made-up speech, with the loss of a variant of your choice.

    python python/examples/train_toy.py --variant tdt --output toy_tdt

Takes minutes on two cores. Ctrl-C stops after the step that is running; the same command goes on from
there, to the same bits as if nothing had happened. OUTPUT gets state.pt, loss.png, lattice.png, report.json.

Read in this order: toy/data.py, toy/model.py, toy/training.py, toy/decode.py. Needs the extra `examples`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from toy.data import SPLITS
from toy.decode import spell
from toy.model import VARIANTS
from toy.report import Score, draw_lattice, draw_losses, score, timestamps
from toy.training import Run, Settings, train

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    defaults = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", choices=VARIANTS, default=defaults.variant)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=defaults.dtype)
    parser.add_argument(
        "--skip-mass", type=float, help="0 skips nothing in the backward pass (default: below rounding)"
    )
    parser.add_argument(
        "--fastemit", type=float, default=defaults.fastemit, help="above 0: write early and surely"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--utterances", type=int, help="train on this many only, to see them learnt by heart")
    parser.add_argument("--test-utterances", type=int, default=100, help="decoded for each word error rate")
    parser.add_argument("--output", type=Path, default=Path("toy_output"))
    return parser.parse_args(arguments)


def train_with_bar(run: Run, steps: int, state: Path) -> bool:
    """Train while a bar shows the loss."""
    columns = (
        TextColumn("loss {task.fields[loss]:.3f}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=steps, completed=len(run.losses), loss=float("nan"))
        return train(run, steps, state, lambda loss: bar.update(task, advance=1, loss=loss))


def report(run: Run, scores: dict[str, Score], output: Path) -> None:
    """Print what was learnt, and write it to files."""
    last = run.losses[-50:]
    print(f"loss {sum(last) / len(last):.4f} nats per label, mean of the last {len(last)} steps")
    for split, result in scores.items():
        figures = result.as_dict()
        delay = figures["median_delay_seconds"]
        when = "" if delay is None else f", tokens {1000 * delay:+.0f} ms from their letter's end (median)"
        print(f"{split}: word error rate {100 * result.word_error_rate:.1f} %{when}")
    print()
    for split in SPLITS[1:]:
        utterance, tokens = scores[split].utterances[0], scores[split].decoded[0]
        print(f"said  {utterance.text}\nheard {spell(tokens)}\n      {timestamps(tokens)}")

    title = f"{run.scheme.variant}, {run.settings.dtype}, seed {run.settings.seed}"
    draw_losses(run.losses, title, output / "loss.png")
    draw_lattice(run, scores["new words"].utterances[0], output / "lattice.png")
    summary = {
        "settings": asdict(run.settings),
        "steps": len(run.losses),
        "losses": run.losses,
        **{split: result.as_dict() for split, result in scores.items()},
    }
    (output / "report.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"\nwrote {output}/loss.png, lattice.png, report.json")


def main(arguments: list[str] | None = None) -> int:
    """Train, or go on training; then decode."""
    options = parse(arguments)
    torch.set_num_threads(1)
    names = ("variant", "dtype", "skip_mass", "fastemit", "seed", "batch_size", "utterances")
    run = Run(Settings(**{name: getattr(options, name) for name in names}))
    options.output.mkdir(parents=True, exist_ok=True)
    state = options.output / "state.pt"
    if state.exists():
        try:
            run.load(state)
        except ValueError as error:
            print(f"train_toy.py: {error}", file=sys.stderr)
            return 2
        print(f"going on after step {len(run.losses)} of {state}")
    if not train_with_bar(run, options.steps, state):
        print(f"stopped after step {len(run.losses)}; the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    count = options.test_utterances
    counts = dict.fromkeys(SPLITS, count) | {"train": min(count, options.utterances or count)}
    report(run, {split: score(run, split, counts[split]) for split in SPLITS}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
