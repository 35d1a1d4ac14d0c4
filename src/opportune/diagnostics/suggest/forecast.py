"""What another density, or another weighting, would do for the same run: the quantities a suggestion is chosen by.

The reasoning is that of :class:`~opportune.samplers.adaptive.Adaptive`, for a density and a weighting that stay fixed.

**Density.** With s the share of what is left to learn that lies in each bin and n the examples there, ``sum s ln n``
falls short of its best, at p = s, by the divergence KL(s | p). So the nearest member of a family is the one with the
smallest divergence, and what a density p gains on the drawn q is ``sum s ln(p / q)`` e-folds of examples, averaged over
where the objective still falls.

**Left to learn.** The fall g was measured at the drawn density. Drawing n times as much, it would be ``g n^-b``; the
rule of ``adaptive``, p ~ (w g)^0.8, stays put where p ~ (w g (p / q)^-b)^0.8, so from uniform draws at
p ~ (w g)^(0.8 / (1 + 0.8 b)). :data:`POWER` is that at b = 1, which is about what early and late falls show.

**Weighting.** A weight c scales what an example counts, and Adam divides by the root mean square of the gradient, so it
gains ``sum s ln c - ln(sum p c^2 V) / 2``, V being the mean loss: at p = s most with c = 1 / sqrt(V).
"""

from __future__ import annotations

import torch
from torch import Tensor

from opportune.samplers.adaptive import gradient_noise, learning_share
from opportune.samplers.progress import smooth

POWER = 0.45
EXPONENT = 0.6
"""The reducible loss falls as the examples to minus this: fitted to forecasts on the tuning mixtures."""
MISS = 0.16
"""Root mean square error, there, of the logarithm of the loss forecast from it."""
_LEAST = 1e-12  # of a bin no member of a family reaches: its logarithm stays finite


def left_to_learn(fall: Tensor, error: Tensor, wanted: Tensor, drawn: Tensor) -> Tensor:
    """``[bins]`` share of what is left to learn, for the density to be drawn; sums to 1.

    Args:
        fall, error: ``[bins]`` of the loss per e-fold of examples.
        wanted: ``[bins]`` weight of the objective.
        drawn: ``[bins]`` share of the examples that were drawn there.
    """
    # g was measured at q, so the fixed point is p ~ (w g q^b)^POWER.
    reached = (drawn * len(drawn)).clamp_min(_LEAST)
    share = learning_share(*smooth(fall * reached, error * reached, width=1.0), wanted, power=POWER)
    if share is None:
        raise ValueError("nothing was measured to fall at any noise level, so there is nothing to suggest.")
    return share


def efolds_of_density(share: Tensor, masses: Tensor, drawn: Tensor) -> Tensor:
    """E-folds that densities ``[..., bins]`` gain on the one drawn; for shares ``[S, bins]`` it is ``[S, ...]``."""
    gained = (masses.clamp_min(_LEAST) / drawn.clamp_min(_LEAST)).log()
    efolds: Tensor = torch.tensordot(share, gained, dims=([-1], [-1]))
    return efolds


def efolds_of_weighting(share: Tensor, masses: Tensor, level: Tensor, weight: Tensor, now: Tensor) -> float:
    """E-folds that ``weight`` ``[bins]`` gains on the one there is ``now``, with draws from ``masses``."""
    noise = gradient_noise(level, torch.ones_like(level))
    if noise is None:
        return 0.0

    def examples(c: Tensor) -> Tensor:
        return share @ c.clamp_min(_LEAST).log() - (masses @ (c * noise).square()).log() / 2

    return float(examples(weight) - examples(now))
