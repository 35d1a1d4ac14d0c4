"""How much each timestep's loss counts: one file per method."""

from .base import Weighting, log_conversion

__all__ = ["Weighting", "log_conversion"]
