# SPDX-License-Identifier: Apache-2.0
"""What the cpu backend promises beside its numbers: threads, memory, rest, large offsets, clear errors."""

import os
import subprocess
import sys
import textwrap
import time
import weakref
from pathlib import Path

import flash_transducer as ft
import numpy as np
import pytest
from batches import bits, joint_batch, random_batch

pytestmark = pytest.mark.skipif("cpu" not in ft.backends, reason="the cpu backend was not built")
SANITIZED = os.environ.get("TX_SANITIZE", "none") != "none"


def run_python(code, **environment):
    """A fresh interpreter; its output, or a failure with what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def float32(batch):
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in batch]


@pytest.mark.parametrize("threads", [0, -1, 2**31, 1.5, "two"])
def test_threads_must_be_a_positive_number(threads):
    error = TypeError if threads in (1.5, "two") else ValueError
    with pytest.raises(error, match=r"ft\.loss: threads is .*, expected "):
        ft.loss(*random_batch(), threads=threads)


def test_no_bit_depends_on_threads():
    dense = float32(random_batch(frames=(30, 7, 22, 1), labels=(11, 9, 0, 1), vocabulary=37))
    joint = float32(joint_batch(frames=(30, 7), labels=(11, 9), hidden=33, columns=37))
    for function, batch in (ft.value_and_grad, dense), (ft.joint_value_and_grad, joint):
        cost, gradient = function(*batch, threads=1)
        for threads in (2, 3, 8):
            other_cost, other = function(*batch, threads=threads)
            assert bits(other_cost) == bits(cost)
            for mine, first in zip(other, gradient, strict=True):
                assert bits(mine) == bits(first)


def test_omp_num_threads_is_obeyed():
    code = """
        import threading, os
        import numpy as np
        import flash_transducer as ft
        ft.loss(np.zeros((64, 40, 9, 50), np.float32), np.ones((64, 8), int), [40] * 64, [8] * 64)
        print(len(os.listdir("/proc/self/task")))
    """
    counts = [int(run_python(code, OMP_NUM_THREADS=str(n), OPENBLAS_NUM_THREADS="1")) for n in (1, 5)]
    assert counts == [1, 5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_works_after_the_parent_has_used_its_threads():
    code = """
        import os, sys
        import numpy as np
        import flash_transducer as ft
        batch = np.random.default_rng(0).normal(size=(8, 20, 6, 9)), np.ones((8, 5), int), [20] * 8, [5] * 8
        before = ft.loss(*batch, threads=4)
        child = os.fork()
        if child == 0:
            os._exit(0 if ft.loss(*batch) == before and ft.loss(*batch, threads=4) == before else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ft.loss(*batch, threads=4) == before)
    """
    assert run_python(code) == "0 True"


def test_an_unknown_instruction_set_is_one_clear_error():
    done = subprocess.run(
        [sys.executable, "-c", "import flash_transducer as ft; ft.loss([[[[0.0, 0.0]]]], [[]], [1], [0])"],
        env={**os.environ, "FLASH_TRANSDUCER_ISA": "mmx"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "FLASH_TRANSDUCER_ISA" in done.stderr.splitlines()[-1]
    assert "mmx" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(SANITIZED, reason="sanitizers need the address space")
def test_a_workspace_larger_than_memory_is_a_memory_error():
    code = """
        import resource
        import numpy as np
        import flash_transducer as ft
        ft.loss([[[[0.0, 0.0]]]], [[]], [1], [0])
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
        logits = np.broadcast_to(np.float32(0), (1, 40000, 801, 2))
        try:
            ft.loss(logits, np.ones((1, 800), int), [40000], [800])
        except MemoryError:
            print("MemoryError")
        print(ft.loss([[[[0.0, 0.0]]]], [[]], [1], [0]) > 0)
    """
    assert run_python(code, OMP_NUM_THREADS="2").split() == ["MemoryError", "True"]


@pytest.mark.skipif(SANITIZED, reason="sanitizers keep freed memory")
def test_memory_is_flat_over_ten_thousand_small_calls():
    random = np.random.default_rng(0)

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def call():
        T, U, V = (int(n) for n in random.integers([1, 0, 2], [9, 5, 9]))
        logits = random.normal(size=(2, T, U + 1, V)).astype(np.float32)
        batch = logits, random.integers(0, V, (2, U)), random.integers(0, T + 1, 2), [U, U // 2]
        ft.value_and_grad(*batch, zero_infinity=True)

    for _ in range(2000):
        call()
    before = resident()
    for _ in range(10_000):
        call()
    assert resident() - before < 2**20


def test_the_threads_rest_after_a_call():
    logits = np.zeros((16, 60, 21, 200), np.float32)
    batch = logits, np.ones((16, 20), int), [60] * 16, [20] * 16
    ft.value_and_grad(*batch, threads=4)
    ft.value_and_grad(*batch, threads=4)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.005


def test_nothing_keeps_inputs_or_gradients_alive():
    logits, *rest = random_batch()
    cost, gradient = ft.value_and_grad(logits, *rest)
    watched = [weakref.ref(logits), weakref.ref(gradient)]
    del logits, gradient
    assert [reference() for reference in watched] == [None, None]
    assert np.isfinite(cost)


@pytest.fixture
def far_apart(tmp_path):
    """Two utterances that lie 2^33 elements apart in a sparse file, and the same two side by side."""
    logits, *rest = random_batch(frames=(6, 4), labels=(3, 2), vocabulary=5)
    near = logits.astype(np.float32)
    distance = 2**33
    file = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=(distance + near[0].size,))
    shape, strides = near.shape, (4 * distance, *near.strides[1:])
    far = np.lib.stride_tricks.as_strided(file, shape, strides)
    far[:] = near
    return far, near, rest


def test_utterances_two_to_the_33_elements_apart(far_apart):
    far, near, rest = far_apart
    cost, gradient = ft.value_and_grad(near, *rest)
    assert bits(ft.loss(far, *rest)) == bits(cost)
    found, in_place = ft.value_and_grad(far, *rest, inplace_grad=True)
    assert in_place is far
    assert bits(found) == bits(cost)
    assert bits(far) == bits(gradient)


def test_more_than_two_to_the_31_logits_by_strides():
    T, U, V = 2000, 1100, 1000  # 2.2e9 logits, all the same one
    logits = np.broadcast_to(np.float32(0.0), (1, T, U + 1, V))
    assert logits.size > 2**31
    frames, labels = [40], [2]  # only the front is read
    batch = np.ones((1, U), int), frames, labels
    expected = ft.loss(logits[:, :40, :3], np.ones((1, 2), int), frames, labels)
    assert ft.loss(logits, *batch) == expected


def test_overlapping_outputs_are_refused():
    memory = np.zeros(200, np.float32)
    logits = memory[:120].reshape(1, 5, 4, 6)
    shifted = memory[6:126].reshape(1, 5, 4, 6)
    call = ft._call.Call(
        "ft.value_and_grad", ft.rnnt(), "cpu",
        {"logits": logits, "targets": [[1, 2, 3]], "frame_lengths": [5], "target_lengths": [3]},
    )  # fmt: skip
    call.outputs["logits_gradient"] = ft._core.Array(shifted, "logits_gradient", "ft.value_and_grad")
    with pytest.raises(ValueError, match=r"the gradient of logits shares part of its memory with logits"):
        call.run()


def test_skipped_mass_bounds_the_error():
    random = np.random.default_rng(3)
    logits = random.normal(0, 4, (2, 60, 16, 12)).astype(np.float32)
    batch = logits, random.integers(0, 11, (2, 15)), [60, 41], [15, 9]
    exact = ft.value_and_grad(*batch, reduction="none", backend="reference")[1]
    for skip_mass in (1e-2, 1e-4, 0.0):
        found = ft.value_and_grad(*batch, reduction="none", skip_mass=skip_mass)[1]
        mass = ft.skipped_mass(*batch, skip_mass=skip_mass)
        path = np.array([75, 50])
        assert (mass <= skip_mass * path).all()
        assert (mass > 0).all() == (skip_mass > 0)
        error = np.abs(found - exact).reshape(2, -1).max(axis=1)
        assert (error <= 2 * mass + 1e-6).all()
    assert not ft.skipped_mass(*batch, backend="reference").any()


def test_check_prints_the_instruction_set():
    assert ft._core.instruction_set() in ("baseline", "avx2", "avx512")
    forced = "import flash_transducer as ft; print(ft._core.instruction_set())"
    assert run_python(forced, FLASH_TRANSDUCER_ISA="baseline") == "baseline"
