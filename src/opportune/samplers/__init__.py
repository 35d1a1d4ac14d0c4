"""Which timestep to train next: one file per method, plus wrappers that compose with any of them."""

from .base import Common, Sampler, Watch
from .table import FixedSampler, TableSampler

__all__ = ["Common", "FixedSampler", "Sampler", "TableSampler", "Watch"]
