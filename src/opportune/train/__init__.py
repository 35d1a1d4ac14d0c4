"""The trainer: from a folder of images to a model, on one machine or many, restart invisible.

``from opportune.train import Trainer, TrainConfig``; the rest from the module that holds it, for example
``from opportune.train.checkpoint import Checkpoints``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opportune.train.config import TrainConfig
    from opportune.train.logs import read_log
    from opportune.train.trained import load_trained
    from opportune.train.trainer import Outcome, Trainer

_LATER = {
    "Outcome": "trainer",
    "TrainConfig": "config",
    "Trainer": "trainer",
    "load_trained": "trained",
    "read_log": "logs",
}

__all__ = ["Outcome", "TrainConfig", "Trainer", "load_trained", "read_log"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: checkpoints and data are usable without what the whole trainer needs.
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
