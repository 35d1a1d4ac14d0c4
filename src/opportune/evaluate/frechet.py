"""Fréchet distance between two Gaussians fitted to features.

Source: Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash
Equilibrium", eq. 6. The estimate is biased upwards at small n (Bińkowski et al. 2018, "Demystifying MMD
GANs"): compare at equal n only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Count, mean `[D]` and scatter `[D, D]` (sum of outer products of deviations) of features, all in
    float64.

    Moments of parts merge exactly, in any order, so every rank can fit its own images:
    `Moments.of(a).merge(Moments.of(b))` equals `Moments.of(torch.cat([a, b]))`.
    """

    count: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Moments of `features` `[N, D]`."""
        if features.ndim != 2 or len(features) == 0:
            raise ValueError(f"features have shape {list(features.shape)}; give [N, D] with N of at least 1.")
        features = features.double()
        mean = features.mean(dim=0)
        centred = features - mean
        return cls(len(features), mean, centred.T @ centred)

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets together (Chan, Golub & LeVeque 1979, eq. 2.1)."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"moments of {len(self.mean)} and of {len(other.mean)} features cannot be merged.")
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        between = torch.outer(gap, gap) * (self.count * other.count / count)
        return Moments(count, mean, self.scatter + other.scatter + between)

    @property
    def covariance(self) -> Tensor:
        """Unbiased covariance `[D, D]`."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 examples; there is {self.count}.")
        return self.scatter / (self.count - 1)


def frechet_distance(first: Moments, second: Moments) -> float:
    """`|μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁^½ Σ₂ Σ₁^½)^½)`.

    `Σ₁^½ Σ₂ Σ₁^½` has the eigenvalues of `Σ₁ Σ₂` but is symmetric, so both roots come from a symmetric
    eigendecomposition: no complex numbers, and singular covariances (n below D) need no correction.
    """
    if first.mean.shape != second.mean.shape:
        raise ValueError(f"features of {len(first.mean)} and {len(second.mean)} dimensions cannot be compared.")
    values, vectors = torch.linalg.eigh(first.covariance)
    root = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.T
    product = torch.linalg.eigvalsh(root @ second.covariance @ root)
    trace_of_root = product.clamp(min=0.0).sqrt().sum()
    gap = (first.mean - second.mean).square().sum()
    distance = gap + first.covariance.trace() + second.covariance.trace() - 2.0 * trace_of_root
    return max(float(distance), 0.0)  # equal inputs may come out at minus a rounding error
