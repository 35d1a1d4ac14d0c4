"""Where a noise level lies on a process's axis; lets a setting found on one schedule transfer to another."""

from __future__ import annotations

import math

import torch

from ..processes import Process


def cell_log_snr(process: Process) -> torch.Tensor:
    """``[cells]`` float64 ln SNR at the middle of each cell of the u axis: of each timestep, in discrete time."""
    return process.log_snr((torch.arange(process.cells, dtype=torch.float64) + 0.5) / process.cells)


def axis_of(process: Process, log_snr: float) -> float:
    """The u at which ln SNR is ``log_snr``, linear between middles of cells; the nearer end where it is not reached."""
    levels = cell_log_snr(process)
    after = int((levels > log_snr).sum())
    if after == 0:
        return 0.0
    if after == process.cells:
        return 1.0
    left, right = float(levels[after - 1]), float(levels[after])
    share = 0.0 if math.isinf(right) else (left - log_snr) / (left - right)
    return (after - 0.5 + share) / process.cells
