"""Kill a real training process at random, again and again, and compare what comes out with a run nobody touched.

    python benchmarks/faults.py --kills 100 --output benchmarks/results/faults.json

Each round starts or resumes ``opportune train`` in a process group of its own and sends SIGKILL to the whole group
after a random time. Counted: checkpoints that do not load, steps lost beyond one save interval, and whether the
finished run's weights, average, optimizer, sampler and log are equal to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError
from opportune.train.logs import read_log

STEPS, EVERY = 400, 5
UNFINISHED = "not finished"
SETTINGS = (
    f"--recipe fashion16 --batch-size 16 --checkpoint.every-steps {EVERY} --logs.every-steps 5 "
    "--validation.every-steps 100 --validation.examples 32 --schedule.warm-up-steps 10 --report-to none "
    "--model dit-2m --model.settings.width 32 --model.settings.depth 2 --model.settings.heads 2 "
    "--model.settings.dropout 0.1 --data.workers 2"
).split()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--sampler", default="kim")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--output", type=Path)
    chosen = options.parse_args()
    found = measure(chosen.kills, chosen.sampler, chosen.seed)
    print(table(found))
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(found, indent=2) + "\n")


def measure(
    kills: int, sampler: str, seed: int, *, steps: int = STEPS, longest_seconds: float = 4.0
) -> dict[str, object]:
    """Kill ``kills`` times, up to ``longest_seconds`` after a start; runs that finish are compared and begun again."""
    random.seed(seed)
    folder = Path(tempfile.mkdtemp(prefix="opportune-faults-"))
    settings = [
        *SETTINGS,
        "--steps",
        str(steps),
        "--sampler",
        sampler,
        *(["--sampler.settings.every_steps", "10"] if sampler == "kim" else []),
    ]
    try:
        begin(folder / "whole", settings, resume=False).wait()
        expected = digest(folder / "whole", steps)
        if expected == UNFINISHED:
            raise RuntimeError("the run nobody touched did not finish: there is nothing to compare with.")
        counts = {"kills": 0, "corrupt": 0, "lost_too_much": 0, "finished": 0, "mismatches": 0}
        most_lost, leftovers, start = 0, 0, time.perf_counter()
        run = folder / "killed"
        while counts["kills"] < kills or not counts["finished"] or Checkpoints(run / "checkpoints").list():
            resume = bool(Checkpoints(run / "checkpoints").list())
            process = begin(run, settings, resume=resume)
            if counts["kills"] < kills:
                ended = wait_and_kill(process, run, random.uniform(0.0, longest_seconds))
                counts["kills"] += not ended
                lost, corrupt = state_of(run)
                most_lost = max(most_lost, lost)
                counts["lost_too_much"] += lost > EVERY
                counts["corrupt"] += corrupt
            else:
                ended = process.wait() == 0
            if ended:
                counts["finished"] += 1
                counts["mismatches"] += digest(run, steps) != expected
                leftovers += len(list(run.glob("checkpoints/.*")))
                shutil.rmtree(run)
        return {
            **counts,
            "most_steps_lost": most_lost,
            "save_every_steps": EVERY,
            "sampler": sampler,
            "leftover_folders": leftovers,
            "upper_bound_95_percent": 3 / max(counts["kills"], 1),
            "seconds": round(time.perf_counter() - start),
            "command": f"python benchmarks/faults.py --kills {kills} --sampler {sampler} --seed {seed}",
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def begin(run: Path, settings: list[str], *, resume: bool) -> subprocess.Popen[bytes]:
    """Start or continue a run in a process group of its own."""
    words = [sys.executable, "-m", "opportune", "train", *settings, "--output-dir", str(run)]
    return subprocess.Popen(
        [*words, *(["--resume", "latest"] if resume else [])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_and_kill(process: subprocess.Popen[bytes], run: Path, seconds: float) -> bool:
    """SIGKILL the group ``seconds`` after it holds the run's lock; True if it had ended by itself."""
    lock = run / "run.lock"
    while process.poll() is None and not (lock.exists() and lock.stat().st_size):
        time.sleep(0.01)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lock.unlink(missing_ok=True)  # so that the next wait sees the next holder's; the lock itself is gone by now
        return False


def state_of(run: Path) -> tuple[int, bool]:
    """(steps logged but not saved, whether no valid checkpoint is left where there was one)."""
    checkpoints = Checkpoints(run / "checkpoints")
    try:
        newest = checkpoints.latest()
    except CheckpointError:
        return 0, True
    if newest is None:
        return 0, False
    logged = max((r["step"] for r in read_log(run)), default=0) if (run / "metrics.jsonl").exists() else 0
    return max(0, logged - newest.step), False


def digest(run: Path, steps: int) -> str:
    """SHA-256 over everything that must be equal."""
    newest = Checkpoints(run / "checkpoints").latest()
    if newest is None or newest.step != steps:
        return UNFINISHED
    parts = {name: value for name, value in newest.fingerprints().items() if name != "trainer"}
    log = hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([parts, log], sort_keys=True).encode()).hexdigest()


def table(found: dict[str, object]) -> str:
    """For people."""
    return "\n".join(f"{name.replace('_', ' '):<24} {value}" for name, value in found.items())


if __name__ == "__main__":
    main()
