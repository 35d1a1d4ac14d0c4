"""The adaptive non-uniform timestep sampler of Kim et al. (CVPR 2025, arXiv 2411.09998), Algorithms 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor
from torch.func import functional_call

from ...checks import flag, number, one_of, whole
from ...distributed import largest, place
from ...processes import Process
from ...types import Draw, Request, StepRecord
from ..base import Common, Sampler
from ..histogram import between, spread
from ..objective_weight import Weighting, objective_weight
from .adam import Adam
from .policy import CELLS, Policy, entropy, features
from .selection import Queue, evenly

Measured = Literal["selected", "shared"]
_COVERAGE = 128
_SHARE = 4  # with one probe for everything: every fourth example looks at the whole axis
_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 fill the unit interval evenly
_CAP_QUANTILE = 0.99  # of the weights over the axis
_REWARD_DECAY = 0.9  # per update, of the running mean and scale of the reward
_INSET = 1e-5  # share of a cell kept free at its edges, so that float32 rounding cannot change the cell
_LARGEST_RATIO = 10.0


class Kim(Sampler):
    """A small network looks at each example and gives the (a, b) of the Beta density its timestep is drawn from.

    Every ``every_steps`` optimizer steps it learns from what the step did. The loss at ``selected`` timesteps is
    measured before and after the step, for every example of the batch; the drop is the example's reward, credited to
    the timestep it was trained at (score function, plus entropy). Which timesteps: those whose drop goes best
    with the mean drop over all timesteps (F-statistic), over the last ``queue_rows`` measurements of all of them.
    Published without correction: it re-targets the objective.

    Where the paper's text is followed and the released code differs: the reward is the mean over the selected
    timesteps (code: sum); the queue holds 20 rows; updates count optimizer steps of the whole run (code: steps within
    an epoch); the loss is the weighted MSE, one forward pass each before and after (code: a KL divergence, two
    passes); the policy and its queue are saved; any data shape, timestep count, batch and number of ranks, or one
    process (code: 3 x 32 x 32 images, T = 1000, two ranks); under gradient accumulation the step measured is a real
    one. The released code stops with a TypeError at its third update; here selection returns plain indices.

    Departures from both, and why:

    1. Before and after use the same noise, and eval mode. Redrawn noise and dropout bury the reward (30 to 70 times
       its spread).
    2. The gain over the whole axis is measured at ``coverage`` places by one forward pass of the batch, each example
       at another place, instead of one image at every timestep. In a batch smaller than ``coverage`` the places move
       from one measurement to the next, and those in between take the values between their neighbours.
    3. The timesteps that give the reward were selected at the update before, because "before" must be measured before
       the step. Until the queue has three rows, and where it says nothing, they are equally spaced; with the two rows
       the paper allows the statistic is 0 everywhere.
    4. Selected timesteps are ``min_distance`` apart: neighbours rise and fall together.
    5. The weight c_t is capped at its 99th percentile. Uncapped, the last index of a cosine schedule (499 against
       0.01) is the whole reward.
    6. The reward is centred on its running mean and divided by its running spread before the entropy is added: it
       shrinks by orders of magnitude in training and the entropy does not. On that scale the paper's entropy weight
       of 0.01 lets the policy collapse to one end within 3,000 steps of the proving ground, so the default is 0.1;
       with ``normalise=False, entropy_weight=0.01``, the paper's form, the entropy outweighs the reward there and the
       policy stays uniform on DDPM schedules.
    7. The entropy enters as ``-(log p * reward + entropy_weight * H)`` with no gradient through the reward. The code
       multiplies log p by the entropy as well, which vanishes at uniform.
    8. The Beta is held on 256 equal cells, and t = floor(u T): what is declared is exactly what is drawn (code:
       ``round(u (T - 1))``, half mass at both ends).
    9. a and b are kept between 0.05 and 50, and start at exactly 1, uniform (code: 0.974).
    10. The network is two hidden layers on the pooled example (code: convolutions for 32 x 32), with no graph kept
        outside its own update.
    11. Ranks draw different timesteps from one stream and learn from all ranks' examples (code: the same random
        stream on all ranks).
    12. Examples with a loss that is not finite are left out; an update with none left is skipped.
    13. The policy climbs by Adam with gradients clipped at length 1, which is the code's way (paper: a plain step), in
        float32 whatever precision the loop runs in.
    14. Under a wrapper that changes what is drawn, log p is weighted by policy density over drawn density (at most
        10): else the policy would follow the wrapper.

    Args:
        every_steps: optimizer steps between updates (f_S).
        measurement: where the reward comes from. ``"selected"``, as published: the drop of every example at each of
            the selected timesteps; a measurement takes ``2 + 2 * selected`` forward passes of the batch. ``"shared"``:
            the drop of every example at one place, less what is usual there; 2 forward passes. Three quarters of the
            examples share the selected timesteps among them, the others look at the whole axis.
        coverage: equally spaced places of the axis that stand for all timesteps (columns of the queue); at most T.
        selected: timesteps that give the reward (|S|).
        queue_rows: measurements remembered (|Q|).
        weighting: the objective the reward is measured in, a name or a weighting: the variational bound, or the
            weighting in use (the paper's Table 3).
        entropy_weight: of the policy's entropy; see 6.
        normalise: centre and scale the reward; see 6.
        learning_rate: of the policy; the paper used 1e-2 on linear and quadratic schedules, 1e-3 on others.
        hidden: units per hidden layer.
        min_distance: between selected timesteps, on the u axis; lowered where they would not fit.
    """

    needs = "probe"

    average: Tensor
    selection: Tensor
    reward_sums: Tensor

    def __init__(
        self,
        process: Process,
        *,
        every_steps: int = 40,
        measurement: Measured = "selected",
        coverage: int | None = None,
        selected: int = 3,
        queue_rows: int = 20,
        weighting: Weighting | str | None = "vlb",
        entropy_weight: float = 0.1,
        normalise: bool = True,
        learning_rate: float = 0.01,
        hidden: int = 128,
        min_distance: float = 0.05,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        if coverage is None:
            coverage = min(_COVERAGE, process.cells)
        self.every_steps = whole("every_steps", every_steps, low=1)
        self.measurement = one_of("measurement", measurement, get_args(Measured))
        self.coverage = whole("coverage", coverage, low=1, high=process.cells)
        self.selected = min(whole("selected", selected, low=1), self.coverage)
        self.entropy_weight = number("entropy_weight", entropy_weight, low=0)
        self.normalise = flag("normalise", normalise)
        self.min_distance = number("min_distance", min_distance, low=0, high=1)
        self.weight_at = objective_weight(process, weighting)
        self.policy = Policy(hidden=whole("hidden", hidden, low=1), seed=self.seed)
        self.adam = Adam(
            sum(p.numel() for p in self.policy.parameters()),
            learning_rate=number("learning_rate", learning_rate, low=0, high=1, open_low=True),
            max_norm=1.0,
        )
        self.queue = Queue(whole("queue_rows", queue_rows, low=3), self.coverage)
        self.register_buffer("average", torch.full((CELLS,), 1 / CELLS, dtype=torch.float64))
        self.register_buffer("selection", evenly(self.selected, self.coverage))
        self.register_buffer("reward_sums", torch.zeros(3, dtype=torch.float64))  # count, reward, squared spread
        self._now: tuple[Tensor, Tensor] | None = None

    # ---- draw ----------------------------------------------------------------------------------------------

    def _look(self, x: Tensor) -> Tensor:
        return features(x).to(self._device())

    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        if context is None:
            raise ValueError("x is a batch size; this policy looks at the data, so hand it over: draw(x0).")
        masses = self._cell_masses(context)
        self.average = masses.mean(dim=0)
        cdf = masses.cumsum(dim=1)
        v = v[:, None] * cdf[:, -1:]
        cell = torch.searchsorted(cdf, v, right=True).clamp_(max=CELLS - 1)
        mass = masses.gather(1, cell).clamp_min(1e-300)
        within = ((v - (cdf.gather(1, cell) - mass)) / mass).clamp(0, 1)
        return ((cell + _INSET + (1 - 2 * _INSET) * within) / CELLS)[:, 0]

    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        cell = _cell(u)
        if context is None:
            return self.average[cell] * CELLS
        return self._cell_masses(context).gather(1, cell[:, None])[:, 0] * CELLS

    def _masses(self, cells: int) -> Tensor:
        return spread(self.average, cells)

    @torch.no_grad()
    def _cell_masses(self, context: Tensor) -> Tensor:
        """``[B, 256]`` for a batch's features; computed once per draw."""
        if self._now is None or self._now[0] is not context:
            self._now = (context, self.policy(context).exp().double())
        return self._now[1]

    def warm_up_steps(self) -> int:
        return self.every_steps

    # ---- watch ---------------------------------------------------------------------------------------------

    def request(self, draw: Draw) -> Request | None:
        if (self.steps_watched + 1) % self.every_steps:
            return None
        count = largest(len(draw), draw.u.device) * place()[1]
        columns, selection = [self._everywhere(count)], self.selection.cpu()
        if self.measurement == "selected":
            columns += [torch.full((count,), column) for column in selection.tolist()]
        else:
            example = torch.arange(count)
            turn = example - example // _SHARE - 1  # counts the examples that look at selected timesteps
            columns = [torch.where(example % _SHARE == 0, columns[0], selection[turn % self.selected])]
        return Request(
            draws=tuple(self.probe_draw(draw, self._middle(c), index) for index, c in enumerate(columns)),
            after=True,
        )

    def _everywhere(self, count: int) -> Tensor:
        """``[count]`` columns, evenly spaced over all of them, from a start that moves with every measurement."""
        start = (self.steps_watched // self.every_steps) * _GOLDEN % 1
        spot = (torch.arange(count, dtype=torch.float64) + start) * self.coverage / count
        return spot.long().clamp_(max=self.coverage - 1)

    def learn(self, record: StepRecord) -> None:
        if record.before is None or record.after is None or record.probe_u is None:
            return
        device = self._device()
        columns = (record.probe_u.to(device).double() * self.coverage).long().clamp_(0, self.coverage - 1)
        drop = record.before.to(device).double() - record.after.to(device).double()
        gain = self._column_weights()[columns] * drop
        everywhere, selected = gain[0], gain[1:]
        if self.measurement == "selected":
            reward = selected.mean(dim=0)
        else:
            reward = everywhere - self.queue.mean()[columns[0]]
        self._improve(record.draw, reward)
        self._remember(columns[0], everywhere)
        distance = round(self.min_distance * self.coverage)
        self.selection = self.queue.select(self.selected, distance).to(device)

    def _remember(self, columns: Tensor, gain: Tensor) -> None:
        """Push the mean gain of each column; columns without a finite value take that of their neighbours."""
        kept = torch.isfinite(gain)
        sums = gain.new_zeros(2, self.coverage)
        values = torch.stack([kept.double(), torch.where(kept, gain, 0.0)])
        sums.index_add_(1, columns, values)
        if bool(kept.any()):
            self.queue.push(between(sums[1] / sums[0].clamp_min(1), sums[0] > 0))

    def _improve(self, draw: Draw, reward: Tensor) -> None:
        """One step of the policy towards timesteps with a high ``reward`` ``[N]``."""
        if draw.context is None:
            raise ValueError("draw.context is missing: hand watch() the draw that sampler.draw(x0) returned.")
        kept = torch.isfinite(reward)
        if not bool(kept.any()):
            self.warn_once(
                "Kim left out an update: no loss it measured before and after the step is finite. If that goes on it "
                "learns nothing; look at what the probe returns."
            )
            return
        u, density, context = (x.to(reward.device)[kept] for x in (draw.u, draw.density, draw.context))
        advantage = self._advantage(reward[kept])
        names, parameters = zip(*self.policy.named_parameters(), strict=True)
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in parameters]
            log_mass = functional_call(self.policy, dict(zip(names, leaves, strict=True)), (context,))
            log_p = log_mass.gather(1, _cell(u)[:, None])[:, 0]
            ratio = (log_p.detach().exp() * CELLS / density).clamp(max=_LARGEST_RATIO)
            score = ratio * advantage.float() * log_p
            loss = -(score + self.entropy_weight * entropy(log_mass)).mean()
            gradients = torch.autograd.grad(loss, leaves)
        self.adam.step(parameters, gradients)
        self._now = None

    def _advantage(self, reward: Tensor) -> Tensor:
        """``[N]`` rewards less the running mean of earlier ones, over their running spread."""
        count, total, _ = self.reward_sums.unbind()
        baseline = torch.where(count > 0, total / count.clamp_min(1e-12), reward.mean())
        centred = reward - baseline
        new = torch.stack([torch.ones_like(baseline), reward.mean(), centred.square().mean()])
        self.reward_sums = _REWARD_DECAY * self.reward_sums + new
        scale = (self.reward_sums[2] / self.reward_sums[0]).sqrt()
        return torch.where(scale > 0, centred / scale, 0.0) if self.normalise else reward

    def _column_weights(self) -> Tensor:
        """``[coverage]`` weights of the objective, capped at their 99th percentile over the axis."""
        everywhere = self.weight_at(_middles(self.process.cells, self._device()))
        cap = torch.quantile(everywhere[torch.isfinite(everywhere)], _CAP_QUANTILE)
        weights = self.weight_at(_middles(self.coverage, self._device()))
        return torch.nan_to_num(weights, nan=float(cap), posinf=float(cap)).clamp(max=float(cap))

    def _middle(self, column: Tensor) -> Tensor:
        return (column.double() + 0.5) / self.coverage

    # ---- state ---------------------------------------------------------------------------------------------

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        super().set_extra_state(state)
        self._now = None


def _cell(u: Tensor) -> Tensor:
    return (u.double() * CELLS).long().clamp_(0, CELLS - 1)


def _middles(cells: int, device: torch.device) -> Tensor:
    return (torch.arange(cells, dtype=torch.float64, device=device) + 0.5) / cells
