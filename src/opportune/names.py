"""Names of methods: ``op.sampler("kim", process)`` finds the class, ours or an outside package's.

Outside packages register with the entry-point groups ``opportune.samplers`` and ``opportune.weightings``.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Unpack, get_args, get_origin, get_type_hints

from .checks import closest, one_of
from .processes import Process
from .samplers.base import Sampler
from .weightings.base import Weighting

SAMPLERS: dict[str, str] = {
    "uniform": "uniform:Uniform",
    "log_normal": "log_normal:LogNormal",
    "logit_normal": "logit_normal:LogitNormal",
    "mode": "mode:Mode",
    "cosmap": "cosmap:CosMap",
    "beta": "beta:Beta",
    "laplace": "laplace:Laplace",
    "log_uniform": "log_uniform:LogUniform",
    "log_logistic": "log_logistic:LogLogistic",
    "cosine": "cosine:Cosine",
    "u_shaped": "u_shaped:UShaped",
    "table": "given:Given",
    "speed": "speed:SpeeD",
    "clts": "clts:CLTS",
    "curriculum": "curriculum:Curriculum",
    "stratified": "stratified:Stratified",
    "low_discrepancy": "low_discrepancy:LowDiscrepancy",
    "mixture": "mixture:Mixture",
    "within": "within:Within",
    "phases": "phases:Phases",
    "second_moment": "second_moment:SecondMoment",
    "kingma_gao": "kingma_gao:KingmaGao",
    "info_noise": "info_noise:InfoNoise",
    "gradient_variance": "gradient_variance:GradientVariance",
    "kim": "kim:Kim",
    "adaptive": "adaptive:Adaptive",
}

WEIGHTINGS: dict[str, str] = {
    "constant": "constant:Constant",
    "p2": "p2:P2",
    "min_snr": "min_snr:MinSNR",
    "soft_min_snr": "soft_min_snr:SoftMinSNR",
    "debiased": "debiased:Debiased",
    "truncated_snr": "truncated_snr:TruncatedSNR",
    "vlb": "vlb:VLB",
    "edm": "edm:EDMWeight",
    "speed": "speed:ChangeAware",
    "sigma_sqrt": "sigma_sqrt:SigmaSqrt",
    "cosmap": "cosmap:CosMapWeight",
    "learned_uncertainty": "learned_uncertainty:LearnedUncertainty",
}


def samplers() -> list[str]:
    """Names of all samplers, those of installed outside packages included."""
    return sorted({*SAMPLERS, *_outside("opportune.samplers")})


def weightings() -> list[str]:
    """Names of all weightings, those of installed outside packages included."""
    return sorted({*WEIGHTINGS, *_outside("opportune.weightings")})


def sampler(name: str, process: Process, **settings: Any) -> Sampler:
    """Make a sampler by name; an unknown name lists the known and the closest.

    Args:
        name: any of :func:`samplers`; hyphens count as underscores.
        process: what noise does to the data.
        **settings: of the method; see its class.
    """
    made: Sampler = _make("sampler", sampler_class(name), process, settings)
    return made


def weighting(name: str, process: Process, **settings: Any) -> Weighting:
    """Make a weighting by name; an unknown name lists the known and the closest."""
    made: Weighting = _make("weighting", weighting_class(name), process, settings)
    return made


def sampler_class(name: str) -> type[Sampler]:
    """The class behind a sampler's name."""
    found: type[Sampler] = _find("sampler", name, SAMPLERS, "samplers", Sampler)
    return found


def weighting_class(name: str) -> type[Weighting]:
    """The class behind a weighting's name."""
    found: type[Weighting] = _find("weighting", name, WEIGHTINGS, "weightings", Weighting)
    return found


def serves_weighting(name: str) -> bool:
    """Whether a sampler has a setting ``weighting``, the one the loss is multiplied with, that is None unless given."""
    for owner in sampler_class(name).__mro__:
        parameters = inspect.signature(owner.__dict__["__init__"]).parameters if "__init__" in owner.__dict__ else {}
        if "weighting" in parameters:
            return parameters["weighting"].default is None
    return False


@cache
def _outside(group: str) -> dict[str, Any]:
    return {point.name.replace("-", "_"): point for point in entry_points(group=group)}


def _find(kind: str, name: str, ours: dict[str, str], room: str, base: type) -> Any:
    if not isinstance(name, str):
        raise ValueError(f"{kind} name={name!r} is not a name; give one of op.{room}().")
    outside = _outside(f"opportune.{room}")
    key = one_of(f"{kind} name", name.replace("-", "_"), {*ours, *outside})
    if key in ours:
        module, _, attribute = ours[key].partition(":")
        return getattr(import_module(f"{__package__}.{room}.{module}"), attribute)
    found = outside[key].load()
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ValueError(f"{kind} {key!r} of an outside package is {found!r}, not a subclass of {base.__name__}.")
    return found


def _make(kind: str, cls: type, process: Process, settings: dict[str, Any]) -> Any:
    known = _settings_of(cls)
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"{setting}={settings[setting]!r} is not a setting of {kind} {cls.__name__}"
                f"{closest(setting, known) or '.'} Its settings: {', '.join(sorted(known)) or 'none'}."
            )
    return cls(process, **settings)


@cache
def _settings_of(cls: type) -> frozenset[str]:
    """Names of the keyword settings of a class, and of those it hands on: ``**common: Unpack[Common]`` names them.

    What a class hands on without naming it (``**common: Any``) is taken to be all that its base class takes.
    """
    found: set[str] = set()
    for owner in cls.__mro__:
        init = owner.__dict__.get("__init__")
        if init is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        found.update(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        named = set() if rest is None else _named(init, rest)
        if named is not None:
            return frozenset(found | named)
    return frozenset(found)


def _named(init: Any, rest: str) -> set[str] | None:
    """The names ``**rest: Unpack[...]`` of a function stands for; None where it does not say."""
    try:
        hint = get_type_hints(init).get(rest)
    except NameError:  # annotations that only a type checker can read
        return None
    return set(get_type_hints(get_args(hint)[0])) if get_origin(hint) is Unpack else None
