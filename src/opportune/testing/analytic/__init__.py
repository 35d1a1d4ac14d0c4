"""Data whose optimal denoiser is known in closed form, and the distance of a network to that optimum."""

from .data import GaussianMixture, anisotropic, gaussian, low_rank, modes, ring
from .excess import Excess, HeldOut, eps_per_target, vlb_coefficients
from .wasserstein import sliced_wasserstein

__all__ = [
    "Excess",
    "GaussianMixture",
    "HeldOut",
    "anisotropic",
    "eps_per_target",
    "gaussian",
    "low_rank",
    "modes",
    "ring",
    "sliced_wasserstein",
    "vlb_coefficients",
]
