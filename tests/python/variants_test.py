# SPDX-License-Identifier: Apache-2.0
"""Variants as values: printing, equality, JSON, symbolic positions, constructors, and ft.check."""

import dataclasses
import inspect
import json
import math
import pkgutil

import flash_transducer as ft
import numpy as np
import pytest
from batches import VARIANTS, bits, log_softmax, random_batch
from hypothesis import given
from hypothesis import strategies as st
from random_variants import cases, typed_variants, variants

NAMED = pytest.mark.parametrize("name", VARIANTS)
A, C, G = ft.Arc, ft.Column, ft.Group


def rebuilt(variant):
    return eval(repr(variant), {"ft": ft})


@given(variants)
@cases()
def test_repr_and_json_bring_back_an_equal_variant(variant):
    for copy in (rebuilt(variant), ft.Variant.from_json(variant.to_json())):
        assert copy == variant
        assert hash(copy) == hash(variant)
        assert copy.table == variant.table
        assert repr(copy) == repr(variant)
    assert json.loads(variant.to_json())["format"] == 1


@given(typed_variants(), st.data())
@cases(0.5)
def test_a_changed_field_makes_another_variant(variant, data):
    index = data.draw(st.integers(0, len(variant.arcs) - 1))
    arc = variant.arcs[index]
    changes = [
        dataclasses.replace(arc, may_finish=not arc.may_finish),
        dataclasses.replace(arc, frame_bonus=arc.frame_bonus + 0.5),
        dataclasses.replace(arc, constant=arc.constant + 0.5),
        dataclasses.replace(arc, dt=arc.dt + 1),
        dataclasses.replace(arc, kind="blank" if arc.kind != "blank" else "skip"),
    ]
    for changed in changes:
        arcs = [*variant.arcs[:index], changed, *variant.arcs[index + 1 :]]
        other = dataclasses.replace(variant, arcs=tuple(arcs))
        assert other != variant
        assert other.table != variant.table
        assert ft.Variant.from_json(other.to_json()) == other != ft.Variant.from_json(variant.to_json())
    assert dataclasses.replace(variant, name="other") != variant


def test_printing():
    assert repr(ft.tdt([0, 1, 2], fastemit=0.1)) == "ft.tdt([0, 1, 2], fastemit=0.1)"
    assert repr(ft.rnnt()) == "ft.rnnt()"
    assert repr(ft.tdt(np.array([0, 1]), np.int64(3))) == "ft.tdt([0, 1], blank=3)"
    assert repr(ft.V) == "ft.V"
    assert repr(ft.V + 2) == "ft.V + 2"
    assert repr(ft.V - 2) == "ft.V - 2"
    assert repr(ft.log_v1(-1.0) + 0.5) == "0.5 + ft.log_v1(-1.0)"


def test_variants_are_values():
    assert ft.rnnt() == ft.rnnt(-1) == ft.rnnt(blank=-1, fastemit=0.0)
    assert ft.rnnt() != ft.rnnt(0)
    assert len({ft.rnnt(), ft.rnnt(-1), ft.monotonic(), ft.monotonic()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        ft.rnnt().name = "other"


BLANK = A(1, 0, C.fixed(-1, subtract=0), may_finish=True)
LABEL = A(0, 1, C.label(subtract=0))


def softmax_pair(**changed):
    blank, label = C.fixed(-1, subtract=0), C.label(subtract=0)
    both = {"arcs": [A(1, 0, blank, may_finish=True), A(0, 1, label)], "groups": [G(0, ft.V)]}
    return ft.Variant("typed", **{**both, **changed})


REST = G(0, ft.V, exclude=(C.fixed(-1), C.label()))
TYPED = {
    "rnnt": softmax_pair(),
    "monotonic": softmax_pair(arcs=[BLANK, A(1, 1, C.label(subtract=0), may_finish=True)]),
    "multi_blank": softmax_pair(
        arcs=[
            BLANK,
            A(2, 0, C.fixed(-2, subtract=0), may_finish=True),
            A(3, 0, C.fixed(-3, subtract=0), may_finish=True),
            LABEL,
        ]
    ),
    "tdt": ft.Variant(
        "typed",
        arcs=[
            A(d, 0, (C.fixed(-1, subtract=0), C.fixed(ft.V + d, subtract=1)), may_finish=True) for d in (1, 2)
        ]
        + [A(d, 1, (C.label(subtract=0), C.fixed(ft.V + d, subtract=1))) for d in (0, 1, 2)],
        groups=[G(0, ft.V), G(ft.V, ft.V + 3, clamp=False)],
        heads=3,
    ),
    "hat": ft.Variant(
        "typed",
        arcs=[A(1, 0, C.fixed(-1, subtract=0), may_finish=True), A(0, 1, C.label(subtract=(0, 1)))],
        groups=[G(-1, ft.V, normaliser="bernoulli"), G(0, ft.V, exclude=C.fixed(-1))],
    ),
    "star": softmax_pair(arcs=[BLANK, LABEL, A(1, 0, constant=-0.5, kind="skip")]),
    "bypass": softmax_pair(
        arcs=[BLANK, LABEL, A(0, 1, C.log_sum(1, subtract=0), constant=-0.5, kind="skip")],
        groups=[G(0, ft.V), REST],
    ),
    "target_robust": softmax_pair(
        arcs=[
            BLANK,
            LABEL,
            A(1, 0, constant=-0.5, kind="skip"),
            A(0, 1, C.log_sum(1, subtract=0), constant=-0.7, kind="skip"),
        ],
        groups=[G(0, ft.V), REST],
    ),
}


@NAMED
def test_a_typed_variant_gives_what_the_named_one_gives(name):
    batch = random_batch(VARIANTS[name])
    for options in ({}, {"clamp": 0.1}, {"semiring": "max"}):
        cost, gradient = ft.value_and_grad(*batch, VARIANTS[name], **options)
        typed_cost, typed = ft.value_and_grad(*batch, TYPED[name], **options)
        assert typed_cost == pytest.approx(cost, rel=1e-15)
        np.testing.assert_allclose(typed, gradient, rtol=0, atol=1e-15)


def test_positions_count_from_the_vocabulary():
    batch = random_batch(ft.tdt([0, 1]), vocabulary=6)
    for position, column in [(0, 0), (-1, 5), (-6, 0), (ft.V, 6), (ft.V + 1, 7), (ft.V - 2, 4), (7, 7)]:
        variant = ft.Variant("typed", [A(1, 0, C.fixed(position), may_finish=True)], heads=2)
        weights = ft.scores(*batch, variant)
        np.testing.assert_array_equal(weights[0, :5, :3, 0], batch[0][0, ..., column])
    assert C.fixed(-1) == C.fixed(ft.V - 1)
    assert ft.V + 1 - 1 == ft.V
    beyond = ft.Variant("typed", [A(1, 0, C.fixed(ft.V + 2), may_finish=True)], heads=2)
    with pytest.raises(ValueError, match=r"arc 0 reads column V \+ 2 = 8, expected a value from 0 to 7"):
        ft.loss(*batch, beyond)


@pytest.mark.parametrize("V", [2, 5, 1000])
def test_log_v1_is_bound_to_the_vocabulary(V):
    arc = A(1, 0, constant=2.0 + ft.log_v1(-1.5) + ft.log_v1(0.5) - 0.25, may_finish=True)
    variant = ft.Variant("typed", [arc], heads=1)
    weights = ft.scores(np.zeros((1, 1, 1, V + 1)), np.zeros((1, 0), int), [1], [0], variant)
    assert weights[0, 0, 0, 0] == pytest.approx(1.75 - math.log(V - 1), rel=1e-14, abs=1e-14)


def test_log_v1_of_one_symbol():
    variant = ft.Variant("typed", [A(1, 0, constant=ft.log_v1(1.0), may_finish=True)])
    with pytest.raises(
        ValueError, match=r"arc 0 has a constant with log\(V - 1\), expected V >= 2, got V = 1"
    ):
        ft.loss(np.zeros((1, 1, 1, 1)), np.zeros((1, 0), int), [1], [0], variant)


def one(*arcs, groups=(), **more):
    return lambda: ft.Variant("mine", arcs, groups, **more)


def blank_of(column):
    return A(1, 0, column, may_finish=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (one(), r"variant mine: 0 arcs; a variant has 1 to 32"),
        (one(*[BLANK] * 33), r"variant mine: more than 32 arcs"),
        (one(A(0, 0)), r"arc 0 has dt = 0 and du = 0; an arc must move, so make dt >= 1 or du = 1"),
        (one(A(1, 2)), r"arc 0 has du = 2; an arc emits no label \(du = 0\) or one \(du = 1\)"),
        (one(A(-1, 1)), r"arc 0 has dt = -1; .* so make dt >= 0"),
        (one(A(1, 0, (C.fixed(0),) * 3)), r"an arc reads more than 2 columns; a log-sum .* counts as one"),
        (one(BLANK), r"a group that does not exist; the variant has 0 group"),
        (one(A(1, 0), groups=[G(0, 1)] * 5), r"more than 4 groups"),
        (one(A(1, 0), groups=[G(3, 1)]), r"group 0 covers columns 3 up to 1, .* end .* must lie above begin"),
        (
            one(A(1, 0, (C.fixed(0, subtract=0), C.fixed(1, subtract=0))), groups=[G(0, ft.V)]),
            r"arc 0 counts the normaliser of group 0 -2 times; .* so let only one column name the group",
        ),
        (
            one(blank_of(C.fixed(0, subtract=0, add=0)), groups=[G(0, ft.V)]),
            r"both subtracts and adds the same group; name it in one of the two",
        ),
        (one(BLANK, groups=[G(0, 2, normaliser="bernoulli")]), r"exactly one, so make end = begin \+ 1"),
        (
            one(blank_of(C.log_sum(0)), groups=[G(0, 1, normaliser="bernoulli")]),
            r"log-sum of the Bernoulli group 0; read that group's one column with a fixed column instead",
        ),
        (
            one(A(1, 0), groups=[G(0, 1, normaliser="soft")]),
            r"normaliser is 'soft', expected one of 'softmax'",
        ),
        (one(A(1, 0, kind="foo")), r"kind is 'foo', expected one of 'blank', 'label', 'skip'"),
        (one(A(1, 0, constant=-math.inf)), r"constant that is not finite; leave the arc out instead"),
        (one(A(1, 0, frame_bonus=math.inf)), r"arc 0 has frame_bonus inf; it must be a finite number"),
        (one(blank_of(C.fixed(0, grad_scale=math.nan))), r"grad_scale nan; it must be a finite number"),
        (one(A(1, 0), heads=-1), r"heads = -1; .* so make it >= 0"),
        (lambda: ft.Variant("x" * 48, [A(1, 0)]), r"the name has 48 bytes, expected at most 47"),
        (lambda: ft.Variant("", [A(1, 0)]), r"a variant needs a name; give one"),
        (lambda: G(0, 3, exclude=(C.fixed(1), C.fixed(2))), r"expected at most one Column\.fixed\(i\)"),
        (lambda: G(0, 3, exclude=C.label(1)), r"expected Column\.label\(\): only the next label itself"),
        (lambda: A(2**40, 0), r"Arc: dt is 1099511627776, expected an integer between"),
        (lambda: ft.tdt([]), r"tdt: durations has 0 entries, expected 1 to 16 because .* 32 arcs"),
        (lambda: ft.tdt([0, -1]), r"tdt: durations contains -1, expected values from 0"),
        (lambda: ft.multi_blank([0]), r"multi_blank: durations contains 0, expected values from 1"),
        (lambda: ft.bypass(mode="max"), r"bypass: mode is 'max', expected 'sumexcl', 'sum', 'mean'"),
    ],
)
def test_an_illegal_variant_is_refused_with_what_to_change(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ft.rnnt(foo=1), r"ft\.rnnt: got an unexpected keyword argument 'foo'"),
        (lambda: ft.tdt(), r"ft\.tdt: missing a required argument: 'durations'"),
        (lambda: ft.rnnt(-1, 0.1), r"ft\.rnnt: too many positional arguments"),
        (lambda: ft.rnnt("a"), r"ft\.rnnt: blank is 'a', expected an integer"),
        (lambda: ft.rnnt(True), r"ft\.rnnt: blank is True, expected an integer"),
        (lambda: ft.rnnt(1.5), r"ft\.rnnt: blank is 1\.5, expected an integer"),
        (lambda: ft.rnnt(fastemit="x"), r"ft\.rnnt: fastemit is 'x', expected a number"),
        (lambda: ft.tdt("012"), r"ft\.tdt: durations is '012', expected a list of integers"),
        (lambda: ft.tdt([0.5]), r"ft\.tdt: durations is \[0\.5\], expected a list of integers"),
        (lambda: ft.monotonic(final_label="yes"), r"final_label is 'yes', expected True or False"),
        (lambda: ft.bypass(mode=3), r"ft\.bypass: mode is 3, expected"),
        (lambda: ft.Variant("mine", ["a"]), r"Variant: an arc is 'a', expected an ft\.Arc"),
        (lambda: ft.Variant(3, [A(1, 0)]), r"Variant: name is 3, expected a string"),
        (lambda: ft.Variant("mine", [A(1, 0)], ["g"]), r"Variant: a group is 'g', expected an ft\.Group"),
        (lambda: A(1, 0, "a"), r"Arc: a column is 'a', expected an ft\.Column"),
        (lambda: A(1.0, 0), r"Arc: dt is 1\.0, expected an integer"),
        (lambda: C.fixed("0"), r"Column\.fixed: position is '0', expected an integer"),
        (lambda: C.label(0.5), r"Column\.label: offset is 0\.5, expected an integer"),
        (lambda: ft.check("rnnt"), r"ft\.check: variant is a str, expected an ft\.Variant"),
    ],
)
def test_wrong_types(build, message):
    with pytest.raises(TypeError, match=message):
        build()


GARBAGE = ["", "{", "[]", "{}", "null", "3", '"rnnt"', '{"format": 1}', '{"format": 2}', "\ud800", "NaN"]


@pytest.mark.parametrize("text", GARBAGE)
def test_json_of_something_else(text):
    with pytest.raises(ValueError, match=r"^Variant\.from_json: not the JSON of a variant: "):
        ft.Variant.from_json(text)


@given(st.data())
@cases(2)
def test_json_with_any_one_value_replaced_is_a_variant_or_a_value_error(data):
    spec = json.loads(ft.bypass().to_json())
    node = spec
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.integers(0, 3)) == 0:
            break
        node = node[key]
    node[key] = data.draw(
        st.sampled_from([None, -1, 2**70, 0.5, math.inf, "x", [], {}, [1, 2], True, [None]])
    )
    try:
        variant = ft.Variant.from_json(json.dumps(spec))
    except ValueError as error:
        assert str(error).startswith("Variant.from_json: not the JSON of a variant: ")
    else:
        assert ft.Variant.from_json(variant.to_json()) == variant


SIGNATURES = {
    "rnnt": "(blank=-1, *",
    "monotonic": "(blank=-1, *, final_label=True",
    "multi_blank": "(durations, blank=-1, *",
    "tdt": "(durations, blank=-1, *, final_label=False",
    "hat": "(blank=-1, *",
    "star": "(skip_frame_penalty=-1.0, blank=-1, *",
    "bypass": "(skip_token_penalty=-1.0, blank=-1, *, mode='sumexcl'",
    "target_robust": "(skip_frame_penalty=-1.0, skip_token_penalty=-1.0, blank=-1, *, mode='sumexcl'",
}


@NAMED
def test_signature_and_docstring(name):
    function = getattr(ft, name)
    parameters = inspect.signature(function).parameters.values()
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    assert str(bare) == f"{SIGNATURES[name]}, fastemit=0.0, delay_penalty=0.0, sigma=0.0)"
    assert function.__name__ == name
    assert "Source: " in function.__doc__
    assert all(p.name in function.__doc__ for p in parameters)


# ft.check


@NAMED
def test_check_passes_for_named_variants(name, capsys):
    report = ft.check(VARIANTS[name], lattices=15)
    assert report.passed
    assert report.feasible > 0
    printed = capsys.readouterr().out
    assert str(report) in printed
    assert "FAILED" not in printed


@given(typed_variants())
@cases(0.1)
def test_check_passes_for_typed_variants(variant):
    assert ft.check(variant, lattices=6, seed=3).passed


def wrong_value(good):
    return lambda *a, **k: (lambda v, g: (v, g * 1.001))(*good(*a, **k))


def wrong_posterior(good):
    def broken(*args, **keywords):
        found = good(*args, **keywords)
        found.arc_posterior[..., 0] *= 1.0 + 1e-9
        return found

    return broken


def wrong_batch(good):
    def broken(logits, *args, **keywords):
        return good(logits, *args, **keywords) * (1.0 + 1e-15 * (len(logits) > 1) * 10)

    return broken


@pytest.mark.parametrize(
    ("function", "breaks", "line"),
    [
        ("value_and_grad", wrong_value, "finite differences"),
        ("lattice", wrong_posterior, "posteriors"),
        ("loss", wrong_batch, "in a batch"),
    ],
)
def test_check_fails_for_a_wrong_backend(function, breaks, line, monkeypatch, capsys):
    monkeypatch.setattr(ft.checking, function, breaks(getattr(ft.checking, function)))
    with pytest.raises(ft.CheckFailed, match=r"ft\.check failed:\n.*") as failure:
        ft.check(ft.rnnt(), lattices=10)
    failed = [row for row in str(failure.value).splitlines() if row.endswith("FAILED")]
    assert any(line in row for row in failed)
    assert "FAILED" in capsys.readouterr().out


def test_check_fails_for_a_variant_that_has_no_path():
    with pytest.raises(ft.CheckFailed):
        ft.check(ft.Variant("mine", [A(1, 0)]), lattices=5)


def test_label_scores_are_log_softmax():
    """The first literal of all: an arc is a log-probability."""
    batch = random_batch()
    weights = ft.scores(*batch, ft.rnnt())
    expected = log_softmax(batch[0])[0, 0, 0]
    np.testing.assert_allclose(weights[0, 0, 0], expected[[-1, batch[1][0, 0]]], rtol=1e-14)
    assert bits(weights) == bits(ft.scores(*batch, TYPED["rnnt"]))


def test_doctests():
    """Every example of every docstring of the installed package."""
    import doctest
    import importlib

    attempted = 0
    for module in pkgutil.iter_modules(ft.__path__, "flash_transducer."):
        if module.name.endswith(("._core", ".__main__")):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as missing:  # an extra that is not installed
            assert not (missing.name or "").startswith("flash_transducer")
            continue
        examples = {name: getattr(loaded, name) for name in getattr(loaded, "__all__", [])}
        found = doctest.DocTestFinder().find(loaded)
        found += [t for name, f in examples.items() for t in doctest.DocTestFinder().find(f, name)]
        for test in found:
            result = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test)
            assert result.failed == 0, test.name
            attempted += result.attempted
    assert attempted > 60
