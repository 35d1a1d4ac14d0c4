"""Learning progress: draw each noise level by how much there is left to learn at it. The default adaptive method."""

from __future__ import annotations

from typing import ClassVar, Unpack, cast

import torch
from torch import Tensor

from ..checks import number, whole
from ..processes import Process
from ..types import StepRecord
from .base import Common, Needs
from .histogram import spread
from .objective_weight import WeightAt, Weighting, objective_weight
from .progress import LossHistory, positive_mean, smooth
from .table import TableSampler

Objective = Weighting | str | WeightAt


class Adaptive(TableSampler):
    """Draw ``p(u) ~ (w(u) g(u))^power``, what is left to learn at u; correct by ``1 / noise(u)``, what it costs.

    **What is left to learn.** Suppose the reducible loss at each noise level falls as a power of the effective examples
    n there, ``e ~ n^-b``. The budget is best spent where the next example lowers the objective ``int w e du`` most, and
    ``b e = -d loss / d ln n =: g`` needs no knowledge of the irreducible loss: it is read off the training losses,
    early against late (:class:`~opportune.samplers.progress.LossHistory`).

    **What noise costs.** Say examples drawn with density p count as q (their correction is q / p). Adam divides each
    step by the root mean square of the gradient; with V(u) the second moment of one example's gradient that is
    ``int q^2 V / p``. For a given q it is least at ``p ~ q sqrt(V)``, where its root is ``int q sqrt(V)``, so
    ``n ~ q / int q sqrt(V)``. Maximising ``int w g ln n`` over q gives ``q sqrt(V) ~ w g``: draw in proportion to what
    is left to learn, and correct by one over the root mean square of the gradient. The gradient of a squared error
    grows with the error, so V is taken as the mean loss, times the square of the training weight.

    Costs no forward pass. Uncertain bins are drawn more (the fall is taken as the mean of a positive quantity given
    its error), and a rise counts as a fall of the same size, also where one follows on the other: what was lost can be
    learned again. Without that, noise levels that suffer would be drawn less and suffer more, late in long runs. The
    floor keeps every noise level in view. It re-targets the objective to q; with ``unbiased=True`` the same p is drawn
    with importance weights that keep it.

    Args:
        objective: what is to become good: a weighting (name or instance), or a function of u giving the weight on the
            process's own loss, e.g. ``lambda u: (u < 0.5).double()``. None is ``weighting``, and without that weight
            1 on the process's own loss.
        weighting: what the training loss is multiplied with, if anything; it scales the noise of the gradients.
        power: 1 is the derivation above; less is flatter. Chosen on the tuning mixtures of the proving ground
            (docs/research/adaptive.md).
        floor: share of uniform mixed in.
        bins: of the u axis; at most one per timestep.
        warmup_steps: optimizer steps of uniform draws; after it the density is rebuilt each time the run has grown
            by 9 %.
    """

    needs: ClassVar[Needs] = "losses"

    aim: Tensor

    def __init__(
        self,
        process: Process,
        *,
        objective: Objective | None = None,
        weighting: Weighting | str | None = None,
        power: float = 0.8,
        floor: float = 0.1,
        bins: int = 20,
        warmup_steps: int = 100,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        self.power = number("power", power, low=0, high=2)
        self.floor = number("floor", floor, low=0, high=1)
        self.bins = min(whole("bins", bins, low=1), self.cells)
        self.warmup_steps = whole("warmup_steps", warmup_steps, low=8)
        self.history = LossHistory(self.bins)
        self.register_buffer("aim", self.masses.clone())
        trained = objective_weight(process, weighting)
        self._wanted = _bin_means(_wanted(process, objective, trained), process, self.bins)
        self._trained = _bin_means(trained, process, self.bins)

    def warm_up_steps(self) -> int:
        return self.warmup_steps

    def _aim(self, u: Tensor, context: Tensor | None) -> Tensor:
        return self.aim[self._cell(u)] * self.cells

    @torch.no_grad()
    def learn(self, record: StepRecord) -> None:
        if record.losses is None:
            return
        self.history.add(record.draw.u, record.losses)
        step = record.step + 1
        if self.history.remember(step) and step >= self.warmup_steps:
            self._rebuild(step)

    def _rebuild(self, step: int) -> None:
        if not bool(self.history.total[0].sum() > 0):
            self.warn_once(
                f"Adaptive has seen no finite loss when its warm-up of {self.warmup_steps} steps was over, so it still "
                "draws uniformly. Look for losses that are NaN or infinite."
            )
            return
        falls, error, level = self.history.progress(step)
        falls, error = smooth(falls, error, width=1.0)
        # A loss that rose can fall by as much again. Taken for "nothing to learn" it would be drawn less, and rise on;
        # so would one whose rise just cancels the fall before it. So the whole way counts, clear of its error.
        moved = torch.maximum(falls.sum(dim=0).abs(), falls.abs().sum(dim=0) - 3 * error)
        share = learning_share(moved, error, self._wanted.to(falls.device), power=self.power)
        noise = gradient_noise(level, self._trained.to(falls.device))
        if share is None or noise is None:  # nothing falls, or nothing is lost: keep the density
            return
        density = (1 - self.floor) * share + self.floor / self.bins
        self.set_masses(spread(density, self.cells))
        aim = self.masses / _at_cells(noise, self.cells)
        self.aim = aim / aim.sum()


def learning_share(fall: Tensor, error: Tensor, wanted: Tensor, *, power: float) -> Tensor | None:
    """``[bins]`` what is left to learn at each noise level, as shares that sum to 1; None where nothing is known.

    Args:
        fall, error: ``[bins]`` how far the loss moved per e-fold of examples, smoothed, and its standard error.
        wanted: ``[bins]`` weight of the objective on the loss.
        power: flattens the shares below 1.
    """
    share = (wanted * positive_mean(fall, error)).clamp_min(0).pow(power)
    total = share.sum()
    return share / total if bool(torch.isfinite(total)) and bool(total > 0) else None


def gradient_noise(level: Tensor, trained: Tensor) -> Tensor | None:
    """``[bins]`` root mean square of one example's gradient, up to a factor; None where there is no loss.

    Nowhere below 1/32 of its root mean square over the axis, so that no correction is more than about 32.
    """
    square = trained.square() * level.clamp_min(0)
    typical = square.mean()
    if not (bool(torch.isfinite(typical)) and bool(typical > 0)):
        return None
    return square.clamp_min(float(typical) / 1024).sqrt()


def _at_cells(values: Tensor, cells: int) -> Tensor:
    """``[cells]`` the values ``[bins]`` of equal stretches, averaged where a cell lies in two."""
    return spread(values, cells) * cells / values.shape[0]


def _wanted(process: Process, objective: Objective | None, trained: WeightAt) -> WeightAt:
    if objective is None:
        return trained
    if isinstance(objective, str) or hasattr(objective, "process"):
        return objective_weight(process, cast(Weighting | str, objective))
    if not callable(objective):
        raise ValueError(
            f"objective={objective!r} is no objective; give a weighting, its name, or a function of u that gives the "
            "weight on the process's own loss."
        )
    return objective


def _bin_means(weight: WeightAt, process: Process, bins: int) -> Tensor:
    """Mean weight per bin ``[bins]`` over the cells of the process, capped at the 99th percentile of the cells.

    Without the cap one index would decide everything: on the cosine schedule the bound's last coefficient is 300 times
    the one before it.
    """
    middles = (torch.arange(process.cells, dtype=torch.float64) + 0.5) / process.cells
    weights = torch.as_tensor(weight(middles)).double()
    if weights.shape != middles.shape or not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise ValueError(
            "objective must give one finite weight of 0 or more per u: got shape "
            f"{tuple(weights.shape)}, from {float(weights.min()):g} to {float(weights.max()):g}."
        )
    if not bool((weights > 0).any()):
        raise ValueError("objective is 0 everywhere; give a positive weight to the noise levels that matter.")
    capped = weights.clamp(max=float(torch.quantile(weights[weights > 0], 0.99)))
    return spread_to_bins(capped, bins)


def spread_to_bins(weights: Tensor, bins: int) -> Tensor:
    """Means of ``[cells]`` over ``bins`` equal stretches."""
    sums = spread(weights, bins * len(weights)).reshape(bins, -1).sum(dim=1)
    return sums * bins / len(weights)
