"""Logs of runs that never were, with a known best density: at every noise level a power law and noise on top."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BINS = 20


def history(
    left: Tensor,
    drawn: Tensor | None = None,
    *,
    steps: int = 3000,
    every: int = 50,
    batch: int = 128,
    exponent: float = 1.0,
    floor: float = 0.1,
    spread: float = 0.1,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Records as in ``metrics.jsonl``: loss = left (n / n_final)^-exponent + floor, each example off by ``spread``.

    Args:
        left: ``[bins]`` the reducible loss at the end, were every bin drawn alike.
        drawn: ``[bins]`` shares of the draws, uniform by default.
    """
    random = torch.Generator().manual_seed(seed)
    shares = torch.full_like(left, 1 / len(left)) if drawn is None else drawn / drawn.sum()
    records = []
    for step in range(every, steps + 1, every):
        count = (shares * every * batch).round()
        seen = shares * len(left) * (step - every / 2) / steps
        noise = torch.randn(len(left), generator=random, dtype=torch.float64) * spread / count.sqrt()
        loss = left * seen.clamp_min(1e-9).pow(-exponent) + floor + noise
        bins = {"count": count.int().tolist(), "raw_loss": loss.tolist()}
        records.append({"kind": "train", "step": step, "bins": bins})
    return records


def objective(left: Tensor, masses: Tensor, exponent: float = 1.0) -> float:
    """What such a run would have left in all, drawn by ``masses`` ``[bins]`` from its start."""
    return float((left * (masses * len(left)).pow(-exponent)).mean())


def optimum(left: Tensor, exponent: float = 1.0) -> Tensor:
    """The masses at which that is least: p ~ left^(1 / (1 + exponent))."""
    masses = left.pow(1 / (1 + exponent))
    return masses / masses.sum()
