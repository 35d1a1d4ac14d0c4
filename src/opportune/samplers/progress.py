"""How fast the loss falls at each noise level, from nothing but the training losses.

A denoising loss is mostly irreducible: its size says little about what is left to learn. Its *fall* does: what cannot
be learned does not fall. If the reducible part follows a power law of the examples n seen at a noise level,
``excess ~ n^-b``, then ``-d loss / d ln n = b * excess``: the fall per doubling of n is the excess, up to b.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..checks import whole

_MARKS_PER_DOUBLING = 8
_MARKS = 256  # 8 per doubling: enough for 2^32 steps


class Progress(NamedTuple):
    """What the losses of the last three quarters of a run say, per e-fold of examples seen in a bin.

    Attributes:
        falls: ``[2, bins]`` of the mean loss, from one quarter to the next; their sum is the fall over the whole way.
        error: ``[bins]`` standard error of that sum.
        level: ``[bins]`` mean loss of the last quarter.
    """

    falls: Tensor
    error: Tensor
    level: Tensor


class LossHistory(nn.Module):
    """Cumulative count, sum and sum of squares of the loss per bin, remembered at steps 1, 2, ... that grow by 9 %.

    Windows of any past stretch are differences of two marks, so early and late losses can be compared at every scale
    of a run of unknown length, in a table of fixed size.
    """

    total: Tensor
    marks: Tensor
    mark_steps: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = whole("bins", bins, low=1)
        self.register_buffer("total", torch.zeros(3, bins, dtype=torch.float64))
        self.register_buffer("marks", torch.zeros(_MARKS, 3, bins, dtype=torch.float64))
        self.register_buffer("mark_steps", torch.zeros(_MARKS, dtype=torch.int64))

    @torch.no_grad()
    def add(self, u: Tensor, losses: Tensor) -> None:
        """Take in ``losses`` ``[N]`` seen at ``u`` ``[N]``; NaN and infinite ones are left out."""
        device = self.total.device
        u, losses = u.to(device).double(), losses.to(device).double()
        kept = torch.isfinite(losses) & torch.isfinite(u)
        losses = torch.where(kept, losses, 0.0)
        bins = (torch.where(kept, u, 0.0) * self.bins).long().clamp_(0, self.bins - 1)
        self.total.index_add_(1, bins, torch.stack([kept.double(), losses, losses.square()]))

    def remember(self, step: int) -> bool:
        """Call after step number ``step`` (from 1); returns True at the steps that are marked."""
        index = mark_index(step)
        if index is None:
            return False
        self.marks[index] = self.total
        self.mark_steps[index] = step
        return True

    def progress(self, step: int) -> Progress:
        """How the mean loss of each bin moved over the last three quarters of the ``step`` steps so far."""
        marks = [*(self._at(share * step) for share in (0.25, 0.5, 0.75)), self.total]
        counts, means, variances = zip(*map(_window, marks[:-1], marks[1:]), strict=True)
        growth = ((marks[2][0] + marks[3][0]) / (marks[0][0] + marks[1][0]).clamp_min(1)).clamp_min(1.05).log()
        error = (variances[0] / counts[0] + variances[2] / counts[2]).sqrt()
        falls = torch.stack([means[0] - means[1], means[1] - means[2]])
        return Progress(falls / growth, error / growth, means[2])

    def _at(self, step: float) -> Tensor:
        """The cumulative sums at the mark nearest to ``step``, zeros before the first."""
        distance = (self.mark_steps - step).abs()
        distance[self.mark_steps == 0] = step  # unused rows are all zeros: the state at step 0
        return self.marks[int(distance.argmin())]


def mark_index(step: int) -> int | None:
    """Index of the mark at ``step``, None if it is not one: the j-th mark lies at ceil(2^(j/8))."""
    if step < 1:
        return None
    index = math.floor(_MARKS_PER_DOUBLING * math.log2(step) + 1e-9)
    return index if math.ceil(2 ** (index / _MARKS_PER_DOUBLING) - 1e-9) == step and index < _MARKS else None


def _window(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(count, mean, variance)`` per bin of what came in between two cumulative sums; thin bins: a wide variance."""
    count, total, squares = (end - start).unbind()
    safe = count.clamp_min(1)
    mean = total / safe
    overall = squares.sum() / count.sum().clamp_min(1)
    variance = torch.where(count >= 2, (squares / safe - mean.square()).clamp_min(0), overall)
    return safe, mean, variance.clamp_min(1e-12 * overall.clamp_min(1e-30))


def smooth(values: Tensor, errors: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Average with neighbouring bins, weighted by a Gaussian of ``width`` bins and by precision; errors follow.

    ``values`` ``[..., bins]``, each with the ``errors`` ``[bins]``.
    """
    place = torch.arange(errors.shape[0], dtype=torch.float64, device=errors.device)
    weight = torch.exp(-0.5 * ((place[:, None] - place[None]) / width) ** 2) / errors.square()[None]
    weight = weight / weight.sum(dim=1, keepdim=True)
    return values @ weight.T, (weight.square() @ errors.square()).sqrt()


def positive_mean(value: Tensor, error: Tensor) -> Tensor:
    """Mean of a quantity known to be positive, measured as ``value`` with a Gaussian ``error``.

    ``value + error * phi(z) / Phi(z)`` with z = value / error. A value far below zero gives about error / |z|; one that
    is not known at all gives about the error: what has not been measured well is drawn more, and so gets measured.
    """
    z = value / error
    ratio = torch.exp(-0.5 * z.square() - torch.special.log_ndtr(z)) / math.sqrt(2 * math.pi)
    return torch.where(z > -8, value + error * ratio, error / z.abs().clamp_min(1))
