"""Slow twins of the fixed and scheduled samplers: plain Python, one number at a time, written like the papers."""

from __future__ import annotations

import math
from collections.abc import Callable


def cell_masses(density: Callable[[float], float], cells: int, *, points: int = 64) -> list[float]:
    """The integral of a density over each of ``cells`` equal parts of (0, 1), by the midpoint rule; normalised."""
    masses = []
    for cell in range(cells):
        at = [(cell + (point + 0.5) / points) / cells for point in range(points)]
        masses.append(sum(map(density, at)))
    total = sum(masses)
    return [mass / total for mass in masses]


def logit_normal(mean: float, std: float) -> Callable[[float], float]:
    """Esser et al., eq. 19: a normal density of logit(t), times d logit / dt = 1 / (t (1 - t))."""

    def density(t: float) -> float:
        z = (math.log(t / (1 - t)) - mean) / std
        return math.exp(-z * z / 2) / (std * math.sqrt(2 * math.pi)) / (t * (1 - t))

    return density


def mode_map(v: float, scale: float) -> float:
    """Esser et al., eq. 20: the timestep of a uniform number v."""
    return 1 - v - scale * (math.cos(math.pi / 2 * v) ** 2 - 1 + v)


def cosmap(t: float) -> float:
    """Esser et al., eq. 21."""
    return 2 / (math.pi - 2 * math.pi * t + 2 * math.pi * t * t)


def laplace_log_snr(share: float, mean: float, scale: float) -> float:
    """Hang et al.: ln SNR of the ``share`` of the axis, 0 clean and 1 noise (the published schedule's inverse CDF)."""
    sign = 1.0 if share < 0.5 else -1.0
    return mean - scale * sign * math.log(1 - 2 * abs(share - 0.5)) if share != 0.5 else mean


def speed(steps: int, tau: int, k: float) -> list[float]:
    """Wang et al.: k / (T + tau (k - 1)) for t <= tau, 1 / (T + tau (k - 1)) beyond; t from 1 to T."""
    return [(k if t <= tau else 1) / (steps + tau * (k - 1)) for t in range(1, steps + 1)]


def speed_dual(alphas_cumprod: list[float], tau: int, k: float) -> list[float]:
    """What the released code draws from in the limit of a large batch: half from P, half of it mirrored about m."""
    steps = len(alphas_cumprod)
    level = [math.sqrt(1 - a) for a in alphas_cumprod]
    gradient = [level[1] - level[0]]
    gradient += [(level[i + 1] - level[i - 1]) / 2 for i in range(1, steps - 1)]
    gradient += [level[-1] - level[-2]]
    m = next(i for i, g in enumerate(gradient) if g < 1e-4) + 1
    first = speed(steps, tau, k)
    marginal = [p / 2 for p in first]
    for t, p in enumerate(first):
        marginal[m - t if t < m else t - m] += p / 2
    return marginal


def clts(steps: int, *, mean: float, std: float, step: int, ramp_steps: int) -> list[float]:
    """Xu et al.: (1 - gamma) / T + gamma N(t; mean T, (std T)^2) / Z, truncated to the axis."""
    gamma = min(1.0, step / ramp_steps)
    bell = [math.exp(-((t + 0.5 - mean * steps) ** 2) / (2 * (std * steps) ** 2)) for t in range(steps)]
    return [(1 - gamma) / steps + gamma * b / sum(bell) for b in bell]


def log_uniform_share(sigma: float, low: float, high: float) -> float:
    """Song et al.: the probability of noise below ``sigma``, for ln sigma uniform between the ends."""
    return min(max(math.log(sigma / low) / math.log(high / low), 0.0), 1.0)


def log_logistic_sigma(v: float, mean: float, scale: float) -> float:
    """k-diffusion: sigma = exp(mean + scale logit(v)) of a uniform number v."""
    return math.exp(mean + scale * math.log(v / (1 - v)))


def cosine_log_snr(v: float, image: float, clean: float, noisy: float) -> float:
    """Hoogeboom et al., section 2.1: the cosine schedule shifted from one size of noise to another; v = 1 is noise.

    ``(1 - v) logSNR_shifted(clean) + v logSNR_shifted(noisy)``, each shifted by 2 ln(noise size / image size).
    """
    cosine = -2 * math.log(math.tan(math.pi * v / 2))
    return (1 - v) * (cosine + 2 * math.log(clean / image)) + v * (cosine + 2 * math.log(noisy / image))


def u_shaped(t: float, a: float) -> float:
    """Lee et al., as released: an exponential density, and its mirror image, half of the time each."""
    return a / (math.exp(a) - 1) * (math.exp(a * t) + math.exp(a * (1 - t))) / 2
