# SPDX-License-Identifier: Apache-2.0
"""The five kinds of call, as operators see them: names of tensors and options in order, and their schema.

What stays the same from step to step travels as one text: an argument of an operator takes most of a
microsecond on its way, and a call has a dozen options. Numbers that may change, and that a compiler may make
symbols of, are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

_SCORES_WORDS = "from_log_probs threads"
_LOSS_WORDS = f"{_SCORES_WORDS} reduction zero_infinity skip_mass semiring workspace_limit validate"
_JOINT_WORDS = "activation precision"
_TYPES = {"clamp": "float", "dropout": "float", "seed": "int"}

_SCORES = ("arc_scores", "start_scores", "final_scores")
_OPTIONAL = (*_SCORES, "band", "bias", "predictor_mask", "utterance_ids")
LABELS = ("targets", "frame_lengths", "target_lengths")
INTEGERS = (*LABELS, "utterance_ids", "band")


@dataclass(frozen=True, eq=False)
class Source:
    """One kind of input. Compared by identity: there are five. Plain attributes, which compilers can read."""

    operator: str
    given: tuple[str, ...]  # the arrays whose types decide that of the costs
    tensors: tuple[str, ...]  # all of them, as the compiled library names them
    optional: tuple[bool, ...]  # of each tensor, whether it may be left out
    differentiable: tuple[bool, ...]  # of each tensor, whether it may have a gradient
    gradients: tuple[str, ...]  # names of the gradients of all tensors
    words: tuple[str, ...]  # options in the text of a call
    numbers: tuple[str, ...]  # options that are arguments of their own

    @property
    def schema(self) -> str:
        """Tensors and options as ``torch.library`` declares them."""
        marks = ("?" if optional else "" for optional in self.optional)
        tensors = (f"Tensor{mark} {name}" for mark, name in zip(marks, self.tensors, strict=True))
        numbers = (f"{_TYPES[name]} {name}" for name in self.numbers)
        return ", ".join((*tensors, "str call", *numbers))

    def shown(self, name: str) -> str:
        """The name that a person gave a tensor."""
        if name != "frame_lengths":
            return name
        return "encoder_lengths" if "encoder" in self.given else "logit_lengths"


def _source(operator: str, given: str, rest: str, words: str, numbers: str) -> Source:
    tensors = (*given.split(), *rest.split())
    return Source(
        operator=operator,
        given=tuple(given.split()),
        tensors=tensors,
        optional=tuple(name in _OPTIONAL for name in tensors),
        differentiable=tuple(name in given.split() or name in _SCORES for name in tensors),
        gradients=tuple(f"{name}_gradient" for name in tensors),
        words=tuple(words.split()),
        numbers=tuple(numbers.split()),
    )


_ALL = "targets frame_lengths target_lengths arc_scores band"
_ENDS = "start_scores final_scores"
_JOINT = "encoder predictor weight bias"
_JOINT_REST = "predictor_mask utterance_ids"

LOSS = _source("loss", "logits", f"{_ALL} {_ENDS}", _LOSS_WORDS, "clamp")
JOINT_LOSS = _source(
    "joint_loss",
    _JOINT,
    f"{_ALL} {_ENDS} {_JOINT_REST}",
    f"{_LOSS_WORDS} {_JOINT_WORDS}",
    "clamp dropout seed",
)
LATTICE_LOSS = _source(
    "lattice_loss", "arc_weights", f"frame_lengths target_lengths {_ENDS}", _LOSS_WORDS, "clamp"
)
SCORES = _source("scores", "logits", _ALL, _SCORES_WORDS, "")
JOINT_SCORES = _source(
    "joint_scores", _JOINT, f"{_ALL} {_JOINT_REST}", f"{_SCORES_WORDS} {_JOINT_WORDS}", "dropout seed"
)
