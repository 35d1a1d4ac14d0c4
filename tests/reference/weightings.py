"""Every weighting as its paper writes it: one number at a time, on the loss the paper writes it for.

Each returns ``(value, loss)``: the weight, and the target whose MSE it multiplies. Plain Python floats throughout.
"""

import math


def snr_of(alpha_bar: float) -> float:
    return alpha_bar / (1 - alpha_bar)


def p2(snr, gamma=1.0, k=1.0):
    return 1 / (k + snr) ** gamma, "eps"


def min_snr(snr, gamma=5.0):
    return min(snr, gamma) / snr, "eps"


def soft_min_snr(snr, sigma_data=0.5):
    sigma = snr**-0.5
    return 1 / (sigma**2 + sigma_data**2), "x0"


def debiased(snr):
    return 1 / math.sqrt(snr), "eps"


def truncated_snr(snr):
    return max(snr, 1.0), "x0"


def edm(snr, sigma_data=0.5):
    sigma = snr**-0.5
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2, "x0"


def sigma_sqrt(snr):
    t = 1 / (math.sqrt(snr) + 1)
    return t**-2, "velocity"


def cosmap(snr):
    t = 1 / (math.sqrt(snr) + 1)
    return 2 / (math.pi - 2 * math.pi * t + 2 * math.pi * t**2), "velocity"


BY_SNR = {
    "p2": p2, "min_snr": min_snr, "soft_min_snr": soft_min_snr, "debiased": debiased, "truncated_snr": truncated_snr,
    "edm": edm, "sigma_sqrt": sigma_sqrt, "cosmap": cosmap,
}  # fmt: skip


def to_x0(value: float, loss: str, snr: float) -> float:
    """The weight W on the x0-MSE that ``value`` on the MSE of ``loss`` amounts to."""
    t = 1 / (math.sqrt(snr) + 1)
    return value * {"x0": 1.0, "eps": snr, "v": snr + 1, "velocity": 1 / t**2}[loss]


def vlb(alphas_bar: list[float], t: int, variance: str) -> float:
    """c_t = beta_t^2 / (2 s_t^2 alpha_t (1 - alpha_bar_t)) on the eps-MSE, index t from 0 (paper's t + 1)."""
    before = alphas_bar[t - 1] if t > 0 else 1.0
    alpha = alphas_bar[t] / before
    beta = 1 - alpha
    if variance == "large":
        s2 = beta
    elif t > 0:
        s2 = beta * (1 - before) / (1 - alphas_bar[t])
    else:  # the posterior variance of index 1, as DDPM codes clip it
        beta_1 = 1 - alphas_bar[1] / alphas_bar[0]
        s2 = beta_1 * (1 - alphas_bar[0]) / (1 - alphas_bar[1])
    return beta**2 / (2 * s2 * alpha * (1 - alphas_bar[t]))


def change_aware(alphas_bar: list[float], lam: float = 0.6) -> list[float]:
    """Gradient of 1 - alpha_bar, min-max rescaled to [1 - lam, lam], before any normalisation; on the eps-MSE."""
    noise = [1 - a for a in alphas_bar]
    last = len(noise) - 1
    slope = [
        (noise[min(i + 1, last)] - noise[max(i - 1, 0)]) / (min(i + 1, last) - max(i - 1, 0)) for i in range(last + 1)
    ]
    low, high = min(slope), max(slope)
    return [(1 - lam) + (lam - (1 - lam)) * (s - low) / (high - low) for s in slope]


def learned_uncertainty(losses, u, w):
    """Mean over the batch of w / e^u * loss + u."""
    return sum(wi / math.exp(ui) * li + ui for li, ui, wi in zip(losses, u, w, strict=True)) / len(losses)
