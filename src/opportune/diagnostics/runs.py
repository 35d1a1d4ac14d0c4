"""Runs of ``opportune train`` as what the diagnoses take: models at several stages, images, batches, logs.

Nothing here writes to a run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from opportune.checks import whole
from opportune.objective import Objective
from opportune.processes import Process
from opportune.samplers import Sampler
from opportune.step import Batch
from opportune.train.batches import Preparation
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated
from opportune.train.data import Loader, Order, Source, StreamOrder, StreamSource
from opportune.train.errors import CheckpointError, RunFolderError
from opportune.train.held_out import first_held_out, open_data
from opportune.train.logs import METRICS, read_log
from opportune.train.parts import make_model, make_optimizer, make_process, make_sampler, make_weighting
from opportune.train.run_folder import saved_config
from opportune.train.saved import Checkpoint, step_of
from opportune.weightings import Weighting

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A run as it was at one checkpoint. Parts are made when they are asked for."""

    checkpoint: Checkpoint
    run: Path
    """Its run folder, where the log is."""
    device: torch.device

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @cached_property
    def config(self) -> TrainConfig:
        return updated(TrainConfig(), saved_config(self.checkpoint))

    @cached_property
    def process(self) -> Process:
        return make_process(self.config)

    @cached_property
    def weighting(self) -> Weighting | None:
        """The run's own, with what it has learned."""
        made = make_weighting(self.config, self.process)
        if made is not None and "weighting" in self.checkpoint.names:
            self._load("weighting", made)
        return None if made is None else made.to(self.device)

    def sampler(self) -> Sampler:
        """As it stood."""
        made = make_sampler(self.config, self.process)
        self._load("sampler", made)
        return made

    def objective(self, *, weights: str = "raw", weighting: Weighting | None = None) -> Objective:
        """Model, process and ``weighting`` (None: the run's own); weights "raw" (those that are trained) or "ema"."""
        if weights not in ("raw", "ema"):
            raise ValueError(f"weights={weights!r} is unknown. Known: raw, ema.")
        model = make_model(self.config)
        self._load("model" if weights == "raw" else "ema", model)
        return Objective(model.to(self.device), self.process, self.weighting if weighting is None else weighting)

    def optimizer(self, objective: Objective) -> torch.optim.Optimizer:
        """The optimizer as it stood, of the parameters of this stage's own ``objective`` and its weighting."""
        made = make_optimizer(self.config, objective.model, self.weighting)  # type: ignore[arg-type]
        self._load("optimizer", made)
        return made

    def held_out(self, count: int) -> Batch:
        """The first ``count`` held-out images, prepared as in validation."""
        images, labels, _ = first_held_out(self.config, count)
        return self._preparation().fixed(images, labels)

    def batches(self, *, seed: int = 0, batch_size: int | None = None) -> Iterator[Batch]:
        """Training batches without end, prepared as in training; in another order than the run's, by ``seed``."""
        data, source = self.config.data, self._source
        size = batch_size or data.batch_size // data.accumulation
        order: Order | StreamOrder
        if isinstance(source, Source):
            order = Order(len(source), size, seed=seed)
        else:
            order = StreamOrder(size, seed=seed, shuffle_buffer=data.shuffle_buffer)
        loader = Loader(source, order, workers=0, flip=data.flip, on_bad=data.on_bad, max_bad_share=data.max_bad_share)
        return self._preparation().training(loader)

    def records(self) -> list[dict[str, Any]]:
        """The run's log up to this stage; empty where there is none."""
        try:
            found = read_log(self.run)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise RunFolderError(
                f"{self.run / METRICS} is damaged: {error}; restore it, or move it away to do without what it tells."
            ) from error
        return [record for record in found if record["step"] <= self.step]

    def _load(self, part: str, into: torch.nn.Module | torch.optim.Optimizer) -> None:
        """A part of the checkpoint, where it fits what its configuration makes today."""
        try:
            into.load_state_dict(self.checkpoint.part(part))
        except (RuntimeError, KeyError, ValueError) as error:
            told = " ".join(str(error).split())
            raise RunFolderError(
                f"{self.checkpoint.path} holds a {part} of another version of opportune ({told}); use that version, or "
                "train again."
            ) from error

    @cached_property
    def _source(self) -> Source | StreamSource:
        """The training images, without those set apart for validation."""
        return open_data(self.config, verify=False)[0]

    def _preparation(self) -> Preparation:
        return Preparation(self.config, self._source, device=self.device, rank=0, world=1)


def open_stages(paths: Sequence[str | Path], *, at_most: int = 3, device: torch.device | str = "cpu") -> list[Stage]:
    """The stages to look at: checkpoints as they are named; of a run folder ``at_most``, spread from first to last.

    Args:
        paths: run folders, or checkpoints ``RUN/checkpoints/step-...``; of one run or of several.
        at_most: stages per run folder; the newest is always among them.
        device: where models go.
    """
    whole("at_most", at_most, low=1)
    found: list[Stage] = []
    for path in map(Path, paths):
        if _is_run(path):
            run, loaded = path, _of_run(path, at_most)
        else:
            run, loaded = path.absolute().parent.parent, [_named(path)]
        found += [Stage(checkpoint, run, torch.device(device)) for checkpoint in loaded]
    if not found:
        raise ValueError("paths is empty; name a run folder or a checkpoint.")
    return found


def _is_run(path: Path) -> bool:
    if not path.exists():
        raise RunFolderError(f"there is no run at {path}.")
    return path.is_dir() and not (path / "manifest.json").exists()


def _named(path: Path) -> Checkpoint:
    try:
        return Checkpoints(path.parent).load(path)
    except CheckpointError as error:
        raise RunFolderError(f"{error}; name another, or its run folder: damaged ones are left out there.") from error


def _of_run(run: Path, at_most: int) -> list[Checkpoint]:
    checkpoints = Checkpoints(run / "checkpoints")
    newest = checkpoints.latest()
    if newest is None:
        raise RunFolderError(
            f"{run} holds no checkpoint, so there is nothing to diagnose; name a folder of opportune train that has "
            "checkpoints/step-..., or let the run reach its first."
        )
    saved = [path for path in checkpoints.list() if (step_of(path) or 0) < newest.step]
    chosen = sorted({round(len(saved) * place / (at_most - 1)) for place in range(at_most - 1)} if saved else ())
    found = []
    for place in chosen:
        try:
            found.append(checkpoints.load(saved[place]))
        except CheckpointError as error:
            _log.warning("%s; left out", error)
    return [*found, newest]
