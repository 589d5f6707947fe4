# SPDX-License-Identifier: Apache-2.0
"""compat.nemo: scale of costs, omega, and the losses that take encoder and predictor outputs."""

import flash_transducer as ft
import pytest
from compat_batches import V, batch, of_numpy
from flash_transducer.compat import nemo
from torch_batches import torch

LAMBDA = 0.25


@pytest.mark.parametrize(
    ("make", "variant"),
    [
        (nemo.RNNTLossNumba, ft.rnnt(3, fastemit=LAMBDA)),
        (
            lambda blank, **options: nemo.MultiblankRNNTLossNumba(blank, [2], sigma=0.05, **options),
            ft.multi_blank([2], 3, fastemit=LAMBDA, sigma=0.05),
        ),
        (
            lambda blank, **options: nemo.TDTLossNumba(blank, [0, 2], sigma=0.05, **options),
            ft.tdt([0, 2], 3, fastemit=LAMBDA, sigma=0.05),
        ),
    ],
    ids=["rnnt", "multi_blank", "tdt"],
)
def test_nemo_scales_the_cost_and_not_the_gradient(make, variant):
    given = batch()
    module = make(blank=3, fastemit_lambda=LAMBDA, clamp=0.1, reduction="sum")
    costs, gradient = of_numpy(*given, variant=variant, clamp=0.1)
    value = module(*given)
    torch.testing.assert_close(value, (1 + LAMBDA) * costs.sum().reshape(1))
    torch.testing.assert_close(torch.autograd.grad(value, given[0])[0], gradient)


def test_nemo_draws_omega_from_pythons_random(monkeypatch):
    given = batch()
    module = nemo.TDTLossNumba(3, [0, 1], reduction="none", sigma=0.1, omega=0.3)
    for draw, variant, columns in ((0.29, ft.rnnt(3), V - 2), (0.3, ft.tdt([0, 1], 3, sigma=0.1), V)):
        monkeypatch.setattr("random.uniform", lambda low, high, draw=draw: draw)
        costs = module(*given)
        (gradient,) = torch.autograd.grad(costs.sum(), given[0])
        head = given[0].detach()[..., :columns].clone()
        expected = of_numpy(head, *given[1:], variant=variant)
        torch.testing.assert_close(costs, expected[0])
        torch.testing.assert_close(gradient[..., :columns], expected[1])
        assert not gradient[..., columns:].any()


def test_nemo_tdt_draws_once_at_each_call(monkeypatch):
    draws = []
    monkeypatch.setattr("random.uniform", lambda low, high: draws.append((low, high)) or 0.5)
    module = nemo.TDTLossNumba(3, [0, 1])
    module(*batch())
    module(*batch())
    assert draws == [(0, 1), (0, 1)]


def test_nemo_takes_no_reduction():
    given = batch()
    assert nemo.RNNTLossNumba(reduction=None)(*given).shape == (3,)
    module = nemo.RNNTLossNumba()
    module.reduction = None  # as NeMo's joint does
    assert module(*given).shape == (3,)
    assert nemo.RNNTLossNumba(clamp=-1).clamp == 0.0
    assert nemo.TDTLossNumba(3, [0, 1]).warmup("cpu") is False


class Joint(torch.nn.Module):
    """The parts of NeMo's RNNTJoint that a loss uses."""

    def __init__(self, outputs, *, activation="relu", dropout=0.0, bias=True):
        super().__init__()
        self.enc, self.pred = torch.nn.Linear(7, 8), torch.nn.Linear(5, 8)
        self.activation, self.dropout, self.masking_prob = activation, dropout, -1.0
        functions = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid}
        layers = [functions[activation](), *([torch.nn.Dropout(dropout)] if dropout else [])]
        self.joint_net = torch.nn.Sequential(*layers, torch.nn.Linear(8, outputs, bias=bias))
        self.log_softmax, self.temperature = None, 1.0

    def project_encoder(self, encoder):
        return self.enc(encoder)

    def project_prednet(self, predictor):
        return self.pred(predictor)

    def forward(self, encoder, predictor):
        return self.joint_net(self.enc(encoder)[:, :, None] + self.pred(predictor)[:, None])


def joint_batch(**options):
    torch.manual_seed(0)
    joint = Joint(V, **options).double()
    encoder = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    predictor = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    return joint, encoder, predictor, batch()[1:]


@pytest.mark.parametrize(
    "module",
    [
        nemo.RNNTLossNumba(5, fastemit_lambda=0.2),
        nemo.RNNTLossNumba(5, reduction="none"),
        nemo.MultiblankRNNTLossNumba(5, [2, 4], sigma=0.05),
        nemo.TDTLossNumba(3, [0, 2], sigma=0.05, clamp=0.05),
        nemo.TDTLossNumba(3, [0, 2], omega=1.0),
    ],
    ids=["mean", "none", "multi_blank", "tdt", "tdt omega"],
)
@pytest.mark.parametrize("options", [{}, {"activation": "tanh", "bias": False}], ids=["relu", "tanh"])
def test_nemo_from_the_joint_is_the_loss_of_its_logits(module, options):
    joint, encoder, predictor, rest = joint_batch(**options)
    leaves = encoder, predictor, *joint.parameters()
    expected = module(joint(encoder, predictor), *rest)
    wanted = torch.autograd.grad(expected.sum(), leaves)
    value = module.forward_from_joint(joint, encoder, predictor, *rest)
    assert value.shape == expected.shape
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), leaves), wanted)


def test_nemo_flash_loss_gives_costs():
    joint, encoder, predictor, rest = joint_batch()
    costs = nemo.FlashRNNTLoss(5, fastemit_lambda=0.2)(joint, encoder, predictor, *rest)
    expected = nemo.RNNTLossNumba(5, reduction="none", fastemit_lambda=0.2)(joint(encoder, predictor), *rest)
    torch.testing.assert_close(costs, expected)
    assert costs.shape == (3,)


def test_nemo_flash_loss_drops_and_masks_in_training_only():
    joint, encoder, predictor, rest = joint_batch(dropout=0.5)
    loss = nemo.FlashRNNTLoss(5)
    plain = loss(joint.eval(), encoder, predictor, *rest)
    torch.testing.assert_close(loss(joint, encoder, predictor, *rest), plain, rtol=0, atol=0)
    joint.train()
    torch.manual_seed(1)
    dropped = loss(joint, encoder, predictor, *rest)
    torch.manual_seed(1)
    torch.testing.assert_close(loss(joint, encoder, predictor, *rest), dropped, rtol=0, atol=0)
    assert not torch.equal(loss(joint, encoder, predictor, *rest), dropped)
    joint.dropout, joint.masking_prob = 0.0, 1.0  # every predictor row masked
    masked = loss(joint, encoder, predictor, *rest)
    with torch.no_grad():
        joint.pred.weight.zero_()
        joint.pred.bias.zero_()
    torch.testing.assert_close(masked, loss(joint.eval(), encoder, predictor, *rest))


def test_nemo_flash_loss_refuses_other_joints():
    joint, encoder, predictor, rest = joint_batch()
    with pytest.raises(ValueError, match="has 6 outputs, expected 5"):
        nemo.FlashRNNTLoss(4)(joint, encoder, predictor, *rest)
    joint.temperature = 2.0
    with pytest.raises(ValueError, match=r"temperature is 2\.0, expected 1"):
        nemo.FlashRNNTLoss(5)(joint, encoder, predictor, *rest)
    joint.temperature, joint.log_softmax = 1.0, True
    with pytest.raises(ValueError, match="log_softmax is True"):
        nemo.FlashRNNTLoss(5)(joint, encoder, predictor, *rest)
    with pytest.raises(ValueError, match=r"fastemit_lambda is -1\.0"):
        nemo.FlashRNNTLoss(5, fastemit_lambda=-1.0)
    with pytest.raises(ValueError, match="max_joint_rows is 0"):
        nemo.FlashRNNTLoss(5, max_joint_rows=0)
