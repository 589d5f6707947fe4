#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one loss on a tiny batch costs on the host: forward and backward, in microseconds.

Three rows: `ft.loss` and its backward; the same through an operator of the same signature that computes
nothing, registered the same way; their difference, which must not exceed 60 microseconds. Short blocks
alternate between the two, and the fastest tenth counts: other programs on the machine only ever add.
`--profile` shows where the time goes, `--json` prints numbers, `--limit` sets the exit status.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ModuleNotFoundError:
    print("PyTorch is not installed")
    sys.exit(77)

import flash_transducer as ft
from flash_transducer.torch import _call, _sources

BLOCK = 20


def define_empty_operator():
    """An operator of the signature of flash_transducer::loss whose two passes allocate and return."""
    schema = str(torch.ops.flash_transducer.loss.default._schema)
    library = torch.library.Library("flash_transducer_bench", "DEF")
    library.define("empty" + schema[schema.index("(") :])
    backward_schema = str(torch.ops.flash_transducer.loss_backward.default._schema)
    library.define("empty_backward" + backward_schema[backward_schema.index("(") :])
    operators = torch.ops.flash_transducer_bench

    def forward(logits, *arguments):
        return torch.empty((), dtype=logits.dtype), torch.empty((0,), dtype=torch.float64)

    def backward(upstream, saved, logits, *arguments):
        return [torch.empty_like(logits)]

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            with torch._C._AutoDispatchBelowAutograd():
                cost, saved = operators.empty.default(*arguments)
            ctx.save_for_backward(*arguments[:8], saved)
            ctx.options = arguments[8:-2]
            ctx.arguments = len(arguments)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(saved)
            return cost, saved

        @staticmethod
        def backward(ctx, upstream, _saved):
            *tensors, saved = ctx.saved_tensors
            wanted = list(ctx.needs_input_grad[:8])
            made = operators.empty_backward.default(upstream, saved, *tensors, *ctx.options, wanted)
            return (made[0], *[None] * (ctx.arguments - 1))

    library.impl("empty", forward, "CPU")
    library.impl("empty_backward", backward, "CPU")
    library.impl("empty", lambda *arguments: Empty.apply(*arguments), "Autograd")
    return library


def measure(calls, repeats):
    """Microseconds of each call: the first decile of interleaved blocks."""
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(BLOCK):
                call()
            times[name].append((time.perf_counter() - start) / BLOCK * 1e6)
    return {name: statistics.quantiles(found, n=10)[0] for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument(
        "--limit", type=float, default=60.0, help="most microseconds above the empty operator"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()

    library = define_empty_operator()
    logits = torch.zeros(1, 2, 2, 3, requires_grad=True)
    batch = torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1])
    loss = _sources.LOSS
    words = (False, None, "mean", False, None, "log", None, None)
    text = _call.call_text("ft.loss", ft.rnnt().text, "cpu", loss.words, words)
    rest = (text, 0.0, False, True)
    empty = torch.ops.flash_transducer_bench.empty.default

    def ours():
        logits.grad = None
        ft.loss(logits, *batch).backward()

    def nothing():
        logits.grad = None
        empty(logits, *batch, None, None, None, None, *rest)[0].backward()

    if options.profile:
        import cProfile

        profile = cProfile.Profile()
        profile.runcall(lambda: [ours() for _ in range(2000)])
        profile.print_stats("tottime")
        return 0
    found = measure({"ft.loss": ours, "empty operator": nothing}, options.repeats)
    found["difference"] = found["ft.loss"] - found["empty operator"]
    if options.json:
        print(json.dumps(found))
    else:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
        for name, value in found.items():
            print(f"{name:16} {value:8.1f} us")
    del library
    return 0 if found["difference"] <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
