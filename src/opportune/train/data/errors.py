"""What can go wrong with data, and the one way to import an optional library."""

from __future__ import annotations

import importlib
from typing import Any


class DataError(ValueError):
    """The data cannot be used; the message names the place looked at and the remedy."""


class NoSuchSplit(DataError):
    """The dataset opens, but has no such split; ``hold_out`` makes a validation set from the training one."""


class BadImage(DataError):
    """One image cannot be used. ``name`` is its file or row, ``reason`` says what is wrong with it."""

    def __init__(self, name: str, reason: str) -> None:
        # Both go into ``args``: the error travels from loader workers to the main process.
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"bad image {self.name}: {self.reason}"


class WorkerDied(RuntimeError):
    """A loader worker was killed or does not answer."""


def need(module: str, extra: str) -> Any:
    """Import an optional library, or fail with one line that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is not installed; run: pip install "opportune[{extra}]"') from error
