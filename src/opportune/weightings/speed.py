"""SpeeD's change-aware weight: more where noise changes the data fastest (Wang et al., 2025, 2405.17403)."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from ..checks import number, one_of, whole
from ..processes import DDPM, Process
from .base import LOG_SNR_LIMIT, Weighting

_TAIL = -math.log(143)  # ln SNR where alpha_bar = 1/144: t = 700 on the linear schedule, the paper's boundary


class ChangeAware(Weighting):
    """On the eps-MSE: the gradient of 1 - alpha_bar over t, rescaled to [1 - lam, lam]. W = SNR times that.

    ``tail="same"`` uses one curve for all t and divides it by its mean over the process's reference, so the
    loss keeps its scale. ``tail="released"`` is the released code: not normalised, and weight 1 from tau on,
    which gives the timesteps the method means to suppress 1.7 to 2.5 times the weight of those it emphasises.

    Processes in continuous time have no steps of their own to take a gradient over; they use the linear
    schedule's curve at equal SNR.

    Args:
        lam: upper end of the rescaled curve, in [0.5, 1]; 0.6 in the paper. Above 1 weights would be
            negative.
        tail: "same" or "released".
        tau: first timestep of the released tail; by default where alpha_bar falls to 1/144 (700 on the linear
            schedule; the released code has 700 for every schedule).
    """

    def __init__(self, process: Process, *, lam: float = 0.6, tail: str = "same", tau: int | None = None) -> None:
        super().__init__(process)
        self.lam = number("lam", lam, low=0.5, high=1)
        self.tail = one_of("tail", tail, ("same", "released"))
        self.tau = self._check_tau(tau)
        if self.lam == 0.5 and tail == "same":
            warnings.warn(
                "lam=0.5 has no effect: the change-aware weight is then 1 everywhere. Raise it.",
                UserWarning,
                stacklevel=2,
            )
        steps = process if process.steps is not None else DDPM("linear", steps=1000)
        count = steps.steps or 1
        self._node_log_snr = (
            steps.log_snr((torch.arange(count, dtype=torch.float64) + 0.5) / count)
            .double()
            .clamp(-LOG_SNR_LIMIT, LOG_SNR_LIMIT)
        )
        self._curve = _rescaled_gradient(torch.sigmoid(-self._node_log_snr), self.lam)
        u = self._middles()
        self._mean = float(self._raw(u, self._log_snr(u)).mean()) if tail == "same" else 1.0

    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        weight = self._raw(u, log_snr) / self._mean
        if self.tail == "released":
            late = log_snr <= _TAIL if self.tau is None else self.process.time(u) >= self.tau
            weight = torch.where(late, torch.ones_like(weight), weight)
        return log_snr + weight.log()

    def _raw(self, u: Tensor, log_snr: Tensor) -> Tensor:
        curve = self._curve.to(log_snr.device)
        if self.process.steps is not None:
            return curve[self.process.time(u)]
        return _interpolate(log_snr, self._node_log_snr.to(log_snr.device).flip(0), curve.flip(0))

    def _check_tau(self, tau: int | None) -> int | None:
        if tau is None:
            return None
        if self.tail == "same" or self.process.steps is None:
            raise ValueError(f"tau={tau} only means something with tail='released' on discrete timesteps.")
        return whole("tau", tau, low=0, high=self.process.steps)


def _rescaled_gradient(noise: Tensor, lam: float) -> Tensor:
    """Gradient of 1 - alpha_bar ``[T]``, min-max rescaled to [1 - lam, lam]; ones where it does not vary."""
    if len(noise) < 2:
        return torch.ones_like(noise)
    gradient = torch.gradient(noise)[0]
    low, high = gradient.min(), gradient.max()
    if not bool(high > low):
        return torch.ones_like(noise)
    return (1 - lam) + (2 * lam - 1) * (gradient - low) / (high - low)


def _interpolate(x: Tensor, nodes: Tensor, values: Tensor) -> Tensor:
    """Piecewise linear through (nodes rising, values), constant beyond the ends."""
    x = x.clamp(nodes[0], nodes[-1])
    right = torch.searchsorted(nodes, x.contiguous()).clamp(1, len(nodes) - 1)
    share = (x - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])
