# SPDX-License-Identifier: Apache-2.0
"""`import flash_transducer` is quick and needs NumPy only."""

import os
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "matplotlib", "rich", "tqdm", "safetensors", "ml_dtypes", "jax")


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_needs_numpy_only():
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    run = run_python(f"import sys\n{blocked}import flash_transducer")
    assert run.returncode == 0, run.stderr


def test_only_tensors_need_pytorch():
    program = """
import sys
sys.modules["torch"] = None
import flash_transducer as ft
assert abs(ft.loss([[[[0.0, 0.0]]]], [[]], [1], [0]) - 0.6931) < 1e-4
try:
    ft.torch
except ModuleNotFoundError as error:
    print(error)
"""
    run = run_python(program)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("flash_transducer.torch needs PyTorch 2.4 or newer, which is not installed")


@pytest.mark.skipif(os.environ.get("TX_SANITIZE", "none") != "none", reason="sanitizers are slow")
def test_import_takes_under_half_a_second():
    def seconds(code):
        start = time.perf_counter()
        assert run_python(code).returncode == 0
        return time.perf_counter() - start

    # The best of five: other programs share the processor. What Python itself takes is not ours.
    assert min(seconds("import flash_transducer") - seconds("pass") for _ in range(5)) < 0.5
