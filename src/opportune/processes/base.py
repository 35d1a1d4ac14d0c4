"""What noise does to data. The base class fixes one time axis and one physical coordinate for all processes.

* ``u`` in [0, 1): 0 is clean, 1 is noise. Uniform ``u`` is the process's *reference distribution*: the timesteps it is
  trained on when nobody chooses. Densities, strata, histograms and plots live in ``u``.
* ``log_snr`` = ln(alpha^2 / sigma^2): the physical coordinate, falling along ``u``. Formulas in SNR live there.
* ``t`` is the process's own time, what the network and the user's code see.

Every process is ``x_t = alpha * x0 + sigma * eps``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ..checks import one_of

CONTINUOUS_CELLS = 4096
"""Cells the u axis is cut into where a process has no timesteps of its own."""


def expand(values: Tensor, like: Tensor) -> Tensor:
    """``[B]`` -> ``[B, 1, ...]`` with the dtype of ``like`` ``[B, ...]``."""
    return values.to(like.dtype).reshape(-1, *([1] * (like.ndim - 1)))


def check_times(t: Tensor, low: float, high: float) -> None:
    """Raise for own times not finite or outside [low, high]; on the CPU only: an accelerator would have to wait."""
    slack = 0.0 if math.isinf(high) else 1e-6  # for the rounding of float32 times
    if t.device.type == "cpu" and t.numel():
        inside = (t >= low - slack) & (t <= high + slack) & torch.isfinite(t)
        if not bool(inside.all()):
            end = "inf)" if math.isinf(high) else f"{high:g}]"
            raise ValueError(
                f"t runs from {float(t.min()):g} to {float(t.max()):g}, outside [{low:g}, {end}. Use draw.t."
            )


def _check_together(x0: Tensor, noise: Tensor, t: Tensor) -> None:
    if noise.shape != x0.shape:  # broadcasting would give several examples the same noise
        raise ValueError(f"noise has shape {tuple(noise.shape)}, x0 {tuple(x0.shape)}; give noise like x0.")
    if t.shape != x0.shape[:1]:
        raise ValueError(
            f"t has shape {tuple(t.shape)} for {x0.shape[0]} examples; give one timestep per example, [B]."
        )
    if not x0.device == noise.device == t.device:
        raise ValueError(f"x0 is on {x0.device}, noise on {noise.device}, t on {t.device}; move them to one device.")


class Process(ABC):
    """A noising process and the target its network is trained on.

    Args:
        prediction: what the network predicts: "eps" (the noise), "x0" (the data), "v" (alpha*eps - sigma*x0),
            "velocity" (eps - x0, flow matching) or "F" (EDM's preconditioned network).
    """

    predictions: ClassVar[tuple[str, ...]]
    steps: int | None = None
    """Number of discrete timesteps T, or None for continuous time."""

    def __init__(self, *, prediction: str) -> None:
        self.prediction = one_of("prediction", prediction, self.predictions)

    # ---- what each process defines -------------------------------------------------------------------------

    @abstractmethod
    def log_snr(self, u: Tensor) -> Tensor:
        """ln SNR at ``u`` ``[...]`` -> ``[...]``, float64 or the dtype of ``u``."""

    @abstractmethod
    def time(self, u: Tensor) -> Tensor:
        """The process's own time at ``u`` ``[B]`` -> ``[B]``."""

    @abstractmethod
    def axis(self, t: Tensor) -> Tensor:
        """The inverse of :meth:`time`: ``u`` of own time ``t`` (the middle of its cell for discrete time)."""

    @abstractmethod
    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """``(alpha [B], sigma [B])`` of ``x_t = alpha * x0 + sigma * eps`` at own time ``t`` ``[B]``."""

    # ---- what follows from it ------------------------------------------------------------------------------

    @property
    def cells(self) -> int:
        """Cells of the u axis: the T timesteps, or a fine grid for continuous time."""
        return self.steps if self.steps is not None else CONTINUOUS_CELLS

    def edge_log_snr(self) -> Tensor:
        """ln SNR at the ``cells + 1`` edges of the u axis, float64, falling.

        For discrete time an inner edge lies half-way between two timesteps in ln SNR ("nearest timestep"), and the
        outer edges half a cell beyond the ends: a density over noise levels is truncated there, not clamped.
        """
        if self.steps is None:
            return self.log_snr(torch.linspace(0, 1, self.cells + 1, dtype=torch.float64))
        centres = self.log_snr((torch.arange(self.steps, dtype=torch.float64) + 0.5) / self.steps)
        if self.steps == 1:
            return torch.stack([centres[0] + 1, centres[0] - 1])
        inner = (centres[1:] + centres[:-1]) / 2
        if torch.isinf(centres[-1]):  # zero terminal SNR: the last timestep owns everything below its neighbour's cell
            reach = centres[-2] - inner[-2] if self.steps > 2 else centres.new_tensor(-1.0)
            inner[-1] = centres[-2] + reach
            last = centres[-1:]
        else:
            last = centres[-1:] - (inner[-1:] - centres[-1:])
        return torch.cat([centres[:1] + (centres[:1] - inner[:1]), inner, last])

    def sigma(self, t: Tensor) -> Tensor | None:
        """Noise level ``[B]`` in the process's own words where it has one (EDM, VE, flow), else None."""
        return None

    def network_input(self, x_t: Tensor, t: Tensor) -> Tensor:
        """What the network is given for ``x_t`` (EDM scales it; others hand it on)."""
        return x_t

    def network_time(self, t: Tensor) -> Tensor:
        """What the network is told about the time, ``[B]``."""
        return t

    def corrupt(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """``x_t = alpha * x0 + sigma * noise``, all ``[B, ...]``, in the dtype of x0."""
        if not x0.is_floating_point():  # alpha and sigma would be rounded to 0
            raise ValueError(f"x0 has dtype {x0.dtype}; give floats, e.g. images as x0.float() / 127.5 - 1.")
        _check_together(x0, noise, t)
        alpha, sigma = self.coefficients(t)
        return expand(alpha, x0) * x0 + expand(sigma, x0) * noise.to(x0.dtype)  # a probe's noise is float32

    def target(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What the network should output, ``[B, ...]``."""
        if self.prediction == "eps":
            return noise
        if self.prediction == "x0":
            return x0
        if self.prediction == "velocity":
            return noise - x0
        alpha, sigma = (expand(c, x0) for c in self.coefficients(t))
        return alpha * noise - sigma * x0

    def split(self, output: Tensor, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates ``(x0, eps)`` from the network's output at ``x_t``; the inverse of :meth:`target`.

        At zero SNR (alpha = 0) an eps-prediction says nothing of x0 and the quotient is infinite: use "v" or "x0".
        """
        alpha, sigma = (expand(c, x_t) for c in self.coefficients(t))
        if self.prediction == "eps":
            return (x_t - sigma * output) / alpha, output
        if self.prediction == "x0":
            return output, (x_t - alpha * output) / sigma
        if self.prediction == "velocity":  # output = eps - x0 and x_t = alpha x0 + sigma eps
            x0 = (x_t - sigma * output) / (alpha + sigma)
            return x0, x0 + output
        norm = alpha**2 + sigma**2
        return (alpha * x_t - sigma * output) / norm, (sigma * x_t + alpha * output) / norm

    def __repr__(self) -> str:
        shown = f", steps={self.steps}" if self.steps is not None else ""
        return f"{type(self).__name__}(prediction={self.prediction!r}{shown})"
