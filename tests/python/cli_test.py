# SPDX-License-Identifier: Apache-2.0
"""The command line: results, and one line with exit status 2 for whatever a user can get wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flash_transducer as ft
import numpy as np
import pytest

pytest.importorskip("safetensors")
from flash_transducer import _core
from flash_transducer.batch_file import write_batch
from flash_transducer.cli import main

COMMAND = [sys.executable, "-c", "import sys; from flash_transducer.cli import main; sys.exit(main())"]


def make_batch(heads: int = 0, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    batch = {
        "logits": rng.normal(size=(3, 9, 4, 8 + heads)),
        "targets": rng.integers(0, 7, (3, 3)),
        "logit_lengths": np.array([9, 5, 3]),
        "target_lengths": np.array([3, 2, 0]),
    }
    return batch | changes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_batch("dense.safetensors", make_batch())
    write_batch("tdt.safetensors", make_batch(heads=3))
    labels = make_batch()["targets"].copy()
    labels[1, 0] = 8
    write_batch("label_out_of_range.safetensors", make_batch(targets=labels))
    write_batch("too_long.safetensors", make_batch(logit_lengths=np.array([9, 10, 3])))
    Path("cut.safetensors").write_bytes(Path("dense.safetensors").read_bytes()[:500])
    Path("junk.json").write_text("{", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    return tmp_path


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        status = main(shlex.split(line))
    except SystemExit as end:  # argparse's own
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_loss_prints_the_costs_of_ft_loss(folder: Path, capsys: Any) -> None:
    status, out, err = run("loss dense.safetensors --json", capsys)
    result = json.loads(out)
    assert (status, err) == (0, "")
    expected = ft.loss(*make_batch().values(), ft.rnnt(), reduction="none")
    assert result["costs"] == pytest.approx(expected.tolist(), rel=1e-15)
    assert result["sum"] == pytest.approx(expected.sum(), rel=1e-15)
    status, out, _ = run("loss dense.safetensors", capsys)
    assert status == 0
    assert all(f"{cost:.6f}" in out for cost in expected)


@pytest.mark.parametrize(
    ("line", "variant"),
    [
        ("--variant tdt --durations 0,1,2 --final-label", ft.tdt([0, 1, 2], final_label=True)),
        ("--variant tdt --durations 0,1,2 --sigma 0.1", ft.tdt([0, 1, 2], sigma=0.1)),
        ("--variant tdt --durations 0,2,3 --blank 2", ft.tdt([0, 2, 3], blank=2)),
    ],
)
def test_options_reach_the_variant(line: str, variant: ft.Variant, folder: Path, capsys: Any) -> None:
    status, out, _ = run(f"loss tdt.safetensors --json {line}", capsys)
    assert status == 0
    expected = ft.loss(*make_batch(heads=3).values(), variant, reduction="none")
    assert json.loads(out)["costs"] == pytest.approx(expected.tolist(), rel=1e-15)


def test_every_parameter_of_every_named_variant_is_an_option() -> None:
    from flash_transducer._variant_options import variant_from_options
    from flash_transducer.cli import _parser

    for entry in _core.named_variants():
        line, given = ["plan", "--shape", "1", "1", "1", "9", "--variant", entry["name"]], {}
        for parameter in entry["parameters"]:
            name, value = parameter["name"], parameter["example"]
            option = "--" + name.replace("_", "-")
            given[name] = value
            if parameter["kind"] == "flag":
                line.append(option if value else option.replace("--", "--no-", 1))
            elif parameter["kind"] == "integers":
                line += [option, ",".join(map(str, value))]
            else:
                line += [option, str(value)]
        assert variant_from_options(_parser().parse_args(line)) == getattr(ft, entry["name"])(**given)


def test_a_typed_variant_comes_from_json(folder: Path, capsys: Any) -> None:
    mine = ft.Variant(
        "mine",
        [ft.Arc(1, 0, ft.Column.fixed(0), may_finish=True), ft.Arc(1, 1, ft.Column.label(), may_finish=True)],
    )
    Path("mine.json").write_text(mine.to_json(), encoding="utf-8")
    status, out, _ = run("loss dense.safetensors --json --variant-json mine.json", capsys)
    assert status == 0
    expected = ft.loss(*make_batch().values(), mine, reduction="none")
    assert json.loads(out)["costs"] == pytest.approx(expected.tolist(), rel=1e-15)


def test_the_joint_source_takes_an_activation(folder: Path, capsys: Any) -> None:
    rng = np.random.default_rng(2)
    source = [rng.normal(size=size) for size in ((3, 9, 5), (3, 4, 5), (8, 5), (8,))]
    rest = [array for name, array in make_batch().items() if name != "logits"]
    names = ("encoder", "predictor", "weight", "bias", "targets", "logit_lengths", "target_lengths")
    write_batch("joint.safetensors", dict(zip(names, [*source, *rest], strict=True)))
    status, out, _ = run("loss joint.safetensors --json --activation tanh", capsys)
    assert status == 0
    expected = ft.joint_loss(*source, *rest, ft.rnnt(), activation="tanh", reduction="none")
    assert json.loads(out)["costs"] == pytest.approx(expected.tolist(), rel=1e-14)


def test_no_path_and_nan_are_values_and_stay_valid_json(folder: Path, capsys: Any) -> None:
    logits = make_batch()["logits"].copy()
    logits[1, 0, 0, 0] = np.nan
    write_batch("odd.safetensors", make_batch(logits=logits, logit_lengths=np.array([0, 5, 3])))
    status, out, _ = run("loss odd.safetensors --json", capsys)
    result = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (status, result["costs"][:2]) == (0, ["inf", "nan"])
    assert np.isfinite(result["costs"][2])
    _, out, _ = run("loss odd.safetensors --json --zero-infinity", capsys)
    assert json.loads(out)["costs"][0] == 0.0


def test_an_empty_batch_has_no_costs(folder: Path, capsys: Any) -> None:
    write_batch("none.safetensors", {name: array[:0] for name, array in make_batch().items()})
    status, out, _ = run("loss none.safetensors --json", capsys)
    assert (status, json.loads(out)["costs"]) == (0, [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"arguments are required: COMMAND"),
        ("los x", r"invalid choice: 'los'"),
        ("loss missing.safetensors", r"missing.safetensors: no such file"),
        ("loss empty", r"empty: is a directory"),
        ("loss cut.safetensors", r"not a usable safetensors file"),
        ("loss junk.json", r"not a usable safetensors file"),
        ("loss label_out_of_range.safetensors", r"targets\[1, 0\] is 8, expected a label from 0 to 7"),
        ("loss too_long.safetensors", r"logit_lengths\[1\] is 10"),
        ("loss dense.safetensors --blank 8", r"expected a value from 0 to 7"),
        ("loss dense.safetensors --variant tdt", r"--variant tdt needs --durations 0,1,2"),
        ("loss dense.safetensors --variant tdt --durations 0,x", r"--durations: invalid list of whole"),
        ("loss dense.safetensors --variant nope", r"--variant nope: unknown; the variants are rnnt,"),
        ("loss dense.safetensors --durations 1", r"variant rnnt has no such option; it belongs to"),
        ("loss dense.safetensors --variant bypass --mode most", r"mode"),
        ("loss dense.safetensors --variant-json junk.json", r"junk.json: .*not the JSON of a variant"),
        ("loss dense.safetensors --variant-json none.json", r"none.json: No such file"),
        ("loss dense.safetensors --variant-json junk.json --blank 0", r"leave out --variant"),
        ("loss dense.safetensors --activation tanh", r"the file holds logits"),
        ("plan --shape 1 2 3", r"--shape has 3 numbers, expected B T U V or B T U V H"),
        ("plan --shape 1 2 3 -4", r"-4 is not between 0 and"),
        ("plan --shape 1 2 3 x", r"invalid whole number value: 'x'"),
        ("plan --shape 1 99999999999 99999999999 9", r"does not fit in 63 bits"),
        ("plan --shape 8 4 4 4 --dtype int3", r"dtype is 'int3', expected float64"),
        ("check --vectors missing", r"--vectors missing: no such folder"),
        ("check --vectors empty", r"--vectors empty: holds no .json files"),
        ("inspect dense.safetensors --utterance 3", r"the file holds 3, numbered from 0"),
        ("inspect --output nowhere/x.png", r"there is no folder nowhere"),
        ("inspect --output x.gif", r"ends in .png, .svg or .pdf"),
        ("inspect --tokens missing.txt", r"missing.txt: No such file"),
        ("demo --lengths junk.json", r"junk.json: expected the columns frames,labels"),
        ("demo --utterances 0", r"must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(line: str, message: str, folder: Path, capsys: Any) -> None:
    status, out, err = run(line, capsys)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("flash-transducer")
    assert re.search(message, err)


def test_plan_prints_the_bytes_of_ft_plan(capsys: Any) -> None:
    expected = ft.plan(2, 30, 5, 11, 16, variant=ft.tdt([0, 1]))
    line = "plan --shape 2 30 5 9 16 --variant tdt --durations 0,1"
    assert json.loads(run(f"{line} --json", capsys)[1]) == expected.as_dict()
    status, out, _ = run(line, capsys)
    assert status == 0
    assert all(f"{region.bytes:,}" in out for region in expected.regions)
    assert ("wave: " in out) == any("wave" in region.shape for region in expected.regions)


def test_check_passes_and_says_what_is_built(capsys: Any) -> None:
    status, out, err = run("check --lattices 10", capsys)
    assert (status, err) == (0, "")
    assert f"flash-transducer {ft.__version__}" in out
    assert "backends: reference" in out
    assert f"{len(_core.named_variants())} passed, 0 failed, 0 skipped" in out


def test_check_compares_vectors_and_fails_on_a_wrong_one(folder: Path, capsys: Any) -> None:
    vector = {
        "variant": "rnnt", "blank": 0, "normalised": "logits", "params": {}, "tolerance": 1e-9,
        "shape": {"B": 1, "T": 2, "U": 1, "V": 3}, "logits": [0.0] * 12, "targets": [[1]],
        "logit_lengths": [2], "target_lengths": [1],
        "expected_costs": [float(3 * np.log(3) - np.log(2))],  # two paths of three arcs, each 1/3
    }  # fmt: skip
    Path("v").mkdir()
    Path("v/right.json").write_text(json.dumps(vector), encoding="utf-8")
    wrong = vector | {"expected_costs": [2.6]}
    Path("v/wrong.json").write_text(json.dumps(wrong), encoding="utf-8")
    Path("v/broken.json").write_text("[1", encoding="utf-8")
    later = vector | {"variant": "constrained"}
    Path("v/later.json").write_text(json.dumps(later), encoding="utf-8")
    odd = vector | {"params": {"mystery": 1}}
    Path("v/odd.json").write_text(json.dumps(odd), encoding="utf-8")
    status, out, _ = run("check --lattices 5 --vectors v --json", capsys)
    found = {result["name"]: (result["status"], result["detail"]) for result in json.loads(out)["checks"]}
    assert status == 1
    assert found["right"][0] == "passed"
    assert found["wrong"][0] == "failed"
    assert found["broken"] == ("failed", found["broken"][1])
    assert found["later"] == ("skipped", "arcs that read two nodes wait for a later release")
    assert found["odd"] == ("skipped", "its convention mystery is not ours")


def test_inspect_writes_a_picture_and_token_times(folder: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    Path("symbols.txt").write_text("\n".join("abcdefg"), encoding="utf-8")
    line = "inspect dense.safetensors --utterance 1 --tokens symbols.txt --output one.png --json"
    status, out, _ = run(line, capsys)
    result = json.loads(out)
    batch = make_batch()
    alignment = ft.align(*batch.values(), ft.rnnt())[1]
    assert status == 0
    assert Path("one.png").read_bytes().startswith(b"\x89PNG")
    assert [t["best_frame"] for t in result["tokens"]] == alignment.frames.tolist()
    assert [t["token"] for t in result["tokens"]] == ["abcdefg"[i] for i in batch["targets"][1, :2]]
    for entry in _core.named_variants():
        options = "".join(f" --{p['name']} 1,2" for p in entry["parameters"] if p["required"])
        assert run(f"inspect --variant {entry['name']}{options}", capsys)[0] == 0


def test_demo_prints_four_variants_and_writes_their_pictures(folder: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    status, out, err = run("demo --utterances 2 --output pictures", capsys)
    assert (status, err) == (0, "")
    assert all(name in out for name in ("ft.rnnt()", "ft.tdt([0, 1, 2])", "ft.hat()", "ft.star()"))
    assert len(list(Path("pictures").glob("lattice_*.png"))) == 4


@pytest.mark.parametrize("command", ["loss", "plan", "check", "inspect", "demo"])
def test_help_explains_each_command_with_an_example(command: str, capsys: Any) -> None:
    status, out, _ = run(f"{command} --help", capsys)
    assert status == 0
    assert f"example: flash-transducer {command}" in " ".join(out.split())


def test_an_interrupt_is_one_line_and_status_130() -> None:
    code = COMMAND[2].replace("import sys;", "import sys, time; print('up', flush=True);")
    with subprocess.Popen(
        [sys.executable, "-c", code, "check", "--lattices", "1000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "flash-transducer: interrupted\n")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = f"{shlex.join([*COMMAND, 'plan', '--shape', '1', '2', '3', '4'])} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, env=os.environ)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_progress_is_shown_on_a_terminal_only(folder: Path) -> None:
    pytest.importorskip("rich")
    master, slave = os.openpty()
    done = subprocess.run(
        [*COMMAND, "demo", "--utterances", "2", "--json"], stdout=subprocess.PIPE, stderr=slave, check=True,
        env=os.environ | {"TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    assert b"costs and gradients" in os.read(master, 1 << 16)
    assert len(json.loads(done.stdout)["variants"]) == 4
