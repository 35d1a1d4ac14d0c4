"""What the child processes of the fault tests do, and how they are started, traced and killed.

Children come from a fork server that has the library loaded, so that each is a process of its own within milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tests.train.scenarios", "opportune.train.lock", "opportune.train.signals", "torch.distributed.tensor"]
)


def parts_at(step: int) -> dict[str, Any]:
    """A small state that is different at every step and known from the step alone."""
    values = torch.arange(64, dtype=torch.float32) + step
    return {
        "model": {"weight": values.view(8, 8), "bias": values[:8].to(torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": values / 7}}, "lr": 0.1 * step},
        "sampler": {"queue": [step, step + 1], "seen": step, "betas": (0.9, 0.999)},
    }


def digest(state: Any) -> str:
    """One hash over every bit of a nested state."""
    seen = hashlib.sha256()

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            seen.update(f"{value.dtype}{tuple(value.shape)}".encode())
            seen.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                seen.update(repr(key).encode())
                walk(item)
        elif isinstance(value, list | tuple):
            seen.update(type(value).__name__.encode())
            for item in value:
                walk(item)
        else:
            seen.update(repr(value).encode())

    walk(state)
    return seen.hexdigest()


def assert_sound(folder: Path, *, steps: set[int]) -> int:
    """After a fault: a loadable checkpoint of one of ``steps``, exactly as saved; cleaning leaves no trace."""
    checkpoints = Checkpoints(folder)
    newest = checkpoints.latest()
    assert newest is not None
    assert newest.step in steps
    assert digest(newest.parts()) == digest(parts_at(newest.step))
    checkpoints.clean()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    return newest.step


def save_forever(folder: str) -> None:
    """Save step after step until killed, telling after each save which step is done."""
    checkpoints = Checkpoints(folder)
    newest = checkpoints.latest()
    step = newest.step if newest else 0
    while True:
        step += 1
        checkpoints.save(step, parts_at(step))
        note = Path(folder).with_suffix(".note")
        note.write_text(str(step))
        note.replace(Path(folder).with_suffix(".done"))  # whole or not at all: the kill may come here, too


def save_once(folder: str, step: int, result: str, ready: Any, go: Any) -> None:
    """Say ``ready``, wait for ``go``, save one step, write how it went to ``result``."""
    # lets a strace that is not our parent attach where the kernel restricts that
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    report = os.open(result, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for warm_up in (0, 1):  # libraries load parts of themselves at their first use
        Checkpoints(f"{result}.warm-up", keep=1).save(warm_up, parts_at(warm_up))
    shutil.rmtree(f"{result}.warm-up")
    ready.set()
    go.wait()
    try:
        Checkpoints(folder).save(step, parts_at(step))
        text = "saved"
    except CheckpointError as error:
        text = f"CheckpointError: {error}"
    os.pwrite(report, text.encode(), 0)  # a call no test injects a fault into
    os._exit(0)


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


class Traced:
    """A child that saves one step while strace watches it or injects a fault into it."""

    def __init__(self, tmp: Path, folder: Path, step: int, *options: str) -> None:
        self.result = tmp / "result.txt"
        self.log = tmp / "strace.txt"
        self.result.unlink(missing_ok=True)
        ready, go = PROCESSES.Event(), PROCESSES.Event()
        child = PROCESSES.Process(target=save_once, args=(str(folder), step, str(self.result), ready, go))
        child.start()
        assert ready.wait(120)
        command = ["strace", "-f", "-y", "-s", "0", "-o", str(self.log), *options, "-p", str(child.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        if "attached" not in line:
            child.kill()
            child.join()
            tracer.kill()
            tracer.communicate()
            pytest.skip(f"strace cannot attach here: {line.strip()}")
        go.set()
        child.join(60)
        self.exit_code = child.exitcode
        tracer.communicate(timeout=60)

    @property
    def message(self) -> str:
        return self.result.read_text() if self.result.exists() else ""

    def calls(self) -> list[tuple[str, str]]:
        """(name, the rest of the line) of every system call, in order."""
        found = re.findall(r"^\d+ +(\w+)\((.*)$", self.log.read_text(), re.MULTILINE)
        # Event.set wakes the child through calls of its own; the save starts where the disk is asked for space
        start = next((i for i, (name, _) in enumerate(found) if name in ("statfs", "fstatfs")), 0)
        return found[start:]


@contextlib.contextmanager
def running(target: Callable[..., None], *args: Any) -> Iterator[Any]:
    """A child process, killed at the end whatever happens."""
    child = PROCESSES.Process(target=target, args=args)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def wait_for(path: Path, seconds: float = 120) -> str:
    """The text of ``path`` once it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.002)
    raise TimeoutError(path)


def reseal(folder: Path) -> None:
    """Give a changed checkpoint checksums that fit: what a forger would do."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, part in manifest["parts"].items():
        data = (folder / f"{name}.safetensors").read_bytes()
        part["bytes"], part["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    seal(folder, json.dumps(manifest).encode())


def seal(folder: Path, manifest: bytes) -> None:
    """Write ``manifest`` with the checksum that fits it."""
    (folder / "manifest.json").write_bytes(manifest)
    (folder / "manifest.sha256").write_text(f"{hashlib.sha256(manifest).hexdigest()}  manifest.json\n")
