"""The best possible network for Gaussian data, and where its probability flow leads exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from opportune.processes import DDPM, EDM, VE, VP, Flow, Process
from opportune.random_streams import generator
from opportune.testing.analytic import GaussianMixture

SHAPE = (2, 2, 2)  # of an image


def data(mean: float = 0.3, std: float = 0.5) -> GaussianMixture:
    """Independent values with standard deviations around ``std``."""
    count = SHAPE[0] * SHAPE[1] * SHAPE[2]
    spread = torch.linspace(0.5, 1.5, count) * std
    return GaussianMixture(torch.full((1, count), mean), spread.square()[None])


class Exact:
    """``model(x, time)`` whose output is the posterior mean of the process's target."""

    def __init__(self, process: Process, mixture: GaussianMixture) -> None:
        self.process, self.mixture, self.calls = process, mixture, []

    def own_time(self, time: Tensor) -> Tensor:
        process = self.process
        if isinstance(process, EDM):
            return (4 * time).exp()
        if isinstance(process, VE):
            return 2 * time.exp()
        if isinstance(process, VP):
            return time / 999
        return time / process.time_scale if isinstance(process, Flow) else time

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        self.calls.append(time)
        process, t = self.process, self.own_time(time)
        if isinstance(process, EDM) and process.prediction == "F":
            x = x * (t**2 + process.sigma_data**2).sqrt().view(-1, 1, 1, 1).to(x.dtype)
        if isinstance(process, DDPM):
            bars = process.alphas_cumprod[t]
            alpha, sigma = bars.sqrt(), (1 - bars).sqrt()
        else:
            alpha, sigma = process.coefficients(t)
        x0 = self.mixture.posterior_mean(x.flatten(1), alpha, sigma).view_as(x)
        a, s = alpha.view(-1, 1, 1, 1), sigma.view(-1, 1, 1, 1)
        return process.target(x0.double(), (x - a * x0) / s, t).to(x.dtype)


def start(count: int, scale: float, seed: int = 0) -> Tensor:
    """``[count, C, H, W]`` what generation starts from."""
    noise = [torch.randn(SHAPE, generator=generator(seed, "generate", i)) for i in range(count)]
    return scale * torch.stack(noise).double()


def flow_end(mixture: GaussianMixture, x: Tensor, alpha: float, sigma: float) -> Tensor:
    """Where the probability flow carries ``x``: its place in standard deviations stays the same."""
    mean, variance = mixture.means[0].view(SHAPE), mixture.variances[0].view(SHAPE)
    return mean + variance.sqrt() * (x - alpha * mean) / (alpha**2 * variance + sigma**2).sqrt()
