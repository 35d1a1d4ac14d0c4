"""The policy of Kim et al. (CVPR 2025): ``policy`` (network and Beta), ``selection`` (which timesteps), ``kim``."""

from .kim import Kim

__all__ = ["Kim"]
