"""TensorBoard, Weights & Biases and trackio: the numbers of metrics.jsonl where people like to look at them."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, Protocol

from opportune.checks import one_of
from opportune.train.data.errors import need
from opportune.train.errors import ConfigError

_EXTRA = {"tensorboard": "train", "wandb": "wandb", "trackio": "trackio"}
KNOWN = tuple(_EXTRA)


class Tracker(Protocol):
    """Where scalars go."""

    def write(self, scalars: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def chosen(report_to: str) -> list[str]:
    """The trackers named by ``logs.report_to``."""
    if report_to == "none":
        return []
    if report_to == "auto":
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    try:
        return [one_of("logs.report_to", name.strip(), KNOWN) for name in report_to.split(",")]
    except ValueError as error:
        raise ConfigError(f"{error} Or auto, or none.") from error


def check_trackers(report_to: str) -> None:
    """Raise where a tracker is unknown or not installed."""
    for name in chosen(report_to):
        if importlib.util.find_spec(name) is None:
            need(name, _EXTRA[name])


def open_trackers(report_to: str, *, folder: Path, project: str, config: dict[str, Any], step: int) -> list[Tracker]:
    """Open each; a run that resumes at ``step`` continues what it wrote before."""
    made: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _Wandb, "trackio": _Trackio}
    return [made[name](folder, project, config, step) for name in chosen(report_to)]


def identity(folder: Path) -> str:
    """What a tracker knows a run by: two folders called ``seed0`` in different places are two runs."""
    folder = folder.resolve()
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def scalars_of(record: dict[str, Any], where: str = "") -> dict[str, float]:
    """Numbers of a record by their path, e.g. ``bins/raw_loss/03``; those without a value are left out."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found |= scalars_of(value, f"{where}{key}/")
        elif isinstance(value, list):
            found |= {f"{where}{key}/{i:02}": float(v) for i, v in enumerate(value) if v is not None}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{where}{key}"] = float(value)
    return found


class _TensorBoard:
    def __init__(self, folder: Path, project: str, config: dict[str, Any], step: int) -> None:
        need("tensorboard", _EXTRA["tensorboard"])
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, project: str, config: dict[str, Any], step: int) -> None:
        wandb = need("wandb", _EXTRA["wandb"])
        # wandb drops records whose step lies behind the last one, so a resumed run continues under its own name.
        self._run: Any = wandb.init(
            project=project,
            name=folder.resolve().name,
            id=identity(folder),
            resume="allow",
            dir=str(folder),
            config=config,
        )

    def write(self, scalars: dict[str, float], step: int) -> None:
        self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, folder: Path, project: str, config: dict[str, Any], step: int) -> None:
        self._trackio = need("trackio", _EXTRA["trackio"])
        self._trackio.init(project=project, name=identity(folder), resume="allow", config=config)

    def write(self, scalars: dict[str, float], step: int) -> None:
        self._trackio.log(scalars, step=step)

    def close(self) -> None:
        self._trackio.finish()
