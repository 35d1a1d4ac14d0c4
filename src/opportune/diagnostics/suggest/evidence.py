"""What a run shows about each noise level: how fast its loss falls, how surely, and what noise costs there.

Two sources. The log of a run (``metrics.jsonl``): means over a few steps per bin of u, read as the adaptive sampler
reads its own history. Or losses at two points of a run on the same examples, noise levels and noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opportune.samplers.progress import LossHistory, smooth

LEAST_RECORDS = 16
"""Records of a log below which nothing is read off it: the windows compared hold a quarter of them each."""
_MARKS = 256
_WIDTH = 1.0  # bins a fall is averaged over


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Per bin of the noise axis, ``[bins]`` float64, the first the cleanest.

    Attributes:
        fall: of the mean raw loss per e-fold of examples.
        error: its standard error; bins are independent.
        level: mean raw loss now.
        drawn: share of the examples that were drawn in the bin; sums to 1.
        source: what it was measured from, in words.
        records: how many records of a log that was; None where it was no log.
    """

    fall: Tensor
    error: Tensor
    level: Tensor
    drawn: Tensor
    source: str
    records: int | None = None

    @property
    def bins(self) -> int:
        """Equal parts of the noise axis."""
        return len(self.fall)

    def resampled(self, count: int, seed: int) -> Tensor:
        """``[count, bins]`` what the falls might have been, had the errors fallen otherwise."""
        noise = torch.randn(count, self.bins, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return self.fall + self.error * noise

    def certainty(self) -> Tensor:
        """``[bins]`` the fall, averaged with its neighbours' as the adaptive sampler does, in standard errors."""
        fall, error = smooth(self.fall, self.error, _WIDTH)
        return fall / error


def from_records(records: Sequence[Mapping[str, Any]]) -> Profile:
    """The profile at the end of a ``metrics.jsonl``; records of other kinds than training are passed over."""
    steps, count, loss = _tables(records)
    history = LossHistory(count.shape[1])
    sums = torch.stack([count, count * loss, count * (loss.square() + _variance(count, loss))], dim=1).cumsum(dim=0)
    rows = torch.linspace(0, len(steps) - 1, min(_MARKS, len(steps))).round().long()
    history.marks[: len(rows)], history.mark_steps[: len(rows)] = sums[rows], steps[rows]
    history.total = sums[-1].clone()
    falls, error, level = history.progress(int(steps[-1]))
    seen = count.sum(dim=0)
    return Profile(
        fall=falls.sum(dim=0),
        error=error,
        level=level.clamp_min(0),
        drawn=seen / seen.sum(),
        source=f"the log of {int(steps[-1])} steps ({int(seen.sum())} examples)",
        records=len(steps),
    )


def from_losses(before: Tensor, after: Tensor, *, growth: float, drawn: Tensor, source: str) -> Profile:
    """The profile between two points of a run.

    Args:
        before, after: ``[bins, N]`` raw losses of the same examples at the same noise levels with the same noise.
        growth: by what factor the number of examples seen grew in between, above 1.
        drawn: ``[bins]`` share of the examples the run draws in each bin.
        source: what was measured, in words.
    """
    if not growth > 1:
        raise ValueError(f"growth={growth:g}; the later point has seen more examples, so it is above 1.")
    if before.shape != after.shape or before.ndim != 2 or before.shape[1] < 2:
        raise ValueError(
            f"before has shape {tuple(before.shape)} and after {tuple(after.shape)}; give both as [bins, N] with "
            "N of 2 or more."
        )
    change, efolds = (before - after).double(), math.log(growth)
    error = change.std(dim=1) / math.sqrt(change.shape[1])
    return Profile(
        fall=change.mean(dim=1) / efolds,
        error=error.clamp_min(1e-9 * float(error.max().clamp_min(1e-30))) / efolds,
        level=after.double().mean(dim=1),
        drawn=drawn / drawn.sum(),
        source=source,
    )


def _tables(records: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor, Tensor]:
    """``(steps [R], count [R, bins], mean loss [R, bins])``; a bin of a record without a finite loss counts nothing."""
    kept = [record for record in records if record.get("kind") == "train" and "bins" in record]
    if not kept:
        raise ValueError(
            f"there is no training record among {len(records)}; give the metrics.jsonl of a run that has been trained "
            "for at least logs.every_steps."
        )
    sizes = {len(record["bins"]["count"]) for record in kept}
    if len(sizes) > 1:
        raise ValueError(f"records have {sorted(sizes)} bins; give those of one run, which has one number (logs.bins).")
    steps = torch.tensor([int(record["step"]) for record in kept])
    if bool((steps.diff() <= 0).any()):
        raise ValueError("records are not in the order of their steps; give the log of one run as it was written.")
    values = [[math.nan if value is None else value for value in record["bins"]["raw_loss"]] for record in kept]
    loss = torch.tensor(values, dtype=torch.float64)
    count = torch.tensor([record["bins"]["count"] for record in kept], dtype=torch.float64)
    known = torch.isfinite(loss)
    count = torch.where(known, count, 0.0)
    if not bool(count.sum() > 0):
        raise ValueError("no record has a finite loss; look for losses that are NaN or infinite.")
    return steps, count, torch.where(known, loss, 0.0)


def _variance(count: Tensor, loss: Tensor) -> Tensor:
    """``[bins]`` variance of a single loss: the differences of neighbouring records hold it, and hardly any trend.

    From the second half of the log, since the start differs from record to record for another reason.
    """
    half = len(count) // 2
    first, second = count[half:-1], count[half + 1 :]
    both = (first > 0) & (second > 0)
    squared = loss[half:].diff(dim=0).square() / (1 / first.clamp_min(1) + 1 / second.clamp_min(1))
    return torch.where(both, squared, 0.0).sum(dim=0) / both.sum(dim=0).clamp_min(1)
