"""See why: what is drawn, what it costs and what it changes, as data; drawing is separate (``diagnostics.plots``).

What needs more than torch comes when it is asked for: ``plots``, and for runs of ``opportune train`` ``open_stages``
and ``suggest_for``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .consistency import Consistency, consistency
from .density_map import DensityMap, density_map
from .found import Found, read_json, write_json
from .gradient_variance import GradientVariance, gradient_variance
from .increment import ProcessIncrement, process_increment
from .interdependence import Interdependence, interdependence
from .loss_profile import LossProfile, loss_profile
from .over_training import DensityOverTraining, LossOverTraining, density_over_training, loss_over_training
from .overhead import Overhead, Ratio, overhead
from .suggest import Suggestion, suggest

if TYPE_CHECKING:
    from . import plots, runs
    from .runs import open_stages
    from .suggest.run import suggest_for

__all__ = [
    "Consistency",
    "DensityMap",
    "DensityOverTraining",
    "Found",
    "GradientVariance",
    "Interdependence",
    "LossOverTraining",
    "LossProfile",
    "Overhead",
    "ProcessIncrement",
    "Ratio",
    "Suggestion",
    "consistency",
    "density_map",
    "density_over_training",
    "gradient_variance",
    "interdependence",
    "loss_over_training",
    "loss_profile",
    "open_stages",
    "overhead",
    "plots",
    "process_increment",
    "read_json",
    "runs",
    "suggest",
    "suggest_for",
    "write_json",
]


def __getattr__(name: str) -> Any:
    if name in ("plots", "runs"):
        return import_module(f"{__name__}.{name}")
    if name == "open_stages":
        return import_module(f"{__name__}.runs").open_stages
    if name == "suggest_for":
        return import_module(f"{__name__}.suggest.run").suggest_for
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
