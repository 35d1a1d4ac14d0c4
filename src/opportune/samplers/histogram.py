"""The engine of every method that learns from a history of measured values: bins of the u axis, and a table from them.

Bins hold exponentially decayed *sums* (count, value, squared value), so a mean is a ratio without start-up bias and
two histograms merge by addition. Values that are not finite never enter. Nothing waits for a bin to fill: when the
warm-up is over, bins with too few values take the value between their neighbours.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from ..checks import number, whole
from ..processes import Process
from ..types import StepRecord
from .base import Common, Needs
from .objective_weight import Weighting, objective_weight
from .table import TableSampler


class Histogram(nn.Module):
    """Decayed count, sum and sum of squares of values per bin of u.

    Args:
        bins: equal bins of [0, 1).
        decay: factor on everything held before each :meth:`add`; 1 forgets nothing.
    """

    sums: Tensor

    def __init__(self, bins: int, *, decay: float) -> None:
        super().__init__()
        self.bins = whole("bins", bins, low=1)
        self.decay = number("decay", decay, low=0, high=1)
        self.register_buffer("sums", torch.zeros(3, self.bins, dtype=torch.float64))

    @torch.no_grad()
    def add(self, u: Tensor, values: Tensor) -> None:
        """Take in ``values`` ``[N]`` seen at ``u`` ``[N]``; NaN and infinite ones are left out."""
        u, values = u.to(self.sums.device).double(), values.to(self.sums.device).double()
        kept = torch.isfinite(values) & torch.isfinite(u)
        values = torch.where(kept, values, 0.0)
        bins = (torch.where(kept, u, 0.0) * self.bins).long().clamp_(0, self.bins - 1)
        self.sums.mul_(self.decay).index_add_(1, bins, torch.stack([kept.double(), values, values.square()]))

    def merge(self, other: Histogram) -> None:
        """Add what ``other`` saw; the order of merging does not matter."""
        if (other.bins, other.decay) != (self.bins, self.decay):
            raise ValueError(
                f"other has bins={other.bins}, decay={other.decay:g}; this histogram has bins={self.bins}, "
                f"decay={self.decay:g}. Only histograms made alike can be merged."
            )
        self.sums = self.sums + other.sums.to(self.sums.device)

    @property
    def count(self) -> Tensor:
        """``[bins]`` decayed number of values."""
        return self.sums[0]

    @property
    def mean(self) -> Tensor:
        """``[bins]`` mean value; 0 where nothing was seen."""
        return self.sums[1] / self.sums[0].clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def second_moment(self) -> Tensor:
        """``[bins]`` mean squared value; 0 where nothing was seen."""
        return self.sums[2] / self.sums[0].clamp_min(torch.finfo(torch.float64).tiny)


class HistogramSampler(TableSampler):
    """A density rebuilt now and then from values measured per bin; methods say which values and what follows.

    Uniform for ``warmup_steps`` watched steps, then rebuilt every ``refresh_steps``. Move the sampler to the device of
    the losses if copying a few numbers per step to the CPU would make that device wait.

    Args:
        bins: of the u axis; at most one per timestep of a discrete process.
        warmup_steps: optimizer steps of uniform draws. It ends then, whatever the bins hold.
        refresh_steps: optimizer steps between rebuilds.
        floor: share of uniform mixed in, so that every timestep keeps being seen.
        minimum_count: values (after decay) below which a bin takes the value between its neighbours.
        weighting: the objective that is meant, a name or a weighting; None is weight 1 on the process's own target.
            Losses handed to ``watch`` stay raw.
    """

    needs: ClassVar[Needs] = "losses"

    def __init__(
        self,
        process: Process,
        *,
        bins: int,
        warmup_steps: int,
        refresh_steps: int,
        floor: float,
        minimum_count: float,
        weighting: Weighting | str | None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        self.bins = min(whole("bins", bins, low=1), self.cells)
        self.warmup_steps = whole("warmup_steps", warmup_steps, low=0)
        self.refresh_steps = whole("refresh_steps", refresh_steps, low=1)
        self.floor = number("floor", floor, low=0, high=1)
        self.minimum_count = number("minimum_count", minimum_count, low=0, open_low=True)
        self.weight_at = objective_weight(process, weighting)
        if self.floor == 1:
            self.warn_once(
                f"floor=1 makes {type(self).__name__} draw uniformly, whatever it learns. Give a smaller one."
            )
        if self.unbiased and self.floor == 0:
            self.warn_once(
                f"floor=0 with unbiased=True: a timestep {type(self).__name__} stops drawing cannot be corrected for. "
                "Give a floor above 0."
            )

    # ---- what a method fills in ----------------------------------------------------------------------------

    @abstractmethod
    def _take(self, record: StepRecord) -> None:
        """Take the measured values of one step in."""

    @abstractmethod
    def _profile(self) -> tuple[Tensor, Tensor]:
        """``(values [bins], counts [bins])``: what the density is proportional to, and on how many values it rests."""

    def _masses_of(self, profile: Tensor) -> Tensor:
        """Cell masses ``[cells]``, not normalised, from the profile ``[bins]``; proportional to it by default."""
        return spread(profile, self.cells)

    # ---- what follows from it ------------------------------------------------------------------------------

    def warm_up_steps(self) -> int:
        return self.warmup_steps

    @torch.no_grad()
    def learn(self, record: StepRecord) -> None:
        self._take(record)
        past_warmup = record.step + 1 - self.warmup_steps
        if past_warmup >= 0 and past_warmup % self.refresh_steps == 0:
            self.rebuild()

    def rebuild(self) -> None:
        """Make the density from what the bins hold now."""
        values, counts = self._profile()
        known = (counts >= self.minimum_count) & torch.isfinite(values)
        if not bool(known.any()):
            fewest = math.ceil(self.minimum_count)
            self.warn_once(
                f"{type(self).__name__} has no bin with {fewest} or more finite values after its warm-up of "
                f"{self.warmup_steps} steps, so it still draws uniformly. Use fewer bins than {self.bins}, a longer "
                "warm-up, or look for losses that are not finite."
            )
            return
        masses = self._masses_of(between(values.clamp_min(0), known))
        total = masses.sum()
        if bool(torch.isfinite(total)) and bool(total > 0):  # all-zero losses say nothing: keep the density
            self.set_masses((1 - self.floor) * masses / total + self.floor / self.cells)


def between(values: Tensor, known: Tensor) -> Tensor:
    """``[K]`` with the entries that are not ``known`` interpolated between (beyond the ends: equal to) known ones."""
    places = torch.arange(values.shape[0], device=values.device)
    at = places[known]
    right = torch.searchsorted(at, places).clamp_(max=at.shape[0] - 1)
    left = (torch.searchsorted(at, places, right=True) - 1).clamp_(min=0)
    share = (places - at[left]) / (at[right] - at[left]).clamp_min(1)
    return torch.lerp(values[at[left]], values[at[right]], share.clamp(0, 1).to(values.dtype))


def spread(masses: Tensor, cells: int) -> Tensor:
    """Masses ``[..., K]`` of equal bins as masses ``[..., cells]`` of equal cells, constant density within a bin."""
    bins = masses.shape[-1]
    edges = torch.arange(cells + 1, device=masses.device, dtype=torch.float64) * bins / cells
    bin_of = edges.long().clamp_(max=bins - 1)
    reached = (torch.cumsum(masses, dim=-1) - masses)[..., bin_of] + masses[..., bin_of] * (edges - bin_of)
    return reached.diff(dim=-1).clamp_min(0)
