"""Our samplers behind the calls other people's training scripts already make. Nothing of theirs is imported."""

from .diffusers import TimestepDensity
from .openai_style import ScheduleSampler

__all__ = ["ScheduleSampler", "TimestepDensity"]
