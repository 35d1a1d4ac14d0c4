"""Asked to stop: finish the step, save, exit. Asked again: exit at once."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """Context manager: SIGTERM, SIGINT and SIGUSR1 set ``stop_requested``, which the training loop looks at.

    >>> with Signals() as signals:
    ...     for step in range(3):
    ...         if signals.stop_requested:
    ...             break

    The loop then saves and exits with ``exit_code``. A second signal exits at once with 128 + its number, as
    soon as Python runs (a process stuck in native code needs SIGKILL); whatever is being written is then
    abandoned, and what was written before is untouched. Signals that come within ``settle_seconds`` of the
    first are the same request: launchers (torchrun, SLURM, a terminal's Ctrl-C) often deliver it twice.

    In a process forked while it is active (a loader worker) SIGTERM ends the process as usual and the other
    two do nothing: the parent decides. On exit the handlers from before are back. Use it in the main thread.
    """

    def __init__(self, *, settle_seconds: float = 1.0) -> None:
        if not settle_seconds >= 0:
            raise ValueError(f"settle_seconds must be >= 0, got {settle_seconds}")
        self.settle_seconds = settle_seconds
        self.stop_requested: str | None = None
        self.exit_code = 0
        self._first_at = 0.0
        self._pid = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        self._pid = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None: the handler was not set from Python and cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._handle_in_child(number)
        elif self.stop_requested is None:
            self._first_at = time.monotonic()
            self.exit_code = 128 + number
            self.stop_requested = signal.Signals(number).name
        elif time.monotonic() - self._first_at >= self.settle_seconds:
            os._exit(128 + number)

    @staticmethod
    def _handle_in_child(number: int) -> None:
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
