# SPDX-License-Identifier: Apache-2.0
"""Ranks that communicate: one process, MPI by this package or by mpi4py, and PyTorch's process groups."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np


class Launcher(NamedTuple):
    """What started this process, and as which of how many."""

    kind: str  # "mpi" or "torch"
    rank: int
    size: int


# Variables that launchers set: rank and size. Hydra (MPICH, Intel MPI) and SLURM's pmi2 set PMI_*.
_MPI_VARIABLES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def launcher(environment: Mapping[str, str]) -> Launcher | None:
    """Find the launcher in the environment; None if the process was started by itself."""
    for rank, size in _MPI_VARIABLES:
        if rank in environment and size in environment:
            return Launcher("mpi", int(environment[rank]), int(environment[size]))
    if "PMIX_RANK" in environment and "SLURM_NTASKS" in environment:  # srun --mpi=pmix
        return Launcher("mpi", int(environment["PMIX_RANK"]), int(environment["SLURM_NTASKS"]))
    if "TORCHELASTIC_RUN_ID" in environment:
        return Launcher("torch", int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    return None


class Alone:
    """One rank."""

    rank = 0
    size = 1
    bytes_sent = 0

    def sum(self, values: Any) -> None:
        """Leave the values as they are."""

    def maximum(self, values: Any) -> None:
        """Leave the values as they are."""

    def gather(self, mine: bytes) -> list[bytes]:
        """The one part."""
        return [mine]

    def on_node(self) -> tuple[int, int]:
        """Rank and number of ranks on this node."""
        return 0, 1

    def abort(self, status: int) -> NoReturn:
        """End the program."""
        raise SystemExit(status)


def mpi_world(found: Launcher) -> Any:
    """MPI's world by this package, or by mpi4py where the package was built without MPI."""
    try:
        from flash_transducer import _mpi
    except ImportError as error:
        try:
            from mpi4py import MPI
        except ImportError:
            raise ModuleNotFoundError(
                f"this process is rank {found.rank} of {found.size}, and this build of flash_transducer has "
                f"no MPI ({error}); install an MPI library (apt install libopenmpi-dev openmpi-bin) and "
                "build again, or pip install mpi4py"
            ) from None
        return Mpi4py(MPI.COMM_WORLD)
    _mpi.initialize()
    world = _mpi.Communicator()

    def finish() -> None:
        # MPI_Finalize waits for all ranks; one that ends by an exception ends the others instead.
        if world.size > 1 and getattr(sys, "last_value", None) is not None:
            sys.stderr.flush()
            world.abort(1)
        _mpi.finalize()

    atexit.register(finish)
    return world


class Mpi4py:
    """A communicator of mpi4py."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self.bytes_sent = 0

    def sum(self, values: Any) -> None:
        """Sum over the ranks, in place."""
        self._reduce(values, "SUM")

    def maximum(self, values: Any) -> None:
        """Maximum over the ranks, in place."""
        self._reduce(values, "MAX")

    def _reduce(self, values: Any, operation: str) -> None:
        from mpi4py import MPI

        array = np.asarray(values)
        self._communicator.Allreduce(MPI.IN_PLACE, array, getattr(MPI, operation))
        self.bytes_sent += array.nbytes

    def gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank."""
        self.bytes_sent += len(mine)
        parts: list[bytes] = self._communicator.allgather(mine)
        return parts

    def on_node(self) -> tuple[int, int]:
        """Rank and number of ranks on this node."""
        from mpi4py import MPI

        node = self._communicator.Split_type(MPI.COMM_TYPE_SHARED)
        found = node.Get_rank(), node.Get_size()
        node.Free()
        return found

    def abort(self, status: int) -> None:
        """End every rank."""
        self._communicator.Abort(status)


class TorchGroup:
    """A process group of torch.distributed; host data, so its backend must take CPU tensors (gloo, mpi)."""

    def __init__(self, group: Any) -> None:
        import torch.distributed

        self._torch: Any = torch
        self._group = group
        self.rank: int = torch.distributed.get_rank(group)
        self.size: int = torch.distributed.get_world_size(group)
        self.bytes_sent = 0

    @classmethod
    def of_environment(cls) -> TorchGroup:
        """The world that torchrun describes."""
        import torch.distributed

        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
            atexit.register(torch.distributed.destroy_process_group)
        return cls(None)

    def _reduce(self, values: Any, operation: Any) -> None:
        tensor = self._torch.from_numpy(np.asarray(values))
        self._torch.distributed.all_reduce(tensor, op=operation, group=self._group)
        self.bytes_sent += tensor.nbytes

    def sum(self, values: Any) -> None:
        """Sum over the ranks, in place."""
        self._reduce(values, self._torch.distributed.ReduceOp.SUM)

    def maximum(self, values: Any) -> None:
        """Maximum over the ranks, in place."""
        self._reduce(values, self._torch.distributed.ReduceOp.MAX)

    def gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank."""
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = len(mine)
        self.sum(sizes)
        most = max(int(sizes.max()), 1)
        padded = np.zeros(most, np.uint8)
        padded[: len(mine)] = np.frombuffer(mine, np.uint8)
        parts = [self._torch.empty(most, dtype=self._torch.uint8) for _ in range(self.size)]
        self._torch.distributed.all_gather(parts, self._torch.from_numpy(padded), group=self._group)
        self.bytes_sent += most
        return [part.numpy()[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]

    def on_node(self) -> tuple[int, int]:
        """Rank and number of ranks on this node, as torchrun says."""
        return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))

    def abort(self, status: int) -> NoReturn:
        """End this process at once; torchrun then ends the others."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
