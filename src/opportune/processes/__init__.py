"""What noise does to data: DDPM (discrete), VP and VE (continuous), EDM and flow matching."""

from .base import Process
from .continuous import VE, VP
from .ddpm import DDPM
from .edm import EDM
from .flow import Flow

__all__ = ["DDPM", "EDM", "VE", "VP", "Flow", "Process"]
