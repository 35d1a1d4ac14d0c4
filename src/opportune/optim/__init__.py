"""Optimizer strategies: what changes in the optimizer while it trains."""

from .mdlrc import MDLRC, EqualDecay

__all__ = ["MDLRC", "EqualDecay"]
