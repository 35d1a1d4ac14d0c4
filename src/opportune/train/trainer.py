"""The trainer: ``Trainer(config).run()`` trains, logs, validates, saves, and stops when it is asked to.

The loop itself is ``opportune.step.training_steps``. What happens between two steps is in
:meth:`Trainer._go_on`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from opportune.step import training_steps
from opportune.train.agree import agree
from opportune.train.config import TrainConfig
from opportune.train.config_check import check
from opportune.train.lock import RunLock
from opportune.train.progress import ProgressBar
from opportune.train.ranks import alone, gather_states, on_main, start
from opportune.train.reporting import Reports
from opportune.train.restart import Restart
from opportune.train.run_folder import RunFolder
from opportune.train.schedule import factor, set_learning_rate
from opportune.train.session import Session
from opportune.train.signals import Signals
from opportune.types import StepRecord


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    step: int
    """Steps done."""
    exit_code: int
    """0 when all steps are done; 128 + the signal's number when it was asked to stop before."""
    stopped_by: str | None = None
    """Name of the signal."""
    skipped_images: int = 0
    """Training images that cannot be read, with data.on_bad="skip"; each was named in a warning."""


class Trainer:
    """One run.

    Args:
        config: checked here; a ConfigError is raised before any file is made.
        resume: ``"latest"``, or the path of a checkpoint; None starts a new run.
        force: resume although the configuration is not the one the checkpoint was made with.
        progress: show the bar; None shows it where standard error is a terminal.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        resume: str | None = None,
        force: bool = False,
        progress: bool | None = None,
    ) -> None:
        check(config)
        self.config, self.resume, self.force, self.progress = config, resume, force, progress
        saved = config.checkpoint
        self.folder = RunFolder(config.run.output_dir, keep=saved.keep, keep_every=saved.keep_every_steps)

    def run(self) -> Outcome:
        """Train to the last step, or until a signal asks to stop; call it in the main thread."""
        with ExitStack() as stack:
            self.open(stack)
            with alone():
                for _ in self.steps():
                    pass
            done = self.session.step == self.config.run.steps
            return Outcome(
                self.folder.path,
                self.session.step,
                0 if done else self.signals.exit_code or 143,
                None if done else self.signals.stop_requested,
                len({name for bad in gather_states(dict(self.session.loader.bad)) for name in bad}),
            )

    def open(self, stack: ExitStack) -> None:
        """Make or restore everything the steps need; ``stack`` closes it."""
        self.signals = stack.enter_context(Signals())
        accelerator = start(self.config.hardware)
        on_main(self._check_folder)
        self.session = Session(self.config, accelerator)
        self.restart = Restart(self.session, self.folder)
        if self.resume is None:
            self.restart.check_space()  # nothing is made where there is no room
        missing = self.folder.missing()
        on_main(lambda: stack.enter_context(RunLock(self.folder.path)))
        on_main(self._check_folder)  # again: another run may have been there while this one was made
        with ExitStack() as undone:
            if self.resume is None and self.session.rank == 0:
                undone.callback(self.folder.remove, missing)
            self._begin()
            undone.pop_all()
        self.reports = stack.enter_context(Reports(self.session, self.folder, self.restart.log_lengths))
        self.restart.reports = self.reports
        bar = ProgressBar(self.config.run.steps, self.session.step, shown=self._show_progress())
        self.bar = stack.enter_context(bar)

    def steps(self) -> Generator[int, None, None]:
        """Train, step by step: yields the number of steps done after each."""
        session, config = self.session, self.config
        batches = session.batches()
        records = training_steps(
            session.objective,
            session.timed_sampler,
            session.optimizer,
            batches,
            accumulation=config.data.accumulation,
            engine=session.engine,
        )
        session.clock.restart()  # what came before, such as the first checkpoint, is no part of a step
        try:
            while self._go_on():
                share = factor(config.schedule, session.step, config.run.steps)
                set_learning_rate(session.optimizer, config.optimizer.learning_rate * share)
                session.engine.step_number = session.step
                self._take_in(next(records))
                yield session.step
        finally:
            batches.close()  # ends the loader's workers

    def _check_folder(self) -> None:
        """Before anything slow: is there something to resume, or room for a new run?"""
        if self.resume is None:
            self.folder.check_new()
        else:
            self.folder.check_same(self.config, self.folder.to_resume(self.resume), force=self.force)

    def _begin(self) -> None:
        """Restore, or save the untrained start: the disk is found wanting now rather than at the first save."""
        if self.resume is not None:
            self.restart.restore(self.resume, force=self.force)
        on_main(lambda: self.folder.write_config(self.config))
        if self.resume is None:
            self.restart.save()

    def _go_on(self) -> bool:
        """Between two steps: validate and save where due; False when the run is over or asked to stop."""
        session, config = self.session, self.config
        last = session.step == config.run.steps
        every = config.validation.every_steps
        if every and (session.step % every == 0 or last) and session.validated_at != session.step:
            with session.clock.apart():
                self.reports.validate(lambda: not self._asked_to_stop())
        stop = self._asked_to_stop()
        if stop or last or session.step % config.checkpoint.every_steps == 0:
            with session.clock.apart():
                self.restart.save()
            stop = stop or self._asked_to_stop()  # while it was saving
        return not (stop or last)

    def _take_in(self, record: StepRecord) -> None:
        """What follows a step: averages, logs, the bar."""
        session = self.session
        if not record.skipped:
            if session.ema is not None:
                session.ema.update()
            if session.momentum_decay is not None:
                session.momentum_decay.step()
        if record.losses is not None:
            with torch.no_grad():
                weighted = session.objective.weighted(record.losses, record.draw)
            session.meters.add(record, weighted, session.sampler.take_measured())
        session.step += 1
        session.clock.steps += 1
        self.bar.advance()
        if session.step % self.config.logs.every_steps == 0 or session.step == self.config.run.steps:
            self.bar.tell(self.reports.step())

    def _asked_to_stop(self) -> bool:
        return agree(self.signals.stop_requested is not None)

    def _show_progress(self) -> bool | None:
        return self.progress if self.session.rank == 0 else False
