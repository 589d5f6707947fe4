# SPDX-License-Identifier: Apache-2.0
"""Reading batch files: what is right is read unchanged, what is wrong is one clear line."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")
from flash_transducer.batch_file import BatchFileError, read_batch, write_batch


def dense_tensors() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "logits": rng.normal(size=(2, 4, 3, 5)).astype(np.float32),
        "targets": np.array([[1, 2], [3, 0]], dtype=np.int32),
        "logit_lengths": np.array([4, 3], dtype=np.int64),
        "target_lengths": np.array([2, 1], dtype=np.int32),
    }


def joint_tensors() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    tensors = {
        "encoder": rng.normal(size=(2, 4, 6)),
        "predictor": rng.normal(size=(2, 3, 6)),
        "weight": rng.normal(size=(5, 6)),
        "bias": rng.normal(size=5),
    }
    return tensors | {k: v for k, v in dense_tensors().items() if k != "logits"}


def raw_file(path: Path, header: Any, data: bytes = b"", size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


@pytest.mark.parametrize("make", [dense_tensors, joint_tensors])
def test_what_was_written_is_read_bit_for_bit(tmp_path: Path, make: Any) -> None:
    tensors = make()
    write_batch(tmp_path / "batch.safetensors", tensors)
    batch = read_batch(tmp_path / "batch.safetensors")
    read = batch.source | {
        "targets": batch.targets,
        "logit_lengths": batch.logit_lengths,
        "target_lengths": batch.target_lengths,
    }
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    assert batch.is_joint == ("encoder" in tensors)


def test_a_slice_keeps_the_output_layer_whole_and_cuts_everything_else(tmp_path: Path) -> None:
    tensors = joint_tensors() | {
        "start_scores": np.arange(8.0).reshape(2, 4),
        "arc_scores": np.zeros((1, 1, 1, 2)),
    }
    write_batch(tmp_path / "b.safetensors", tensors)
    batch = read_batch(tmp_path / "b.safetensors")
    encoder, predictor, weight, bias, targets, frames, labels = batch.arguments(1, 2)
    np.testing.assert_array_equal(encoder, tensors["encoder"][1:])
    np.testing.assert_array_equal(predictor, tensors["predictor"][1:])
    assert (weight.shape, bias.shape) == ((5, 6), (5,))
    assert (targets.tolist(), frames.tolist(), labels.tolist()) == ([[3, 0]], [3], [1])
    assert batch.keywords(1, 2)["start_scores"].tolist() == [[4.0, 5.0, 6.0, 7.0]]
    assert batch.keywords(1, 2)["arc_scores"].shape == (1, 1, 1, 2)


def test_bfloat16_is_read_as_such(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = dense_tensors()
    tensors["logits"] = tensors["logits"].astype(ml_dtypes.bfloat16)
    path = tmp_path / "b.safetensors"
    header, data = {}, b""
    codes = {"bfloat16": "BF16", "int32": "I32", "int64": "I64"}
    for name, array in tensors.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {
            "dtype": codes[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [begin, len(data)],
        }
    raw_file(path, header, data)
    logits = read_batch(path).source["logits"]
    assert logits.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(logits, tensors["logits"])


def test_encoder_lengths_is_another_name_of_logit_lengths(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = joint_tensors()
    tensors["encoder_lengths"] = tensors.pop("logit_lengths")
    save_file(tensors, tmp_path / "b.safetensors")
    assert read_batch(tmp_path / "b.safetensors").logit_lengths.tolist() == [4, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": None}, r"targets missing\. Found: logit_lengths, logits, target_lengths\."),
        ({"logits": None}, r"logits \(or encoder, predictor, weight and bias\) missing\. Found:"),
        ({"bias": np.zeros(5)}, r"holds both logits and bias; keep one source"),
        (
            {"logits": np.zeros((2, 4, 5))},
            r"logits has shape \[2, 4, 5\], expected \[B, T, U\+1, K\]",
        ),
        (
            {"logits": np.zeros((2, 4, 2, 5))},
            r"with U = 1 because logits has U\+1 = 2\. Did the prediction",
        ),
        (
            {"target_lengths": np.zeros(3, np.int32)},
            r"target_lengths has shape \[3\].*B = 2 because logits",
        ),
        (
            {"logits": np.zeros((2, 4, 3, 5), np.int64)},
            r"logits has dtype int64, expected floating-point",
        ),
        ({"targets": np.zeros((2, 2))}, r"targets has dtype float64, expected integers"),
        ({"targets": np.zeros((2, 2), np.uint8)}, r"targets has dtype U8; supported are"),
        ({"logits": np.zeros((2, 4, 3, 5), bool)}, r"logits has dtype BOOL; supported are"),
    ],
)
def test_a_wrong_tensor_is_named_with_what_was_expected(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    from safetensors.numpy import save_file

    tensors = {k: v for k, v in (dense_tensors() | change).items() if v is not None}
    save_file(tensors, tmp_path / "b.safetensors")
    with pytest.raises(BatchFileError, match=message) as caught:
        read_batch(tmp_path / "b.safetensors")
    assert "\n" not in str(caught.value)


F32_4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "data", "size"),
    [
        (b"", b"", 1 << 62),  # the header's length lies
        (b"{}", b"", 1 << 20),
        (b"junk", b"", None),
        (b"[]", b"", None),
        (b"\xff\xfe", b"", None),
        (b'{"logits": 3}', b"", None),
        ({"logits": F32_4}, b"", None),  # cut short
        ({"logits": F32_4}, b"0" * 15, None),
        ({"logits": F32_4}, b"0" * 17, None),
        ({"logits": F32_4 | {"data_offsets": [16, 0]}}, b"0" * 16, None),
        ({"logits": F32_4 | {"data_offsets": [-1, 15]}}, b"0" * 16, None),
        ({"logits": F32_4 | {"data_offsets": [1 << 40, 1 << 41]}}, b"0" * 16, None),
        ({"logits": F32_4, "targets": F32_4}, b"0" * 16, None),  # overlapping
        ({"logits": F32_4 | {"shape": [1 << 40, 1 << 40]}}, b"0" * 16, None),  # overflow
        ({"logits": F32_4 | {"shape": [5]}}, b"0" * 16, None),
        ({"logits": F32_4 | {"dtype": "F31"}}, b"0" * 16, None),
        (b"[" * 100_000, b"", None),  # deep nesting
        ({"logits": {"evil\nname": "\x1b[31m"}}, b"", None),
    ],
)
def test_a_damaged_or_hostile_file_is_one_line(
    tmp_path: Path, header: Any, data: bytes, size: int | None
) -> None:
    path = raw_file(tmp_path / "b.safetensors", header, data, size)
    with pytest.raises(BatchFileError, match="not a usable safetensors file") as caught:
        read_batch(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("size", range(8))
def test_a_file_shorter_than_its_first_field_is_one_line(tmp_path: Path, size: int) -> None:
    (tmp_path / "b.safetensors").write_bytes(b"\0" * size)
    with pytest.raises(BatchFileError, match=rf"not a usable safetensors file .*{size} bytes"):
        read_batch(tmp_path / "b.safetensors")


def test_every_truncation_of_a_good_file_is_refused(tmp_path: Path) -> None:
    write_batch(tmp_path / "good.safetensors", dense_tensors())
    whole = (tmp_path / "good.safetensors").read_bytes()
    for size in range(0, len(whole), 7):
        (tmp_path / "cut.safetensors").write_bytes(whole[:size])
        with pytest.raises(BatchFileError):
            read_batch(tmp_path / "cut.safetensors")


def test_what_is_no_regular_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BatchFileError, match="is a directory"):
        read_batch(tmp_path)
    with pytest.raises(BatchFileError, match="no such file"):
        read_batch(tmp_path / "missing.safetensors")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    with pytest.raises(BatchFileError, match="not a regular file"):
        read_batch(tmp_path / "pipe")


def test_a_file_of_other_tensors_says_what_it_holds(tmp_path: Path) -> None:
    raw_file(tmp_path / "b.safetensors", {"model.\nweight": F32_4}, b"0" * 16)
    with pytest.raises(BatchFileError, match=re.escape(r"Found: model.\nweight.")) as caught:
        read_batch(tmp_path / "b.safetensors")
    assert "\n" not in str(caught.value)


def test_a_misspelt_name_is_among_those_found(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = dense_tensors()
    tensors["target"] = tensors.pop("targets")
    save_file(tensors, tmp_path / "batch.safetensors")
    with pytest.raises(BatchFileError, match=r"targets missing\. Found: .*\btarget\b"):
        read_batch(tmp_path / "batch.safetensors")


def test_two_names_for_the_lengths_must_agree(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    lengths = dense_tensors()["logit_lengths"]
    save_file(dense_tensors() | {"encoder_lengths": lengths}, tmp_path / "same.safetensors")
    assert read_batch(tmp_path / "same.safetensors").num_utterances == 2
    save_file(dense_tensors() | {"encoder_lengths": lengths - 1}, tmp_path / "other.safetensors")
    with pytest.raises(BatchFileError, match="logit_lengths and encoder_lengths differ"):
        read_batch(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("start_scores", ()), ("start_scores", (4,)), ("final_scores", (3, 5)), ("band", (2, 4))],
)
def test_optional_tensors_have_a_row_for_each_utterance(tmp_path: Path, name: str, shape: Any) -> None:
    with pytest.raises(
        BatchFileError, match=rf"{name} has shape .*, expected \d axes of which the first is B"
    ):
        write_batch(tmp_path / "batch.safetensors", dense_tensors() | {name: np.zeros(shape, np.float32)})


def test_a_tensor_larger_than_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors

    class PanicException(BaseException):
        """What the library raises, outside Exception, when an allocation fails."""

    class File:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def keys(self) -> list[str]:
            return ["logits"]

        def get_slice(self, _: str) -> Any:
            return type("Slice", (), {"get_dtype": lambda _: "F32"})()

        def get_tensor(self, _: str) -> Any:
            raise PanicException("out of memory")

    (tmp_path / "batch.safetensors").write_bytes(b"")
    monkeypatch.setattr(safetensors, "safe_open", lambda *_, **__: File())
    with pytest.raises(BatchFileError, match=r"logits cannot be loaded \(out of memory\)"):
        read_batch(tmp_path / "batch.safetensors")
