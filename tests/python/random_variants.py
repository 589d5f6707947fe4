# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: named variants with random knobs, typed variants, and batches for them."""

import os

import flash_transducer as ft
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("TX_CASES", "200"))


def cases(share=1.0):
    """Settings of a property: repeatable; a failing case is printed with the code that brings it back."""
    return settings(
        max_examples=max(10, int(CASES * share)),
        derandomize=True,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


tenths = st.integers(-20, 20).map(lambda n: n / 10)
strengths = st.sampled_from([0.0, 0.0, 0.3, 1.0])


@st.composite
def named_variants(draw):
    knobs = {"fastemit": draw(strengths), "delay_penalty": draw(strengths), "sigma": draw(strengths)}
    name = draw(st.sampled_from(ft._named.__all__))
    mode = {"mode": draw(st.sampled_from(["sumexcl", "sum", "mean", "constant"]))}
    durations = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    if name == "multi_blank":
        return ft.multi_blank([d + 1 for d in durations[:2]], **knobs)
    if name == "tdt":
        return ft.tdt([*durations, 1], final_label=draw(st.booleans()), **knobs)
    if name == "monotonic":
        return ft.monotonic(final_label=draw(st.booleans()), **knobs)
    if name in ("bypass", "target_robust"):
        knobs |= mode
    return getattr(ft, name)(**knobs)


@st.composite
def positions(draw, heads):
    """Legal for V = 5 and above."""
    number = draw(st.integers(0, 4))
    choices = [number, -1 - number, ft.V - 1 - number]
    if heads:
        choices.append(ft.V + draw(st.integers(0, heads - 1)))
    return draw(st.sampled_from(choices))


@st.composite
def groups(draw, heads):
    kind = draw(st.sampled_from(["softmax", "softmax", "softmax", "bernoulli", "none"]))
    clamp = draw(st.booleans())
    if kind == "bernoulli":
        begin = draw(st.integers(0, 4))
        return ft.Group(begin, begin + 1, normaliser=kind, clamp=clamp)
    exclude = []
    if draw(st.booleans()):
        exclude.append(ft.Column.fixed(draw(positions(0))))
    if draw(st.booleans()):
        exclude.append(ft.Column.label())
    low, high = draw(st.sampled_from([(0, ft.V), (0, ft.V), (1, ft.V - 1), (0, 3), (0, ft.V + heads)]))
    return ft.Group(low, high, exclude=exclude, normaliser=kind, clamp=clamp)


@st.composite
def columns(draw, kinds, table, heads):
    """One column; subtracts or adds at most one group."""
    kind = draw(st.sampled_from(kinds))
    scale = {"grad_scale": draw(st.sampled_from([1.0, 1.0, 1.0, 1.5, 0.0]))}
    if table and draw(st.integers(0, 2)):
        scale[draw(st.sampled_from(["subtract", "subtract", "add"]))] = draw(st.integers(0, len(table) - 1))
    if kind == "fixed":
        return ft.Column.fixed(draw(positions(heads)), **scale)
    if kind == "label":
        return ft.Column.label(draw(st.integers(0, heads)) if heads else 0, **scale)
    sums = [g for g, group in enumerate(table) if group.normaliser != "bernoulli"]
    return ft.Column.log_sum(draw(st.sampled_from(sums)), **scale) if sums else ft.Column.fixed(0, **scale)


@st.composite
def typed_variants(draw):
    """Tables with several groups, exclusions, log-sums, added and subtracted normalisers and constants."""
    heads = draw(st.sampled_from([0, 0, 1, 2]))
    table = draw(st.lists(groups(heads), max_size=4))

    def arc(dt, du):
        kinds = ["fixed", "log_sum", "label"]
        terms = [draw(columns(kinds[: 3 if du else 2], table, heads))]
        if draw(st.integers(0, 2)) == 0:
            terms.append(draw(columns(["fixed"], [], heads)))
        if draw(st.integers(0, 9)) == 0:
            terms = []
        constant = draw(tenths)
        if draw(st.integers(0, 4)) == 0:
            constant = ft.log_v1(draw(tenths)) + constant
        return ft.Arc(
            dt,
            du,
            terms,
            constant=constant,
            frame_bonus=draw(st.sampled_from([0.0, 0.0, 0.2])),
            may_finish=draw(st.booleans()),
            kind=draw(st.sampled_from(["skip", None])),
        )

    moves = draw(
        st.lists(st.sampled_from([(0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 1)]), min_size=1, max_size=5)
    )
    blank = ft.Arc(1, 0, ft.Column.fixed(-1, subtract=0 if table else ()), may_finish=True)
    return ft.Variant("typed", [blank, *[arc(*move) for move in moves]], table, heads)


variants = st.one_of(named_variants(), typed_variants())


@st.composite
def batches(draw, variant, *, largest=3, dtype=np.float64, pad=0):
    """(logits, targets, frame lengths, target lengths); labels whose offset columns all exist."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, largest))
    frames = np.array(draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)))
    labels = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    V = draw(st.integers(5, 8))
    K = V + variant.heads
    shape = count, frames.max() + pad, labels.max() + pad + 1, K
    offsets = [c.offset for arc in variant.arcs for c in arc.columns if c.kind == "label"]
    targets = random.integers(0, min(V, K - max([0, *offsets])), (count, labels.max() + pad))
    return random.normal(scale=1.5, size=shape).astype(dtype), targets, frames, labels
