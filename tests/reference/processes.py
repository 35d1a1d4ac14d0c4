"""Slow twins of the noise schedules and processes: plain Python, written like the papers."""

from __future__ import annotations

import math


def betas(name: str, steps: int) -> list[float]:
    """beta_t for t = 1 .. T; constants are for T = 1000 and scaled by 1000 / T."""
    scale = 1000 / steps

    def line(first: float, last: float) -> list[float]:
        return [first + (last - first) * i / (steps - 1) for i in range(steps)]

    if name == "linear":
        return [scale * b for b in line(1e-4, 0.02)]
    if name == "quadratic":
        return [scale * b * b for b in line(math.sqrt(1e-4), math.sqrt(0.02))]
    if name == "scaled_linear":
        return [scale * b * b for b in line(math.sqrt(0.00085), math.sqrt(0.012))]
    if name == "constant":
        return [scale * 0.02] * steps

    def f(t: int) -> float:
        return math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    return [min(1 - f(t + 1) / f(t), 0.999) for t in range(steps)]


def alphas_cumprod(name: str, steps: int) -> list[float]:
    product, products = 1.0, []
    for beta in betas(name, steps):
        product *= 1 - beta
        products.append(product)
    return products


def zero_terminal_snr(bars: list[float]) -> list[float]:
    """Lin et al., algorithm 1: sqrt(alpha_bar) <- (s - s_T) s_1 / (s_1 - s_T)."""
    first, last = math.sqrt(bars[0]), math.sqrt(bars[-1])
    return [((math.sqrt(bar) - last) * first / (first - last)) ** 2 for bar in bars]


def flux_shift(tokens: int) -> float:
    """e^mu with mu linear in tokens, from 0.5 at 256 to 1.15 at 4096 (the image pipeline's calculate_shift)."""
    slope = (1.15 - 0.5) / (4096 - 256)
    return math.exp(tokens * slope + 0.5 - slope * 256)
