"""Classifier-free guidance: dropping labels in training, mixing two predictions in generation.

Source: Ho & Salimans 2022, "Classifier-Free Diffusion Guidance".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checks import number
from .base import ImageModel


def drop_labels(labels: Tensor, probability: float, uniforms: Tensor, *, null_label: int) -> Tensor:
    """Replace each of `labels` `[B]` by `null_label` where its uniform number is below `probability`.

    The caller draws `uniforms` `[B]` in [0, 1) from a stream of its own, so that the same numbers give the
    same labels before and after a step, and after a restart. `null_label` is the model's. Papers use a
    `probability` of 0.1 to 0.2.
    """
    number("probability", probability, low=0.0, high=1.0)
    if uniforms.shape != labels.shape:
        raise ValueError(f"uniforms have shape {list(uniforms.shape)}, labels {list(labels.shape)}; give the same.")
    return torch.where(uniforms < probability, torch.full_like(labels, null_label), labels)


def guided(model: ImageModel, scale: float) -> nn.Module:
    """Wrap a class-conditional `model` so that it predicts with guidance, called the same way.

    The prediction is `without + scale · (with − without)`: `scale` 1 is the plain conditional model, 0
    ignores the class, above 1 trades variety for fidelity. (Ho & Salimans' `w` is `scale − 1`.) Both come
    from one batch of `2B`; at `scale` 1 the model is returned as it is.
    """
    if model.null_label is None:
        raise ValueError("guided() needs a model with a null class; build it with classes=<count>.")
    number("scale", scale, low=0.0)
    return model if scale == 1.0 else _Guided(model, scale, model.null_label)


class _Guided(nn.Module):
    def __init__(self, model: nn.Module, scale: float, null_label: int) -> None:
        super().__init__()
        self.model = model
        self.scale = scale
        self.null_label = null_label

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None, condition: Tensor | None = None) -> Tensor:
        """Shapes as for `ImageModel`; `labels` are required."""
        if labels is None:
            raise ValueError("a guided model needs labels [B]; none were given.")
        both = torch.cat([labels, torch.full_like(labels, self.null_label)])
        conditions = None if condition is None else _twice(condition)
        prediction = self.model(_twice(x), _twice(time), both, conditions)
        with_label, without = prediction.chunk(2)
        mixed: Tensor = without + self.scale * (with_label - without)
        return mixed


def _twice(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor])
