"""By how much x changes from one timestep to the next, and SpeeD's three areas (Wang et al., CVPR 2025, 2405.17403)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from opportune.checks import whole
from opportune.processes import Process
from opportune.samplers.speed import BOUNDARY_LOG_SNR

from .found import Found

AREAS = ("acceleration", "deceleration", "convergence")


@dataclass(frozen=True, kw_only=True)
class ProcessIncrement(Found):
    """The increment x_{t+1} - x_t given the image, for the process scaled to alpha^2 + sigma^2 = 1.

    So scaled, a DDPM is itself, and others are compared with it at equal SNR. Index i is the step from the i-th to the
    next of n noise levels, 0 the cleanest; n is T for discrete time.

    Attributes:
        u: ``[n - 1]`` noise axis, the middle of the step; 0 is clean, 1 is noise.
        mean: ``[n - 1]`` what multiplies the image in the increment's mean: alpha_{t+1} - alpha_t.
        variance: ``[n - 1]`` the paper's Psi_t = 2 - abar_t (1 + alpha_{t+1}), of x_t and x_{t+1} drawn apart.
        step_variance: ``[n - 1]`` of the noising chain's own step, x_{t+1} drawn from x_t.
        growth: ``[n]`` d(1 - abar)/du at the levels; half the growth of Psi, as a slope over the whole axis.
        peak: u where that growth is largest: acceleration ends, deceleration begins.
        tau: u where abar has fallen to 1/144: deceleration ends, convergence begins. Timestep 700 of 1000 (linear).
        process: in words.
        levels: n.
    """

    figure: ClassVar[str] = "increment"
    u: Tensor
    mean: Tensor
    variance: Tensor
    step_variance: Tensor
    growth: Tensor
    peak: float
    tau: float
    process: str
    levels: int

    @property
    def areas(self) -> dict[str, tuple[float, float]]:
        """From where to where each area reaches, in u."""
        ends = (0.0, self.peak, max(self.tau, self.peak), 1.0)
        return dict(zip(AREAS, pairwise(ends), strict=True))


def process_increment(process: Process, *, levels: int = 1000, label: str = "") -> ProcessIncrement:
    """The increments of ``process``; ``levels`` even steps of u stand for continuous time."""
    count = process.steps or whole("levels", levels, low=3)
    if count < 3:
        raise ValueError(f"process has {count} timesteps; increments have areas where there are 3 or more.")
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    log_snr = process.log_snr(u).double()
    signal, noise = torch.sigmoid(log_snr), torch.sigmoid(-log_snr)  # abar and 1 - abar
    alpha = signal.sqrt()
    # x_{t+1} = r x_t + s eps with r = alpha_{t+1} / alpha_t, so the increment given x_0 has (r - 1)^2 noise_t + s^2.
    ratio = alpha[1:] / alpha[:-1]
    fresh = noise[1:] - ratio**2 * noise[:-1]
    growth = torch.gradient(noise)[0] * count
    return ProcessIncrement(
        label=label,
        u=(u[1:] + u[:-1]) / 2,
        mean=alpha.diff(),
        variance=noise[:-1] + noise[1:],
        step_variance=(ratio - 1) ** 2 * noise[:-1] + fresh,
        growth=growth,
        peak=float(u[int(growth.argmax())]),
        tau=int((log_snr > BOUNDARY_LOG_SNR).sum()) / count,
        process=repr(process),
        levels=count,
    )
