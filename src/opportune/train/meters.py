"""Averages per part of the noise axis, kept on the device until a record is written: nothing is fetched per step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from opportune.distributed import place
from opportune.types import StepRecord

_ROWS = ("count", "raw_loss", "weighted_loss", "density", "correction", "measured", "gain")
_SCALARS = ("steps", "skipped", "loss", "gradient_norm", "largest_gradient_norm")


class Meters:
    """Sums since the last record.

    Per bin of ``u`` (equal parts of [0, 1), 0 clean, 1 noise): how many examples, their raw and weighted losses, the
    sampler's density and correction, and by how much a step lowered the losses of the sampler's own probes (gain).
    """

    def __init__(self, bins: int, device: torch.device) -> None:
        self.bins = bins
        # Sums of many float32 losses; float64 where the device has it.
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._table = torch.zeros(len(_ROWS), bins, dtype=kind, device=device)
        self._scalars = torch.zeros(len(_SCALARS), dtype=kind, device=device)

    @torch.no_grad()
    def add(self, record: StepRecord, weighted: Tensor, probed: StepRecord | None) -> None:
        """Take in this rank's share of a step, and what the sampler measured around it (gathered over all ranks)."""
        table, scalars = self._table, self._scalars
        step = [1.0, float(record.skipped), 0.0, 0.0, 0.0]
        scalars += torch.tensor(step, dtype=scalars.dtype, device=scalars.device)
        if record.skipped or record.losses is None:
            return
        draw = record.draw
        rows = torch.stack([torch.ones_like(draw.u), record.losses, weighted, draw.density, draw.correction])
        table[:5].index_add_(1, self._bin(draw.u), rows.to(table.dtype))
        if record.loss is not None:
            scalars[2] += record.loss
        if record.gradient_norm is not None:
            scalars[3] += record.gradient_norm
            torch.maximum(scalars[4], record.gradient_norm.to(scalars.dtype), out=scalars[4])
        if probed is not None and probed.before is not None and probed.after is not None and probed.probe_u is not None:
            gain = (probed.before - probed.after).flatten()
            # Every rank holds the probes of all; each counts its share, so that sums over ranks count them once.
            rank, world = place()
            u, gain = probed.probe_u.flatten()[rank::world], gain[rank::world]
            table[5:].index_add_(1, self._bin(u), torch.stack([torch.ones_like(gain), gain]).to(table.dtype))

    def record(self) -> dict[str, Any]:
        """Averages over all ranks since the last call, as JSON would hold them; starts again from zero."""
        table, scalars, largest = self._table.clone(), self._scalars[:4].clone(), self._scalars[4].clone()
        if place()[1] > 1:
            dist.all_reduce(table)
            dist.all_reduce(scalars)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            scalars /= place()[1]
        self._table.zero_()
        self._scalars.zero_()
        count, raw, weighted, density, correction, measured, gain = table.tolist()
        steps, skipped, loss, norm = scalars.tolist()
        taken = steps - skipped
        return {
            "loss": _mean(loss, taken),
            "raw_loss": _mean(sum(raw), sum(count)),
            "gradient_norm": _mean(norm, taken),
            "largest_gradient_norm": float(largest) if taken else None,
            "skipped_steps": round(skipped),
            "bins": {
                "count": [round(n) for n in count],
                "raw_loss": _means(raw, count),
                "weighted_loss": _means(weighted, count),
                "density": _means(density, count),
                "correction": _means(correction, count),
                "gain": _means(gain, measured),
            },
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The sums of this rank."""
        return {"table": self._table.clone(), "scalars": self._scalars.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._table.copy_(state["table"])
        self._scalars.copy_(state["scalars"])

    def _bin(self, u: Tensor) -> Tensor:
        return (u * self.bins).long().clamp_(0, self.bins - 1).to(self._table.device)


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


def _means(totals: list[float], counts: list[float]) -> list[float | None]:
    return [_mean(total, count) for total, count in zip(totals, counts, strict=True)]
