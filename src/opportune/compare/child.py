"""The process of one cell: train to the end, from where it stands, then score the checkpoints at the plan's points.

    python -m opportune.compare.child PARENT_PID RUN_FOLDER CACHE_FOLDER

It is what ``opportune train --config RUN/config.toml --resume latest`` does, and the scoring after it. A process of its
own, so that whatever happens costs one cell.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from opportune.report.runs import CELL
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import read_toml, updated
from opportune.train.data.errors import DataError, WorkerDied
from opportune.train.errors import CheckpointError, NonFiniteError, RanksError, RunFolderError, RunLockError
from opportune.train.run_folder import CONFIG
from opportune.train.signals import Signals
from opportune.train.trained_images import device_of
from opportune.train.trainer import Trainer

from .evaluation import evaluate_points, missing
from .plan import Evaluate

EXPLAINED = (
    CheckpointError, DataError, ImportError, NonFiniteError, OSError, RanksError, RunFolderError, RunLockError,
    ValueError, WorkerDied,
)  # fmt: skip
"""Errors whose message says what to do; others show where they come from."""


def main(words: Sequence[str]) -> int:
    """Bring one cell to its end; returns the exit code, 128 + the signal's number where asked to stop."""
    parent, run, cache = int(words[0]), Path(words[1]), Path(words[2])
    leave_with(parent)
    try:
        return finish(run, cache)
    except EXPLAINED as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1


def finish(run: Path, cache: Path) -> int:
    """Train and score what is left of the cell in ``run``."""
    cell = json.loads((run / CELL).read_text(encoding="utf-8"))
    config = updated(TrainConfig(), read_toml(run / CONFIG))
    if not missing(run, cell["points"]):
        return 0
    checkpoints = Checkpoints(run / "checkpoints")
    newest = checkpoints.latest()
    if newest is None or newest.step < config.run.steps:
        outcome = Trainer(config, resume=None if newest is None else "latest", progress=False).run()
        if outcome.exit_code:
            return outcome.exit_code
    with Signals() as signals:
        evaluate_points(
            run,
            cell["points"],
            updated(Evaluate(), cell["evaluate"]),
            seed=cell["seed"],
            cache=cache,
            device=device_of(config.hardware.device),
            keep_going=lambda: signals.stop_requested is None,
        )
        return signals.exit_code


def leave_with(parent: int) -> None:
    """Save and stop when ``parent`` is gone: nobody would collect what this process makes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
