"""Bits per dimension by the variational bound of DDPM, with the discretised decoder for 8-bit images.

Source: Ho et al. 2020, "Denoising Diffusion Probabilistic Models", eqs. 5-8 and 13, with their released code's choice
of the decoder's variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..checks import one_of, whole
from ..generate.denoiser import Denoiser, evaluating, home
from ..processes import DDPM, Process
from ..random_streams import generator
from .images import Images, batches

_HALF_BIN = 1 / 255  # 8-bit values lie 2/255 apart in [-1, 1]


@dataclass(frozen=True)
class BitsPerDim:
    """An upper bound on the bits a dimension (a colour value of a pixel) costs.

    ``value`` is the mean over ``n`` images and ``stderr`` its standard error (over images, timesteps and noise; NaN
    for one image). ``prior`` and ``decoder`` are two of its parts, ``diffusion`` the rest.
    """

    value: float
    stderr: float
    prior: float
    decoder: float
    n: int

    @property
    def diffusion(self) -> float:
        """The part of the timesteps between the first and the prior."""
        return self.value - self.prior - self.decoder

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.stderr:.4f} bits per dimension (n = {self.n})"


@torch.no_grad()
def bits_per_dim(
    model: Callable[..., Tensor],
    process: Process,
    images: Images,
    *,
    timesteps: int | None = None,
    seed: int = 0,
    variance: str = "small",
    labels: Tensor | None = None,
    condition: Tensor | None = None,
    clip: float | None = 1.0,
    batch_size: int = 64,
    device: torch.device | str | None = None,
) -> BitsPerDim:
    """The variational bound ``L_T + sum of L_t + L_0`` in bits, over all values of a picture.

    Args:
        model: called as for :func:`opportune.generate.generate`; runs in evaluation mode.
        process: a DDPM with any prediction.
        images: ``[N, C, H, W]``, uint8 or those values scaled to [-1, 1], or an iterable of such batches.
        timesteps: None evaluates all T terms per image. A number K evaluates the decoder and K others: one timestep
            from each of K stretches, short at the clean end where the terms are large, drawn anew for every image and
            counted as often as its stretch is long. The expectation is the same; ``stderr`` shows what it costs.
        seed: of timesteps and noise; image i's do not depend on the batch.
        variance: of the reverse steps, "small" (the posterior's) or "large" (beta). At t = 0 both are the
            posterior's at t = 1, as in the released code.
        labels, condition: of all images, ``[N]`` and ``[N, c, h, w]``.
        clip: estimated images are clipped to [-clip, clip]; None for no clipping.
    """
    if not isinstance(process, DDPM):
        raise ValueError(f"{process!r} has no discrete variational bound; bits_per_dim needs a DDPM process.")
    if timesteps is not None:
        whole("timesteps", timesteps, low=min(1, process.steps - 1), high=process.steps - 1)
    bound = _Bound(process, one_of("variance", variance, ("small", "large")))
    device, dtype = home(model, device, None)
    denoiser = Denoiser(model, process, clip=clip, dtype=dtype)
    stretches = _stretches(process.steps, timesteps)
    rows: list[Tensor] = []
    done = 0
    with evaluating(model):
        for batch in batches(images, batch_size=whole("batch_size", batch_size, low=1)):
            x0 = _on_grid(batch).to(device)
            given = {"labels": labels, "condition": condition}
            conditions = {k: _part(k, v, done, len(x0)).to(device) for k, v in given.items() if v is not None}
            streams = [generator(seed, "bits per dim", done + k) for k in range(len(x0))]
            rows.append(_bits(bound, denoiser, x0, stretches, streams, conditions))
            done += len(x0)
    if not rows:
        raise ValueError("no images were given; there is nothing to evaluate.")
    for name, all_of_them in (("labels", labels), ("condition", condition)):
        if all_of_them is not None and len(all_of_them) != done:
            raise ValueError(f"{name} has {len(all_of_them)} entries for {done} images; give one per image.")
    prior, decoder, diffusion = torch.cat(rows).T
    total = prior + decoder + diffusion
    stderr = float(total.std()) / math.sqrt(done) if done > 1 else math.nan
    return BitsPerDim(float(total.mean()), stderr, float(prior.mean()), float(decoder.mean()), done)


class _Bound:
    """The terms of the bound in nats, from float64 tables over t = 0 .. T-1 (the paper's 1 .. T)."""

    def __init__(self, process: DDPM, variance: str) -> None:
        bars = process.alphas_cumprod
        before = torch.cat([torch.ones(1, dtype=torch.float64), bars[:-1]])
        self.process, self.last = process, float(bars[-1])
        posterior = process.betas * (1 - before) / (1 - bars)
        posterior[0] = posterior[1] if process.steps > 1 else process.betas[0]  # it is 0: x0 is known there
        model = posterior.clone() if variance == "small" else process.betas.clone()
        model[0] = posterior[0]
        self.model_variance = model
        self.divergence = 0.5 * ((model / posterior).log() + posterior / model - 1)
        self.error = 0.5 * before * process.betas.square() / (1 - bars).square() / model

    def prior(self, x0: Tensor) -> Tensor:
        """``L_T`` ``[B]``, the mean over dimensions: KL(q(x_T | x0) || N(0, 1))."""
        spread = -self.last - math.log1p(-self.last)
        return 0.5 * (spread + self.last * x0.double().square()).flatten(1).mean(dim=1)

    def step(self, x0: Tensor, estimate: Tensor, t: Tensor) -> Tensor:
        """``L_t`` ``[B]`` for t >= 1 ``[B]``: KL between posterior and model, whose means differ by x0's error."""
        squared = (x0.double() - estimate.double()).square().flatten(1).mean(dim=1)
        t = t.to(self.error.device)
        divergence, error = self.divergence[t].to(x0.device), self.error[t].to(x0.device)
        return divergence + error * squared

    def decoder(self, x0: Tensor, estimate: Tensor) -> Tensor:
        """``L_0`` ``[B]``: minus the log-probability of the 8-bit values under N(estimate, variance)."""
        std = math.sqrt(float(self.model_variance[0]))
        return -log_probability(x0.double(), estimate.double(), std).flatten(1).mean(dim=1)


def log_probability(x: Tensor, mean: Tensor, std: float) -> Tensor:
    """Log of the mass of N(mean, std^2) in the bin of the 8-bit value ``x`` in [-1, 1]; the end bins reach to infinity.

    Computed in logarithms on the side of the mean where both ends are in the lower tail: exact 100 deviations out,
    where the difference of two probabilities is 0.
    """
    low = torch.where(x < -1 + _HALF_BIN, -math.inf, (x - _HALF_BIN - mean) / std)
    high = torch.where(x > 1 - _HALF_BIN, math.inf, (x + _HALF_BIN - mean) / std)
    flip = low > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    result: Tensor = log_high + torch.log1p(-torch.exp(log_low - log_high))
    return result


def _bits(
    bound: _Bound,
    denoiser: Denoiser,
    x0: Tensor,
    stretches: list[tuple[int, int]],
    streams: list[torch.Generator],
    conditions: dict[str, Tensor],
) -> Tensor:
    """``[B, 3]``: prior, decoder and the other timesteps, in bits per dimension."""

    def estimate(t: Tensor) -> Tensor:
        noise = torch.stack([torch.randn(x0.shape[1:], generator=g) for g in streams]).to(x0.device)
        return denoiser(bound.process.corrupt(x0, noise, t), t, **conditions)[0]

    decoder = bound.decoder(x0, estimate(torch.zeros(len(x0), dtype=torch.int64, device=x0.device)))
    diffusion = torch.zeros_like(decoder)
    for low, high in stretches:
        drawn = [int(torch.randint(low, high, (), generator=g)) for g in streams] if high - low > 1 else [low] * len(x0)
        t = torch.tensor(drawn, device=x0.device)
        diffusion += (high - low) * bound.step(x0, estimate(t), t)
    return torch.stack([bound.prior(x0), decoder, diffusion], dim=1).cpu() / math.log(2)


def _stretches(steps: int, count: int | None) -> list[tuple[int, int]]:
    """``[low, high)`` stretches that cover t = 1 .. steps-1; of one timestep each for None.

    Their lengths grow with t: terms fall about as 1/t, so every stretch then holds about as many bits.
    """
    edges = [1]
    for left in range(steps - 1 if count is None else count, 0, -1):
        even = round(edges[-1] * (steps / edges[-1]) ** (1 / left))
        edges.append(min(max(even, edges[-1] + 1), steps - left + 1))
    return list(pairwise(edges))


def _on_grid(images: Tensor) -> Tensor:
    """Float32 in [-1, 1], each value one of the 256."""
    if images.dtype == torch.uint8:
        return images.float() / 127.5 - 1
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}; give uint8, or its values scaled to [-1, 1].")
    values = (images.float() + 1) * 127.5
    off = (values - values.round()).abs() > 0.05
    outside = (values < -0.05) | (values > 255.05)
    bad = int((off | outside | ~torch.isfinite(values)).sum())
    if bad:
        raise ValueError(
            f"{bad} of {values.numel()} values are not 8-bit values scaled to [-1, 1] (k / 127.5 - 1), so their "
            "probability is undefined; give uint8 images, not resized, augmented or generated ones in float."
        )
    return values.round() / 127.5 - 1


def _part(name: str, of_all: Tensor, start: int, count: int) -> Tensor:
    part = of_all[start : start + count]
    if len(part) != count:
        raise ValueError(f"{name} has {len(of_all)} entries for at least {start + count} images; give one per image.")
    return part
