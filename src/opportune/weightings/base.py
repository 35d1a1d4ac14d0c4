"""How much each timestep's loss counts: written once, as a weight W on the x0-MSE, converted in one place.

============  ================================  ==========================================
loss of       multiply its MSE by               because
============  ================================  ==========================================
x0            W
eps           W / SNR                           |eps err|^2 = SNR |x0 err|^2
v             W / (SNR + 1)                     |v err|^2 = (SNR + 1) |x0 err|^2
velocity      W / (sqrt(SNR) + 1)^2             x0 err = -t (velocity err), t = 1/(sqrt(SNR)+1)
F (EDM)       W sigma^2 sd^2/(sigma^2 + sd^2)   x0 err = c_out (F err)
============  ================================  ==========================================

Everything is computed as ln W, with ln SNR held within +-80 so that limits at zero or infinite SNR are
reached to machine precision without dividing zero by zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..processes import Process

LOG_SNR_LIMIT = 80.0
LARGEST = 1e12
"""A weight of a discrete timestep above this is taken as infinite."""
_AXIS_SLACK = 1e-6  # of u, for the rounding of float32 times
_FLOAT32 = 1e30  # continuous time comes arbitrarily near to zero noise; weights are kept where a product stays finite


def log_conversion(log_snr: Tensor, prediction: str, sigma_data: float = 0.5) -> Tensor:
    """ln of what turns W (on the x0-MSE) into the weight on the MSE of ``prediction``; shape of log_snr."""
    if prediction == "x0":
        return torch.zeros_like(log_snr)
    if prediction == "eps":
        return -log_snr
    if prediction == "v":
        return -softplus(log_snr)
    if prediction == "velocity":
        return -2 * softplus(log_snr / 2)
    if prediction == "F":  # sigma^2 = 1/SNR: ln of 1/(1/sd^2 + SNR)
        return 2 * math.log(sigma_data) - softplus(log_snr + 2 * math.log(sigma_data))
    raise ValueError(f"prediction={prediction!r} is unknown. Known: x0, eps, v, velocity, F.")


def one_each(losses: Tensor, t: Tensor) -> None:
    """Raise ValueError unless there is one timestep per loss: broadcasting would weight each loss by all weights."""
    if losses.shape != t.shape:
        raise ValueError(
            f"losses has shape {tuple(losses.shape)}, t {tuple(t.shape)}; give one loss and one timestep per example, "
            "shape [B]."
        )


def sigma_data_of(process: Process) -> float:
    """Standard deviation of the data as the process (EDM) knows it, else EDM's 0.5."""
    return float(getattr(process, "sigma_data", 0.5))


class Weighting(nn.Module, ABC):
    """A weight per timestep. Weightings never draw; samplers never weight.

    Args:
        process: whose own prediction target the weight is converted to.
    """

    table: Tensor | None

    def __init__(self, process: Process) -> None:
        super().__init__()
        if not isinstance(process, Process):
            raise ValueError(f"process={process!r} is not a process; give e.g. op.DDPM('linear', steps=1000).")
        self.process = process
        self.register_buffer("table", None, persistent=False)

    @abstractmethod
    def log_weight(self, u: Tensor, log_snr: Tensor) -> Tensor:
        """ln W on the x0-MSE, at ``u`` with its ``log_snr`` (within +-80), float64, same shape."""

    def forward(self, t: Tensor) -> Tensor:
        """Weight ``[B]`` float32 on the per-example MSE of the process's own target at own time t ``[B]``."""
        if self.process.steps is None:
            u = self.process.axis(t.double())
            if t.device.type == "cpu" and t.numel() and not bool(((u >= -_AXIS_SLACK) & (u <= 1 + _AXIS_SLACK)).all()):
                raise ValueError(
                    f"t runs from {float(t.min()):g} to {float(t.max()):g}, outside the own times of {self.process!r}. "
                    "Use draw.t."
                )
            return self._at(u).clamp(max=_FLOAT32).float()
        self._check_steps(t, self.process.steps)
        if self.table is None or self.table.device != t.device:
            self.table = self._table().to(t.device)
        return self.table[t]

    def apply_to(self, losses: Tensor, t: Tensor) -> Tensor:
        """Weighted per-example losses ``[B]``; a weighting with parameters of its own adds its term here."""
        one_each(losses, t)
        weighted: Tensor = self(t) * losses
        return weighted

    def x0_weight(self, u: Tensor) -> Tensor:
        """W on the x0-MSE at ``u``, float64."""
        return self.log_weight(u, self._log_snr(u)).exp()

    def at(self, u: Tensor) -> Tensor:
        """Weight on the MSE of the process's own target at ``u`` ``[...]``, float64 (plots, objectives)."""
        return self._at(u)

    def _log_snr(self, u: Tensor) -> Tensor:
        return self.process.log_snr(u).double().clamp(-LOG_SNR_LIMIT, LOG_SNR_LIMIT)

    def _at(self, u: Tensor) -> Tensor:
        log_snr = self._log_snr(u)
        conversion = log_conversion(log_snr, self.process.prediction, sigma_data_of(self.process))
        return (self.log_weight(u, log_snr) + conversion).exp()

    def _middles(self) -> Tensor:
        """``u`` in the middle of each cell, ``[cells]`` float64."""
        cells = self.process.cells
        return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells

    def _table(self) -> Tensor:
        table = self._at(self._middles())
        bad = ~torch.isfinite(table) | (table > LARGEST)
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            raise ValueError(
                f"{type(self).__name__} has no finite weight at t={at} for "
                f"prediction={self.process.prediction!r}: the timestep carries no signal (zero SNR) while the weight "
                "asks for it. Use prediction='v' or 'x0', or a weighting that is bounded there (min_snr)."
            )
        return table.float()

    def _check_steps(self, t: Tensor, steps: int) -> None:
        if t.is_floating_point():
            raise ValueError(f"t has dtype {t.dtype}; discrete timesteps are int64. Use draw.t.")
        # Looking at values on an accelerator would make every step wait for it; there, torch itself stops at
        # t >= T.
        if t.device.type == "cpu" and t.numel() and (int(t.min()) < 0 or int(t.max()) >= steps):
            raise ValueError(
                f"t runs from {int(t.min())} to {int(t.max())}; timesteps lie in [0, {steps}). Use draw.t."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Moving is allowed, rounding is not: weights span many orders of magnitude and stay in float32 also
        # when the weighting sits inside a model that is cast to half precision.
        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device)

        return super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
