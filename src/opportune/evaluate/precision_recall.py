"""Improved precision and recall: fidelity and coverage, told apart.

Source: Kynkäänniemi et al. 2019, "Improved Precision and Recall Metric for Assessing Generative Models",
eqs. 1–2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import whole


@dataclass(frozen=True)
class PrecisionRecall:
    """`precision`: share of generated in the real manifold; `recall`: share of real in the generated one."""

    precision: float
    recall: float


def precision_recall(
    generated: Tensor, real: Tensor, *, neighbours: int = 3, block_size: int = 1024
) -> PrecisionRecall:
    """From features `generated` `[M, D]` and `real` `[N, D]`.

    The manifold of a set is the union of balls around its members, each reaching the member's
    `neighbours`-th nearest other member. Both values depend on M and N: compare at equal counts.
    """
    if generated.ndim != 2 or real.ndim != 2 or generated.shape[1] != real.shape[1]:
        raise ValueError(f"features have shapes {list(generated.shape)} and {list(real.shape)}; give [M, D], [N, D].")
    whole("neighbours", neighbours, low=1, high=min(len(generated), len(real)) - 1)
    # Centring keeps the distances accurate: they are differences of squared norms.
    centre = real.double().mean(dim=0)
    generated, real = generated.double() - centre, real.double() - centre
    return PrecisionRecall(
        precision=_share_inside(generated, real, neighbours=neighbours, block_size=block_size),
        recall=_share_inside(real, generated, neighbours=neighbours, block_size=block_size),
    )


def _share_inside(points: Tensor, members: Tensor, *, neighbours: int, block_size: int) -> float:
    radii = torch.cat(
        [
            # The nearest member is the member itself, hence one more.
            torch.cdist(block, members).kthvalue(neighbours + 1, dim=1).values
            for block in members.split(block_size)
        ]
    )
    inside = [(torch.cdist(block, members) <= radii).any(dim=1) for block in points.split(block_size)]
    return float(torch.cat(inside).double().mean())
