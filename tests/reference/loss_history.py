"""Slow twins of the methods that learn from losses: plain Python, one number at a time, written like the papers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence


class SecondMoment:
    """Nichol & Dhariwal, section 3.3: the last 10 losses of each timestep."""

    def __init__(self, steps: int, history: int, floor: float) -> None:
        self.kept: list[deque[float]] = [deque(maxlen=history) for _ in range(steps)]
        self.floor = floor

    def add(self, t: int, loss: float) -> None:
        if math.isfinite(loss):
            self.kept[t].append(loss)

    def full(self) -> bool:
        return all(len(kept) == kept.maxlen for kept in self.kept)

    def probabilities(self) -> list[float]:
        roots = [math.sqrt(sum(loss**2 for loss in kept) / len(kept)) for kept in self.kept]
        return [(1 - self.floor) * root / sum(roots) + self.floor / len(roots) for root in roots]


def running_mean(batches: Sequence[Sequence[tuple[int, float]]], bins: int, decay: float) -> list[float]:
    """Mean of (bin, value) pairs per bin, a value n batches old counting ``decay**n``."""
    means = []
    for wanted in range(bins):
        total = weight = 0.0
        for age, batch in enumerate(reversed(batches)):
            for at, value in batch:
                if at == wanted and math.isfinite(value):
                    total += decay**age * value
                    weight += decay**age
        means.append(total / weight if weight else math.nan)
    return means


def info_noise(
    mmse: Callable[[float], float], weight: Callable[[float], float], sigmas: Sequence[float], *, n: float, p: float
) -> list[float]:
    """pi per d ln sigma at each of ``sigmas`` (rising), not normalised; weight is on the x0-MSE."""
    per_sigma = [mmse(s) / s**3 for s in sigmas]
    pivot = max(s for s, q in zip(sigmas, per_sigma, strict=True) if q >= p * max(per_sigma))
    wanted = []
    for sigma in sigmas:
        gate = sigma**n / (sigma**n + pivot**n)
        wanted.append(mmse(sigma) / sigma**2 * gate / weight(sigma))
    return wanted


def gaussian_mmse(sigma: float, std: float) -> float:
    """Error of the best denoiser of data N(0, std^2): no network can do better, and this is what one would measure."""
    return sigma**2 * std**2 / (sigma**2 + std**2)
