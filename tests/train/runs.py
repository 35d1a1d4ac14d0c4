"""Small real training runs for the tests of the trainer: seconds each, on the embedded images."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated
from opportune.train.saved import Checkpoint
from opportune.train.trainer import Outcome, Trainer
from opportune.types import StepRecord

TINY: dict[str, Any] = {
    "run": {"steps": 12, "seed": 3},
    "data": {"batch_size": 8},
    "model": {"name": "dit", "settings": {"width": 16, "depth": 1, "heads": 2, "patch_size": 4, "dropout": 0.1}},
    "optimizer": {"learning_rate": 1e-3},
    "ema": {"decay": 0.9},
    "validation": {"every_steps": 5, "examples": 16, "batch_size": 8},
    "checkpoint": {"every_steps": 4},
    "logs": {"every_steps": 3, "bins": 4, "report_to": "none"},
    "hardware": {"device": "cpu"},
}


SMALL = [
    *("--model", "dit-2m", "--model.settings.width", "16"),
    *("--model.settings.depth", "1", "--model.settings.heads", "2"),
]
"""The same on the command line: a network that takes no time."""


def tiny(folder: Path, **changes: dict[str, Any]) -> TrainConfig:
    """The smallest run that has everything: dropout, EMA, validation, checkpoints between records."""
    config = updated(updated(TrainConfig(), TINY), {"run": {"output_dir": str(folder)}})
    return updated(config, changes)


class StoppedAt(Trainer):
    """A trainer that gets a real SIGTERM during step ``stop``."""

    def __init__(self, *args: Any, stop: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stop = stop

    def _take_in(self, record: StepRecord) -> None:
        super()._take_in(record)
        if self.session.step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)

    def _begin(self) -> None:
        super()._begin()
        if self.stop == 0 and self.resume is None:
            os.kill(os.getpid(), signal.SIGTERM)


def stop_at(config: TrainConfig, step: int) -> Outcome:
    """Begin a run and stop it after ``step`` steps."""
    return StoppedAt(config, stop=step).run()


def latest(folder: str | Path) -> Checkpoint:
    """The newest checkpoint of a run."""
    found = Checkpoints(Path(folder) / "checkpoints").latest()
    assert found is not None
    return found


def everything(folder: str | Path) -> dict[str, Any]:
    """What must be equal to the bit: hashes of every part of the last checkpoint, and the log."""
    checkpoint = latest(folder)
    prints = checkpoint.fingerprints()
    trainer = dict(checkpoint.part("trainer"))
    del prints["trainer"], trainer["config"]  # which names the folder
    # A run stopped while it validated was saved before that; it validates when resumed, which the log below shows.
    del trainer["logs"], trainer["validated_at"]
    return {
        "step": checkpoint.step,
        "parts": prints,
        "trainer": trainer,
        "log": (Path(folder) / "metrics.jsonl").read_bytes(),
    }


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["opportune.train.trainer", "diffusers.models.transformers.dit_transformer_2d"])


def on_two(function: Callable[..., Any], *args: Any, seconds: float = 600) -> list[Any]:
    """``function(rank, *args)`` on two real gloo ranks; what each returned, or the text of its error."""
    # As torchrun does: the store is of neither rank, so no port is free now and taken when they come up.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    with tempfile.TemporaryDirectory() as folder:
        ranks = [PROCESSES.Process(target=_rank, args=(rank, port, folder, function, args)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        deadline = time.monotonic() + seconds
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
            rank.kill()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]


def _rank(rank: int, port: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",  # else Accelerate takes all processors for each rank
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    try:
        result = function(rank, *args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
