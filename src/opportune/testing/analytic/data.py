"""Mixtures of Gaussians: every one has ``E[x0 | x_t]`` in closed form, whatever the noise level.

One class covers the isotropic and anisotropic Gaussian, separate modes, and low-dimensional manifolds in a higher
space (components that are flat in most directions).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...checks import number, whole
from ...random_streams import generator

_CHUNK = 2_000_000  # numbers held at once while the posterior is computed
_BOUNDS_FROM = 65_536


class GaussianMixture:
    """``sum_k w_k N(m_k, Q_k diag(v_k) Q_k^T)`` in D dimensions.

    Args:
        means: ``[K, D]``.
        variances: ``[K, D]`` along the axes of ``basis``; zero is allowed (a component flat in that direction).
        basis: ``[K, D, D]`` orthogonal, its columns the axes; None is the coordinate axes.
        weights: ``[K]``, normalised here; None is equal weights.
    """

    def __init__(
        self,
        means: Tensor,
        variances: Tensor,
        *,
        basis: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        if means.ndim != 2 or variances.shape != means.shape:
            raise ValueError(f"means {tuple(means.shape)} and variances {tuple(variances.shape)} must both be [K, D].")
        count, dimension = means.shape
        if bool((variances < 0).any()):
            raise ValueError(f"variances has a minimum of {float(variances.min()):g}; give 0 or more.")
        if basis is not None and basis.shape != (count, dimension, dimension):
            raise ValueError(f"basis has shape {tuple(basis.shape)}; give {(count, dimension, dimension)}.")
        weights = torch.ones(count) if weights is None else weights
        if weights.shape != (count,) or bool((weights <= 0).any()):
            raise ValueError(f"weights must be {count} positive numbers, one per component.")
        self.means = means.double()
        self.variances = variances.double()
        self.basis = None if basis is None else basis.double()
        self.weights = weights.double() / weights.double().sum()

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.means.shape[1])

    def mean(self) -> Tensor:
        """``[D]``."""
        return self.weights @ self.means

    def variance(self) -> float:
        """Variance of a coordinate, averaged over the D coordinates."""
        spread = self.means - self.mean()
        return float(self.weights @ (spread.square() + self.variances).mean(dim=1))

    def scaled(self, factor: float) -> GaussianMixture:
        """The same data times ``factor``."""
        number("factor", factor, low=0, open_low=True)
        return GaussianMixture(self.means * factor, self.variances * factor**2, basis=self.basis, weights=self.weights)

    def standardised(self) -> GaussianMixture:
        """Shifted to mean 0 and scaled to a variance of 1, averaged over coordinates (the shape is kept)."""
        centred = GaussianMixture(self.means - self.mean(), self.variances, basis=self.basis, weights=self.weights)
        return centred.scaled(1 / math.sqrt(self.variance()))

    def sample(self, count: int, seed: int) -> Tensor:
        """``[count, D]`` float32; the same for the same seed."""
        random = generator(seed, "analytic data", whole("count", count, low=1))
        component = torch.multinomial(self.weights, count, replacement=True, generator=random)
        along = torch.randn(count, self.dimension, generator=random, dtype=torch.float64)
        along *= self.variances[component].sqrt()
        if self.basis is not None:
            for k in range(len(self.weights)):  # gathering [count, D, D] would need gigabytes
                mine = component == k
                along[mine] = along[mine] @ self.basis[k].T
        return (self.means[component] + along).float()

    def bounds(self) -> tuple[Tensor, Tensor]:
        """``(low [D], high [D])``: the range of 65,536 examples, what generated x0 is clipped to."""
        examples = self.sample(_BOUNDS_FROM, seed=0)
        return examples.amin(dim=0), examples.amax(dim=0)

    def posterior_mean(self, x_t: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> Tensor:
        """``E[x0 | x_t]`` ``[B, D]`` for ``x_t = alpha x0 + sigma eps`` ``[B, D]``, in the dtype of ``x_t``.

        Each component's posterior is Gaussian; the answer is their mean, weighted by how likely each made ``x_t``.
        Computed in float64 with log-sum-exp: at little noise the likelihoods differ by thousands of nats.
        """
        if x_t.ndim != 2 or x_t.shape[1] != self.dimension:
            raise ValueError(f"x_t has shape {tuple(x_t.shape)}; this data is [B, {self.dimension}].")
        a, s = (_column(value, len(x_t)) for value in (alpha, sigma))
        if bool((s <= 0).any()):
            raise ValueError(f"sigma has a minimum of {float(s.min()):g}; the posterior needs noise, sigma > 0.")
        rows = max(1, _CHUNK // self.means.numel())
        parts = [
            self._posterior(x, alpha, sigma)
            for x, alpha, sigma in zip(x_t.double().split(rows), a.split(rows), s.split(rows), strict=True)
        ]
        return torch.cat(parts).to(x_t.dtype)

    def _posterior(self, x_t: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        away = x_t[:, None] - alpha[:, None] * self.means  # [B, K, D]
        if self.basis is not None:
            away = torch.einsum("bkd,kde->bke", away, self.basis)
        total = alpha[:, None].square() * self.variances + sigma[:, None].square()
        log_likelihood = -0.5 * (away.square() / total + total.log()).sum(dim=2)
        share = torch.softmax(self.weights.log() + log_likelihood, dim=1)  # [B, K]
        shift = alpha[:, None] * self.variances / total * away * share[..., None]
        if self.basis is None:
            return share @ self.means + shift.sum(dim=1)
        return share @ self.means + torch.einsum("bke,kde->bd", shift, self.basis)


def gaussian(dimension: int, *, std: float = 1.0) -> GaussianMixture:
    """N(0, std^2 I)."""
    shape = (1, whole("dimension", dimension, low=1))
    return GaussianMixture(torch.zeros(shape), torch.full(shape, number("std", std, low=0, open_low=True) ** 2))


def anisotropic(dimension: int, *, decay: float = 1.0, seed: int = 0) -> GaussianMixture:
    """A Gaussian whose k-th variance falls as ``k^-decay`` along random axes: detail at every scale, as in images."""
    rank = torch.arange(1, whole("dimension", dimension, low=1) + 1, dtype=torch.float64)
    variances = rank.pow(-number("decay", decay, low=0))[None]
    basis = _rotations(1, dimension, seed)
    return GaussianMixture(torch.zeros_like(variances), variances, basis=basis).standardised()


def modes(dimension: int, *, count: int = 40, std: float = 0.05, seed: int = 0) -> GaussianMixture:
    """``count`` narrow round modes at random places."""
    means = _normal((whole("count", count, low=1), whole("dimension", dimension, low=1)), seed, "modes")
    return GaussianMixture(means, torch.full_like(means, number("std", std, low=0) ** 2)).standardised()


def ring(dimension: int, *, count: int = 64, std: float = 0.05, seed: int = 0) -> GaussianMixture:
    """Modes evenly along a circle that a random orthogonal map lays into D dimensions; radius 1 before scaling."""
    whole("dimension", dimension, low=2)
    angle = 2 * math.pi * torch.arange(whole("count", count, low=1), dtype=torch.float64) / count
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    means = circle @ _rotations(1, dimension, seed)[0, :, :2].T
    return GaussianMixture(means, torch.full_like(means, number("std", std, low=0) ** 2)).standardised()


def low_rank(
    dimension: int, *, rank: int = 2, count: int = 8, thickness: float = 0.0, seed: int = 0
) -> GaussianMixture:
    """``count`` flat pieces: variance 1 in ``rank`` random directions, ``thickness`` squared in the others."""
    whole("rank", rank, low=1, high=dimension)
    means = _normal((whole("count", count, low=1), dimension), seed, "low rank")
    variances = torch.full_like(means, number("thickness", thickness, low=0) ** 2)
    variances[:, :rank] = 1
    return GaussianMixture(means, variances, basis=_rotations(count, dimension, seed)).standardised()


def _column(value: Tensor | float, count: int) -> Tensor:
    return torch.as_tensor(value).double().reshape(-1, 1).expand(count, 1)


def _normal(shape: tuple[int, ...], seed: int, purpose: str) -> Tensor:
    return torch.randn(shape, generator=generator(seed, purpose), dtype=torch.float64)


def _rotations(count: int, dimension: int, seed: int) -> Tensor:
    """``[count, D, D]`` orthogonal."""
    q, _ = torch.linalg.qr(_normal((count, dimension, dimension), seed, "rotations"))
    return torch.as_tensor(q)
