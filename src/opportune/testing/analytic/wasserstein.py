"""Distance between two clouds of points without a feature extractor."""

from __future__ import annotations

import torch
from torch import Tensor

from ...checks import whole
from ...random_streams import generator


def sliced_wasserstein(a: Tensor, b: Tensor, *, projections: int = 128, seed: int = 0) -> float:
    """2-Wasserstein distance of ``a`` ``[N, D]`` and ``b`` ``[M, D]`` along random directions, root mean square.

    In one dimension the optimal transport pairs sorted points; the larger cloud is read at the quantiles of the
    smaller. The directions depend on ``seed`` alone, so methods are compared along the same ones.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} must be [N, D] and [M, D].")
    random = generator(seed, "projections")
    directions = torch.randn(a.shape[1], whole("projections", projections, low=1), generator=random)
    directions /= directions.norm(dim=0)
    few, many = sorted(((x.float() @ directions).sort(dim=0).values for x in (a, b)), key=len)
    quantile = (torch.arange(len(few)) + 0.5) / len(few)
    return float((few - many[(quantile * len(many)).long()]).square().mean().sqrt())
