# SPDX-License-Identifier: Apache-2.0
"""flash-transducer-run: the same results whatever the number of ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import flash_transducer as ft
import numpy as np
import pytest

pytest.importorskip("safetensors")
from ranks import ENVIRONMENT, dense_tensors, joint_tensors, results, run_program
from safetensors.numpy import load_file

FILES = [dense_tensors(seed, utterances=1 + seed % 4) for seed in range(7)]


def expected_costs():
    costs = []
    for tensors in FILES:
        wide = {**tensors, "logits": tensors["logits"].astype(np.float64)}
        costs += ft.loss(*wide.values(), reduction="none").tolist()
    return costs


@pytest.mark.parametrize("ranks", [0, 1, 2, 3])
def test_results_are_in_manifest_order_and_right(corpus, tmp_path, ranks):
    manifest = corpus(*FILES, fields={"set": "dev"})
    run = run_program(ranks, manifest, "--out", tmp_path / "out.jsonl", "--json")
    assert run.returncode == 0, run.stderr
    found = results(tmp_path / "out.jsonl")
    assert [(r["line"], r["utterance"]) for r in found] == [
        (line, b) for line, tensors in enumerate(FILES, start=1) for b in range(len(tensors["targets"]))
    ]
    assert {r["set"] for r in found} == {"dev"}
    np.testing.assert_allclose([r["cost"] for r in found], expected_costs(), rtol=2e-5)
    summary = json.loads(run.stdout)
    total = 0.0
    for result in found:
        total += result["cost"]
    assert summary["sum"] == total
    assert summary["utterances"] == len(found)
    assert summary["ranks"] == max(ranks, 1)
    assert not (tmp_path / "out.jsonl.parts").exists()


def test_output_has_the_same_bytes_for_every_number_of_ranks(corpus, tmp_path):
    manifest = corpus(*FILES)
    outputs = []
    totals = []
    for ranks in (0, 2, 4):
        out = tmp_path / f"out{ranks}.jsonl"
        run_program(ranks, manifest, "--out", out)
        outputs.append(out.read_bytes())
        totals.append(json.loads(run_program(ranks, manifest, "--json").stdout)["sum"])
    assert outputs[0] == outputs[1] == outputs[2]
    assert totals[0] == totals[1] == totals[2]


def test_sizes_in_the_manifest_need_no_exchange(corpus):
    with_rows = json.loads(run_program(2, corpus(*FILES, fields={"rows": 40}), "--json").stdout)
    without = json.loads(run_program(2, corpus(*FILES), "--json").stdout)
    assert with_rows["sum"] == without["sum"]
    assert with_rows["bytes_communicated"] < without["bytes_communicated"]


def test_gradients_posteriors_and_alignments_are_those_of_the_plain_call(corpus, tmp_path):
    tensors = joint_tensors(3)
    manifest = corpus(FILES[1], tensors)
    folders = [tmp_path / name for name in ("grad", "posteriors", "align")]
    run = run_program(
        2,
        manifest,
        "--grad",
        folders[0],
        "--posteriors",
        folders[1],
        "--align",
        folders[2],
        "--activation",
        "relu",
    )
    # The first file holds logits, for which there is no activation.
    assert run.returncode != 0
    run = run_program(2, manifest, "--grad", folders[0], "--posteriors", folders[1], "--align", folders[2])
    assert run.returncode == 0, run.stderr
    gradient = load_file(folders[0] / "00000001-file0.safetensors")["logits_gradient"]
    want = ft.value_and_grad(*FILES[1].values(), reduction="none")[1]
    np.testing.assert_array_equal(gradient, want)
    found = load_file(folders[0] / "00000002-file1.safetensors")
    joint = ft.joint_value_and_grad(*tensors.values(), reduction="none")[1]
    for name in ("encoder", "predictor", "weight", "bias"):
        np.testing.assert_array_equal(found[f"{name}_gradient"], getattr(joint, name))
    lattice = ft.lattice(*FILES[1].values())
    posteriors = load_file(folders[1] / "00000001-file0.safetensors")
    np.testing.assert_array_equal(posteriors["occupancy"], lattice.occupancy)
    paths = results(folders[2] / "00000001-file0.jsonl")
    best = ft.align(*FILES[1].values())
    assert [p["frames"] for p in paths] == [b.frames.tolist() for b in best]


def test_infeasible_utterances_have_an_infinite_cost(corpus, tmp_path):
    tensors = dense_tensors(0)
    tensors["logits"][1] = -np.inf
    run = run_program(2, corpus(tensors), "--out", tmp_path / "out.jsonl", "--json")
    assert run.returncode == 0, run.stderr
    assert results(tmp_path / "out.jsonl")[1]["cost"] == "inf"
    assert json.loads(run.stdout)["infeasible"] == 1


def test_memory_does_not_grow_with_the_manifest(corpus, tmp_path):
    code = (
        "import resource, sys; from flash_transducer.run import main; status = main()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(status)"
    )
    peaks = []
    for repeat in (20, 600):
        manifest = corpus(*FILES, repeat=repeat)
        command = [sys.executable, "-c", code, str(manifest), "--out", str(tmp_path / f"{repeat}.jsonl")]
        run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        peaks.append(int(run.stdout.splitlines()[-1]))
    assert peaks[1] - peaks[0] < 4096  # KiB, for 30 times as many files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "manifest.jsonl:1: not a line of JSON"),
        ('{"path": "a"}', "manifest.jsonl:1: expected an object that names a file"),
        ('{"file": "a", "rows": -1}', "manifest.jsonl:1: rows is -1"),
        ('{"file": "a", "cost": 1}', "manifest.jsonl:1: the field 'cost' is one that results have"),
        ('{"file": "a", "x": NaN}', "NaN is not JSON"),
    ],
)
def test_a_bad_manifest_is_one_line_from_one_rank(tmp_path, text, message):
    (tmp_path / "manifest.jsonl").write_text(text + "\n", encoding="utf-8")
    run = run_program(2, tmp_path / "manifest.jsonl")
    assert run.returncode == 2
    assert run.stderr.count("flash-transducer-run:") == 1
    assert message in run.stderr


def test_a_manifest_that_is_not_there_is_named(tmp_path):
    run = run_program(0, tmp_path / "none.jsonl")
    assert run.returncode == 2
    assert "none.jsonl: No such file" in run.stderr


def test_an_empty_manifest_is_a_corpus_of_nothing(tmp_path):
    (tmp_path / "manifest.jsonl").write_text("\n", encoding="utf-8")
    run = run_program(2, tmp_path / "manifest.jsonl", "--out", tmp_path / "out.jsonl", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["utterances"] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_backend_that_is_not_built_is_refused(corpus):
    if "cuda" in ft.backends:
        pytest.skip("the cuda backend is part of this build")
    run = run_program(2, corpus(FILES[0]), "--backend", "cuda")
    assert run.returncode == 2
    assert "--backend cuda: not part of this build" in run.stderr
