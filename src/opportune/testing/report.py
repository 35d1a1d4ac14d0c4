"""How a suite says that a method does not conform."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """A method breaks the contract; the message says which part, and what was seen."""


def require(holds: bool, what: str) -> None:
    """Raise :class:`ConformanceError` unless ``holds``."""
    if not holds:
        raise ConformanceError(what)
