"""A run folder, or the folder of a comparison, as values: what every table and figure of a report starts from.

Nothing is computed here and no file is changed. What cannot be read is a ``RunFolderError`` that names the file; a run
that is not finished is read as far as it came, and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..evaluate.score import Scores
from ..train.config_file import read_toml
from ..train.errors import RunFolderError
from ..train.logs import METRICS, TIMING
from ..train.manifest import MANIFEST
from ..train.run_folder import CONFIG
from .lines import is_number, read_lines, read_object
from .plan_order import place_in

CELL = "cell.json"
PLAN = "plan.toml"
_STEP = re.compile(r"step-(\d{6,18})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of the images a run's model made at a step; ``step`` and ``weights`` are None where nothing tells."""

    step: int | None
    weights: str | None
    scores: Scores
    path: Path


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, as far as it came.

    - ``label``: the method, the same for all its seeds; ``setting``: what methods may be compared in (process, data);
      ``baseline``: whether this method is what the others are measured against.
    - ``config``: the resolved settings, section by section.
    - ``validation``: the records of the held-out loss, ``{"step", "raw": {"loss", "bins", ...}, "ema": ...}``.
    - ``train``: the records of training, with averages per part of the noise axis under ``"bins"``.
    - ``timing``: seconds per step and shares of it, one record per record of ``train``.
    - ``samples``: picture of generated images by step; None as step where nothing tells.
    - ``steps``: how many were asked for; ``reached``: the last one there is a trace of.
    - ``environment``: versions of the libraries that wrote the last checkpoint.
    - ``notes``: what was not as it should be, one sentence each.
    - ``comparison``: the folder of the comparison it was found in.
    """

    path: Path
    label: str
    setting: str
    seed: int
    baseline: bool
    config: Mapping[str, Any]
    validation: tuple[Mapping[str, Any], ...] = ()
    train: tuple[Mapping[str, Any], ...] = ()
    timing: tuple[Mapping[str, Any], ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    samples: tuple[tuple[int | None, Path], ...] = ()
    steps: int
    reached: int
    environment: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    comparison: Path | None = None

    @property
    def started(self) -> bool:
        """Whether anything was recorded."""
        return bool(self.validation or self.train)

    @property
    def finished(self) -> bool:
        """Whether it came to its last step."""
        return self.started and self.reached >= self.steps

    @property
    def name(self) -> str:
        """Method and seed, for messages and legends."""
        return f"{self.label}, seed {self.seed}"


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Every run of ``paths``: run folders, or folders of comparisons, which stand for all their runs, as planned.

    A run that is named itself must have recorded something; cells of a comparison may be still to come.
    """
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunFolderError(f"there is no run at {path}; name the folder that `opportune train` wrote.")
        if (path / PLAN).is_file() or (path / "runs").is_dir():
            cells = sorted(cell for cell in (path / "runs").glob("*") if (cell / CONFIG).is_file())
            if not cells:
                raise RunFolderError(f"the comparison {path} holds no run yet; start it with `opportune compare`.")
            place = place_in(path / PLAN)
            runs = [replace(read_run(cell), comparison=path) for cell in cells]
            runs.sort(key=lambda run: (*place(run.setting, run.label), run.seed))
            found |= {run.path.resolve(): run for run in runs}
            continue
        run = read_run(path)
        if not run.started:
            raise RunFolderError(
                f"{path} has no records in {METRICS}: nothing was trained there yet, or the log was lost. "
                "Train it first, or leave it out."
            )
        found[path.resolve()] = run
    return list(found.values())


def read_run(folder: str | Path) -> Run:
    """The run in ``folder``, finished or not; a ``RunFolderError`` where there is none."""
    path = Path(folder)
    if not (path / CONFIG).is_file():
        what = "there is no run at" if not path.is_dir() else f"there is no {CONFIG} in"
        raise RunFolderError(f"{what} {path}; name the folder that `opportune train` wrote.")
    config = read_toml(path / CONFIG)
    _check_config(path, config)
    records, cut = _log(path / METRICS)
    timing, _ = _log(path / TIMING)
    train = tuple(record for record in records if record.get("kind") == "train")
    validation = tuple(record for record in records if record.get("kind") == "validation")
    _check_records(path, train, validation, timing)
    saved, environment = _checkpoints(path)
    steps = config["run"]["steps"]
    reached = max([record["step"] for record in records] + saved, default=0)
    notes = [f"the last line of {METRICS} is cut off and was left out"] if cut else []
    if not saved:
        notes.append("it has no checkpoint, so it can be neither continued nor evaluated")
    cell = read_object(path / CELL) if (path / CELL).is_file() else {}
    label = str(cell.get("label", method_text(config)))
    return Run(
        path=path,
        label=label,
        setting=str(cell.get("setting", setting_text(config))),
        seed=cell["seed"] if isinstance(cell.get("seed"), int) else config["run"]["seed"],
        baseline=cell.get("baseline") in (True, label) if "baseline" in cell else _is_uniform(config),
        config=config,
        validation=validation,
        train=train,
        timing=tuple(timing),
        evaluations=_evaluations(path, saved),
        samples=_samples(path, saved),
        steps=steps,
        reached=reached,
        environment=environment,
        notes=tuple(notes),
    )


def method_text(config: Mapping[str, Any]) -> str:
    """How a run that has no given label is called: its sampler, and what else was done about timesteps."""
    sampler, weighting = config["sampler"], config["weighting"]
    parts = [_with_settings(sampler)]
    if sampler.get("unbiased") is not None:
        parts[0] += " unbiased" if sampler["unbiased"] else " without correction"
    if weighting["name"] != "none":
        parts.append(_with_settings(weighting))
    if config["optimizer"].get("momentum_decay", "none") != "none":
        parts.append(str(config["optimizer"]["momentum_decay"]))
    return " + ".join(parts)


def setting_text(config: Mapping[str, Any]) -> str:
    """What methods are compared in: the process, and the data."""
    data = config["data"]
    return f"{_with_settings(config['process'])} on {data.get('source')} at {data.get('size')} px"


def _with_settings(section: Mapping[str, Any]) -> str:
    settings = section.get("settings") or {}
    told = ", ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()
    )
    return f"{section['name']}({told})" if told else str(section["name"])


def _is_uniform(config: Mapping[str, Any]) -> bool:
    return bool(config["sampler"]["name"] == "uniform")


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    """What a report reads of a configuration is there."""
    needed = [("run", "steps", int), ("run", "seed", int), ("optimizer", None, dict), ("data", None, dict)]
    needed += [(section, "name", str) for section in ("sampler", "weighting", "process", "model")]
    for section, key, kind in needed:
        value = config.get(section)
        if key is not None:
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, kind):
            name = section if key is None else f"{section}.{key}"
            raise RunFolderError(f"{path / CONFIG} has {name}={value!r}: it is no resolved configuration; restore it.")


def _log(path: Path) -> tuple[list[dict[str, Any]], bool]:
    return read_lines(path) if path.is_file() else ([], False)


def _check_records(
    path: Path,
    train: tuple[Mapping[str, Any], ...],
    validation: tuple[Mapping[str, Any], ...],
    timing: list[dict[str, Any]],
) -> None:
    for record in validation:
        if not all(_are_losses(record.get(kind)) for kind in ("raw", "ema") if kind == "raw" or kind in record):
            raise RunFolderError(
                f"{path / METRICS}: the validation of step {record['step']} has no losses; restore it."
            )
    for record in train:
        bins = record.get("bins")
        if (
            not isinstance(bins, dict)
            or not isinstance(bins.get("count"), list)
            or not all(map(_are_bins, bins.values()))
        ):
            raise RunFolderError(f"{path / METRICS}: the record of step {record['step']} has no bins; restore it.")
    for record in timing:
        if not is_number(record.get("seconds_per_step")):
            raise RunFolderError(f"{path / TIMING}: step {record['step']} has no seconds_per_step; restore the file.")


def _are_losses(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("loss"), (int, float)) and _are_bins(found.get("bins"))


def _are_bins(found: Any) -> bool:
    return isinstance(found, list) and all(value is None or isinstance(value, (int, float)) for value in found)


def _checkpoints(path: Path) -> tuple[list[int], dict[str, Any]]:
    """Steps of the checkpoints, ascending, and what wrote the last one."""
    folders = _by_step((path / "checkpoints").glob("step-*"))
    if not folders:
        return [], {}
    manifest = folders[-1][1] / MANIFEST
    made_with = read_object(manifest).get("made_with") if manifest.is_file() else None
    return [step for step, _ in folders], made_with if isinstance(made_with, dict) else {}


def _evaluations(path: Path, saved: list[int]) -> tuple[Evaluation, ...]:
    """Those of a comparison by step; else ``evaluation.json``."""
    files = [(step, file) for step, file in _by_step((path / "evaluations").glob("step-*.json"))]
    single = path / "evaluation.json"
    found: list[tuple[int | None, Path]] = [*files]
    if single.is_file():
        found.append((_step_of(single, path, saved), single))
    return tuple(_evaluation(file, step) for step, file in found)


def _evaluation(path: Path, step: int | None) -> Evaluation:
    values = read_object(path)
    told, weights = values.pop("step", None), values.pop("weights", None)
    try:
        scores = Scores.from_json(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise RunFolderError(f"{path} holds no scores ({error}) Make it again with `opportune evaluate`.") from error
    for name in ("frechet", "frechet_floor", "kid", "kid_low", "kid_high", "precision", "recall"):
        if getattr(scores, name) is not None and not is_number(getattr(scores, name)):
            raise RunFolderError(f"{path} has {name}={getattr(scores, name)!r}; it must be a number. Make it again.")
    for name in ("n_generated", "n_real"):
        if not isinstance(getattr(scores, name), int):
            raise RunFolderError(f"{path} has {name}={getattr(scores, name)!r}; it must be a whole number.")
    return Evaluation(
        step=told if isinstance(told, int) else step,
        weights=weights if isinstance(weights, str) else None,
        scores=scores,
        path=path,
    )


def _samples(path: Path, saved: list[int]) -> tuple[tuple[int | None, Path], ...]:
    """Grids of a comparison by step; else what ``opportune generate`` wrote."""
    found: list[tuple[int | None, Path]] = [*_by_step((path / "samples").glob("step-*.png"))]
    grid = path / "generated" / "grid.png"
    if grid.is_file() and not found:
        found.append((_step_of(grid, path, saved), grid))
    return tuple(found)


def _step_of(file: Path, path: Path, saved: list[int]) -> int | None:
    """The step of the last checkpoint, if it is older than what was made from it."""
    if not saved:
        return None
    manifest = path / "checkpoints" / f"step-{saved[-1]:06d}" / MANIFEST
    newer = manifest.is_file() and file.stat().st_mtime >= manifest.stat().st_mtime
    return saved[-1] if newer else None


def _by_step(paths: Iterable[Path]) -> list[tuple[int, Path]]:
    """Files and folders named ``step-000123``, by step."""
    matches = ((_STEP.fullmatch(path.name.split(".")[0]), path) for path in paths)
    return sorted((int(match[1]), path) for match, path in matches if match)
