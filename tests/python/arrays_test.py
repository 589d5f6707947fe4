# SPDX-License-Identifier: Apache-2.0
"""Arrays of every layout, type and origin: NumPy strides, lists, DLPack, and what is refused."""

import ctypes
import os

import flash_transducer as ft
import ml_dtypes
import numpy as np
import pytest
from batches import bits, joint_batch, random_batch

TYPES = [np.dtype(t) for t in (np.float64, np.float32, ml_dtypes.bfloat16, np.float16)]


def fortran(x):
    return np.asfortranarray(x)


def reversed_axes(x):
    axes = (slice(None, None, -1),) * x.ndim
    return x[axes].copy()[axes]


def sliced(x):
    """A window of a larger array, every second or third element, with other values in between."""
    large = np.full([2 * n + 3 for n in x.shape[:-1]] + [3 * x.shape[-1] + 4], 9, x.dtype)
    window = large[(*(slice(1, 2 * n + 1, 2) for n in x.shape[:-1]), slice(2, 3 * x.shape[-1] + 2, 3))]
    window[...] = x
    return window


def transposed(x):
    return x.transpose(range(x.ndim)[::-1]).copy().transpose(range(x.ndim)[::-1])


LAYOUTS = [fortran, reversed_axes, sliced, transposed]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)


@layouts
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_strides_change_no_bit(layout, dtype):
    logits, targets, frames, labels = random_batch(pad=1)
    logits = logits.astype(dtype)
    scores = {
        "arc_scores": np.random.default_rng(1).normal(size=(*logits.shape[:3], 2)).astype(dtype),
        "start_scores": np.random.default_rng(2).normal(size=logits.shape[:2]).astype(dtype),
        "final_scores": np.random.default_rng(3).normal(size=(3, logits.shape[1] + 1)).astype(dtype),
    }
    band = np.tile(np.array([0, 2]), (*logits.shape[:2], 1))
    wrt = ("logits", *scores)
    value, gradients = ft.value_and_grad(logits, targets, frames, labels, wrt=wrt, band=band, **scores)
    strided = [layout(x) for x in (logits, targets, frames, labels)]
    more = {name: layout(x) for name, x in {**scores, "band": band}.items()}
    found, found_gradients = ft.value_and_grad(*strided, wrt=wrt, **more)
    assert found == value
    for gradient, expected in zip(found_gradients, gradients, strict=True):
        assert bits(gradient) == bits(expected)


@layouts
def test_strides_of_joint_inputs_change_no_bit(layout):
    batch = joint_batch()
    mask = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.5]])
    options = {"dropout": 0.25, "seed": 1, "activation": "tanh"}
    ids = np.array([4, 9])
    expected = ft.joint_value_and_grad(*batch, predictor_mask=mask, utterance_ids=ids, **options)
    found = ft.joint_value_and_grad(
        *map(layout, batch), predictor_mask=layout(mask), utterance_ids=layout(ids), **options
    )
    assert found[0] == expected[0]
    for gradient, before in zip(found[1], expected[1], strict=True):
        assert bits(gradient) == bits(before)


@layouts
def test_strides_of_arc_weights_change_no_bit(layout):
    batch = random_batch()
    weights = ft.scores(*batch, ft.rnnt())
    expected = ft.lattice_loss(weights, *batch[2:], ft.rnnt(), reduction="none")
    assert bits(ft.lattice_loss(layout(weights), *batch[2:], ft.rnnt(), reduction="none")) == bits(expected)


def test_broadcast_arrays_of_stride_zero():
    logits, targets, frames, labels = random_batch(frames=(4,), labels=(2,))
    many = np.broadcast_to(logits, (3, *logits.shape[1:]))
    same = np.broadcast_to(targets, (3, 2)), np.broadcast_to(frames, 3), np.broadcast_to(labels, 3)
    costs, gradient = ft.value_and_grad(many, *same, reduction="none")
    alone = ft.value_and_grad(logits, targets, frames, labels)
    assert costs.tolist() == [alone[0]] * 3
    assert gradient.shape == many.shape
    for b in range(3):
        assert bits(gradient[b]) == bits(alone[1][0])


def test_lists_and_tuples():
    logits, targets, frames, labels = random_batch()
    expected = ft.value_and_grad(logits, targets, frames, labels)
    lists = logits.tolist(), tuple(map(tuple, targets)), frames.tolist(), tuple(labels)
    value, gradient = ft.value_and_grad(*lists)
    assert value == expected[0]
    assert bits(gradient) == bits(expected[1])
    scalars = ft.loss(logits, targets, frames, labels, arc_scores=-1.0)
    shifted = ft.loss(logits, targets, frames, labels, arc_scores=np.array(-1.0))
    assert scalars == shifted


def test_subclasses_of_ndarray():
    logits, targets, frames, labels = random_batch()

    class Mine(np.ndarray):
        def __getitem__(self, key):
            raise AssertionError("the array was read element by element")

    assert ft.loss(logits.view(Mine), targets, frames, labels) == ft.loss(logits, targets, frames, labels)


# DLPack


class Producer:
    """Any array of another library: DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.array.__dlpack__(max_version=max_version)


class OldProducer(Producer):
    """Of the time before versions: the keyword is unknown."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("producer", [Producer, OldProducer])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_dlpack(producer, dtype):
    logits, *rest = random_batch()
    logits = logits.astype(dtype)
    expected = ft.value_and_grad(logits, *rest)
    for array in (logits, fortran(logits), sliced(logits)):
        value, gradient = ft.value_and_grad(producer(array), *map(producer, rest))
        assert value == expected[0]
        assert gradient.dtype == dtype
        assert bits(gradient) == bits(expected[1])
    paths = ft.align(producer(logits), *map(producer, rest))
    for path, before in zip(paths, ft.align(logits, *rest), strict=True):
        assert path.labels.tolist() == before.labels.tolist()


@pytest.mark.parametrize("producer", [Producer, OldProducer])
def test_dlpack_lets_go_of_the_memory(producer):
    logits, *rest = random_batch()
    held = logits.copy()
    start = ctypes.c_ssize_t.from_address(id(held)).value
    for _ in range(50):
        ft.loss(producer(held), *rest)
        with pytest.raises(ValueError, match="targets has shape"):
            ft.loss(producer(held), rest[0][:1], *rest[1:])
    assert ctypes.c_ssize_t.from_address(id(held)).value == start


@pytest.mark.parametrize("producer", [Producer, OldProducer])
def test_gradient_in_place_through_dlpack(producer):
    logits, *rest = random_batch()
    expected = ft.value_and_grad(logits, *rest)[1]
    memory = producer(logits.copy())
    assert ft.value_and_grad(memory, *rest, inplace_grad=True)[1] is memory
    assert bits(memory.array) == bits(expected)


def test_tensors_beside_logits_that_are_an_array():
    if os.environ.get("TX_SANITIZE", "none") != "none":
        pytest.skip("PyTorch is not built for the sanitizers")
    torch = pytest.importorskip("torch")
    logits, *rest = random_batch()
    tensors = [torch.as_tensor(array) for array in rest]
    assert ft.loss(logits, *tensors) == ft.loss(logits, *rest)


def test_read_only_dlpack_is_read_and_not_written():
    logits, *rest = random_batch()
    expected = ft.loss(logits, *rest)
    logits.flags.writeable = False
    assert ft.loss(Producer(logits), *rest) == expected
    before = bits(logits)
    with pytest.raises(ValueError, match=r"the gradient of logits is read-only"):
        ft.value_and_grad(Producer(logits), *rest, inplace_grad=True)
    assert bits(logits) == before


@pytest.mark.parametrize("dtype", [np.int64, np.complex128, np.int8])
def test_dlpack_of_a_type_that_is_no_logit(dtype):
    logits, *rest = random_batch()
    with pytest.raises(ValueError, match=rf"logits has dtype {np.dtype(dtype).name}, expected float64"):
        ft.loss(Producer(logits.astype(dtype)), *rest)


def test_dlpack_errors_of_the_producer_come_through():
    class Broken(Producer):
        def __dlpack__(self, **keywords):
            raise BufferError("not today")

    logits, *rest = random_batch()
    with pytest.raises(BufferError, match="not today"):
        ft.loss(Broken(logits), *rest)

    class NoCapsule(Producer):
        def __dlpack__(self, **keywords):
            return 3

    with pytest.raises((ValueError, TypeError)):
        ft.loss(NoCapsule(logits), *rest)


# What is refused


def test_bytes_in_the_other_order():
    logits, *rest = random_batch()
    swapped = logits.astype(logits.dtype.newbyteorder())
    with pytest.raises(ValueError, match=r"logits has bytes in the other order, .*\.astype\('float64'\)"):
        ft.loss(swapped, *rest)
    with pytest.raises(ValueError, match=r"targets has bytes in the other order"):
        ft.loss(logits, rest[0].astype(rest[0].dtype.newbyteorder()), *rest[1:])


def test_unaligned_memory():
    logits, *rest = random_batch()
    memory = np.zeros(logits.nbytes + 1, np.uint8)[1:].view(np.float64)
    if memory.flags.aligned:
        memory = np.zeros(logits.nbytes + 4, np.uint8)[4:].view(np.float64)
    unaligned = memory.reshape(logits.shape)
    unaligned[...] = logits
    with pytest.raises(ValueError, match=r"logits is not aligned to its element, pass a copy"):
        ft.loss(unaligned, *rest)
    record = np.zeros(logits.shape, np.dtype([("byte", np.int8), ("value", np.float64)]))
    record["value"] = logits
    with pytest.raises(ValueError, match=r"logits has a stride of \d+ bytes, expected a multiple of"):
        ft.loss(record["value"], *rest)
    aligned = np.zeros(logits.shape, np.dtype([("other", np.float64), ("value", np.float64)]))
    aligned["value"] = logits
    assert ft.loss(aligned["value"], *rest) == ft.loss(logits, *rest)


@pytest.mark.parametrize(
    "dtype", [np.complex64, object, np.int32, bool, np.uint16, "S3", "M8[s]", np.longdouble]
)
def test_types_that_are_no_logits(dtype):
    _, *rest = random_batch()
    with pytest.raises(ValueError, match=r"ft\.loss: logits has dtype \w+.*, expected float64, float32"):
        ft.loss(np.zeros((3, 5, 3, 6), dtype), *rest)


def test_a_read_only_array_is_read_and_not_written():
    logits, *rest = random_batch()
    expected = ft.loss(logits, *rest)
    for array in (logits, *rest):
        array.flags.writeable = False
    assert ft.loss(logits, *rest) == expected
    with pytest.raises(ValueError, match=r"the gradient of logits is read-only"):
        ft.value_and_grad(logits, *rest, inplace_grad=True)


def test_gradient_in_place_leaves_the_memory_in_between_alone():
    logits, *rest = random_batch()
    window = sliced(logits)
    large = window.base
    before = large.copy()
    ft.value_and_grad(window, *rest, inplace_grad=True)
    changed = large != before
    window[...] = 9
    touched = np.zeros(large.shape, bool)
    offset = (window.__array_interface__["data"][0] - large.__array_interface__["data"][0]) // 8
    inside = np.lib.stride_tricks.as_strided(
        touched.reshape(-1)[offset:], window.shape, [s // 8 for s in window.strides]
    )
    inside[...] = True
    assert not (changed & ~touched).any()
