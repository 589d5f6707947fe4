# SPDX-License-Identifier: Apache-2.0
"""flash_transducer.distributed in one process, under mpirun and under torchrun."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import flash_transducer as ft
import flash_transducer.distributed as ftd
import numpy as np
import pytest
from flash_transducer._ranks import launcher
from ranks import ENVIRONMENT, SECONDS_TO_END, launch

SCRIPT = str(Path(__file__).with_name("api_script.py"))


def run(command):
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)


def require(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("ranks", [0, 1, 2, 3, 7])
def test_sharded_equals_unsharded(ranks):
    done = run(launch(ranks, [sys.executable, SCRIPT]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is right") == max(ranks, 1)


def test_sharded_equals_unsharded_with_mpi4py():
    require("mpi4py")
    done = run(launch(2, [sys.executable, SCRIPT, "mpi4py"]))
    assert done.stdout.count("is right") == 2, done.stderr


@pytest.mark.parametrize("way", [[], ["torch"]])
def test_sharded_equals_unsharded_with_torchrun(way):
    require("torch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = run([*torchrun, SCRIPT, *way])
    assert done.stdout.count("is right") == 2, done.stderr


def test_shards_partition_the_batch():
    owned = ftd.shard([5, 9, 2, 7, 7], [1, 0, 3, 2, 2], 3)
    assert sorted(np.concatenate(owned).tolist()) == [0, 1, 2, 3, 4]
    assert [len(part) for part in ftd.shard([4], [1], 3)] == [1, 0, 0]
    with pytest.raises(ValueError, match="frames has shape \\[2\\] and labels \\[1\\]"):
        ftd.shard([1, 2], [1], 2)
    with pytest.raises(ValueError, match="ranks is 0, expected 1 or more"):
        ftd.shard([1], [1], 0)


def test_errors_name_what_was_given():
    arguments = (np.zeros((1, 2, 2, 3)), [[0]], [2], [1])
    with pytest.raises(TypeError, match="group is a int, expected an mpi4py communicator"):
        ftd.loss(*arguments, group=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'reductoin'"):
        ftd.loss(*arguments, reductoin="sum")
    with pytest.raises(ValueError, match="utterances has 2 numbers, expected 1"):
        ftd.loss(*arguments, utterances=[0, 1])


def test_launchers_are_known_by_their_variables():
    assert launcher({}) is None
    assert launcher({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}) == ("mpi", 1, 4)
    assert launcher({"PMI_RANK": "0", "PMI_SIZE": "2"}) == ("mpi", 0, 2)
    assert launcher({"PMIX_RANK": "3", "SLURM_NTASKS": "8"}) == ("mpi", 3, 8)
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2"}
    assert launcher(torchrun) == ("torch", 1, 2)


def test_import_loads_no_mpi():
    code = (
        "import flash_transducer, flash_transducer.distributed, pathlib;"
        "assert 'libmpi' not in pathlib.Path('/proc/self/maps').read_text()"
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_a_rank_that_raises_ends_the_others(tmp_path):
    # Rank 1 never comes to the sum that rank 0 waits in.
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, flash_transducer.distributed as ftd\n"
        "world = ftd.world()\n"
        "if world.rank == 1: raise KeyError('on purpose')\n"
        "world.sum(np.zeros(1))\n"
    )
    command = launch(2, [sys.executable, str(script)])
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=SECONDS_TO_END
    )
    assert done.returncode != 0
    assert "on purpose" in done.stderr


def test_the_world_of_one_process_is_itself():
    if launcher(os.environ) is not None:
        pytest.skip("this process was started by a launcher")
    assert (ftd.world().rank, ftd.world().size) == (0, 1)
    assert ft.loss(np.zeros((1, 2, 2, 3)), [[0]], [2], [1]) == ftd.loss(
        np.zeros((1, 2, 2, 3)), [[0]], [2], [1]
    )
