"""opportune: choose which timestep a diffusion or flow-matching model trains next."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .attach import Attachment, attach
from .names import sampler, samplers, weighting, weightings
from .objective import Objective, objective
from .processes import DDPM, EDM, VE, VP, Flow, Process
from .samplers import Sampler
from .step import training_steps
from .types import Draw, Probe, Request, StepRecord
from .weightings import Weighting

if TYPE_CHECKING:
    from .citations import cite
    from .optim.mdlrc import MDLRC, EqualDecay

__version__ = "0.1.0"

_LATER = {
    "MDLRC": "optim.mdlrc",
    "EqualDecay": "optim.mdlrc",
    "cite": "citations",
}
_ROOMS = ("adapters", "compare", "diagnostics", "report", "testing")

__all__ = [
    "DDPM",
    "EDM",
    "MDLRC",
    "VE",
    "VP",
    "Attachment",
    "Draw",
    "EqualDecay",
    "Flow",
    "Objective",
    "Probe",
    "Process",
    "Request",
    "Sampler",
    "StepRecord",
    "Weighting",
    "attach",
    "cite",
    "objective",
    "sampler",
    "samplers",
    "training_steps",
    "weighting",
    "weightings",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
