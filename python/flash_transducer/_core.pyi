from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str
backends: tuple[str, ...]

class Unsupported(NotImplementedError): ...
class NotBuilt(NotImplementedError): ...
class DeviceError(RuntimeError): ...

class Array:
    def __init__(self, object: Any, name: str, caller: str) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

class VariantTable:
    def __init__(self, spec: dict[str, Any]) -> None: ...
    def spec(self) -> dict[str, Any]: ...
    def __eq__(self, arg0: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

def instruction_set() -> str: ...

reproducible_bytes: int

def shard(costs: Sequence[int], ranks: int, loads: Sequence[int]) -> list[int]: ...
def distributed_loss(
    caller: str,
    backend: str,
    variant: VariantTable,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    options: dict[str, Any],
    group: Any,
    utterances: Sequence[int],
    reproducible: bool,
) -> None: ...
def named_variants() -> list[dict[str, Any]]: ...
def make_named_variant(name: str, arguments: dict[str, Any]) -> dict[str, Any]: ...
def evaluate(
    caller: str,
    backend: str,
    variant: VariantTable,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    options: dict[str, Any],
) -> None: ...
def forward(
    caller: str,
    backend: str,
    variant: VariantTable,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    options: dict[str, Any],
) -> None: ...
def backward(
    caller: str,
    backend: str,
    variant: VariantTable,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    options: dict[str, Any],
) -> None: ...
def check_backend(name: str, caller: str) -> None: ...
def validate(
    caller: str,
    variant: VariantTable,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    options: dict[str, Any],
) -> None: ...
def count_taps(variant: VariantTable) -> int: ...
def saved_layout(backend: str, variant: VariantTable) -> tuple[int, str]: ...
def plan(backend: str, sizes: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]: ...
def best_paths(
    caller: str, variant: VariantTable, inputs: dict[str, Array], options: dict[str, Any]
) -> list[dict[str, Any]]: ...
def inspect(
    caller: str, variant: VariantTable, inputs: dict[str, Array], options: dict[str, Any]
) -> list[dict[str, Any]]: ...
def scores_backward(
    caller: str,
    backend: str,
    variant: VariantTable,
    inputs: dict[str, Array],
    outputs: dict[str, Array],
    options: dict[str, Any],
) -> None: ...
def enumerate_paths(
    variant: VariantTable,
    logits: npt.NDArray[np.float64],
    labels: list[int],
    from_log_probs: bool = ...,
    limit: int = ...,
) -> list[tuple[float, list[tuple[int, int, int]]]]: ...
