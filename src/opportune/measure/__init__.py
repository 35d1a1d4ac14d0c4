"""What a sampler may ask to be measured: losses, gradients, and probes before and after a step."""

from .gradient import gradient_of, moments, trainable
from .loss import losses_at, untouched
from .probe import Measurement, per_example

__all__ = [
    "Measurement",
    "gradient_of",
    "losses_at",
    "moments",
    "per_example",
    "trainable",
    "untouched",
]
