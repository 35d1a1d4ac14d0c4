"""Slow twin of the variational bound: one image, plain Python, written like the DDPM paper (t = 1 .. T).

Sizes are kept to what ``math.erf`` resolves: the estimate within a few deviations of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def normal_kl(mean1: float, variance1: float, mean2: float, variance2: float) -> float:
    """KL(N(mean1, variance1) || N(mean2, variance2)) in nats."""
    return 0.5 * (math.log(variance2 / variance1) + (variance1 + (mean1 - mean2) ** 2) / variance2 - 1)


def posterior(x0: float, x_t: float, t: int, betas: Sequence[float]) -> tuple[float, float]:
    """Eqs. 6-7: mean and variance of q(x_{t-1} | x_t, x_0)."""
    alpha_bar = [math.prod(1 - b for b in betas[:s]) for s in range(len(betas) + 1)]
    beta, alpha = betas[t - 1], 1 - betas[t - 1]
    mean = math.sqrt(alpha_bar[t - 1]) * beta / (1 - alpha_bar[t]) * x0
    mean += math.sqrt(alpha) * (1 - alpha_bar[t - 1]) / (1 - alpha_bar[t]) * x_t
    return mean, (1 - alpha_bar[t - 1]) / (1 - alpha_bar[t]) * beta


def first_variance(betas: Sequence[float]) -> float:
    """The decoder's: that of the second step, since the first posterior has none (the paper's released code)."""
    return posterior(0.0, 0.0, 2, betas)[1] if len(betas) > 1 else betas[0]


def decoder_probability(x0: float, mean: float, std: float) -> float:
    """Eq. 13."""

    def cumulative(x: float) -> float:
        return 0.5 * (1 + math.erf((x - mean) / std / math.sqrt(2)))

    above = 1.0 if x0 > 0.9999 else cumulative(x0 + 1 / 255)
    below = 0.0 if x0 < -0.9999 else cumulative(x0 - 1 / 255)
    return above - below


def bits(
    x0: Sequence[float],
    noise: Sequence[Sequence[float]],
    estimate: Callable[[Sequence[float], int], Sequence[float]],
    betas: Sequence[float],
    variance: str,
) -> tuple[float, float, float]:
    """Eq. 5 in bits per dimension: (L_T, L_0, the sum of the others); ``noise[t-1]`` is used at t."""
    steps, dims = len(betas), len(x0)
    prior = decoder = others = 0.0
    last = math.prod(1 - b for b in betas)
    for value in x0:
        prior += normal_kl(math.sqrt(last) * value, 1 - last, 0.0, 1.0)
    for t in range(1, steps + 1):
        bar = math.prod(1 - b for b in betas[:t])
        x_t = [math.sqrt(bar) * v + math.sqrt(1 - bar) * n for v, n in zip(x0, noise[t - 1], strict=True)]
        for value, noisy, guess in zip(x0, x_t, estimate(x_t, t), strict=True):
            model_mean, small = posterior(guess, noisy, t, betas)
            if t == 1:
                decoder -= math.log(decoder_probability(value, model_mean, math.sqrt(first_variance(betas))))
                continue
            true_mean, _ = posterior(value, noisy, t, betas)
            others += normal_kl(true_mean, small, model_mean, small if variance == "small" else betas[t - 1])
    return tuple(nats / dims / math.log(2) for nats in (prior, decoder, others))  # type: ignore[return-value]
