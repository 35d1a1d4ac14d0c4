"""Run commands in processes side by side; stop them all, saved, when asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opportune.train.signals import Signals

THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command, and the file its output goes to."""

    name: str
    command: tuple[str, ...]
    log: Path


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int,
    signals: Signals,
    devices: Sequence[str] = (),
    done: Callable[[Job, int], None],
) -> list[Job]:
    """Run all jobs, ``workers`` at a time and in their order; returns those that were stopped or not started.

    A signal that ``signals`` has seen goes to every process once; they are waited for.

    Args:
        devices: CUDA devices, dealt to the workers in turn; none for processes of one thread.
        done: called with every job that ended by itself and its exit code.
    """
    waiting, stopped = list(jobs), []
    slots: list[tuple[Job, subprocess.Popen[bytes]] | None] = [None] * workers
    told = False
    while any(slots) or (waiting and not told):
        if signals.stop_requested is not None and not told:
            told = True
            for slot in slots:
                if slot is not None:
                    slot[1].send_signal(signal.SIGTERM)
        for place, slot in enumerate(slots):
            if slot is not None and (code := slot[1].poll()) is not None:
                slots[place] = None
                if told and code != 0:
                    stopped.append(slot[0])
                else:
                    done(slot[0], code)
            elif slot is None and waiting and not told:
                job = waiting.pop(0)
                slots[place] = job, _started(job, devices[place % len(devices)] if devices else None)
        time.sleep(_PAUSE_SECONDS)
    return [*stopped, *waiting]


def visible_devices() -> list[str]:
    """The CUDA devices there are, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] if named else [str(number) for number in range(count)]


def _started(job: Job, device: str | None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **({} if device is None else {"CUDA_VISIBLE_DEVICES": device})}
    if device is None:
        environment |= THREADS
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        # A session of its own: the terminal's Ctrl-C comes to us alone, and we pass it on once.
        return subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
