"""Conformance of weightings: finite, not negative, and the same objective through every prediction target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..processes import DDPM, EDM, VP, Flow, Process
from ..weightings import Weighting
from .report import require


class MakeWeighting(Protocol):
    """``make(process) -> Weighting``."""

    def __call__(self, process: Process, **settings: Any) -> Weighting: ...


def _processes() -> list[Process]:
    return [
        *(DDPM("cosine", steps=50, prediction=p) for p in DDPM.predictions),
        *(VP(prediction=p) for p in VP.predictions),
        *(EDM(prediction=p) for p in EDM.predictions),
        *(Flow(prediction=p) for p in Flow.predictions),
    ]


def weights_are_finite(make: MakeWeighting) -> None:
    """One finite, not negative weight per timestep on every process and target, over the axis drawn from."""
    for process in _processes():
        u = (torch.arange(50, dtype=torch.float32) + 0.5) / 50
        weights = make(process)(process.time(u)).detach()
        require(weights.shape == (50,), f"{process!r}: weights have shape {tuple(weights.shape)}, not [B].")
        require(
            bool(torch.isfinite(weights).all() and (weights >= 0).all()),
            f"{process!r}: a weight is negative or NaN.",
        )


def every_target_gives_the_same_gradient(make: MakeWeighting) -> None:
    """d(weighted loss)/d(x0 estimate) is the same whichever target the network predicts."""
    families: dict[type[Process], list[Process]] = {}
    for process in _processes():
        families.setdefault(type(process), []).append(process)
    for family in families.values():
        gradients = [_gradient(make(process), process) for process in family]
        for process, gradient in zip(family[1:], gradients[1:], strict=True):
            scale = gradients[0].abs().clamp_min(1e-12)
            off = float(((gradient - gradients[0]).abs() / scale).max())
            require(
                off < 1e-3,
                f"{process!r} trains another objective than {family[0]!r}: gradients differ by {off:.1%}.",
            )


def _gradient(weighting: Weighting, process: Process) -> Tensor:
    """Gradient with respect to the x0 estimate, of the weighted MSE of the process's own target, ``[B, D]``."""
    source = torch.Generator().manual_seed(0)
    u = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    t = process.time(u)
    x0, noise, error = (torch.randn(19, 3, generator=source, dtype=torch.float64) for _ in range(3))
    x_t = process.corrupt(x0, noise, t)
    estimate = (x0 + 0.1 * error).requires_grad_()
    alpha, sigma = (c.double()[:, None] for c in process.coefficients(t))
    implied_noise = (x_t - alpha * estimate) / sigma
    output = process.target(estimate, implied_noise, t)
    mse = (output - process.target(x0, noise, t)).square().mean(dim=1)
    weights = weighting(t).detach().double()
    return torch.autograd.grad((weights * mse).sum(), estimate)[0]


WEIGHTING_CHECKS: tuple[Callable[[MakeWeighting], None], ...] = (
    weights_are_finite,
    every_target_gives_the_same_gradient,
)


def check_weighting(make: MakeWeighting) -> None:
    """Run every check; raises :class:`ConformanceError` at the first that fails."""
    for check in WEIGHTING_CHECKS:
        check(make)
