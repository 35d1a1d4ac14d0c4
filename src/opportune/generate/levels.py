"""Which noise levels a generation passes through, from noise to clean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import number, whole
from ..processes import DDPM, EDM, VE, VP, Flow, Process

_BISECTIONS = 80
_EDM_RANGE = (0.002, 80.0)  # of sigma; Karras et al. 2022, Table 1


@dataclass(frozen=True)
class Level:
    """Own time ``t`` of the process (an int where time is discrete) and ``x_t = alpha x0 + sigma eps`` there."""

    t: float
    alpha: float
    sigma: float

    def snr_ratio(self, cleaner: Level) -> float:
        """SNR here over SNR at a cleaner level: 0 (nothing is known yet) to 1 (the same level)."""
        return (self.alpha * cleaner.sigma / (self.sigma * cleaner.alpha)) ** 2


CLEAN = Level(t=0, alpha=1.0, sigma=0.0)


def moves(levels: Sequence[Level]) -> Iterator[tuple[Level, Level]]:
    """Each level with the one to go to; the last goes to the clean image."""
    yield from zip(levels, [*levels[1:], CLEAN], strict=True)


def even_levels(process: Process, steps: int) -> list[Level]:
    """``steps`` levels evenly along u, beginning at the noisiest: u = 1, 1 - 1/steps, ..., 1/steps.

    For discrete time this is the "trailing" spacing of Lin et al. 2024 ("Common Diffusion Noise Schedules and
    Sample Steps are Flawed", Table 2): T - 1 comes first whatever the number of steps. A flow's shift is in it.
    """
    whole("steps", steps, low=1, high=process.steps)
    if process.steps is not None:
        every = process.steps
        return _at(process, [round(every * (steps - k) / steps) - 1 for k in range(steps)])
    u = torch.tensor([(steps - k) / steps for k in range(steps)], dtype=torch.float64)
    if isinstance(process, Flow) and process.prediction == "eps":
        u[0] = 1 - 0.5 / process.cells  # at u = 1 the image is absent from x_t, and eps alone cannot tell it
    return _at(process, process.time(u).tolist())


def sigma_levels(
    process: Process,
    steps: int,
    *,
    rho: float = 7.0,
    sigma_min: float | None = None,
    sigma_max: float | None = None,
) -> list[Level]:
    """``steps`` levels even in ``sigma^(1/rho)``, where ``sigma = 1/sqrt(SNR)`` (Karras et al. 2022, eq. 5).

    Without bounds: EDM 0.002 to 80; VE its own; VP up to its noisiest; DDPM its own but at most 80, because a
    cosine schedule ends beyond 10,000, where steps would be lost. DDPM levels are the nearest timesteps, each
    used once.
    """
    whole("steps", steps, low=1, high=process.steps)
    number("rho", rho, low=0, open_low=True)
    if isinstance(process, Flow):
        raise ValueError("Flow ends at an infinite sigma, so it has no grid over sigma; its levels are even in u.")
    low, high = _sigma_range(process)
    low = low if sigma_min is None else number("sigma_min", sigma_min, low=0, open_low=True)
    high = high if sigma_max is None else number("sigma_max", sigma_max, low=0, open_low=True)
    if low >= high:
        raise ValueError(f"sigma_min={low:g} is not below sigma_max={high:g}; give a lower one, or leave both out.")
    if isinstance(process, DDPM):
        return _at(process, _timesteps(process, steps, rho, low, high))
    sigmas = _grid(steps, rho, low, high)
    return _at(process, _vp_times(process, sigmas).tolist() if isinstance(process, VP) else sigmas.tolist())


def own_time(process: Process, t: float | Tensor, count: int, device: torch.device) -> Tensor:
    """``[count]`` times of the process's own kind: int64 where discrete, else float64."""
    dtype = torch.int64 if process.steps is not None else torch.float64
    return torch.as_tensor(t, dtype=dtype, device=device).expand(count)


def _at(process: Process, times: Sequence[float]) -> list[Level]:
    if isinstance(process, DDPM):  # its float64 table: the float32 one would lose digits in differences of levels
        bars = process.alphas_cumprod[torch.tensor(times, dtype=torch.int64)]
        alpha, sigma = bars.sqrt(), (1 - bars).sqrt()
    else:
        alpha, sigma = process.coefficients(torch.tensor(times, dtype=torch.float64))
    return [Level(*values) for values in zip(times, alpha.tolist(), sigma.tolist(), strict=True)]


def _sigma_range(process: Process) -> tuple[float, float]:
    if isinstance(process, VE):
        return process.sigma_min, process.sigma_max
    if isinstance(process, EDM):
        return _EDM_RANGE
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    low, high = torch.exp(-0.5 * process.log_snr(ends)).tolist()
    return (low, min(high, _EDM_RANGE[1])) if isinstance(process, DDPM) else (max(low, _EDM_RANGE[0]), high)


def _grid(steps: int, rho: float, low: float, high: float) -> Tensor:
    along = torch.arange(steps, dtype=torch.float64) / max(steps - 1, 1)
    grid: Tensor = (high ** (1 / rho) + along * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    return grid


def _timesteps(process: DDPM, steps: int, rho: float, low: float, high: float) -> list[int]:
    bars = process.alphas_cumprod
    log_sigma = 0.5 * (torch.log1p(-bars) - torch.log(bars))
    slack = 1e-9  # the bounds may be the table's own ends
    inside = ((log_sigma >= math.log(low) - slack) & (log_sigma <= math.log(high) + slack)).nonzero().flatten()
    if steps > len(inside):
        raise ValueError(
            f"steps={steps} is more than the {len(inside)} timesteps with sigma in [{low:.4g}, {high:.4g}]; "
            "give fewer steps, widen sigma_min and sigma_max, or use method='ddim', which has all timesteps."
        )
    first, table = int(inside[0]), log_sigma[inside]
    wanted = _grid(steps, rho, float(table[0].exp()), float(table[-1].exp())).log()
    nearest = (wanted[:, None] - table[None]).abs().argmin(dim=1).tolist()
    chosen: list[int] = []
    for k, index in enumerate(nearest):
        below = chosen[-1] - 1 if chosen else index
        chosen.append(max(min(index, below), steps - 1 - k))  # each once, and enough left for the rest
    return [first + index for index in chosen]


def _vp_times(process: VP, sigmas: Tensor) -> Tensor:
    wanted = -2 * sigmas.log()
    ends = torch.exp(-0.5 * process.log_snr(torch.tensor([0.0, 1.0], dtype=torch.float64))).tolist()
    if float(sigmas[0]) > ends[1] * (1 + 1e-9) or float(sigmas[-1]) < ends[0] * (1 - 1e-9):
        raise ValueError(
            f"sigma from {float(sigmas[-1]):.4g} to {float(sigmas[0]):.4g} leaves the process's range, "
            f"{ends[0]:.4g} to {ends[1]:.4g}; set sigma_min and sigma_max inside it."
        )
    low, high = torch.zeros_like(sigmas), torch.ones_like(sigmas)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        cleaner = process.log_snr(middle) > wanted
        low, high = torch.where(cleaner, middle, low), torch.where(cleaner, high, middle)
    return process.time(high)
