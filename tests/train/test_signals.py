"""Real signals to real processes."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.train.scenarios import PROCESSES, digest, parts_at, running, wait_for

from opportune.train.checkpoint import Checkpoints
from opportune.train.signals import Signals

ALL = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


def train(folder: str, settle_seconds: float) -> None:
    """A loop that saves when asked to stop."""
    with Signals(settle_seconds=settle_seconds) as signals:
        step = 0
        while not signals.stop_requested:
            step += 1
            time.sleep(0.002)
            Path(folder, "running").write_text(str(step))
        Checkpoints(folder).save(step, parts_at(step))
        Path(folder, "reason").write_text(signals.stop_requested)
        os._exit(signals.exit_code)


def never_stop(folder: str, settle_seconds: float) -> None:
    """A loop that is asked to stop and does not get there."""
    with Signals(settle_seconds=settle_seconds) as signals:
        Path(folder, "running").write_text("x")
        while True:
            time.sleep(0.002)
            if signals.stop_requested and not Path(folder, "asked").exists():
                Path(folder, "asked").write_text(signals.stop_requested)


@pytest.mark.parametrize("number", ALL)
def test_the_first_signal_lets_the_loop_save(tmp_path: Path, number: signal.Signals) -> None:
    with running(train, str(tmp_path), 1.0) as child:
        wait_for(tmp_path / "running")
        os.kill(child.pid, number)
        child.join(120)
        assert child.exitcode == 128 + number
    assert (tmp_path / "reason").read_text() == number.name
    newest = Checkpoints(tmp_path).latest()
    assert newest is not None and digest(newest.parts()) == digest(parts_at(newest.step))


@pytest.mark.parametrize("second", ALL)
def test_the_second_signal_exits_at_once(tmp_path: Path, second: signal.Signals) -> None:
    with running(never_stop, str(tmp_path), 0.0) as child:
        wait_for(tmp_path / "running")
        os.kill(child.pid, signal.SIGTERM)
        assert wait_for(tmp_path / "asked") == "SIGTERM"
        os.kill(child.pid, second)
        child.join(120)
        assert child.exitcode == 128 + second


def test_signals_close_together_are_one_request(tmp_path: Path) -> None:
    """A launcher passes on the Ctrl-C that the terminal has already delivered."""
    with running(never_stop, str(tmp_path), 60.0) as child:
        wait_for(tmp_path / "running")
        os.kill(child.pid, signal.SIGINT)
        assert wait_for(tmp_path / "asked") == "SIGINT"
        os.kill(child.pid, signal.SIGTERM)
        time.sleep(0.2)
        assert child.is_alive()


def with_a_worker(folder: str, ready: Any) -> None:
    with Signals() as signals:
        worker = os.fork()
        if worker == 0:
            while True:
                time.sleep(60)
        Path(folder, "worker").write_text(str(worker))
        while not signals.stop_requested:
            time.sleep(0.01)
        Path(folder, "asked").write_text("x")
        _, status = os.waitpid(worker, 0)
        os._exit(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 99)


def test_a_forked_worker_ignores_ctrl_c_and_ends_at_sigterm(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group; the workers must last until the parent has saved, and then be stoppable."""
    with running(with_a_worker, str(tmp_path), None) as child:
        worker = int(wait_for(tmp_path / "worker"))
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGINT):
            os.kill(worker, number)
            time.sleep(0.05)
        os.kill(worker, 0)
        os.kill(child.pid, signal.SIGINT)
        wait_for(tmp_path / "asked")
        os.kill(worker, signal.SIGTERM)
        child.join(120)
        assert child.exitcode == signal.SIGTERM


def test_handlers_from_before_come_back() -> None:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        outside = [signal.getsignal(number) for number in ALL]
        with pytest.raises(ZeroDivisionError), Signals() as signals:
            assert signals.stop_requested is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.stop_requested == "SIGUSR1" and signals.exit_code == 128 + signal.SIGUSR1
            1 / 0  # noqa: B018
        assert [signal.getsignal(number) for number in ALL] == outside
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_second_signal_during_a_save_harms_nothing(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "run").save(1, parts_at(1))
    for _ in range(5):
        (tmp_path / "asked").unlink(missing_ok=True)
        (tmp_path / "running").unlink(missing_ok=True)
        with running(save_when_asked, str(tmp_path)) as child:
            wait_for(tmp_path / "running")
            os.kill(child.pid, signal.SIGTERM)
            wait_for(tmp_path / "asked")
            os.kill(child.pid, signal.SIGTERM)
            child.join(120)
            assert child.exitcode == 143
        checkpoints = Checkpoints(tmp_path / "run")
        checkpoints.clean()
        newest = checkpoints.latest()
        assert newest is not None and digest(newest.parts()) == digest(parts_at(newest.step))
        assert not [path for path in checkpoints.folder.iterdir() if path.name.startswith(".")]


def save_when_asked(folder: str) -> None:
    checkpoints = Checkpoints(Path(folder) / "run")
    newest = checkpoints.latest()
    step = newest.step if newest else 0
    with Signals(settle_seconds=0.0) as signals:
        Path(folder, "running").write_text("x")
        while not signals.stop_requested:
            time.sleep(0.001)
        Path(folder, "asked").write_text("x")
        while True:
            step += 1
            checkpoints.save(step, parts_at(step))


def test_settings_are_checked() -> None:
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="settle_seconds must be >= 0"):
            Signals(settle_seconds=bad)


def test_a_shell_sees_128_plus_n(tmp_path: Path) -> None:
    """As a whole program, sent twice by a shell."""
    code = (
        "import pathlib, sys, time\n"
        "from opportune.train.signals import Signals\n"
        "with Signals(settle_seconds=0) as s:\n"
        "    pathlib.Path(sys.argv[1], 'running').write_text('x')\n"
        "    while not s.stop_requested: time.sleep(0.01)\n"
        "    pathlib.Path(sys.argv[1], 'asked').write_text('x')\n"
        "    time.sleep(600)\n"
    )
    import sys

    program = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        wait_for(tmp_path / "running")
        program.send_signal(signal.SIGINT)
        wait_for(tmp_path / "asked")
        program.send_signal(signal.SIGINT)
        assert program.wait(120) == 130
    finally:
        program.kill()


def test_the_processes_of_these_tests_are_of_their_own() -> None:
    with running(os.getpid) as child:
        assert child.pid != os.getpid()
    assert PROCESSES.get_start_method() == "forkserver"
