"""A deterministic generator for any process: estimate (x0, eps), clip x0, move to the next noise level.

On a DDPM or VP process this is DDIM; on flow matching and EDM it is Euler's method.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opportune import EDM, Process


def grid(process: Process, steps: int) -> Tensor:
    """``[steps]`` own times from the most noise to the least."""
    if isinstance(process, EDM):  # Karras et al., 2022: rho = 7 from sigma 80 to 0.002 for data of std 0.5
        scale = process.sigma_data / 0.5
        high, low = (80 * scale) ** (1 / 7), (0.002 * scale) ** (1 / 7)
        return torch.linspace(high, low, steps) ** 7
    return process.time(torch.linspace(1 - 2.0**-12, 0.5 / steps, steps))


@torch.no_grad()
def generate(
    network: Callable[[Tensor, Tensor], Tensor],
    process: Process,
    noise: Tensor,
    bounds: tuple[Tensor, Tensor],
    *,
    steps: int = 40,
) -> Tensor:
    """``[N, D]`` generated from ``noise`` ``[N, D]``; x0 is clipped to ``bounds`` (low ``[D]``, high ``[D]``).

    Clipping matters: at the last cosine timestep x0 is an eps error divided by 5e-5.
    """
    times = [t.expand(len(noise)) for t in grid(process, steps)]
    x = process.coefficients(times[0])[1][:, None] * noise
    for now, after in zip(times, [*times[1:], None], strict=True):
        output = network(process.network_input(x, now), process.network_time(now))
        x0 = process.split(output, x, now)[0].clamp(*bounds)
        if after is None:
            return x0
        alpha, sigma = (c[:, None] for c in process.coefficients(now))
        alpha_after, sigma_after = (c[:, None] for c in process.coefficients(after))
        x = alpha_after * x0 + sigma_after * (x - alpha * x0) / sigma
    raise ValueError(f"steps={steps} is not allowed; give 1 or more.")
