"""Sampling in proportion to the variance of the gradient (Kim et al., CVPR 2025, arXiv 2411.09998, section 4)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..checks import whole
from ..distributed import place
from ..processes import Process
from ..random_streams import generator
from ..types import Draw, Request, StepRecord
from .base import Common
from .histogram import Histogram, HistogramSampler
from .objective_weight import Weighting

_INSET = 1e-3  # keeps a probe's u off the edges of its bin, where float32 rounding could move it to the next


class GradientVariance(HistogramSampler):
    """p(u) proportional to the trace of Var[grad of w(u) loss(u)] over data and noise, without correction.

    That is the comparison row of the paper's Table 4, which re-targets the objective and came out last there. With
    ``unbiased=True`` it is the optimal importance sampling instead: p(u) proportional to sqrt(E |grad|^2), corrected.
    The paper leaves estimator, refresh and smoothing open. Here ``measured_bins`` bins are measured every
    ``every_steps`` in turn, each on one batch spread over the bin, as a running mean with ``decay`` per measurement.

    Args:
        every_steps: optimizer steps between measurements.
        measured_bins: bins per measurement; each costs one forward pass and two backward passes.
        bins, decay, warmup_steps, floor, weighting: see :class:`HistogramSampler`. The warm-up should give each bin
            its turn: ``bins / measured_bins * every_steps``.
    """

    needs = "gradient"

    def __init__(
        self,
        process: Process,
        *,
        bins: int = 20,
        every_steps: int = 50,
        measured_bins: int = 2,
        decay: float = 0.95,
        warmup_steps: int = 500,
        floor: float = 0.05,
        weighting: Weighting | str | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            process,
            bins=bins,
            warmup_steps=warmup_steps,
            refresh_steps=1,
            floor=floor,
            minimum_count=1e-9,
            weighting=weighting,
            **common,
        )
        self.every_steps = whole("every_steps", every_steps, low=1)
        self.measured_bins = min(whole("measured_bins", measured_bins, low=1), self.bins)
        self.variance = Histogram(self.bins, decay=decay)
        self.square_norm = Histogram(self.bins, decay=decay)

    def request(self, draw: Draw) -> Request | None:
        turn, rest = divmod(self.steps_watched + 1, self.every_steps)
        if rest:
            return None
        if len(draw) < 2:
            self.warn_once(
                "GradientVariance learns nothing from a batch of 1 example: it compares halves of the batch, so 2 or "
                "more are needed on every rank. Only a last, smaller batch does no harm."
            )
        first = (turn - 1) * self.measured_bins
        count = len(draw) * place()[1]
        draws = []
        for index in range(self.measured_bins):
            stream = generator(self.seed, "gradient probe", self.steps_watched, index)
            within = _INSET + (1 - 2 * _INSET) * torch.rand(count, dtype=torch.float64, generator=stream, device="cpu")
            draws.append(self.probe_draw(draw, ((first + index) % self.bins + within) / self.bins, index))
        return Request(draws=tuple(draws), gradient=True)

    def _take(self, record: StepRecord) -> None:
        if record.gradient is None or record.probe_u is None:
            return
        u = record.probe_u.to(self._device())
        weight = self.weight_at(u).square().mean(dim=1)
        mean_square, trace = record.gradient.to(u.device).double().unbind(dim=1)
        self.variance.add(u[:, 0], weight * trace)
        self.square_norm.add(u[:, 0], weight * (mean_square + trace))

    def _profile(self) -> tuple[Tensor, Tensor]:
        if self.unbiased:
            return self.square_norm.mean.clamp_min(0).sqrt(), self.square_norm.count
        return self.variance.mean, self.variance.count
