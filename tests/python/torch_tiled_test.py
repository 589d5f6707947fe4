# SPDX-License-Identifier: Apache-2.0
"""tiled_loss: a joint network of any kind, tile by tile, against the same network called whole."""

import flash_transducer as ft
import pytest
from batches import VARIANTS, random_batch
from conventions_test import with_knobs
from torch_batches import assert_close, leaf, tensors, torch

HIDDEN = 4


class Gated(torch.nn.Module):
    """Several layers, a gate, and dropout: nothing that joint_loss could take."""

    def __init__(self, columns, dropout=0.0):
        super().__init__()
        self.gate = torch.nn.Linear(HIDDEN, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.dropout = torch.nn.Dropout(dropout)
        self.output = torch.nn.Linear(HIDDEN, columns)
        self.calls = []

    def forward(self, encoder, predictor):
        e, p = encoder[:, :, None], predictor[:, None]
        hidden = torch.sigmoid(self.gate(e)) * torch.tanh(p) + e * p
        logits = self.output(self.dropout(self.norm(hidden)))
        self.calls.append(tuple(logits.shape))
        return logits


def setting(variant=VARIANTS["rnnt"], dropout=0.0, dtype=torch.float64, **sizes):
    torch.manual_seed(0)
    logits, targets, frames, labels = tensors(random_batch(variant, **sizes))
    B, T, rows, columns = logits.shape
    joint = Gated(columns, dropout).to(dtype)
    encoder, predictor = torch.randn(B, T, HIDDEN, dtype=dtype), torch.randn(B, rows, HIDDEN, dtype=dtype)
    return joint, leaf(encoder), leaf(predictor), (targets, frames, labels)


def gradients(cost, joint, *inputs):
    return torch.autograd.grad(cost, [*inputs, *joint.parameters()])


@pytest.mark.parametrize("tile_frames", [1, 2, 5, 64])
@pytest.mark.parametrize("name", VARIANTS)
def test_cost_and_gradients_are_those_of_the_network_called_whole(name, tile_frames):
    variant = with_knobs(name, delay_penalty=0.1, fastemit=0.2, sigma=0.05)
    joint, encoder, predictor, batch = setting(variant, frames=(5, 2, 4))
    whole = ft.loss(joint(encoder, predictor), *batch, variant, reduction="mean_frame")
    expected = gradients(whole, joint, encoder, predictor)
    joint.calls.clear()
    cost = ft.torch.tiled_loss(
        joint, encoder, predictor, *batch, variant, reduction="mean_frame", tile_frames=tile_frames
    )
    assert_close(cost, whole)
    for one, other in zip(gradients(cost, joint, encoder, predictor), expected, strict=True):
        assert_close(one, other, 1e-11)
    assert max(shape[1] for shape in joint.calls) == min(tile_frames, 5)


def test_scores_of_arcs_starts_and_ends():
    variant = ft.tdt([0, 1, 2])
    joint, encoder, predictor, batch = setting(variant)
    B, T, rows, A = 3, 5, 3, len(variant.arcs)
    for shape in [(B, T, rows, A), (T, 1, 1), (B, 1, rows, 1), (A,)]:
        given = {
            "arc_scores": leaf(torch.randn(shape, dtype=torch.float64)),
            "start_scores": leaf(torch.randn(B, T, dtype=torch.float64)),
            "final_scores": leaf(torch.randn(B, T + 1, dtype=torch.float64)),
        }
        inputs = (encoder, predictor, *given.values())
        whole = ft.loss(joint(encoder, predictor), *batch, variant, **given)
        cost = ft.torch.tiled_loss(joint, encoder, predictor, *batch, variant, tile_frames=2, **given)
        assert_close(cost, whole)
        expected = gradients(whole, joint, *inputs)
        for one, other in zip(gradients(cost, joint, *inputs), expected, strict=True):
            assert_close(one, other, 1e-11)


def test_dropout_draws_the_same_numbers_again():
    joint, encoder, predictor, batch = setting(dropout=0.5)
    torch.manual_seed(5)
    cost = ft.torch.tiled_loss(joint, encoder, predictor, *batch, tile_frames=64)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    whole = ft.loss(joint(encoder, predictor), *batch)
    assert_close(cost, whole)
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(9)  # other draws between the passes
    before = torch.get_rng_state()
    found = gradients(cost, joint, encoder, predictor)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(found, gradients(whole, joint, encoder, predictor), strict=True):
        assert_close(one, other, 1e-11)


def test_autocast_is_entered_again():
    joint, encoder, predictor, batch = setting(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = ft.loss(joint(encoder, predictor), *batch)
        cost = ft.torch.tiled_loss(joint, encoder, predictor, *batch, tile_frames=2)
    assert_close(cost, whole, 1e-6)
    for one, other in zip(
        gradients(cost, joint, encoder, predictor), gradients(whole, joint, encoder, predictor), strict=True
    ):
        assert one.dtype == other.dtype == torch.float32
        scale = other.abs().max().item()
        assert (one - other).abs().max().item() <= 2 * torch.finfo(torch.bfloat16).eps * scale


def test_only_what_needs_a_gradient_gets_one():
    joint, encoder, predictor, batch = setting()
    joint.gate.requires_grad_(False)
    cost = ft.torch.tiled_loss(joint, encoder.detach(), predictor, *batch)
    cost.backward()
    assert joint.gate.weight.grad is None
    assert joint.output.weight.grad is not None
    assert predictor.grad is not None
    with torch.no_grad():
        joint.calls.clear()
        cost = ft.torch.tiled_loss(joint, encoder, predictor, *batch, tile_frames=2)
    assert not cost.requires_grad
    assert len(joint.calls) == 3


def test_two_passes_and_no_third_kind():
    joint, encoder, predictor, batch = setting()
    cost = ft.torch.tiled_loss(joint, encoder, predictor, *batch)
    (first,) = torch.autograd.grad(cost, encoder, retain_graph=True)
    (second,) = torch.autograd.grad(3.0 * cost, encoder)
    assert_close(second, 3.0 * first)


def test_mistakes_are_named():
    joint, encoder, predictor, batch = setting()
    with pytest.raises(ValueError, match=r"ft.torch.tiled_loss: tile_frames is 0, expected"):
        ft.torch.tiled_loss(joint, encoder, predictor, *batch, tile_frames=0)
    with pytest.raises(ValueError, match=r"ft.torch.tiled_loss: joint returned logits of shape \[3, 5, 6\]"):
        ft.torch.tiled_loss(lambda e, p: joint(e, p)[:, :, 0], encoder, predictor, *batch)
    with pytest.raises(ValueError, match=r"expected \[B, T, ...\] and \[B, U \+ 1, ...\]"):
        ft.torch.tiled_loss(joint, encoder[0, 0], predictor, *batch)
    targets, frames, labels = batch
    for error, message, changed in [
        (ValueError, "tile_frames is True", {"tile_frames": True}),
        (
            ValueError,
            r"joint returned logits of shape tuple, expected \[3, 5",
            {"joint": lambda e, p: (e, p)},
        ),
        (TypeError, "joint is a NoneType, expected a module or a function", {"joint": None}),
        (TypeError, "encoder is a list, expected a torch.Tensor", {"encoder": [1.0]}),
        (TypeError, "variant is a str, expected an ft.Variant", {"variant": "rnnt"}),
        (
            ValueError,
            r"arc_scores has shape \[6, 1, 1\], .* \[3, 5, .*2\]",
            {"arc_scores": torch.zeros(6, 1, 1)},
        ),
        (
            ValueError,
            r"logit_lengths\[0\] is 6, expected a value from 0 to 5",
            {"encoder_lengths": frames + 1},
        ),
        (ValueError, r"targets\[0, 0\] is 99, expected a label", {"targets": targets + 99 - targets[0, 0]}),
        (ValueError, "backend is 'gpu'", {"backend": "gpu"}),
    ]:
        given = {
            "joint": joint,
            "encoder": encoder,
            "predictor": predictor,
            "targets": targets,
            "encoder_lengths": frames,
            "target_lengths": labels,
        }
        with pytest.raises(error, match=f"ft.torch.tiled_loss: {message}"):
            ft.torch.tiled_loss(**{**given, **changed})


def test_labels_lengths_and_scores_may_be_lists_and_arrays():
    joint, encoder, predictor, (targets, frames, labels) = setting()
    scores = [0.25, -0.5]
    expected = ft.loss(joint(encoder, predictor), targets, frames, labels, arc_scores=scores)
    given = targets.tolist(), frames.numpy(), labels.tolist()
    assert_close(ft.torch.tiled_loss(joint, encoder, predictor, *given, arc_scores=scores), expected)


def test_a_masked_arc_is_absent_whatever_its_logits_hold():
    joint, encoder, predictor, batch = setting(frames=(5, 4), labels=(2, 2))
    mask = torch.zeros(2, 5, 3, 2, dtype=torch.float64)
    mask[0, 1, 1] = -torch.inf

    def spoiled(e, p):
        logits = joint(e, p)
        holes = (e[:, :, None, :1] == encoder[0, 1, 0]) & (p[:, None, :, :1] == predictor[0, 1, 0])
        return torch.where(holes, torch.nan, logits)

    options = {"arc_scores": mask, "reduction": "none"}
    expected = ft.loss(joint(encoder, predictor), *batch, **options)
    cost = ft.torch.tiled_loss(
        spoiled, encoder, predictor, *batch, **options, tile_frames=2, parameters=list(joint.parameters())
    )
    assert_close(cost, expected)
    assert ft.torch.tiled_loss(spoiled, encoder, predictor, *batch).isnan()  # without the mask
    for one, other in zip(
        gradients(cost.sum(), joint, encoder), gradients(expected.sum(), joint, encoder), strict=True
    ):
        assert_close(one, other, 1e-11)


def test_16_bit_gradients_do_not_round_at_every_tile():
    B, T, K = 2, 300, 4
    bias = leaf(torch.zeros(K, dtype=torch.bfloat16))
    encoder, predictor = torch.zeros(B, T, K).bfloat16(), torch.zeros(B, 3, K).bfloat16()
    batch = torch.ones(B, 2, dtype=torch.int64), torch.full((B,), T), torch.full((B,), 2)
    cost = ft.torch.tiled_loss(
        lambda e, p: e[:, :, None] + p[:, None] + bias, encoder, predictor, *batch,
        tile_frames=1, parameters=[bias], from_log_probs=True, reduction="sum",
    )  # fmt: skip
    cost.backward()
    # Every path has T blanks and 2 labels; a bfloat16 sum of 300 twos stays at 512.
    assert_close(bias.grad.double(), torch.tensor([0.0, -2.0 * B, 0.0, -1.0 * B * T]).double(), 2.0**-7)
