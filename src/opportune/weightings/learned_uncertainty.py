"""Learned uncertainty: noise levels end up with equal say (EDM2, Karras et al., 2024, 2312.02696, eq. 21)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..checks import whole
from ..processes import Process
from ..random_streams import generator
from .base import Weighting, one_each
from .edm import EDMWeight


class LearnedUncertainty(Weighting):
    """Per-example loss w/e^u * MSE + u, with w EDM's weight and u(sigma) trained jointly with the model.

    The optimum is u = ln E[w MSE], where each noise level contributes a gradient divided by its own mean
    loss. u is a linear map of random Fourier features of ln(sigma)/4. It starts at 0 (plain EDM weighting);
    EDM2 instead uses a weight-normalised map from a random start.

    Hand its parameters to the optimizer, without weight decay, and let the ranks of a distributed run average
    its gradients as they do the model's::

        own = {"params": weighting.parameters(), "weight_decay": 0.0}
        optimizer = torch.optim.AdamW([{"params": model.parameters()}, own])

    The loss that is logged may become negative; the raw per-example losses are not touched.

    Args:
        sigma_data: standard deviation of the data; the process's own if it has one, else 0.5.
        features: number of Fourier features.
        seed: of the features' frequencies and phases.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(
        self, process: Process, *, sigma_data: float | None = None, features: int = 128, seed: int = 0
    ) -> None:
        super().__init__(process)
        whole("features", features, low=1)
        whole("seed", seed, low=0)
        self.base = EDMWeight(process, sigma_data=sigma_data)
        stream = generator(seed, "learned_uncertainty")
        draw = torch.randn(features, generator=stream, dtype=torch.float32, device="cpu")
        self.register_buffer("frequencies", 2 * math.pi * draw)
        turn = torch.rand(features, generator=stream, dtype=torch.float32, device="cpu")
        self.register_buffer("phases", 2 * math.pi * turn)
        self.linear = nn.Parameter(torch.zeros(features, dtype=torch.float32))

    def uncertainty(self, t: Tensor) -> Tensor:
        """u ``[B]`` float32, with its gradient, at own time ``t`` ``[B]``: ln of the weighted loss expected."""
        if self.process.steps is not None:
            self._check_steps(t, self.process.steps)
        return self._u(self._log_snr(self.process.axis(t.double() if t.is_floating_point() else t)))

    def forward(self, t: Tensor) -> Tensor:
        """w/e^u ``[B]`` float32 as a number, without gradient."""
        weight: Tensor = self.base(t) * (-self.uncertainty(t).detach()).exp()
        return weight

    def apply_to(self, losses: Tensor, t: Tensor) -> Tensor:
        """w/e^u * losses + u ``[B]`` float32; its gradient trains u."""
        one_each(losses, t)
        u = self.uncertainty(t)
        weighted: Tensor = self.base(t) * (-u).exp() * losses.float() + u
        return weighted

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        return self.base.log_weight(u, log_snr) - self._u(log_snr).detach().double()

    def _u(self, log_snr: Tensor) -> Tensor:
        c_noise = (-log_snr / 8).float()  # ln(sigma) / 4, sigma^2 = 1/SNR
        waves = math.sqrt(2 / len(self.linear)) * torch.cos(c_noise[..., None] * self.frequencies + self.phases)
        # A sum of products, not a matmul: autocast would run a matmul in half precision.
        return (waves * self.linear).sum(dim=-1)
