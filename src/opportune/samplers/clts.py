"""CLTS, curriculum learning of timesteps (Xu et al., 2024, arXiv 2404.07946)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from ..checks import number, whole
from ..processes import DDPM, Process
from .base import Common
from .levels import axis_of
from .table import TableSampler

DEFAULT_RAMP_STEPS = 50_000


class CLTS(TableSampler):
    """p_k(t) = (1 - gamma) / T + gamma N(t; mean T, (std T)^2) / Z with gamma = min(1, k / ramp_steps) at step k.

    Starts uniform and turns, over ``ramp_steps`` optimizer steps, into a bell that favours moderately low noise.
    Larger ``mean`` is more noise. Published without correction, so it re-targets the objective.

    ``mean`` is a place on the linear DDPM schedule, where the paper found 0.3; on any other process the bell sits at
    the same SNR (:attr:`centre`). The bell is truncated to the axis, not clamped: no mass piles up at the ends.
    The paper gives no figure for ``std`` and ``ramp_steps``: 0.5 and 50,000 (or 80 % of the run) are this library's
    choice, made from the public re-implementations, whose own bells are a single timestep, or an average of
    variables instead of a mixture of densities.

    Args:
        mean: centre of the bell as a share of the linear schedule's noise axis.
        std: width of the bell as a share of the noise axis.
        ramp_steps: optimizer steps until gamma = 1; default 50,000.
        total_steps: of the run; sets ramp_steps to 80 % of it.
    """

    bell: Tensor

    def __init__(
        self,
        process: Process,
        *,
        mean: float = 0.3,
        std: float = 0.5,
        ramp_steps: int | None = None,
        total_steps: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        self.mean = number("mean", mean, low=0, high=1)
        self.std = number("std", std, low=0, open_low=True)
        self.ramp_steps = _ramp(ramp_steps, total_steps)
        self.centre = _centre(process, self.mean)
        """Centre of the bell on this process's axis u."""
        self.register_buffer("bell", self._bell(), persistent=False)
        self._shown = -1.0
        self._prepare()

    @property
    def gamma(self) -> float:
        """Share of the bell at the coming draw."""
        return min(1.0, self.step / self.ramp_steps)

    def check_run(self, steps: int) -> None:
        super().check_run(steps)
        if self.ramp_steps > steps:
            self.warn_once(
                f"ramp_steps={self.ramp_steps} is longer than the run of {steps} steps: the curriculum ends at "
                f"{steps / self.ramp_steps:.0%} of its bell. Give total_steps={steps}."
            )

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        super().set_extra_state(state)
        self._shown = -1.0

    def _prepare(self) -> None:
        gamma = self.gamma
        if gamma != self._shown:
            self._shown = gamma
            self.masses = (1 - gamma) / self.cells + gamma * self.bell
            self._refresh_cdf()

    def _bell(self) -> Tensor:
        edges = torch.linspace(0, 1, self.cells + 1, dtype=torch.float64)
        masses: Tensor = torch.special.ndtr((edges - self.centre) / self.std).diff()
        return masses / masses.sum()


def _centre(process: Process, mean: float) -> float:
    linear = DDPM("linear", steps=1000)
    levels = linear.log_snr((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    place = min(max(mean * 1000 - 0.5, 0.0), 999.0)
    left = min(int(place), 998)
    log_snr = torch.lerp(levels[left], levels[left + 1], place - left)
    return axis_of(process, float(log_snr))


def _ramp(ramp_steps: int | None, total_steps: int | None) -> int:
    if ramp_steps is not None and total_steps is not None:
        raise ValueError(
            f"ramp_steps={ramp_steps} and total_steps={total_steps} are both given; give one of them "
            "(total_steps sets ramp_steps to 80 % of it)."
        )
    if total_steps is not None:
        return max(1, round(0.8 * whole("total_steps", total_steps, low=1)))
    return whole("ramp_steps", DEFAULT_RAMP_STEPS if ramp_steps is None else ramp_steps, low=1)
