"""Conformance of processes: one axis, one direction, and targets that can be turned back into data."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..processes import Process
from ..processes.base import expand
from .report import require


def noise_grows_along_the_axis(process: Process) -> None:
    """ln SNR falls along u, and is -2 ln(sigma / alpha) of the coefficients."""
    u = _axis(process)
    log_snr = process.log_snr(u)
    require(bool((log_snr.diff() <= 0).all()), "ln SNR rises somewhere along u; 0 must be clean and 1 noise.")
    alpha, sigma = process.coefficients(process.time(u))
    ratio = 2 * (alpha.double().log() - sigma.double().log())
    finite = torch.isfinite(log_snr) & torch.isfinite(ratio)
    require(
        bool(((ratio - log_snr)[finite].abs() <= 1e-3 * log_snr[finite].abs().clamp_min(1)).all()),
        "log_snr(u) disagrees with coefficients(time(u)).",
    )


def time_and_axis_are_inverse(process: Process) -> None:
    """``time(axis(t)) = t``; discrete time owns equal shares of u."""
    u = _axis(process)
    t = process.time(u)
    back = process.time(process.axis(t))
    require(bool(torch.allclose(back.double(), t.double(), rtol=1e-3)), "time(axis(t)) is not t.")
    if process.steps is not None:
        shares = torch.bincount(process.time((torch.arange(process.steps * 8) + 0.5) / (process.steps * 8)))
        require(bool((shares == 8).all()), "timesteps own unequal shares of u.")


def targets_split_back_into_data_and_noise(process: Process) -> None:
    """``split(target, x_t, t)`` returns (x0, eps) to rounding, for timesteps with some signal."""
    source = torch.Generator().manual_seed(0)
    u = _axis(process)[process.log_snr(_axis(process)).abs() < 15]
    x0 = torch.randn(len(u), 2, 3, generator=source, dtype=torch.float64)
    noise = torch.randn(len(u), 2, 3, generator=source, dtype=torch.float64)
    t = process.time(u)
    x_t = process.corrupt(x0, noise, t)
    alpha, sigma = (expand(c, x0) for c in process.coefficients(t))
    require(bool(torch.allclose(x_t, alpha * x0 + sigma * noise)), "corrupt is not alpha x0 + sigma noise.")
    data, eps = process.split(process.target(x0, noise, t), x_t, t)
    signal = (alpha / sigma).clamp(max=1.0)
    require(bool(((data - x0).abs() * signal < 1e-4).all()), "split does not recover x0 from the target.")
    silence = (sigma / alpha).clamp(max=1.0)
    require(
        bool(((eps - noise).abs() * silence < 1e-4).all()),
        "split does not recover the noise from the target.",
    )


def edges_enclose_the_cells(process: Process) -> None:
    """``edge_log_snr`` has cells + 1 falling values."""
    edges = process.edge_log_snr()
    require(edges.shape == (process.cells + 1,), f"edge_log_snr has shape {tuple(edges.shape)}.")
    require(bool((edges[1:] <= edges[:-1]).all()), "edge_log_snr rises somewhere.")


PROCESS_CHECKS: tuple[Callable[[Process], None], ...] = (
    noise_grows_along_the_axis,
    time_and_axis_are_inverse,
    targets_split_back_into_data_and_noise,
    edges_enclose_the_cells,
)


def check_process(process: Process) -> None:
    """Run every check; raises :class:`ConformanceError` at the first that fails."""
    for check in PROCESS_CHECKS:
        check(process)


def _axis(process: Process) -> torch.Tensor:
    if process.steps is not None:
        return (torch.arange(process.steps, dtype=torch.float64) + 0.5) / process.steps
    return torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
