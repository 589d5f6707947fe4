# SPDX-License-Identifier: Apache-2.0
"""The command line: ``flash-transducer loss | plan | check | inspect | demo``.

What a user can get wrong is one line on standard error and exit status 2; a failed check is status 1, an
interrupt 130. Results go to standard output, progress to standard error and only on a terminal.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

PROGRAM = "flash-transducer"
_BIGGEST = 2**40


class _Parser(argparse.ArgumentParser):
    """One line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        options = _parser().parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError as error:
        return _complain(f"not enough memory ({error or 'no details'}); use a smaller batch", 2)
    except (ValueError, TypeError, OSError, RuntimeError, ModuleNotFoundError) as error:
        return _complain(_sentence(error), 2)


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'error'}: {error.strerror}"
    return str(error) or type(error).__name__


def _complain(message: str, status: int) -> int:
    shown = " ".join(message.split())
    print(f"{PROGRAM}: {shown}", file=sys.stderr)
    return status


def _whole(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _BIGGEST:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {_BIGGEST}")
    return value


def _positive(text: str) -> int:
    if _whole(text) == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


# argparse names the function in its messages.
_whole.__name__ = _positive.__name__ = "whole number"


def _parser() -> argparse.ArgumentParser:
    import flash_transducer as ft
    from flash_transducer import _commands
    from flash_transducer._variant_options import add_variant_options

    parser = _Parser(
        prog=PROGRAM,
        description="Exact costs, gradients and pictures of transducer losses.",
        epilog=f"{PROGRAM} COMMAND --help tells more and gives an example.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {ft.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Any], int], text: str, example: str) -> Any:
        sub = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example: {PROGRAM} {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,  # an example is one line, to be copied
        )
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print JSON; infinities and NaN are strings")
        return sub

    loss = command("loss", _commands.loss, "cost of each utterance of a batch file",
                   "batch.safetensors --variant tdt --durations 0,1,2")  # fmt: skip
    _add_batch(loss)
    loss.add_argument("--zero-infinity", action="store_true", help="cost 0 where there is no path")
    loss.add_argument("--semiring", choices=("log", "max"), default="log", help="max: best path only")
    add_variant_options(loss)

    plan = command("plan", _commands.plan, "memory that a call would take, without running it",
                   "--shape 8 400 80 500 512")  # fmt: skip
    plan.add_argument("--shape", nargs="+", type=_whole, metavar="N",
                      help="B T U V, and H if the logits come from a joint of that width")  # fmt: skip
    plan.add_argument("--dtype", default="float32", help="of the inputs (default: float32)")
    plan.add_argument("--max-rows", type=_positive, metavar="N", help="bound on lattice rows, if known")
    ranks = plan.add_argument_group("many ranks: the time and balance of a corpus instead of memory")
    ranks.add_argument("--ranks", nargs="+", type=_positive, metavar="N", help="numbers of ranks")
    ranks.add_argument("--lengths", metavar="FILE", help="CSV with the columns frames,labels")
    ranks.add_argument(
        "--columns", type=_positive, default=500, metavar="K", help="logit columns (default: 500)"
    )
    ranks.add_argument("--hidden", type=_positive, metavar="H", help="joint width; without it, dense logits")
    ranks.add_argument("--batch-frames", type=_positive, metavar="N",
                       help="also: batches of so many frames, after each of which ranks meet")  # fmt: skip
    ranks.add_argument("--seconds-per-row", type=float, metavar="S", help="instead of measuring it here")
    plan.add_argument("--workspace-limit", type=_positive, metavar="BYTES", help="most bytes of scratch")
    add_variant_options(plan)

    check = command("check", _commands.check, "this installation against path enumeration and test vectors",
                    "--vectors tests/data/peer_vectors")  # fmt: skip
    check.add_argument("--vectors", metavar="DIR", help="folder of JSON vectors of other implementations")
    check.add_argument("--lattices", type=_positive, default=40, metavar="N",
                       help="random lattices for each variant (default: 40)")  # fmt: skip

    inspect = command("inspect", _commands.inspect, "picture and token times of one utterance's lattice",
                      "batch.safetensors --utterance 3 --output lattice.png")  # fmt: skip
    _add_batch(inspect, optional=True)
    inspect.add_argument("--utterance", type=_whole, default=0, metavar="N", help="which one (default: 0)")
    inspect.add_argument("--tokens", metavar="FILE", help="names of the symbols, one a line, in order")
    inspect.add_argument("--frame-seconds", type=float, metavar="S", help="for a time axis in seconds")
    inspect.add_argument("--scale", choices=("log", "linear"), default="log", help="of the colours")
    inspect.add_argument("--output", default="lattice.png", metavar="FILE",
                         help="picture: .png, .svg or .pdf (default: lattice.png)")  # fmt: skip
    add_variant_options(inspect)

    demo = command("demo", _commands.demo, "costs, gradients and pictures of four variants on real lengths",
                   "--output pictures")  # fmt: skip
    demo.add_argument("--output", default="demo_output", metavar="DIR", help="default: demo_output")
    demo.add_argument("--utterances", type=_positive, default=24, metavar="N", help="default: 24")
    demo.add_argument("--lengths", metavar="FILE", help="CSV with the columns frames,labels")
    demo.add_argument("--seed", type=_whole, default=0, metavar="N", help="of the made-up scores")
    return parser


def _add_batch(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "batch",
        nargs="?" if optional else None,
        metavar="BATCH.safetensors",
        help="logits (or encoder, predictor, weight, bias), targets, logit_lengths, target_lengths"
        + ("; without it, made-up scores" if optional else ""),
    )
    parser.add_argument("--from-log-probs", action="store_true", help="the scores are normalised already")
    parser.add_argument("--activation", help="of the joint (default: relu)")


if __name__ == "__main__":
    sys.exit(main())
