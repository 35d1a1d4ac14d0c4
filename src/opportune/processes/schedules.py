"""Discrete noise schedules: ``name -> alphas_cumprod [T]`` in float64.

Indices run from 0 (paper's t = 1, least noise) to T - 1 (most noise).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..checks import number, one_of, whole


def linear(steps: int, beta_start: float = 1e-4, beta_end: float = 0.02) -> Tensor:
    """beta from 1e-4 to 0.02 at T = 1000, scaled by 1000/T otherwise (Ho et al., 2020)."""
    scale = 1000 / steps
    first, last = min(scale * beta_start, 0.999), min(scale * beta_end, 0.999)
    return torch.linspace(first, last, steps, dtype=torch.float64)


def quadratic(steps: int, beta_start: float = 1e-4, beta_end: float = 0.02) -> Tensor:
    """sqrt(beta) linear from sqrt(1e-4) to sqrt(0.02) (the DDPM code's "quad"), scaled by 1000/T."""
    root = torch.linspace(beta_start**0.5, beta_end**0.5, steps, dtype=torch.float64)
    return root.square().mul(1000 / steps).clamp(max=0.999)


def scaled_linear(steps: int, beta_start: float = 0.00085, beta_end: float = 0.012) -> Tensor:
    """sqrt(beta) linear from sqrt(0.00085) to sqrt(0.012) (latent diffusion, Stable Diffusion), scaled by 1000/T."""
    return quadratic(steps, beta_start, beta_end)


def constant(steps: int) -> Tensor:
    """beta = 0.02 throughout (SpeeD's ablation), scaled by 1000/T."""
    return torch.full((steps,), min(0.02 * 1000 / steps, 0.999), dtype=torch.float64)


def cosine(steps: int) -> Tensor:
    """alpha_bar = cos^2((t/T + 0.008)/1.008 * pi/2), beta clipped at 0.999 (Nichol & Dhariwal, 2021)."""
    t = torch.arange(steps + 1, dtype=torch.float64) / steps
    alpha_bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2).square()
    return (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=0.999)


SCHEDULES: dict[str, Callable[..., Tensor]] = {
    "linear": linear,
    "quadratic": quadratic,
    "scaled_linear": scaled_linear,
    "constant": constant,
    "cosine": cosine,
}


_FROM_TO = ("linear", "quadratic", "scaled_linear")


def alphas_cumprod(name: str, steps: int, *, beta_start: float | None = None, beta_end: float | None = None) -> Tensor:
    """``alphas_cumprod [T]`` of a schedule by name; see :data:`SCHEDULES`."""
    whole("steps", steps, low=1)
    one_of("schedule", name, SCHEDULES)
    given = {key: value for key, value in (("beta_start", beta_start), ("beta_end", beta_end)) if value is not None}
    for key, value in given.items():
        if name not in _FROM_TO:
            raise ValueError(f"{key}={value!r} has no effect on schedule={name!r}; it is for {', '.join(_FROM_TO)}.")
        number(key, value, low=0, high=1, open_low=True, open_high=True)
    betas = SCHEDULES[name](steps, **given)
    if steps > 1 and not bool(betas[-1] >= betas[0]):
        raise ValueError(f"beta falls from {betas[0]:g} to {betas[-1]:g}; give a beta_end of beta_start or more.")
    return torch.cumprod(1 - betas, dim=0)


def zero_terminal_snr(alphas_bar: Tensor) -> Tensor:
    """Shift and scale sqrt(alpha_bar) so that the last is 0 and the first is kept (Lin et al., 2024)."""
    if alphas_bar.numel() < 2:
        raise ValueError(
            "zero_terminal_snr=True needs steps of 2 or more: with one timestep nothing but noise is left."
        )
    root = alphas_bar.sqrt()
    first, last = root[0], root[-1]
    rescaled = (root - last) * first / (first - last)
    rescaled[-1] = 0.0
    return rescaled.square()
