"""What a sampler may ask to be measured: losses, gradients, and probes before and after a step."""

from .gradient import descent, gradient_of, moments, moved, trainable
from .loss import losses_at, untouched
from .probe import Measurement, per_example

__all__ = [
    "Measurement",
    "descent",
    "gradient_of",
    "losses_at",
    "moments",
    "moved",
    "per_example",
    "trainable",
    "untouched",
]
