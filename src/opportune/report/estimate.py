"""A mean over seeds with its 95 % interval, and where a curve first reaches a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """``mean`` of ``n`` values; ``low`` and ``high`` end its 95 % t-interval and are None where n is 1."""

    mean: float
    low: float | None
    high: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of independent values and its t-interval, ``mean ± t · s / √n``; None without values."""
    n = len(values)
    if not n:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean=mean, low=None, high=None, n=1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=n)


def t_quantile(freedom: int) -> float:
    """t with P(|T| <= t) = 95 % for Student's T with ``freedom`` degrees of freedom.

    By bisection in θ = atan(t / √ν), where the probability is a finite sum (Abramowitz & Stegun 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, freedom) > CONFIDENCE else (middle, high)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):  # cosines to the power of ν - 2 and below
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def first_at_or_below(xs: Sequence[float], ys: Sequence[float], target: float) -> float | None:
    """The smallest x at which the curve, straight between its points, is at or below ``target``; None for never.

    Points that are not finite (a diverged run) are left out.
    """
    before: tuple[float, float] | None = None
    for x, y in zip(xs, ys, strict=True):
        if not math.isfinite(y):
            continue
        if y <= target:
            if before is None or y == before[1]:
                return x
            return before[0] + (x - before[0]) * (before[1] - target) / (before[1] - y)
        before = x, y
    return None


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """The curve through the points at ``x``, straight between them; None outside."""
    for x0, y0, x1, y1 in zip(xs, ys, xs[1:], ys[1:], strict=False):
        if x0 <= x <= x1:
            return y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[0] if len(xs) == 1 and xs[0] == x else None
