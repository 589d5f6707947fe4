# SPDX-License-Identifier: Apache-2.0
"""Properties of every variant, named or typed at random; TX_CASES sets how many examples are drawn."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import flash_transducer as ft
import ml_dtypes
import numpy as np
import pytest
from batches import (
    ACTIVATIONS,
    assert_rounded_once,
    bits,
    dropout_factors,
    joint_logits,
    lattice_cost,
    moves,
    random_batch,
)
from hypothesis import given
from hypothesis import strategies as st
from random_variants import batches, cases, variants

pytestmark = pytest.mark.usefixtures("backend")


def draw_call(data, **more):
    variant = data.draw(variants)
    batch = data.draw(batches(variant, **more))
    options = {
        "clamp": data.draw(st.sampled_from([0.0, 0.0, 0.1])),
        "semiring": data.draw(st.sampled_from(["log", "log", "max"])),
        "from_log_probs": data.draw(st.sampled_from([False, False, True])),
    }
    return variant, batch, options


def draw_scores(data, variant, batch):
    """Start scores, final scores, arc scores and a band, each there or not; some arcs forbidden."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    count, frames, rows = batch[0].shape[:3]
    arc_scores = random.normal(size=(count, frames, rows, len(variant.arcs)))
    arc_scores[random.random(arc_scores.shape) < 0.1] = -np.inf
    low = random.integers(-1, 2, (count, frames, 1))
    everything = {
        "arc_scores": arc_scores,
        "start_scores": random.normal(size=(count, frames)),
        "final_scores": random.normal(size=(count, frames + 1)),
        "band": np.concatenate([low, low + random.integers(0, 5, low.shape)], axis=-1),
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(everything))))
    return {name: everything[name] for name in sorted(chosen)}


def rows_of(scores, index):
    return {name: array[index] for name, array in scores.items()}


@given(st.data())
@cases()
def test_a_batch_equals_its_utterances_alone_in_any_order(data):
    variant, batch, options = draw_call(data)
    scores = draw_scores(data, variant, batch)
    wrt = ("logits", *(name for name in scores if name != "band"))
    costs, gradients = ft.value_and_grad(*batch, variant, reduction="none", wrt=wrt, **options, **scores)
    count = len(costs)
    order = data.draw(st.permutations(range(count)))
    for index in ([b] for b in range(count)), [order]:
        for rows in index:
            part = [x[rows] for x in batch]
            found, found_gradients = ft.value_and_grad(
                *part, variant, reduction="none", wrt=wrt, **options, **rows_of(scores, rows)
            )
            assert bits(found) == bits(costs[rows])
            for gradient, whole in zip(found_gradients, gradients, strict=True):
                assert bits(gradient) == bits(whole[rows])


@given(st.data())
@cases()
def test_padding_is_never_read_and_changes_no_bit(data):
    variant, batch, options = draw_call(data, pad=data.draw(st.integers(1, 2)))
    logits, targets, frames, labels = batch
    scores = draw_scores(data, variant, batch)
    wrt = ("logits", *(name for name in scores if name != "band"))
    T, U = frames.max(), labels.max()
    cut = {
        "arc_scores": np.s_[:, :T, : U + 1],
        "start_scores": np.s_[:, :T],
        "final_scores": np.s_[:, : T + 1],
        "band": np.s_[:, :T],
    }
    tight_scores = {name: array[cut[name]].copy() for name, array in scores.items()}
    tight = logits[:, :T, : U + 1].copy(), targets[:, :U].copy(), frames, labels
    expected = ft.value_and_grad(*tight, variant, reduction="none", wrt=wrt, **options, **tight_scores)
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        for array in [logits, *(scores[n] for n in ("arc_scores",) if n in scores)]:
            array[b, t:] = np.nan
            array[b, :, u + 1 :] = np.nan
        targets[b, u:] = -(2**60)
        for name, begin, value in [
            ("start_scores", t, np.nan), ("final_scores", t + 1, np.nan), ("band", t, 2**60),
        ]:  # fmt: skip
            if name in scores:
                scores[name][b, begin:] = value
    found = ft.value_and_grad(
        logits, targets, frames, labels, variant, reduction="none", wrt=wrt, **options, **scores
    )
    assert bits(found[0]) == bits(expected[0])
    for name, gradient, before in zip(wrt, found[1], expected[1], strict=True):
        window = np.s_[:, :T, : U + 1] if name == "logits" else cut[name]
        assert bits(gradient[window]) == bits(before)
        outside = gradient.copy()
        outside[window] = 0
        assert not outside.any()


@given(st.data())
@cases()
def test_cost_is_the_log_sum_over_paths(data):
    variant, batch, options = draw_call(data)
    scores = draw_scores(data, variant, batch)
    costs = ft.loss(*batch, variant, reduction="none", from_log_probs=options["from_log_probs"], **scores)
    inside = {name: scores[name] for name in ("arc_scores", "band") if name in scores}
    weights = ft.scores(*batch, variant, from_log_probs=options["from_log_probs"], **inside)
    for b, (T, U) in enumerate(zip(batch[2], batch[3], strict=True)):
        ends = {
            name: scores[f"{name}_scores"][b] for name in ("start", "final") if f"{name}_scores" in scores
        }
        band = scores["band"][b] if "band" in scores else None
        expected = lattice_cost(weights[b], moves(variant), T, U, band=band, **ends)
        assert costs[b] == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(st.data())
@cases()
def test_scores_and_lattice_loss_make_the_loss(data):
    variant, batch, options = draw_call(data)
    scores = draw_scores(data, variant, batch)
    inside = {name: scores.pop(name) for name in ("arc_scores",) if name in scores}
    scores.pop("band", None)
    reduction = data.draw(st.sampled_from(["none", "sum", "mean", "mean_target", "mean_frame"]))
    more = {"semiring": options["semiring"], "reduction": reduction, **scores}
    expected = ft.loss(*batch, variant, from_log_probs=options["from_log_probs"], **inside, **more)
    weights = ft.scores(*batch, variant, from_log_probs=options["from_log_probs"], **inside)
    assert bits(ft.lattice_loss(weights, *batch[2:], variant, **more)) == bits(expected)


@given(st.data())
@cases()
def test_posteriors_of_each_cut_add_to_one(data):
    variant, batch, _ = draw_call(data)
    scores = draw_scores(data, variant, batch)
    found = ft.lattice(*batch, variant, **scores)
    for b, (T, U) in enumerate(zip(batch[2], batch[3], strict=True)):
        if not np.isfinite(found.cost[b]):
            assert not found.arc_posterior[b].any()
            continue
        mass = np.zeros(T + U + 1)
        for t, u, a in np.ndindex(T, U + 1, len(variant.arcs)):
            arc = variant.arcs[a]
            mass[t + u : t + u + arc.dt + arc.du] += found.arc_posterior[b, t, u, a]
        starts = np.zeros(T + 1)
        starts[0] = 1.0
        if "start_scores" in scores:
            starts[:T] = np.exp(scores["start_scores"][b, :T] + found.beta[b, :T, 0] + found.cost[b])
        ends = np.zeros(T + 1)
        ends[T] = 1.0
        if "final_scores" in scores:
            ends = np.exp(scores["final_scores"][b, : T + 1] + found.alpha[b, : T + 1, U] + found.cost[b])
        for n in range(T + U):
            later = starts[n + 1 :].sum()
            earlier = ends[: max(n - U + 1, 0)].sum()
            assert mass[n] + later + earlier == pytest.approx(1.0, abs=1e-11)


@given(st.data())
@cases()
def test_gradient_against_finite_differences(data):
    variant, batch, options = draw_call(data)
    plain = ft.checking._without_gradient_scales(variant)
    scores = draw_scores(data, variant, batch)
    options = {
        "from_log_probs": options["from_log_probs"],
        "reduction": "mean",
        "zero_infinity": True,
        **scores,
    }
    logits, *rest = batch
    direction = np.random.default_rng(0).normal(size=logits.shape)
    gradient = ft.value_and_grad(logits, *rest, plain, **options)[1]
    ends = [ft.loss(logits + s * 1e-5 * direction, *rest, plain, **options) for s in (1, -1)]
    expected = (ends[0] - ends[1]) / 2e-5
    assert np.sum(gradient * direction) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.data())
@cases()
def test_a_shift_of_a_softmax_changes_nothing(data):
    variant = data.draw(variants)
    softmax_only = all(
        len(column.subtract) == 1
        and variant.groups[column.subtract[0]] == ft.Group(0, ft.V)
        and not column.add
        for arc in variant.arcs
        for column in arc.columns
    )
    if not softmax_only or variant.heads:
        variant = ft.bypass(fastemit=0.5, sigma=0.1)
    logits, *rest = data.draw(batches(variant))
    costs, gradient = ft.value_and_grad(logits, *rest, variant, reduction="none")
    shift = np.random.default_rng(1).normal(size=(*logits.shape[:3], 1)) * 100
    shifted_costs, shifted = ft.value_and_grad(logits + shift, *rest, variant, reduction="none")
    np.testing.assert_allclose(shifted_costs, costs, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(shifted, gradient, rtol=0, atol=1e-11)
    np.testing.assert_allclose(gradient.sum(axis=-1), 0.0, atol=1e-12)


@given(st.data())
@cases()
def test_smaller_types_are_the_double_result_rounded_once(data):
    dtype = np.dtype(data.draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])))
    variant, batch, options = draw_call(data, dtype=dtype)
    costs, gradient = ft.value_and_grad(*batch, variant, reduction="none", skip_mass=0, **options)
    exact = batch[0].astype(np.float64), *batch[1:]
    exact_costs, exact_gradient = ft.value_and_grad(*exact, variant, reduction="none", **options)
    assert_rounded_once(costs, exact_costs)
    assert_rounded_once(gradient, exact_gradient)


@given(st.data())
@cases()
def test_the_joint_source_is_the_dense_one_on_materialised_logits(data):
    variant, batch, options = draw_call(data)
    logits, targets, frames, labels = batch
    count, T, rows, K = logits.shape
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    H = data.draw(st.integers(1, 9))
    encoder, predictor = random.normal(size=(count, T, H)), random.normal(size=(count, rows, H))
    weight, bias = random.normal(size=(K, H)), random.normal(size=K)
    activation = data.draw(st.sampled_from(sorted(ACTIVATIONS)))
    p = data.draw(st.sampled_from([0.0, 0.4]))
    mask = random.integers(0, 2, (count, rows)).astype(float) if data.draw(st.booleans()) else None
    factors = dropout_factors(7, range(count), T, rows, H, p)
    dense = joint_logits(encoder, predictor, weight, bias, activation, factors, mask)
    inputs = encoder, predictor, weight, bias, targets, frames, labels, variant
    more = {"activation": activation, "dropout": p, "seed": 7, "predictor_mask": mask}
    costs, gradients = ft.joint_value_and_grad(*inputs, reduction="none", **more, **options)
    expected, flow = ft.value_and_grad(dense, targets, frames, labels, variant, reduction="none", **options)
    np.testing.assert_allclose(costs, expected, rtol=1e-11, atol=1e-11)
    hidden = joint_logits(encoder, predictor, np.eye(H), 0.0, activation, factors, mask)
    by_weight = np.einsum("btuk,btuh->kh", flow, hidden)
    np.testing.assert_allclose(gradients.bias, flow.sum(axis=(0, 1, 2)), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gradients.weight, by_weight, rtol=1e-10, atol=1e-10)
    weights = ft.joint_scores(*inputs, from_log_probs=options["from_log_probs"], **more)
    dense_weights = ft.scores(
        dense, targets, frames, labels, variant, from_log_probs=options["from_log_probs"]
    )
    np.testing.assert_allclose(weights, dense_weights, rtol=1e-11, atol=1e-11)


@given(st.data())
@cases(0.5)
def test_reductions_only_scale(data):
    variant, batch, options = draw_call(data)
    costs, unit = ft.value_and_grad(*batch, variant, reduction="none", zero_infinity=True, **options)
    counts = {
        "sum": 1,
        "mean": len(costs),
        "mean_target": max(batch[3].sum(), 1),
        "mean_frame": batch[2].sum(),
    }
    for reduction, count in counts.items():
        value, gradient = ft.value_and_grad(
            *batch, variant, reduction=reduction, zero_infinity=True, **options
        )
        assert value == pytest.approx(costs.sum() / count, rel=1e-14, abs=1e-14)
        np.testing.assert_allclose(gradient, unit / count, rtol=1e-13, atol=1e-16)


def features(variant, batch):
    columns = [column for arc in variant.arcs for column in arc.columns]
    return {
        "feasible": bool(np.isfinite(ft.loss(*batch, variant, reduction="none")).any()),
        "two groups or more": len(variant.groups) > 1,
        "Bernoulli": any(group.normaliser == "bernoulli" for group in variant.groups),
        "exclusions": any(group.exclude for group in variant.groups),
        "log-sum": any(column.kind == "log_sum" for column in columns),
        "label with an offset": any(column.offset for column in columns),
        "added normaliser": any(column.add for column in columns),
        "subtracted normaliser": any(column.subtract for column in columns),
        "gradient scale": any(column.grad_scale != 1.0 for column in columns),
        "constant": any(arc.constant != 0.0 for arc in variant.arcs),
        "log(V - 1)": any(isinstance(arc.constant, ft.arcs.LogV1) for arc in variant.arcs),
        "frame bonus": any(arc.frame_bonus != 0.0 for arc in variant.arcs),
        "long moves": any(arc.dt > 1 for arc in variant.arcs),
        "heads": variant.heads > 0,
    }


def test_draws_use_every_feature(capsys):
    drawn = []

    @given(st.data())
    @cases()
    def draw(data):
        variant = data.draw(variants)
        drawn.append(features(variant, data.draw(batches(variant))))

    draw()
    shares = {name: np.mean([found[name] for found in drawn]) for name in drawn[0]}
    with capsys.disabled():
        print(
            f"\nof {len(drawn)} random variants:", *(f"{name} {share:.0%}," for name, share in shares.items())
        )
    assert shares["feasible"] > 0.5
    assert min(shares.values()) > 0.03, shares


def test_control_c_ends_a_long_call_soon():
    code = (
        "import numpy as np, flash_transducer as ft\n"
        "x = np.broadcast_to(np.zeros(()), (64, 2000, 101, 500))\n"
        "y = np.ones((64, 100), int)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    ft.loss(x, y, [2000] * 64, [100] * 64)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            assert process.poll() is None
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - start < 2.0
        finally:
            process.kill()


def test_threads_at_once_give_the_same_bits():
    batches_of = [
        random_batch(seed=seed, frames=(40, 30), labels=(12, 9), vocabulary=30) for seed in range(2)
    ]
    expected = [ft.value_and_grad(*batch)[1].tobytes() for batch in batches_of]
    wrong = []

    def work(index):
        for _ in range(20):
            if ft.value_and_grad(*batches_of[index])[1].tobytes() != expected[index]:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(os.environ.get("TX_SANITIZE", "none") != "none", reason="sanitizers keep freed memory")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to read its own memory")
def test_memory_stays_flat_over_many_calls():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    batch = random_batch(frames=(20, 20), labels=(10, 10), vocabulary=50)

    def calls(count):
        for _ in range(count):
            ft.value_and_grad(*batch)
            ft.align(*batch)
            with pytest.raises(ValueError, match="logit_lengths"):
                ft.loss(batch[0], batch[1], [21, 20], batch[3])

    calls(200)
    before = resident()
    calls(2000)
    assert resident() - before < 2**20 * 4  # one batch leaked each time would be 350 MB
