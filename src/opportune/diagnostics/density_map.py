"""What a method draws, how much each draw counts, and the product of both, as bars over the noise axis.

Only computes: the drawing is done by who asks. Every sampler's density is constant within a cell of the axis, so an
average over a bar is an exact sum over cells, also where the bars cut through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from opportune.checks import whole
from opportune.samplers import Sampler
from opportune.weightings import Weighting

from .found import Found

_LATE = 10**8
"""Optimizer steps after which every schedule has ended; tells scheduled methods from fixed ones."""
CUT = 5.0
"""Pictures cut bars at this many times the height that nine in ten stay below."""


@dataclass(frozen=True, kw_only=True)
class DensityMap(Found):
    """Averages over equal bars of the noise axis u: the first bar is the cleanest, the last the noisiest.

    Attributes:
        density: ``[bars]`` float64, how often each is drawn; averages 1, uniform is 1 everywhere.
        weighting: ``[bars]`` weight on the per-example loss of the process's own target; ones without a weighting.
        effective: ``[bars]`` p(u) · w(u), times the sampler's correction where it is unbiased: what the objective is
            made of. Scaled to average 1, since a constant factor changes nothing but the learning rate.
        learns: the density is changed by training; what is shown is its state now.
        scheduled: the density changes with the optimizer step, whatever is learned.
        unbiased: the sampler's correction divides its density out of the loss again.
        weighting_learns: the weighting has parameters that training changes.
        step: optimizer step shown.
        process: in words.
        weighted_by: name of the weighting, empty without one.
    """

    figure: ClassVar[str] = "density"
    density: Tensor
    weighting: Tensor
    effective: Tensor
    learns: bool
    scheduled: bool
    unbiased: bool
    weighting_learns: bool
    step: int
    process: str
    weighted_by: str


def density_map(
    sampler: Sampler,
    weighting: Weighting | None = None,
    *,
    bars: int = 64,
    at_step: int | None = None,
    label: str = "",
) -> DensityMap:
    """The density, weighting and effective density of ``sampler`` over ``bars`` equal bars; the sampler stays as it is.

    Args:
        sampler: any sampler, fresh or trained.
        weighting: made for the same process; None is weight 1 on the process's own target.
        bars: into which the noise axis is cut.
        at_step: optimizer step a schedule is looked at; None is where the sampler stands.
        label: name of this method or stage in pictures.
    """
    whole("bars", bars, low=1)
    step = sampler.step if at_step is None else whole("at_step", at_step, low=0)
    if weighting is not None and weighting.process is not sampler.process:
        raise ValueError("weighting was made for another process; make it with the one the sampler uses.")
    cells = sampler.process.cells
    middles = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    with torch.no_grad():
        times = sampler.process.time(middles)
        weights = torch.ones_like(middles) if weighting is None else weighting(times).double()
        density, counted = _at_step(sampler, middles, step)
        elsewhere, _ = _at_step(sampler, middles, 0 if step else _LATE)
    effective = counted * weights
    return DensityMap(
        label=label,
        density=bar_means(density, bars),
        weighting=bar_means(weights, bars),
        effective=bar_means(effective / effective.mean(), bars),
        learns=sampler.needs != "nothing",
        scheduled=not torch.allclose(density, elsewhere, rtol=1e-6, atol=1e-9),
        unbiased=sampler.unbiased,
        weighting_learns=weighting is not None and any(True for _ in weighting.parameters()),
        step=step,
        process=repr(sampler.process),
        weighted_by="" if weighting is None else type(weighting).__name__,
    )


def ceiling(values: Tensor) -> tuple[float, bool]:
    """How high a picture of bars ends, and whether that cuts some: one spike would flatten all others."""
    present = values[values.isfinite()]
    if not len(present):
        return 1.0, False
    highest, most = float(present.max()), float(present.quantile(0.9))
    cut = most > 0 and highest > CUT * most
    return (CUT * most if cut else highest), cut


def ratio_scale(ratios: Iterable[float]) -> float:
    """The end of a scale around 1 on which ratios can be told apart: 2, 4, 8 or 16; 0 and NaN do not count."""
    furthest = max((max(ratio, 1 / ratio) for ratio in ratios if ratio > 0), default=1.0)
    return next((float(end) for end in (2, 4, 8) if furthest <= end * 1.25), 16.0)


def bar_means(cells: Tensor, bars: int) -> Tensor:
    """Mean over each of ``bars`` equal bars of a function that is constant within each of ``[N]`` equal cells.

    ``[bars]``; cells that a bar's edge cuts through count by the share of them that lies inside.
    """
    count = len(cells)
    edges = torch.arange(bars + 1, dtype=torch.float64) * count / bars
    below = edges.floor().long().clamp(max=count - 1)
    sums = torch.cat([cells.new_zeros(1), cells.cumsum(0)])
    integral = sums[below] + (edges - below) * cells[below]
    return integral.diff() * bars / count


def _at_step(sampler: Sampler, u: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """``(density, density times correction)``, both ``[N]`` float64, as they are at an optimizer step."""
    with _moved_to(sampler, step):
        density = sampler.density(u).double()
        correction = sampler.at(u.float(), shape=(len(u),)).correction.double()
    return density, density * correction


@contextmanager
def _moved_to(sampler: Sampler, step: int) -> Iterator[None]:
    """The sampler at ``step``; a schedule is a function of the count of draws alone, and brings itself up to date."""
    made = {each: each.draws_made for each in sampler.modules() if isinstance(each, Sampler)}
    sampler.draws_made = step * sampler.accumulation
    try:
        yield
    finally:
        for each, draws in made.items():
            each.draws_made = draws
        sampler.density(torch.zeros(1))
