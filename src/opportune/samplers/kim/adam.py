"""Adam with its state in buffers, so that the policy's optimizer is saved and restored with the sampler."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_BETAS, _EPS = (0.9, 0.999), 1e-8


class Adam(nn.Module):
    """Adam (Kingma & Ba, 2015) after clipping the gradient's length; defaults of torch.optim.Adam.

    Args:
        size: number of weights.
        learning_rate: of the policy.
        max_norm: the gradient is shortened to this length.
    """

    first: Tensor
    second: Tensor
    taken: Tensor

    def __init__(self, size: int, *, learning_rate: float, max_norm: float) -> None:
        super().__init__()
        self.learning_rate, self.max_norm = learning_rate, max_norm
        self.register_buffer("first", torch.zeros(size, dtype=torch.float32))
        self.register_buffer("second", torch.zeros(size, dtype=torch.float32))
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Move the parameters in place; False, and nothing moved, where the gradient is not finite."""
        gradient = torch.cat([g.flatten().float() for g in gradients])
        length = gradient.norm()
        if not bool(torch.isfinite(length)):
            return False
        gradient = gradient * (self.max_norm / (length + 1e-6)).clamp(max=1.0)
        self.taken += 1
        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.lerp_(gradient.square(), 1 - _BETAS[1])
        taken = int(self.taken)
        first = self.first / (1 - _BETAS[0] ** taken)
        second = self.second / (1 - _BETAS[1] ** taken)
        moves = (self.learning_rate * first / (second.sqrt() + _EPS)).split([p.numel() for p in parameters])
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move.view_as(parameter))
        return True
