"""The cells of a plan: one resolved configuration each, in an order that makes a plan cut short worth most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opportune.generate import methods
from opportune.train.config import TrainConfig
from opportune.train.config_check import check
from opportune.train.config_file import merged, updated
from opportune.train.errors import ConfigError
from opportune.train.parts import make_process

from .plan import Evaluate, Layers, Method, Plan, slug


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a comparison.

    Attributes:
        name: of its folder below ``runs/``.
        points: steps whose checkpoints are scored, ascending; the last one is the last step.
    """

    name: str
    label: str
    setting: str
    seed: int
    baseline: bool
    config: TrainConfig
    points: tuple[int, ...]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.config.run.output_dir)


def cells_of(plan: Plan, output: str | Path) -> list[Cell]:
    """All cells, checked, seed by seed: whole comparisons are there as soon as they can be."""
    cells = [
        _cell(plan, setting, method, seed, Path(output))
        for seed in plan.seeds
        for setting in plan.settings
        for method in plan.methods
    ]
    names = [cell.name for cell in cells]
    for cell in cells:
        if names.count(cell.name) > 1:
            raise ConfigError(
                f"two cells would use the folder {cell.name}; labels that differ in signs alone are alike."
            )
    # Seeds differ in nothing that is checked, and a check makes the parts of a run.
    for cell in cells[: len(plan.settings) * len(plan.methods)]:
        try:
            check(cell.config)
        except (ConfigError, ImportError) as error:
            raise ConfigError(f"{_where(cell.label, cell.setting)}: {error}") from error
    return cells


def points_of(steps: int, evaluate: Evaluate) -> tuple[int, ...]:
    """Steps at which a run of ``steps`` is scored."""
    every = evaluate.every_steps or steps // evaluate.points
    if every < 1 or steps % every or (not evaluate.every_steps and steps % evaluate.points):
        asked = f"every_steps={evaluate.every_steps}" if evaluate.every_steps else f"points={evaluate.points}"
        raise ConfigError(f"run.steps={steps} does not divide into evaluate.{asked}; use a multiple, or other points.")
    return tuple(range(every, steps + 1, every))


def describe_evaluate(evaluate: Evaluate) -> dict[str, Any]:
    """What decides the scores of a checkpoint (not which ones are scored)."""
    return {key: value for key, value in asdict(evaluate).items() if key not in ("points", "every_steps", "grid")}


def _cell(plan: Plan, setting: str, method: Method, seed: int, output: Path) -> Cell:
    name = f"{slug(setting)}-{slug(method.label)}-seed{seed}"
    layers: dict[str, Any] = {"logs": {"report_to": "none"}}
    last = {section: values for section, values in plan.overrides.items() if section != "evaluate"}
    for layer in (plan.base, plan.settings[setting], method.changes, method.within.get(setting, {}), last):
        layers = merged(layers, layer)
    layers = merged(layers, {"run": {"seed": seed, "output_dir": str(output / "runs" / name)}})
    try:
        config = updated(TrainConfig(), layers)
        _check_scoring(config, plan.evaluate)
        points = points_of(config.run.steps, plan.evaluate)
        config = updated(config, _made_for(config, points[0]))
    except ConfigError as error:
        raise ConfigError(f"{_where(method.label, setting)}: {error}") from error
    return Cell(
        name=name,
        label=method.label,
        setting=setting,
        seed=seed,
        baseline=method.baseline,
        config=config,
        points=points,
    )


def _made_for(config: TrainConfig, interval: int) -> Layers:
    """Checkpoints and held-out losses at the points, and in between about as often as was asked for."""
    if not config.validation.every_steps:
        raise ConfigError("validation.every_steps=0, but the held-out loss is compared; give a number of steps.")
    return {
        "checkpoint": {
            "every_steps": part_of(interval, config.checkpoint.every_steps),
            "keep_every_steps": interval,
        },
        "validation": {"every_steps": part_of(interval, config.validation.every_steps)},
    }


def _check_scoring(config: TrainConfig, evaluate: Evaluate) -> None:
    """What can be known to fail before anything is trained."""
    try:
        fitting = methods(make_process(config))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[process] {error}") from error
    if evaluate.method is not None and evaluate.method not in fitting:
        raise ConfigError(f"evaluate.method={evaluate.method!r} does not fit the process; use {', '.join(fitting)}.")
    if config.data.source.startswith("latents:") and not (evaluate.autoencoder and evaluate.real):
        lacking = "real" if evaluate.autoencoder else "autoencoder"
        raise ConfigError(f"{config.data.source} holds latents, so evaluate.{lacking} must be given to score images.")


def part_of(interval: int, wanted: int) -> int:
    """The whole part of ``interval`` that comes next below ``wanted``, unless it is much smaller: then all of it."""
    least = -(-interval // wanted)
    return next((interval // parts for parts in range(least, 4 * least + 1) if interval % parts == 0), interval)


def _where(label: str, setting: str) -> str:
    return f"method {label!r} in setting {setting!r}"
