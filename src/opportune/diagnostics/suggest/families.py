"""The densities a suggestion is put in: the families that the users of each process know, over a grid of settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opportune.processes import DDPM, EDM, VE, VP, Flow, Process
from opportune.samplers.beta import incomplete_beta

Cumulative = Callable[[Process, Tensor, Tensor], Tensor]
"""``(process, values [M, settings], u edges [E]) -> cumulative probability [M, E]``, not normalised."""

STEPS = 17


@dataclass(frozen=True)
class Family:
    """Densities over u that differ in one or two numbers.

    Attributes:
        name: as a user says it.
        sampler: of ``op.samplers()``, which draws it.
        settings: names of the numbers: those of the sampler, or of the process where that is what changes.
        ranges: lowest and highest of each.
        spaced: per number, whether the grid is even in it or in its logarithm.
        cumulative: in closed form, for the whole grid at once.
    """

    name: str
    sampler: str
    settings: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    spaced: tuple[str, ...]
    cumulative: Cumulative
    of_process: bool = False
    """Whether ``settings`` are the process's."""

    def grid(self) -> Tensor:
        """``[M, settings]`` over the whole range."""
        return self._between(*self._ends())

    def near(self, values: Tensor, share: float | Tensor) -> Tensor:
        """``[M, settings]`` around ``values`` ``[settings]``, to either side by a share of the (or of each) range."""
        low, high = self._ends()
        middle = self._straight(values)
        side = share * (high - low)
        return self._between((middle - side).maximum(low), (middle + side).minimum(high))

    def best(self, score: Callable[[Tensor], Tensor]) -> Tensor:
        """``[settings]``, to two decimals, where ``score(values [M, settings]) -> [M]`` is highest."""
        grid = self.grid()
        values = grid[score(grid).argmax()]
        for share in (0.1, 0.02, 0.004):  # a grid step is 1/16 of the range, then 1/80, 1/400, 1/2000
            grid = self.near(values, share)
            values = grid[score(grid).argmax()]
        return (values * 100).round() / 100

    def masses(self, process: Process, values: Tensor, bins: int) -> Tensor:
        """``[M, bins]`` for settings ``[M, settings]``; each row sums to 1."""
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        reached = self.cumulative(process, values, edges)
        masses = reached.diff(dim=-1).clamp_min(0)
        return masses / masses.sum(dim=-1, keepdim=True).clamp_min(1e-300)

    def _ends(self) -> tuple[Tensor, Tensor]:
        low, high = torch.tensor(self.ranges, dtype=torch.float64).T
        return self._straight(low), self._straight(high)

    def _straight(self, values: Tensor) -> Tensor:
        """In logarithms where the grid is even in them."""
        return torch.where(self._logarithmic(), values.clamp_min(1e-300).log(), values)

    def _between(self, low: Tensor, high: Tensor) -> Tensor:
        ends = zip(low.tolist(), high.tolist(), strict=True)
        axes = [torch.linspace(a, b, STEPS, dtype=torch.float64) for a, b in ends]
        grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        return torch.where(self._logarithmic(), grid.exp(), grid)

    def _logarithmic(self) -> Tensor:
        return torch.tensor([each == "log" for each in self.spaced])


def families(process: Process) -> list[Family]:
    """Those a process's users know, the best known first."""
    beta = Family("beta", "beta", ("a", "b"), ((0.3, 8.0), (0.3, 8.0)), ("log", "log"), _beta)
    if isinstance(process, EDM):
        low, high = process.p_mean - 2 * process.p_std, process.p_mean + 2 * process.p_std
        spread = (0.4 * process.p_std, 2.5 * process.p_std)
        return [Family("log_normal", "log_normal", ("mean", "std"), ((low, high), spread), ("even", "log"), _log), beta]
    if isinstance(process, VE):
        low, high = (float(-process.log_snr(torch.tensor(end)) / 2) for end in (0.0, 1.0))
        spread = (0.1 * (high - low), high - low)
        return [Family("log_normal", "log_normal", ("mean", "std"), ((low, high), spread), ("even", "log"), _log), beta]
    logit = Family("logit_normal", "logit_normal", ("mean", "std"), ((-3.0, 3.0), (0.4, 4.0)), ("even", "log"), _logit)
    if isinstance(process, Flow):
        shift = Family(
            "shift", "uniform", ("shift",), ((process.shift / 8, process.shift * 8),), ("log",), _shift, of_process=True
        )
        return [logit, beta, shift]
    if isinstance(process, (DDPM, VP)):
        return [beta, logit]
    return [beta]


def _beta(process: Process, values: Tensor, edges: Tensor) -> Tensor:
    return incomplete_beta(edges, values[:, :1], values[:, 1:])


def _logit(process: Process, values: Tensor, edges: Tensor) -> Tensor:
    reached: Tensor = torch.special.ndtr((torch.logit(edges) - values[:, :1]) / values[:, 1:])
    return reached


def _log(process: Process, values: Tensor, edges: Tensor) -> Tensor:
    log_sigma = -process.log_snr(edges) / 2
    if isinstance(process, EDM):  # it keeps its log-normal off the two ends, which are sigma = 0 and infinity
        log_sigma[0], log_sigma[-1] = -torch.inf, torch.inf
    reached: Tensor = torch.special.ndtr((log_sigma - values[:, :1]) / values[:, 1:])
    return reached


def _shift(process: Process, values: Tensor, edges: Tensor) -> Tensor:
    """Uniform draws under another shift: t = s' v / (1 + (s' - 1) v), so logit u = logit v + ln(s' / s)."""
    ratio = values / float(getattr(process, "shift", 1.0))
    return edges / (ratio - (ratio - 1) * edges)
