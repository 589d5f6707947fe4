# SPDX-License-Identifier: Apache-2.0
"""What a NeMo joint network computes, as the inputs of ``joint_loss``.

NeMo's RNNTJoint projects encoder and predictor outputs to one width, adds them, and applies ``joint_net``:
an activation, dropout if any, and a linear layer (nemo/collections/asr/modules/rnnt.py of NVIDIA/NeMo). In
training ``masking_prob`` zeroes whole projected predictor rows without rescaling (HAINAN, Xu et al. 2024,
arXiv 2410.02597): one draw per utterance and label position.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

# Encoder, predictor, weight, bias.
Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def joint_inputs(
    caller: str, joint: Any, encoder: torch.Tensor, predictor: torch.Tensor, *, columns: int, unread: int
) -> tuple[Inputs, dict[str, Any]]:
    """Encoder, predictor, weight and bias of the joint, less `unread` columns, and the options that go along.

    Raises ValueError for joints that compute anything else.
    """
    _check(caller, joint, columns)
    output = joint.joint_net[-1]
    weight, bias = output.weight, output.bias
    if unread:
        weight, bias = weight[:-unread], None if bias is None else bias[:-unread]
    projected_predictor = joint.project_prednet(predictor)
    options: dict[str, Any] = {"activation": joint.activation}
    if joint.training and joint.dropout > 0.0:
        options["dropout"] = float(joint.dropout)
        options["seed"] = int(torch.randint(2**62, ()))  # from the host's generator: no wait for a device
    if joint.training and getattr(joint, "masking_prob", -1.0) > 0.0:
        draws = torch.rand(projected_predictor.shape[:2], device=projected_predictor.device)
        options["predictor_mask"] = (draws > joint.masking_prob).to(projected_predictor.dtype)
    return (joint.project_encoder(encoder), projected_predictor, weight, bias), options


def _check(caller: str, joint: Any, columns: int) -> None:
    width = joint.joint_net[-1].weight.shape[0]
    if width != columns:
        raise ValueError(
            f"{caller}: the joint's last layer has {width} outputs, expected {columns} because the blank is "
            "the last of the vocabulary and one column per duration follows it"
        )
    if getattr(joint, "log_softmax", None) is True:
        raise ValueError(f"{caller}: the joint's log_softmax is True, expected the joint to give logits")
    temperature = getattr(joint, "temperature", 1.0)
    if temperature != 1.0:
        raise ValueError(f"{caller}: the joint's temperature is {temperature}, expected 1")
    adapters = getattr(joint, "is_adapter_available", None)
    if adapters is not None and adapters():
        raise ValueError(f"{caller}: the joint has adapters, expected none: they are not part of joint_loss")
