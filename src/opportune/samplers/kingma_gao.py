"""Sampling in proportion to the weighted loss (Kingma & Gao, 2023, arXiv 2303.00848)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from ..processes import Process
from ..types import StepRecord
from .base import Common
from .histogram import Histogram, HistogramSampler
from .objective_weight import Weighting


class KingmaGao(HistogramSampler):
    """p(u) proportional to E[w(u) loss(u)], so that the corrected, weighted loss is the same at every noise level.

    The paper's density over ln SNR and this one over u are the same density in two coordinates. The objective is held
    fixed by importance weights (``unbiased=True``), as in the paper. It states no bin details; these are the common
    ones: 100 bins, decay 0.999 per step, rebuilt every 100 steps. The floor is ours.

    Args:
        bins, warmup_steps, refresh_steps, floor, minimum_count, weighting: see :class:`HistogramSampler`.
        decay: of the running mean per bin, per optimizer step.
    """

    unbiased_by_default = True

    def __init__(
        self,
        process: Process,
        *,
        bins: int = 100,
        decay: float = 0.999,
        warmup_steps: int = 500,
        refresh_steps: int = 100,
        floor: float = 0.05,
        minimum_count: float = 4.0,
        weighting: Weighting | str | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            process,
            bins=bins,
            warmup_steps=warmup_steps,
            refresh_steps=refresh_steps,
            floor=floor,
            minimum_count=minimum_count,
            weighting=weighting,
            **common,
        )
        self.history = Histogram(self.bins, decay=decay)

    def _take(self, record: StepRecord) -> None:
        if record.losses is not None:
            u = record.draw.u.to(self._device())
            self.history.add(u, self.weight_at(u) * record.losses.to(u.device))

    def _profile(self) -> tuple[Tensor, Tensor]:
        return self.history.mean, self.history.count
