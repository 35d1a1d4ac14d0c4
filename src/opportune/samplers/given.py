"""A density given by the user: a table, a function, or the timesteps themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from ..checks import finite, row
from ..processes import Process
from .base import Common
from .table import FixedSampler

_POINTS_PER_CELL = 16


class Given(FixedSampler):
    """Draw from what you give; one of ``density`` and ``timesteps``.

    Normalised here; from the first entry (clean) to the last (noise). Re-targets the objective unless
    ``unbiased=True``, which can only hold where no noise level has zero probability: a warning says so otherwise.

    Args:
        density: a table ``[n]`` of the masses of n equal bins of the noise axis, bin 0 the cleanest (for a discrete
            process usually one per timestep; within a bin all are equally likely), or a function
            ``density(u [N] float64) -> [N]``, u = 0 clean, 1 noise.
        timesteps: own times of the process (indices t for DDPM, sigma for EDM, t in (0, 1) for Flow), equally likely;
            one given twice is twice as likely. In continuous time each stands for the narrow cell it lies in
            (1/4096 of the noise axis).
    """

    def __init__(
        self,
        process: Process,
        *,
        density: Tensor | Sequence[float] | Callable[[Tensor], Tensor] | None = None,
        timesteps: Tensor | Sequence[float] | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(process, **common)
        if (density is None) == (timesteps is None):
            raise ValueError(
                f"{'neither' if density is None else 'both'} of density and timesteps given; give one of them, "
                "e.g. density=[1.0, 2.0, 1.0] or timesteps=[0, 500, 999]."
            )
        if callable(density):
            self._bins = self._evaluate(density)
        elif density is not None:
            self._bins = row("density", density, one_per="bin of the noise axis")
        else:
            self._bins = self._count(row("timesteps", timesteps, one_per="timestep"))
        _check_masses(self._bins)
        self._build()

    def _warn_uncovered(self) -> None:
        # A zero here was asked for, so one is enough; elsewhere a few are tails too thin for float64.
        never = int((self.masses == 0).sum())
        if never:
            self.warn_once(
                f"unbiased=True cannot hold for Given: {never} of {self.cells} cells are never drawn, so no correction "
                'can make up for them. Mix in a floor of uniform: op.sampler("mixture", process, of=...).'
            )

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        """Piecewise linear between the edges of the bins: constant density within each."""
        total = torch.cat([self._bins.new_zeros(1), torch.cumsum(self._bins, dim=0)])
        position = u * len(self._bins)
        # An edge of ours that should fall on an edge of theirs must, or a bin of mass 0 would get a sliver.
        near = position.round()
        position = torch.where((position - near).abs() < 1e-9 * len(self._bins), near, position)
        left = position.floor().long().clamp(max=len(self._bins) - 1)
        return total[left] + (position - left) * self._bins[left]

    def _evaluate(self, density: Callable[[Tensor], Tensor]) -> Tensor:
        count = self.cells * _POINTS_PER_CELL
        points = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        values = torch.as_tensor(density(points)).detach().cpu().double()
        if values.shape != points.shape:
            raise ValueError(
                f"density returned shape {tuple(values.shape)} for u of shape {tuple(points.shape)}; it must return "
                "one value per u."
            )
        _check_masses(values)
        return values.reshape(self.cells, _POINTS_PER_CELL).mean(dim=1)

    def _count(self, timesteps: Tensor) -> Tensor:
        if self.process.steps is not None:
            self._check_indices(timesteps, self.process.steps)
            cell = timesteps.long()
        else:
            u = self.process.axis(timesteps)
            if not bool(((u >= 0) & (u <= 1)).all()):
                raise ValueError(
                    f"timesteps run from {float(timesteps.min()):g} to {float(timesteps.max()):g}, outside the own "
                    f"times of {self.process!r} ({float(self.process.time(u.new_zeros(1))):g} to "
                    f"{float(self.process.time(u.new_ones(1))):g})."
                )
            cell = (u * self.cells).floor().long().clamp(max=self.cells - 1)
        return torch.bincount(cell, minlength=self.cells).double()

    def _check_indices(self, timesteps: Tensor, steps: int) -> None:
        wrong = (timesteps != timesteps.round()) | (timesteps < 0) | (timesteps >= steps)
        if bool(wrong.any()):
            raise ValueError(
                f"timesteps holds {float(timesteps[wrong][0]):g}; this process has whole timesteps from 0 (clean) "
                f"to {steps - 1} (noise)."
            )


def _check_masses(values: Tensor) -> None:
    finite("density", values)
    if bool((values < 0).any()):
        raise ValueError(f"density has a value of {float(values.min()):g}; probabilities are 0 or more.")
    if not bool((values > 0).any()):
        raise ValueError("density is 0 everywhere; give at least one value above 0.")
