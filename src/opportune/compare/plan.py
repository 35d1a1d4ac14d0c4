"""A plan: methods × settings × seeds, read from TOML strictly and before anything runs.

recipe = "cifar10-16"              # or config = "mine.toml"
seeds = [0, 1]
base = { run = { steps = 2000 } }  # changes for every cell

[settings.cosine]                  # what methods are compared in
process.settings = { schedule = "cosine" }

[[methods]]
label = "uniform"
baseline = true

[[methods]]
label = "SpeeD"
sampler.name = "speed"
weighting.name = "speed"
in.cosine.sampler.settings = { k = 2 }   # only in this setting

[evaluate]
points = 5
count = 1000
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opportune.checks import closest, one_of, whole
from opportune.evaluate import METRICS
from opportune.recipes import recipe
from opportune.train.config_file import merged, read_toml, updated
from opportune.train.errors import ConfigError

Layers = Mapping[str, Any]
"""A part of a configuration, section by section."""

KEYS = ("title", "recipe", "config", "seeds", "base", "settings", "methods", "evaluate", "overrides")
OF_METHOD = ("label", "baseline", "in")
ONLY_SETTING = "all"
KEPT = "plan-config.toml"
"""A copy of the plan's ``config`` beside the plan in the folder of a comparison, which may be anywhere."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the comparison: what it changes, everywhere and in single settings."""

    label: str
    baseline: bool
    changes: Layers
    within: Mapping[str, Layers]


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """How the checkpoints of every cell are scored; the same for all, or the scores would not be comparable."""

    points: int = 5
    """Checkpoints, at equal parts of the run."""
    every_steps: int = 0
    """Instead of points: their distance in steps."""
    count: int = 2048
    """Images made per checkpoint; scores of different counts must not be compared."""
    steps: int = 50
    """Noise levels visited to make them."""
    method: str | None = None
    """ddpm, ddim, heun or euler; left out, what fits the process best."""
    guidance: float = 1.0
    """Classifier-free guidance scale; 1 is none."""
    batch_size: int = 64
    """Images at a time."""
    weights: str = "auto"
    """ema, raw, or auto: the moving average where there is one."""
    features: str = "efficientnet-lite0-64"
    """Network whose features are compared; see opportune.evaluate."""
    metrics: list = field(default_factory=lambda: ["frechet", "kid"])  # type: ignore[type-arg]
    """Of frechet, kid, precision_recall."""
    real: str | None = None
    """Real images, e.g. folder:photos; left out, the data set trained on."""
    split: str = "train"
    """Which part of the real images."""
    autoencoder: str | None = None
    """Hub name or folder of the autoencoder that decodes latents."""
    grid: int = 64
    """Images in the picture of each checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared.

    ``overrides`` change every cell and, under "evaluate", the scoring. ``text`` is the plan's file, to be kept beside
    the results, and ``config`` the file it names as the start of every cell, if it names one.
    """

    name: str
    title: str
    base: Layers
    settings: Mapping[str, Layers]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    evaluate: Evaluate
    overrides: Layers
    text: str
    config: Path | None = None

    @property
    def baseline(self) -> Method:
        """The method the others are measured against."""
        return next(method for method in self.methods if method.baseline)


def read_plan(path: str | Path, overrides: Layers | None = None, *, name: str | None = None) -> Plan:
    """The plan in a file; ``overrides`` change every cell, above everything else. A ConfigError says what is wrong."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"there is no plan {path}.")
    read_toml(path)  # for its messages
    return parse_plan(path.read_text(encoding="utf-8"), name=name or path.stem, folder=path.parent, overrides=overrides)


def parse_plan(text: str, *, name: str, folder: Path, overrides: Layers | None = None) -> Plan:
    """The plan in ``text``; a ``config`` in it is looked for in ``folder``."""
    given = tomllib.loads(text)
    _known("plan", given, KEYS)
    settings = _tables(given, "settings") or {ONLY_SETTING: {}}
    methods = tuple(_method(values, settings) for values in _list(given, "methods"))
    _check_methods(methods)
    changed = merged(_section(given, "overrides"), overrides or {})
    config = _config(given, folder)
    return Plan(
        name=name,
        title=str(given.get("title", name)),
        base=merged(_start(given, config), _section(given, "base")),
        settings=settings,
        methods=methods,
        seeds=_seeds(given),
        evaluate=_evaluate(_section(given, "evaluate"), _section(changed, "evaluate")),
        overrides=changed,
        text=text,
        config=config,
    )


def _config(given: Layers, folder: Path) -> Path | None:
    if "config" not in given:
        return None
    return folder / KEPT if (folder / KEPT).is_file() else folder / str(given["config"])


def _start(given: Layers, config: Path | None) -> dict[str, Any]:
    named = [key for key in ("recipe", "config") if key in given]
    if len(named) != 1:
        raise ConfigError('a plan names what every cell starts from: recipe = "NAME" or config = "FILE", one of them.')
    if config is not None:
        return read_toml(config)
    try:
        return recipe(str(given["recipe"]))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _method(values: Any, settings: Mapping[str, Layers]) -> Method:
    if not isinstance(values, Mapping) or not isinstance(values.get("label"), str) or not values["label"].strip():
        raise ConfigError('every one of [[methods]] needs a name: label = "...".')
    label = values["label"]
    baseline = values.get("baseline", False)
    if not isinstance(baseline, bool):
        raise ConfigError(f"method {label!r}: baseline={baseline!r} must be true or false.")
    within = values.get("in", {})
    if not isinstance(within, Mapping):
        raise ConfigError(
            f"method {label!r}: in={within!r} must be a table of settings: in.{next(iter(settings))} = ..."
        )
    for setting in within:
        if setting not in settings:
            near = closest(setting, settings) or "."
            raise ConfigError(
                f"method {label!r}: in.{setting} is no setting of this plan{near} Known: {_some(settings)}."
            )
    changes = {key: value for key, value in values.items() if key not in OF_METHOD}
    return Method(label=label, baseline=baseline, changes=changes, within=within)


def _check_methods(methods: tuple[Method, ...]) -> None:
    baselines = [method.label for method in methods if method.baseline]
    if len(baselines) != 1:
        found = "none" if not baselines else ", ".join(baselines)
        raise ConfigError(
            f"one of [[methods]] must have baseline = true, the others are measured against it; has: {found}."
        )
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"two methods are called {label!r}; give each a label of its own.")


def _seeds(given: Layers) -> tuple[int, ...]:
    seeds = given.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) != len(seeds):
        raise ConfigError(f"seeds={seeds!r} must be a list of different whole numbers, e.g. seeds = [0, 1, 2].")
    return tuple(_checked(lambda seed=seed: whole("seeds", seed, low=0)) for seed in seeds)


def _evaluate(own: Layers, changed: Layers) -> Evaluate:
    for given in (own, changed):
        if "every_steps" in given and "points" in given:
            raise ConfigError("evaluate has both points and every_steps; give one of them.")
    instead = {"points": "every_steps", "every_steps": "points"}
    given = {key: value for key, value in own.items() if instead.get(key) not in changed} | dict(changed)
    made = updated(Evaluate(), given, where="evaluate.")
    for name in ("points", "count", "steps", "batch_size", "grid"):
        _checked(lambda name=name: whole(f"evaluate.{name}", getattr(made, name), low=1))
    _checked(lambda: whole("evaluate.every_steps", made.every_steps, low=0))
    _checked(lambda: one_of("evaluate.weights", made.weights, ("auto", "ema", "raw")))
    if not made.metrics:
        raise ConfigError(f"evaluate.metrics is empty; name some of {', '.join(METRICS)}.")
    for metric in made.metrics:
        _checked(lambda metric=metric: one_of("evaluate.metrics", metric, METRICS))
    return made


def _checked(check: Any) -> Any:
    try:
        return check()
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _known(what: str, given: Layers, known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{what} has no key {key!r}{closest(key, known) or '.'} Known: {', '.join(known)}.")


def _section(given: Layers, name: str) -> Layers:
    found = given.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name}={found!r} is a single value, but {name} is a section: write [{name}].")
    return found


def _tables(given: Layers, name: str) -> Mapping[str, Layers]:
    found = _section(given, name)
    for key, value in found.items():
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{name}.{key}={value!r} is a single value; write [{name}.{key}] and below it its changes."
            )
    return found


def _list(given: Layers, name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list) or not found:
        raise ConfigError(f"the plan has no {name}; write [[{name}]] with label = ... once for each.")
    return found


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join(names)


def slug(text: str) -> str:
    """``text`` as part of a folder's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
