"""Densities held as the masses of cells of the u axis: what every fixed and histogram method stands on.

Discrete processes have T cells, one per timestep; continuous ones 4096. Within a cell the density is constant, so the
density declared is exactly the density drawn from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from ..processes import Process
from .base import Common, Sampler

_INSET = 1e-3  # draws keep this share of a cell away from its edges, so that float32 rounding cannot change the cell


def cell_of(u: Tensor, cells: int) -> Tensor:
    """Index of the cell that ``u`` ``[...]`` falls in, int64."""
    return (u.double() * cells).floor().long().clamp_(0, cells - 1)


def place_in_cells(v: Tensor, masses: Tensor, cdf: Tensor) -> Tensor:
    """``u`` ``[B]`` of uniforms ``v`` ``[B]`` float64 through the inverse CDF of cell masses ``[cells]``."""
    cells = masses.shape[0]
    v = v * cdf[-1]
    cell = torch.searchsorted(cdf, v, right=True).clamp_(max=cells - 1)
    mass = masses[cell]
    start = cdf[cell] - mass
    within = ((v - start) / mass).clamp(0, 1)
    # In float64 from the start: int + float is of torch's default dtype, in which a cell may not be a number.
    return (cell.double() + _INSET + (1 - 2 * _INSET) * within) / cells


class TableSampler(Sampler):
    """A sampler whose density is a table; methods call :meth:`set_masses`."""

    masses: Tensor
    cdf: Tensor

    def __init__(self, process: Process, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.cells = process.cells
        self.register_buffer("masses", torch.full((self.cells,), 1 / self.cells, dtype=torch.float64))
        self.register_buffer("cdf", torch.cumsum(self.masses, dim=0), persistent=False)

    def set_masses(self, masses: Tensor) -> None:
        """Replace the density by cell masses ``[cells]`` (normalised here)."""
        masses = masses.detach().double()
        if masses.shape != (self.cells,):
            raise ValueError(f"masses has shape {tuple(masses.shape)}; this process has {self.cells} cells.")
        total = masses.sum()
        if not bool(torch.isfinite(total)) or not bool(total > 0) or bool((masses < 0).any()):
            raise ValueError(
                f"masses sum to {float(total):g} with a minimum of {float(masses.min()):g}; they must be finite, "
                "not negative and not all zero."
            )
        self.masses = masses / total
        self._refresh_cdf()

    def _refresh_cdf(self) -> None:
        self.cdf = torch.cumsum(self.masses, dim=0)

    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        return place_in_cells(v, self.masses, self.cdf)

    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        return self.masses[self._cell(u)] * self.cells

    def _cell(self, u: Tensor) -> Tensor:
        return cell_of(u, self.cells)

    def _masses(self, cells: int) -> Tensor:
        return self.masses if cells == self.cells else super()._masses(cells)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._refresh_cdf()


class FixedSampler(TableSampler):
    """A published density known in closed form: methods give its cumulative probability at the cell edges."""

    def _build(self) -> None:
        """Fill the table; called at the end of a method's ``__init__``."""
        edges, levels = torch.linspace(0, 1, self.cells + 1, dtype=torch.float64), self.process.edge_log_snr()
        masses = self.cumulative(edges, levels).diff()
        if not bool(torch.isfinite(masses).all()) or float(masses.sum()) <= 1e-12:
            raise ValueError(
                f"{type(self).__name__} puts no probability on the noise levels of {self.process!r}: "
                f"{self._numbers()} lie outside what it covers, ln SNR from {float(levels[-1]):g} to "
                f"{float(levels[0]):g}. Give numbers within."
            )
        self.set_masses(masses.clamp_min(0))
        if self.unbiased:
            self._warn_uncovered()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # The density follows from the settings; a saved one that differs would silently replace what was asked for.
        saved = state_dict.get(f"{prefix}masses", self.masses).to(self.masses)
        if saved.shape == self.masses.shape and not torch.allclose(saved, self.masses, rtol=1e-6, atol=1e-9):
            raise ValueError(f"its density is not that of {type(self).__name__}({self._numbers()})")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _warn_uncovered(self) -> None:
        never = int((self.masses == 0).sum())
        if never > self.cells / 1000:
            self.warn_once(
                f"unbiased=True cannot hold for {type(self).__name__}: {never} of {self.cells} cells are never drawn, "
                'and no correction makes up for that. Mix in uniform: op.sampler("mixture", process, of=...).'
            )

    @abstractmethod
    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        """Cumulative probability up to each edge, ``[cells + 1]``, rising along u.

        ``u`` and ``log_snr`` are the edges in the two coordinates; it need not start at 0 or end at 1, the table is
        normalised over what the process covers.
        """
