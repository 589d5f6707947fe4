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


@pytest.mark.skipif(os.environ.get("TX_SANITIZE", "none") != "none", reason="sanitizers are slow")
def test_import_takes_under_half_a_second():
    def seconds(code):
        start = time.perf_counter()
        assert run_python(code).returncode == 0
        return time.perf_counter() - start

    # The best of five: other programs share the processor. What Python itself takes is not ours.
    assert min(seconds("import flash_transducer") - seconds("pass") for _ in range(5)) < 0.5
