"""What a run folder, or one checkpoint, can show: its log, two of its checkpoints, or a short training of a copy."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opportune.checks import whole
from opportune.diagnostics.density_map import bar_means
from opportune.diagnostics.loss_profile import binned_losses
from opportune.diagnostics.places import bin_edges
from opportune.diagnostics.runs import Stage, open_stages
from opportune.diagnostics.suggest.decide import Suggestion, suggest
from opportune.diagnostics.suggest.evidence import Profile, from_losses, from_records
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated
from opportune.train.errors import RunFolderError
from opportune.train.logs import METRICS, read_log
from opportune.train.manifest import MANIFEST
from opportune.train.parts import make_process
from opportune.train.run_folder import CONFIG, RunFolder
from opportune.train.saved import step_of
from opportune.train.schedule import factor
from opportune.train.trainer import Trainer

_log = logging.getLogger(__name__)


def suggest_for(
    path: str | Path,
    *,
    objective: str | None = None,
    probe_steps: int = 200,
    examples: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Suggestion, TrainConfig]:
    """The suggestion for a run folder or a checkpoint, and how the run was configured.

    Args:
        path: of the run, finished or not, or of ``checkpoints/step-...`` in it.
        objective: a weighting's name, "own", or None for what the run was trained for.
        probe_steps: for a checkpoint without log and without an earlier one: steps a copy is trained for.
        examples: held-out images losses are measured on, where there is no log.
        seed: of noise levels, noise and resampling.
        device: for measuring.
    """
    path = Path(path)
    if not path.exists():
        raise RunFolderError(f"there is no run at {path}; name the folder that `opportune train` wrote.")
    config, profile = (
        _of_checkpoint(path, probe_steps=probe_steps, examples=examples, seed=seed, device=device)
        if (path / MANIFEST).exists()
        else _of_run(path)
    )
    weighting = config.weighting
    found = suggest(
        make_process(config),
        profile,
        objective=objective,
        weighting=weighting.name,
        weighting_settings=weighting.settings,
        seed=seed,
    )
    return found, config


def _of_run(path: Path) -> tuple[TrainConfig, Profile]:
    saved = RunFolder(path).config()
    if saved is None:
        raise RunFolderError(f"there is no {CONFIG} in {path}; name the folder that `opportune train` wrote.")
    try:
        records = read_log(path)
    except FileNotFoundError:
        raise RunFolderError(f"there is no {METRICS} in {path}; name one of its checkpoints instead.") from None
    except ValueError as error:
        raise RunFolderError(f"{path / METRICS} is damaged: {error}; name one of its checkpoints instead.") from None
    if not _trained(records):
        raise RunFolderError(f"{path} has no training record yet; wait for step logs.every_steps, or train it first.")
    return updated(TrainConfig(), saved), from_records(records)


def _of_checkpoint(
    path: Path, *, probe_steps: int, examples: int, seed: int, device: torch.device | str
) -> tuple[TrainConfig, Profile]:
    stage = open_stages([path], device=device)[0]
    records = stage.records()
    if _trained(records):
        return stage.config, from_records(records)
    whole("examples", examples, low=2)
    if stage.step < 1:
        raise RunFolderError(f"{path} is of step 0: nothing was learned yet, so there is nothing to read off it.")
    earlier = _earlier(path, stage)
    if earlier is not None:
        return stage.config, _between(earlier, stage, examples=examples, seed=seed)
    whole("probe_steps", probe_steps, low=1)
    with tempfile.TemporaryDirectory(prefix="opportune-suggest-") as folder:
        later = _trained_on(stage, probe_steps, Path(folder) / "copy")
        return stage.config, _between(stage, later, examples=examples, seed=seed)


def _earlier(path: Path, stage: Stage) -> Stage | None:
    """The valid checkpoint beside ``path`` that is nearest to half its steps: the fall between them is the clearest."""
    beside = [other for other in Checkpoints(path.parent).list() if 0 < (step_of(other) or 0) < stage.step]
    for other in sorted(beside, key=lambda other: abs((step_of(other) or 0) - stage.step / 2)):
        try:
            return open_stages([other], device=stage.device)[0]
        except RunFolderError as error:
            _log.warning("%s", error)
    return None


def _trained_on(stage: Stage, steps: int, folder: Path) -> Stage:
    """A copy of the run, trained for some steps more in a folder of its own."""
    total, config = stage.step + steps, stage.config
    share = factor(config.schedule, stage.step, max(config.run.steps, stage.step))
    changes = {
        "run": {"output_dir": str(folder), "steps": total},
        "checkpoint": {"every_steps": total},
        "logs": {"report_to": "none"},
        # As it was at this step; a finished decay has come to 0, at which nothing would be learned.
        "schedule": {"name": "constant", "warm_up_steps": 0},
        "optimizer": {"learning_rate": config.optimizer.learning_rate * max(share, 0.1)},
    }
    config = updated(config, changes)
    outcome = Trainer(config, resume=str(stage.checkpoint.path), force=True, progress=None).run()
    if outcome.exit_code:
        raise RunFolderError(f"the copy of {stage.checkpoint.path} was stopped at step {outcome.step}; start again.")
    return open_stages([folder], at_most=1, device=stage.device)[0]


def _between(before: Stage, after: Stage, *, examples: int, seed: int) -> Profile:
    bins = after.config.logs.bins
    weights = "ema" if all("ema" in stage.checkpoint.names for stage in (before, after)) else "raw"
    batch = before.held_out(examples)
    first, second = (
        binned_losses(stage.objective(weights=weights), batch, bin_edges(bins), seed=seed, batch_size=64)[0]
        for stage in (before, after)
    )
    return from_losses(
        first,
        second,
        growth=after.step / before.step,
        drawn=_drawn(after, bins),
        source=f"the {weights} weights of steps {before.step} and {after.step} on {examples} held-out images, each "
        f"once in {bins} bins",
    )


def _drawn(stage: Stage, bins: int) -> Tensor:
    """What the run draws at this stage, ``[bins]``."""
    cells = stage.process.cells
    middles = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    return bar_means(stage.sampler().density(middles).double(), bins) / bins


def _trained(records: list[dict[str, Any]]) -> bool:
    return any(record.get("kind") == "train" for record in records)
