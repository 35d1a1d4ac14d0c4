"""What a run tells: metrics.jsonl and timing.jsonl always, trackers where they are wanted; written by rank 0."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

import torch
from torch import nn

from opportune.train import disk
from opportune.train.config_file import to_dict
from opportune.train.logs import METRICS, TIMING, JsonLines
from opportune.train.run_folder import RunFolder
from opportune.train.session import Session
from opportune.train.trackers import Tracker, open_trackers, scalars_of


class Reports:
    """The open logs of a run.

    Args:
        session: what is reported on.
        folder: where.
        lengths: bytes of each log at the checkpoint resumed from; what was written after it is cut off.
    """

    def __init__(self, session: Session, folder: RunFolder, lengths: dict[str, int]) -> None:
        self.session = session
        self._files: dict[str, JsonLines] = {}
        self._trackers: list[Tracker] = []
        self._lengths = lengths
        if session.rank == 0:
            self._files = {
                name: JsonLines(folder.path / name, length=lengths.get(name, 0)) for name in (METRICS, TIMING)
            }
            self._trackers = open_trackers(
                session.config.logs.report_to,
                folder=folder.path,
                project=session.config.logs.project,
                config=to_dict(session.config),
                step=session.step,
            )

    def __enter__(self) -> Reports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            if error is not None:  # a full disk fails a second time here; the first message is the one that tells
                stack.enter_context(suppress(OSError))
            for close in (*(file.close for file in self._files.values()), *(t.close for t in self._trackers)):
                stack.callback(close)

    def step(self) -> str:
        """Write the averages since the last record; returns what to show beside the progress bar."""
        session = self.session
        rate = float(session.bare_optimizer.param_groups[0]["lr"])
        record = {"kind": "train", "step": session.step, "learning_rate": rate, **session.meters.record()}
        timing = {"step": session.step, **session.clock.record(session.config.data.batch_size)}
        self._write(METRICS, record)
        self._write(TIMING, timing)
        shown = "none" if record["raw_loss"] is None else f"{record['raw_loss']:.4f}"
        return f"loss {shown}  {timing['examples_per_second']:.0f} images/s"

    def validate(self, keep_going: Callable[[], bool]) -> None:
        """Measure the model and its average on the held-out images and write a record, unless told to stop."""
        session = self.session
        if session.validation is None:
            return
        models: dict[str, nn.Module] = {"raw": session.model}
        if session.ema is not None:
            models["ema"] = session.ema.module
        record: dict[str, Any] = {"kind": "validation", "step": session.step}
        for name, model in models.items():
            with session.evaluating(), torch.random.fork_rng(devices=_devices(session.device)):
                found = session.validation.measure(model, keep_going)
            if found is None:
                return
            record[name] = found
        session.validated_at = session.step
        self._write(METRICS, record)

    def durable_lengths(self) -> dict[str, int]:
        """Bytes of each log, on the disk by now; the same on every rank is not needed, rank 0 saves them."""
        return {name: file.durable_length() for name, file in self._files.items()} or self._lengths

    def _write(self, name: str, record: dict[str, Any]) -> None:
        if not self._files:
            return
        self._files[name].write(record)
        for tracker in self._trackers:
            kind = record.get("kind", "timing")
            scalars = {key: value for key, value in scalars_of(record).items() if key != "step"}
            with disk.explained(self._files[name].path.parent, 32 * len(scalars)):
                tracker.write({f"{kind}/{key}": value for key, value in scalars.items()}, record["step"])


def _devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
