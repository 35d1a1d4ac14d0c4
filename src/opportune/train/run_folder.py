"""The folder of a run: what lies where, and whether a run may begin or continue there."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from opportune.train import disk
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import differences, read_toml, to_dict, to_toml
from opportune.train.errors import CheckpointError, ConfigError, RunFolderError
from opportune.train.lock import LOCK
from opportune.train.manifest import MANIFEST
from opportune.train.saved import Checkpoint, step_of

CONFIG = "config.toml"


class RunFolder:
    """``config.toml``, ``metrics.jsonl``, ``timing.jsonl``, ``checkpoints/`` and ``run.lock`` in one folder."""

    def __init__(self, path: str | Path, *, keep: int = 2, keep_every: int = 0) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep=keep, keep_every=keep_every)

    def check_new(self) -> None:
        """Raise where another run's checkpoints are, or no folder can be."""
        there = next((path for path in (self.path, *self.path.parents) if path.exists()), None)
        if there is not None and not there.is_dir():
            raise RunFolderError(f"{there} is a file, and a run needs a folder; choose another --output-dir.")
        saved = self.checkpoints.list()
        if saved:
            raise RunFolderError(
                f"{self.path} holds a run already, saved at {saved[-1].name}. Continue it with --resume latest, or "
                "choose another --output-dir, or move the folder away."
            )

    def to_resume(self, resume: str) -> Checkpoint:
        """The checkpoint meant by ``latest`` or a path; an error where there is none: never a silent new run."""
        if resume != "latest":
            _check_named(Path(resume))
            return self.checkpoints.load(resume)
        if not self.path.exists():
            raise RunFolderError(f"there is nothing to resume: {self.path} does not exist. Start without --resume.")
        found = self.checkpoints.latest()
        if found is None:
            raise RunFolderError(
                f"there is nothing to resume: {self.path} holds no checkpoint. Start without --resume, or name the "
                "folder of the run with --output-dir."
            )
        return found

    def check_same(self, config: TrainConfig, checkpoint: Checkpoint, *, force: bool) -> list[str]:
        """What is different from the run that was saved; an error unless ``force``."""
        found = differences(saved_config(checkpoint), to_dict(config))
        if found and not force:
            raise ConfigError(
                f"the configuration is not the one of {checkpoint.path}:\n  " + "\n  ".join(found) + "\n"
                "Use the same, or --force to continue with the new one."
            )
        return found

    def write_config(self, config: TrainConfig) -> None:
        """The resolved configuration, for people, and for a run that resumes here."""
        self.path.mkdir(parents=True, exist_ok=True)
        disk.replace_text(self.path / CONFIG, to_toml(config))

    def missing(self) -> list[Path]:
        """What a run that begins here will make: folders and files that are not there yet, outermost first."""
        wanted = [*reversed(self.path.parents), self.path, self.checkpoints.folder]
        return [path for path in (*wanted, self.path / CONFIG, self.path / LOCK) if not path.exists()]

    def remove(self, made: list[Path]) -> None:
        """Undo the beginning of a run whose first checkpoint could not be saved: the next one finds nothing."""
        with suppress(OSError, CheckpointError):
            self.checkpoints.forget_after(-1)
        for path in reversed(made):
            with suppress(OSError):  # a folder that holds something else stays
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    def config(self) -> dict[str, Any] | None:
        """The configuration written here, as a nested dict; None where there is none."""
        path = self.path / CONFIG
        return read_toml(path) if path.is_file() else None


def _check_named(path: Path) -> None:
    """Raise where ``path`` is no checkpoint at all; whether one is damaged is seen when it is read."""
    if path.is_dir() and (step_of(path) is not None or (path / MANIFEST).exists()):
        return
    meant = f" To go on with that run: --resume latest --output-dir {path}." if (path / "checkpoints").is_dir() else ""
    raise RunFolderError(
        f"there is no checkpoint at {path}; name a folder such as RUN/checkpoints/step-000500, or latest.{meant}"
    )


def saved_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The configuration a checkpoint was made with, as a nested dict."""
    try:
        made: dict[str, Any] = json.loads(checkpoint.part("trainer")["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} does not say how it was configured; resume from another, or start a new run"
        ) from error
    return made
