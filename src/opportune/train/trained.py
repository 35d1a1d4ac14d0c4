"""A trained model from its run folder: what generates, evaluates and exports begins here."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from opportune.models import ImageModel
from opportune.processes import Process
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated
from opportune.train.errors import RunFolderError
from opportune.train.manifest import MANIFEST
from opportune.train.parts import make_model, make_process
from opportune.train.run_folder import saved_config
from opportune.train.saved import Checkpoint


class Trained(NamedTuple):
    """A model in evaluation mode, and what it was trained as."""

    model: ImageModel
    process: Process
    config: TrainConfig
    step: int
    weights: str
    """``ema`` or ``raw``."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)`` of what it generates."""
        data = self.config.data
        return data.channels, data.size, data.size

    @property
    def of_latents(self) -> bool:
        """Whether that is a latent, to be decoded."""
        return self.config.data.source.startswith("latents:")


def load_trained(path: str | Path, *, weights: str = "auto", device: torch.device | str = "cpu") -> Trained:
    """The model of a run folder (its newest valid checkpoint) or of one checkpoint.

    Args:
        path: of the run, or of ``checkpoints/step-...`` in it.
        weights: ``"ema"``, ``"raw"``, or ``"auto"``: the average where there is one.
        device: to put it on.
    """
    if weights not in ("auto", "ema", "raw"):
        raise ValueError(f"weights={weights!r} is unknown. Known: auto, ema, raw.")
    checkpoint = _checkpoint(Path(path))
    if weights == "auto":
        weights = "ema" if "ema" in checkpoint.names else "raw"
    config = updated(TrainConfig(), saved_config(checkpoint))
    model = make_model(config)
    model.load_state_dict(checkpoint.part("ema" if weights == "ema" else "model"))
    model.to(device)
    return Trained(model.eval().requires_grad_(False), make_process(config), config, checkpoint.step, weights)


def run_of(path: str | Path) -> Path:
    """The folder of the run that ``path``, a run or one of its checkpoints, belongs to."""
    path = Path(path)
    return path.parent.parent if path.parent.name == "checkpoints" else path


def _checkpoint(path: Path) -> Checkpoint:
    if not path.exists():
        raise RunFolderError(f"there is no run at {path}.")
    if (path / "checkpoints").is_dir():
        found = Checkpoints(path / "checkpoints").latest()
        if found is None:
            raise RunFolderError(f"{path} holds no checkpoint.")
        return found
    if not (path / MANIFEST).exists():
        raise RunFolderError(f"{path} is neither the folder of a run nor a checkpoint.")
    return Checkpoints(path.parent).load(path)
