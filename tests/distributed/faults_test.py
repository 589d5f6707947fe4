# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a run: it is named, all ranks are gone in time, and a resume loses nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors")
from ranks import (
    ENVIRONMENT,
    PROGRAM,
    SECONDS_TO_END,
    dense_tensors,
    launch,
    results,
    run_program,
    start_program,
    watch,
)
from safetensors.numpy import save

GOOD = [dense_tensors(seed) for seed in range(4)]


def with_nan():
    tensors = dense_tensors(9)
    tensors["logits"][2, 0, 0, :] = np.nan
    return tensors


def with_label_out_of_range():
    tensors = dense_tensors(9)
    tensors["targets"][2, :] = 99
    tensors["target_lengths"][:] = 1
    return tensors


def with_wrong_shape():
    tensors = dense_tensors(9)
    return {**tensors, "logits": np.ascontiguousarray(tensors["logits"][:, :, :-1])}


def hostile():
    # A header that claims 2^60 bytes.
    return (2**60).to_bytes(8, "little") + b"{}"


FAULTS = {
    "missing": (None, "no such file"),
    "truncated": (save(dense_tensors(9))[:400], "not a usable safetensors file"),
    "hostile": (hostile(), "not a usable safetensors file"),
    "wrong shape": (with_wrong_shape(), "expected [B, U] with U = 3"),
    "label": (with_label_out_of_range(), "utterance 2: "),
    "NaN": (with_nan(), "utterance 2: the cost is NaN"),
}


def make_faulty(corpus, content):
    manifest = corpus(*GOOD[:2], b"" if content is None else content, *GOOD[2:])
    if content is None:
        (manifest.parent / "file2.safetensors").unlink()
    return manifest


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_message_names_rank_file_and_utterance(corpus, tmp_path, fault, ranks):
    content, message = FAULTS[fault]
    manifest = make_faulty(corpus, content)
    command = [*PROGRAM, str(manifest), "--out", str(tmp_path / "out.jsonl")]
    run = watch(launch(ranks, command), tmp_path)
    assert run.seconds < SECONDS_TO_END
    assert run.status == 2
    assert message in run.message
    assert "file2.safetensors" in run.message
    if ranks:
        assert "flash-transducer-run: rank " in run.message
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("ranks", [0, 3])
def test_keep_going_records_what_is_bad_and_ends_with_status_3(corpus, tmp_path, ranks):
    manifest = make_faulty(corpus, with_label_out_of_range())
    with manifest.open("a", encoding="utf-8") as file:
        file.write('{"file": "nowhere.safetensors"}\n')
    run = run_program(ranks, manifest, "--out", tmp_path / "out.jsonl", "--keep-going", "--json")
    assert run.returncode == 3, run.stderr
    found = results(tmp_path / "out.jsonl")
    bad = [(r["file"], r.get("utterance")) for r in found if "error" in r]
    assert bad == [("file2.safetensors", 2), ("nowhere.safetensors", None)]
    assert sum("cost" in r for r in found) == 19
    assert json.loads(run.stdout)["bad"] == 2


def slow_corpus(corpus):
    """Some 20 ms for each of 100 lines."""
    return corpus(dense_tensors(1, utterances=8, frames=300, labels=100), repeat=100)


def lines_done(out: Path) -> int:
    parts = out.with_name(out.name + ".parts")
    return sum(path.read_bytes().count(b"\n") for path in parts.glob("*.jsonl"))


def wait_for_lines(process, out: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while lines_done(out) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ranks_of(launcher: subprocess.Popen) -> dict[int, int]:
    """Process numbers of the ranks that a launcher started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(b"OMPI_COMM_WORLD_RANK=") and parent == launcher.pid:
                found[int(entry.split(b"=")[1])] = int(folder.name)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def expect_end(process, pids) -> int:
    """All ranks end in time; returns the exit status."""
    start = time.monotonic()
    status = process.wait(timeout=SECONDS_TO_END)
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() - start < SECONDS_TO_END
        time.sleep(0.05)
    assert time.monotonic() - start < SECONDS_TO_END
    return status


def expect_resume(manifest, out, done) -> None:
    """A resume computes the rest alone, and the result is that of an undisturbed run."""
    run = run_program(2, manifest, "--out", out, "--resume", "--json")
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["utterances"] == 800
    assert summary["computed"] == 800 - 8 * done
    plain = out.with_name("plain.jsonl")
    assert run_program(0, manifest, "--out", plain).returncode == 0
    assert out.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_and_resume_continues_it(corpus, tmp_path, victim):
    manifest, out = slow_corpus(corpus), tmp_path / "out.jsonl"
    process = start_program(3, manifest, "--out", out)
    wait_for_lines(process, out, 10)
    pids = ranks_of(process)
    assert sorted(pids) == [0, 1, 2]
    os.kill(pids[victim], signal.SIGKILL)
    assert expect_end(process, pids.values()) != 0
    done = lines_done(out)
    assert 10 <= done < 100
    assert not out.exists()
    expect_resume(manifest, out, done)


@pytest.mark.parametrize(("ranks", "number"), [(0, signal.SIGTERM), (0, signal.SIGINT), (2, signal.SIGTERM),
                                               (2, signal.SIGINT)])  # fmt: skip
def test_signals_end_the_run_and_resume_continues_it(corpus, tmp_path, ranks, number):
    manifest, out = slow_corpus(corpus), tmp_path / "out.jsonl"
    process = start_program(ranks, manifest, "--out", out)
    wait_for_lines(process, out, 10)
    pids = ranks_of(process).values() if ranks else [process.pid]
    process.send_signal(number)
    status = expect_end(process, pids)
    assert status != 0
    if ranks == 0:
        assert status == (143 if number == signal.SIGTERM else 130)
        assert process.stderr.read().count("\n") == 1
    assert not out.exists()
    expect_resume(manifest, out, lines_done(out))


def test_a_line_that_a_crash_cut_short_is_computed_again(corpus, tmp_path):
    manifest, out = corpus(*GOOD), tmp_path / "out.jsonl"
    (manifest.parent / "file3.safetensors").rename(tmp_path / "away")
    assert run_program(0, manifest, "--out", out).returncode == 2
    part = next((tmp_path / "out.jsonl.parts").glob("*.jsonl"))
    part.write_bytes(part.read_bytes()[:-20])
    (tmp_path / "away").rename(manifest.parent / "file3.safetensors")
    run = run_program(2, manifest, "--out", out, "--resume", "--json")
    assert json.loads(run.stdout)["computed"] == 8  # the cut line and the missing one
    assert [r["line"] for r in results(out)] == [line for line in (1, 2, 3, 4) for _ in range(4)]


def test_resume_refuses_another_run_and_a_fresh_run_refuses_old_parts(corpus, tmp_path):
    manifest, out = make_faulty(corpus, None), tmp_path / "out.jsonl"
    assert run_program(0, manifest, "--out", out).returncode == 2
    run = run_program(2, manifest, "--out", out)
    assert run.returncode == 2
    assert "continue it with --resume" in run.stderr
    run = run_program(0, manifest, "--out", out, "--resume", "--variant", "monotonic")
    assert run.returncode == 2
    assert "was begun with variant ft.rnnt()" in run.stderr
    with manifest.open("a", encoding="utf-8") as file:
        file.write('{"file": "more.safetensors"}\n')
    assert "was begun with manifest" in run_program(0, manifest, "--out", out, "--resume").stderr


def test_resume_of_a_finished_run_does_nothing(corpus, tmp_path):
    manifest, out = corpus(*GOOD), tmp_path / "out.jsonl"
    run_program(0, manifest, "--out", out)
    before = out.stat()
    run = run_program(2, manifest, "--out", out, "--resume")
    assert run.returncode == 0
    assert "complete already" in run.stderr
    assert out.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_full_disk_is_named_and_what_was_written_stays(corpus, tmp_path, ranks):
    manifest, out = corpus(*GOOD, repeat=30), tmp_path / "out.jsonl"
    # A limit on the size of one file: a write that does not fit fails, as on a full disk. It is set in the
    # ranks alone; mpirun has files of its own.
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from flash_transducer.run import main; sys.exit(main())"
    )
    command = launch(ranks, [PROGRAM[0], "-c", code, str(manifest), "--out", str(out)])
    run = watch(command, tmp_path)
    assert run.seconds < SECONDS_TO_END
    assert run.status == 2, run.message
    assert "File too large" in run.message
    assert ".jsonl" in run.message
    done = lines_done(out)
    assert done > 0
    again = run_program(2, manifest, "--out", out, "--resume", "--json")
    assert json.loads(again.stdout)["computed"] == 4 * (120 - done)


def test_without_mpi_a_rank_says_what_is_missing(corpus):
    code = (
        "import sys; sys.modules['flash_transducer._mpi'] = None; sys.modules['mpi4py'] = None\n"
        "from flash_transducer.run import main; sys.exit(main())"
    )
    environment = {**ENVIRONMENT, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    command = [PROGRAM[0], "-c", code, str(corpus(GOOD[0]))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 2
    assert "rank 0 of 2, and this build of flash_transducer has no MPI" in run.stderr


def test_a_fault_ends_all_ranks_of_torchrun(corpus, tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    manifest = make_faulty(corpus, None)
    torchrun = [PROGRAM[0], "-m", "torch.distributed.run", "--nproc_per_node", "2", *PROGRAM[1:]]
    run = watch([*torchrun, str(manifest)], tmp_path)
    assert run.seconds < SECONDS_TO_END
    assert run.status != 0
    assert "flash-transducer-run: rank " in run.message
    assert "file2.safetensors" in run.message
