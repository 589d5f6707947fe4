# SPDX-License-Identifier: Apache-2.0
"""The training loop, and a state on disk from which it goes on to the same bits.

The state is model, optimiser and the losses so far; their number is the step. Data and learning rate are
functions of the step, so nothing else has to be kept. It is written to a file of another name that then takes
the place of the old one: whenever the power fails, one whole state is there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from toy.data import Batch, training_batch
from toy.model import Transducer, learning_rate, make_scheme

Loss = Callable[[Transducer, Batch], torch.Tensor]


@dataclass(frozen=True)
class Settings:
    """What the bits of a run depend on."""

    variant: str = "rnnt"
    dtype: str = "float32"
    skip_mass: float | None = None
    fastemit: float = 0.0
    seed: int = 0
    batch_size: int = 16
    utterances: int | None = None


class Run:
    """A model in training."""

    def __init__(self, settings: Settings, loss: Loss | None = None) -> None:
        self.settings = settings
        self.scheme = make_scheme(settings.variant, settings.fastemit)
        torch.manual_seed(settings.seed)
        self.model = Transducer(self.scheme)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.losses: list[float] = []
        self.loss = loss or (lambda model, batch: model(batch, settings.skip_mass))

    def step(self) -> float:
        """Train on one batch; returns its loss."""
        step, settings = len(self.losses), self.settings
        batch = training_batch(settings.seed, step, settings.batch_size, settings.utterances)
        # Products round to bfloat16; weights, sums and the loss stay float32.
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.dtype == "bfloat16"):
            loss = self.loss(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.optimizer.param_groups[0]["lr"] = learning_rate(step)
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        new = path.with_suffix(".new")
        state = {
            "settings": asdict(self.settings),
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a state; raises ValueError if it belongs to other settings."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        for name, wanted in asdict(self.settings).items():
            found = state["settings"].get(name)
            if found != wanted:
                raise ValueError(
                    f"{path} was trained with {name} = {found}, and {wanted} is asked for; "
                    "give another --output, or remove the file to begin again"
                )
        self.losses = state["losses"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether somebody wants to stop; the second Ctrl-C stops at once."""
    asked = False

    def ask(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(run: Run, steps: int, state: Path, advance: Callable[[float], None], save_every: int = 100) -> bool:
    """Train up to `steps` steps, saving as it goes; returns False if it was interrupted."""
    with interruptible() as stop:
        while len(run.losses) < steps and not stop():
            advance(run.step())
            if len(run.losses) % save_every == 0:
                run.save(state)
        run.save(state)
    return len(run.losses) >= steps
