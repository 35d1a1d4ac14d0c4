"""Loss second-moment resampling (Nichol & Dhariwal, 2021, arXiv 2102.09672, section 3.3)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import whole
from ..processes import Process
from ..types import StepRecord
from .base import Common
from .histogram import HistogramSampler
from .objective_weight import Weighting


class SecondMoment(HistogramSampler):
    """p_t proportional to sqrt(E[(w_t loss_t)^2]) over the last 10 losses of each timestep, mixed with 0.1 % uniform.

    Unbiased through importance weights 1/(T p_t), as published. It was published for the variational bound: train and
    name that objective with ``weighting="vlb"``.

    Departures from the paper: the paper waits until *every* timestep has 10 losses (24,000 examples at T = 1000,
    101,000 at T = 4000). Here the warm-up ends after ``warmup_steps``, and timesteps whose history is not full take
    the value between their neighbours. The density is rebuilt every ``refresh_steps`` instead of every step.
    Continuous processes keep a history for each of ``bins`` bins.

    Args:
        history: losses kept per timestep.
        bins: of a continuous process, 100 unless given; discrete ones have one per timestep.
        warmup_steps, refresh_steps, floor, weighting: see :class:`HistogramSampler`.
    """

    unbiased_by_default = True
    recent: Tensor
    seen: Tensor

    def __init__(
        self,
        process: Process,
        *,
        history: int = 10,
        bins: int | None = None,
        warmup_steps: int = 500,
        refresh_steps: int = 10,
        floor: float = 0.001,
        weighting: Weighting | str | None = None,
        **common: Unpack[Common],
    ) -> None:
        self.history = whole("history", history, low=1)
        wanted = 100 if bins is None else whole("bins", bins, low=1)
        super().__init__(
            process,
            bins=getattr(process, "steps", None) or wanted,
            warmup_steps=warmup_steps,
            refresh_steps=refresh_steps,
            floor=floor,
            minimum_count=self.history,
            weighting=weighting,
            **common,
        )
        if bins is not None and bins != self.bins:
            self.warn_once(f"bins={bins} has no effect: {process!r} keeps a history for each of {self.bins} timesteps.")
        # One row more than bins: losses that are not finite are written there and never read.
        self.register_buffer("recent", torch.zeros(self.bins + 1, self.history, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(self.bins + 1, dtype=torch.int64))

    def _take(self, record: StepRecord) -> None:
        if record.losses is None:
            return
        u = record.draw.u.to(self._device()).double()
        squares = (self.weight_at(u) * record.losses.to(u.device).double()).square()
        kept = torch.isfinite(squares)
        squares = torch.where(kept, squares, 0.0)
        rows = torch.where(kept, (u * self.bins).long().clamp_(0, self.bins - 1), self.bins)
        rows, order = torch.sort(rows, stable=True)
        turn = torch.arange(len(rows), device=u.device) - torch.searchsorted(rows, rows)  # 0, 1, ... within a row
        arrived = torch.bincount(rows, minlength=self.bins + 1)
        # Of more than `history` losses of one timestep in one batch the last are kept, so no slot is written twice.
        last = arrived[rows] - turn <= self.history
        column = (self.seen[rows] + turn) % self.history
        rows = torch.where(last, rows, self.bins)
        self.recent.index_put_((rows, column), squares[order])
        self.seen += arrived

    def _profile(self) -> tuple[Tensor, Tensor]:
        return self.recent[:-1].mean(dim=1).sqrt(), self.seen[:-1].double()
