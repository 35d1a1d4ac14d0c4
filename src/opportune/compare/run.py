"""Run what is left of a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opportune.report.overhead import COST
from opportune.train.lock import RunLock
from opportune.train.signals import Signals

from .cells import Cell, cells_of
from .evaluation import check_scoring
from .folder import FEATURES, LOG, check_folder, is_finished, write_folder
from .plan import Plan
from .workers import Job, run_jobs, visible_devices


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended.

    Attributes:
        failed: name of a cell (or "cost") and the last line of what it said.
        stopped_by: name of the signal.
        exit_code: 0 if all is done, 1 if something failed, 128 + the signal's number where asked to stop.
    """

    cells: list[Cell]
    failed: dict[str, str]
    left: int
    stopped_by: str | None
    exit_code: int


def run_plan(plan: Plan, output: str | Path, *, workers: int = 1, say: Callable[[str], None]) -> Outcome:
    """Measure the methods' costs and run all cells that are not finished; what is done stays whatever happens.

    Args:
        plan: what to run.
        output: folder of the comparison; an old one is continued.
        workers: processes at a time; of one thread each, or on one CUDA device each where there are several.
        say: told what happens, line by line.
    """
    output = Path(output)
    cells = cells_of(plan, output)
    apart = check_folder(plan, cells, output)
    if apart:
        say(f"{len(apart)} runs in {output} are not part of this plan and are left out: {', '.join(apart)}")
    left = [cell for cell in cells if not is_finished(cell)]
    if left:
        check_scoring(plan.evaluate, left[0].config)
    with RunLock(output), Signals() as signals:
        write_folder(plan, cells, output)
        say(f"{len(cells)} cells, {len(cells) - len(left)} finished before")
        failed: dict[str, str] = {}
        progress = _Progress(len(left), failed, say)
        devices = visible_devices()
        cost = [] if (output / COST).is_file() else [_cost_job(output)]
        if cost:
            say("measuring what a step of each method costs, in turns; then the cells")
        # Alone: what else runs would be in the times.
        undone = run_jobs(cost, workers=1, signals=signals, devices=devices, done=progress.cost)
        jobs = [_job(cell, output) for cell in left]
        undone += run_jobs(jobs, workers=workers, signals=signals, devices=devices, done=progress.cell)
        code = signals.exit_code or (1 if failed else 0)
        return Outcome(cells=cells, failed=failed, left=len(undone), stopped_by=signals.stop_requested, exit_code=code)


class _Progress:
    """Tells how each process ended."""

    def __init__(self, total: int, failed: dict[str, str], say: Callable[[str], None]) -> None:
        self._total, self._failed, self._say, self._ended = total, failed, say, 0

    def cost(self, job: Job, code: int) -> None:
        if code:
            self._fail(job, code)

    def cell(self, job: Job, code: int) -> None:
        self._ended += 1
        self._say(f"{self._ended}/{self._total}  {job.name}{'' if code == 0 else '  FAILED'}")
        if code:
            self._fail(job, code)

    def _fail(self, job: Job, code: int) -> None:
        lines = [line for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        last = lines[-1].removeprefix("error: ") if lines and code > 0 else how
        self._failed[job.name] = f"{last} ({job.log})"


def _job(cell: Cell, output: Path) -> Job:
    words = ("opportune.compare.child", str(os.getpid()), str(cell.folder), str(output / FEATURES))
    return Job(name=cell.name, command=(sys.executable, "-m", *words), log=cell.folder / LOG)


def _cost_job(output: Path) -> Job:
    words = ("opportune.compare.cost", str(os.getpid()), str(output))
    return Job(name="cost", command=(sys.executable, "-m", *words), log=output / "cost.log")
