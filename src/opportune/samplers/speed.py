"""SpeeD's asymmetric sampling (Wang et al., CVPR 2025, arXiv 2405.17403)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from ..checks import flag, number, whole
from ..processes import Process
from .base import Common
from .levels import cell_log_snr
from .table import FixedSampler

BOUNDARY_LOG_SNR = -math.log(143)
"""ln SNR where alpha_bar = 1/144: on the linear schedule that is the published boundary, timestep 700 of 1000."""

_FLAT = 0.1  # d sqrt(1 - alpha_bar) / du below which the released code calls the schedule converged: 1e-4 per 1/1000


class SpeeD(FixedSampler):
    """P(t) = k / (T + tau (k - 1)) for the first tau timesteps, 1 / (T + tau (k - 1)) for the rest.

    Beyond tau the data has all but drowned ("convergence area") and little is learned: those noise levels are drawn
    ``k`` times less often. Larger ``k`` or smaller ``tau`` is *less* noise. Published without correction, so it
    re-targets the objective. The paper's change-aware weighting is separate: ``op.weighting("speed", process)``.

    ``tau`` was published as 700 on the linear schedule of 1000 and used as that literal number on all schedules. The
    default here is the noise level it stands for, alpha_bar = 1/144: timestep 700 (linear), 874 (quadratic),
    946 (cosine), 966 (scaled linear), and the same ln SNR = -ln 143 on any process.

    ``dual=True`` is what the released code draws from: half of the batch from P, the other half mirrored,
    t' = m - t below m and t - m above it, with m where d sqrt(1 - alpha_bar) falls under 1e-4 per step (642 of 1000
    on the linear schedule). The marginal of that is declared and drawn from, (P + mirrored P) / 2; the released code
    also couples the two halves and, with a batch of B, gives B/2 + 1 draws to P. Both are left out.

    Args:
        k: how many times more often than the rest the timesteps below tau are drawn; 5 is published, 25 hurt.
        tau: boundary as a timestep (int, discrete processes), as a share of the noise axis (float), or None (above).
        dual: draw from the released code's mixture.
    """

    def __init__(
        self,
        process: Process,
        *,
        k: float = 5.0,
        tau: int | float | None = None,
        dual: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        self.k = number("k", k, low=0, open_low=True)
        self.boundary = self._boundary(tau)
        """tau as a share of the noise axis."""
        self.dual = flag("dual", dual)
        if not self.dual:
            self._warn_uniform()
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        rising = (self.k - 1) * u.clamp(max=self.boundary) + u
        return self._with_mirrored(rising) if self.dual else rising

    def _warn_uniform(self) -> None:
        if self.k == 1:
            self.warn_once("SpeeD draws uniformly: k=1 draws all timesteps equally often. 5 is the published k.")
        elif self.boundary == 1.0:
            self.warn_once(
                f"SpeeD draws uniformly: no timestep of {self.process!r} lies beyond its boundary tau. "
                "Give a smaller tau, e.g. tau=0.7."
            )

    def _boundary(self, tau: int | float | None) -> float:
        if tau is None:
            return int((cell_log_snr(self.process) > BOUNDARY_LOG_SNR).sum()) / self.cells
        if isinstance(tau, float):
            share = number("tau", tau, low=0, high=1, open_low=True)
            return share if self.process.steps is None else max(round(share * self.cells), 1) / self.cells
        if self.process.steps is None:
            raise ValueError(
                f"tau={tau!r} is a timestep, but {type(self.process).__name__} has continuous time; "
                "give a share of the noise axis, e.g. tau=0.7."
            )
        return whole("tau", tau, low=1, high=self.process.steps) / self.process.steps

    def _with_mirrored(self, cumulative: Tensor) -> Tensor:
        masses = cumulative.diff()
        masses = masses / masses.sum()
        turn = self._turn()
        cell = torch.arange(self.cells)
        mirrored = torch.where(cell < turn, turn - cell, cell - turn)
        both = (masses + torch.zeros_like(masses).index_add_(0, mirrored, masses)) / 2
        return torch.cat([both.new_zeros(1), torch.cumsum(both, dim=0)])

    def _turn(self) -> int:
        """m: one past the first cell where sqrt(1 - alpha_bar) has all but stopped to grow."""
        levels = cell_log_snr(self.process)
        if self.cells < 2:
            raise ValueError("dual=True needs a process of 2 or more timesteps; there is nothing to mirror.")
        slope = torch.gradient(torch.sigmoid(-levels).sqrt())[0] * self.cells
        steepest = int(slope.argmax())  # a schedule that starts slowly is not converged there
        flat = (slope[steepest:] < _FLAT).nonzero()
        if len(flat) == 0:
            raise ValueError(
                f"dual=True cannot be used with {self.process!r}: its noise level never stops growing, so the "
                "released code's mirror point does not exist. Use dual=False."
            )
        return min(steepest + int(flat[0]) + 1, self.cells - 1)
