# SPDX-License-Identifier: Apache-2.0
"""A wheel of this tree, in an environment of its own, needs neither the tree nor a compiler.

The wheel is built in build-wheel as `python -m build` builds it, but with the build system that is installed,
so that nothing is fetched; a second run compiles what changed. The environment holds NumPy and the wheel.
"""

import importlib.util
import json
import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import flash_transducer as ft
import numpy as np
import pytest

if os.environ.get("TX_SANITIZE", "none") != "none":
    pytest.skip("a wheel is built without sanitizers", allow_module_level=True)
pytest.importorskip("mesonpy")

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "flash_transducer"
# A wheel has the CUDA layer only if that is asked for, whatever this build has.
BACKENDS = [backend for backend in ft.backends if backend != "cuda"]
BATCH = """
import numpy as np
import flash_transducer as ft

logits = np.random.default_rng(0).normal(size=(2, 7, 4, 8)).astype(np.float32)
batch = np.array([[1, 2, 3], [4, 1, 0]]), np.array([7, 5]), np.array([3, 2])
"""


def run(command, **keywords):
    result = subprocess.run(command, capture_output=True, text=True, check=False, **keywords)
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    settings = {"build-dir": "build-wheel"}
    if "NINJA_JOBS" in os.environ:
        settings["compile-args"] = f"-j{os.environ['NINJA_JOBS']}"
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = f"import mesonpy; mesonpy.build_wheel({str(folder)!r}, {settings!r})"
    run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PATH": tools})
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Make an environment of NumPy and the wheel; pip is told of no index, so the two have to be enough."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    installed = Path(np.__file__).parents[1]
    for part in [*installed.glob("numpy"), *installed.glob("numpy.libs"), *installed.glob("numpy-*-info")]:
        (packages / part.name).symlink_to(part)
    run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", wheel], env={})
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (library,) = [name for name in names if Path(name).name.startswith("_core.cpython-")]
        assert str(ROOT).encode() not in archive.read(library), "the library names the folder it was built in"
    sources = (ROOT / "python" / PACKAGE).rglob("*")
    expected = {
        file.relative_to(ROOT / "python").as_posix()
        for file in sources
        if file.suffix in (".py", ".pyi") or file.name == "py.typed"
    }
    expected |= {library, f"{PACKAGE}/_named.pyi", f"{PACKAGE}/data/librispeech_lengths.csv"}
    about = f"{PACKAGE}-{ft.__version__}.dist-info"
    expected |= {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    expected.add(f"{about}/licenses/LICENSE")
    assert names == expected, f"not in python/meson.build, or unexpected: {sorted(names ^ expected)}"


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{PACKAGE}-{ft.__version__}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert metadata["Version"] == ft.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    always = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert always == ["numpy>=1.24"]
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in wheel.name


def test_installed_alone_it_passes_the_check(environment, tmp_path):
    command = [environment / "bin" / "flash-transducer", "check", "--lattices", "5", "--json"]
    report = json.loads(run(command, cwd=tmp_path, env={}))
    assert report["version"] == ft.__version__
    assert report["backends"] == BACKENDS
    assert report["passed"] >= 8
    assert report["failed"] == report["skipped"] == 0


def test_installed_alone_it_computes_what_this_build_computes(environment, tmp_path):
    program = f"""{BATCH}
import json, sys
loss, gradient = ft.value_and_grad(logits, *batch, ft.tdt([0, 1, 2]), reduction="sum")
assert "torch" not in sys.modules
print(json.dumps([ft.__file__, float(loss), gradient.tolist()]))
"""
    file, loss, gradient = json.loads(
        run([environment / "bin" / "python", "-c", program], cwd=tmp_path, env={})
    )
    assert Path(file).is_relative_to(environment)
    names = {}
    exec(BATCH, names)
    for backend in BACKENDS:
        expected, expected_gradient = ft.value_and_grad(
            names["logits"], *names["batch"], ft.tdt([0, 1, 2]), reduction="sum", backend=backend
        )
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_with_pytorch_beside_it_gives_the_same_gradient(environment, tmp_path):
    """The PyTorch that runs the tests is put on the path; the wheel was built without it."""
    program = f"""{BATCH}
import torch
from flash_transducer.compat.torchaudio import rnnt_loss

tensor = torch.from_numpy(logits).requires_grad_()
ft.loss(tensor, *map(torch.from_numpy, batch)).backward()
loss, gradient = ft.value_and_grad(logits, *batch)
assert (tensor.grad.numpy() == gradient).all()
assert rnnt_loss(tensor, *(torch.from_numpy(a).int() for a in batch)) == float(loss)
print(ft.__file__)
"""
    beside = str(Path(importlib.util.find_spec("torch").origin).parents[1])
    python = environment / "bin" / "python"
    file = run([python, "-c", program], cwd=tmp_path, env={"PYTHONPATH": beside})
    assert Path(file.strip()).is_relative_to(environment)
