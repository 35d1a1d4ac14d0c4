"""The examples run as a reader would run them, and what they print is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NUMBERED = sorted(EXAMPLES.glob("[0-9]*.py"))


def run(name, *words, launcher=()):
    """Standard output of an example in a process of its own, quick and with one thread."""
    command = [sys.executable, *launcher, str(EXAMPLES / name), *words]
    quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def numbers(text):
    return [float(found) for found in re.findall(r"-?\d+\.?\d*", text)]


def test_three_lines_learn_and_choose():
    loss, drawn = run("01_three_lines.py", "--steps", "150").splitlines()
    before, after = numbers(loss)
    assert after < 0.6 * before
    shares = numbers(drawn.partition(":")[2])
    assert len(shares) == 10 and sum(shares) == pytest.approx(100, abs=1)
    assert max(shares) > 12 and min(shares) > 0.5, "after its warm-up it draws some noise levels more often than others"


def test_an_unbiased_sampler_keeps_the_objective():
    uniform, corrected, uncorrected = (
        numbers(line)[-1] for line in run("02_weighting_and_objective.py", "--steps", "60").splitlines()
    )
    assert corrected == pytest.approx(uniform, rel=0.08)
    assert uncorrected > 1.1 * uniform


@pytest.mark.parametrize("name, steps", [("03_save_and_resume.py", 60), ("06_lightning.py", 12)])
def test_a_break_in_the_middle_changes_nothing(name, steps):
    whole, resumed = (line.partition(": ")[::2] for line in run(name, "--steps", str(steps)).splitlines())
    assert (whole[0], resumed[0]) == ("uninterrupted", "resumed")
    assert whole[1] == resumed[1] and "weights" in whole[1]
    if name.startswith("06"):
        assert whole[1].startswith(f"steps watched {2 * steps},")


def test_diffusers_processes_come_from_its_schedulers():
    ddpm, flow = run("04_diffusers.py", "--steps", "20").splitlines()
    assert "steps=1000, prediction='v'" in ddpm and "Flow(shift=3," in flow
    for line in (ddpm, flow):
        before, after = numbers(line.partition("loss")[2])
        assert after < 0.8 * before


def test_accelerate_watches_once_per_real_step():
    seen, steps, watched, densest = numbers(run("05_accelerate.py", "--steps", "12").replace("t=", ""))
    assert (seen, steps, watched) == (24, 12, 12)
    assert 0 <= densest < 1000


def test_two_ranks_draw_differently_and_learn_alike():
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    lines = sorted(run("07_two_ranks.py", "--steps", "40", launcher=launcher).splitlines())
    assert [line[:6] for line in lines] == ["rank 0", "rank 1"]
    (first, learned), (second, same) = (line.split(": last draws ")[1].split(", density ") for line in lines)
    assert numbers(first) != numbers(second) and len(numbers(first)) == len(numbers(second)) == 6
    assert learned == same
    assert any(abs(density - 1) > 0.05 for density in numbers(learned)), "past its warm-up"


def test_a_method_of_your_own_is_the_one_of_the_guide():
    lines = run("08_own_method.py", "--steps", "50").splitlines()
    assert [line.startswith("Triangular passes every check on ") for line in lines] == [True, True, False]
    count, mean, exactly = numbers(lines[-1])
    assert count == 800 and mean == pytest.approx(exactly, abs=0.05)
    guide = (ROOT / "docs" / "add_a_method.md").read_text()
    written = (EXAMPLES / "08_own_method.py").read_text()
    skeleton = written[written.index("class Triangular") : written.index("def main")].strip()
    assert skeleton in guide


def test_every_example_is_short_and_listed():
    listed = (EXAMPLES / "README.md").read_text()
    assert [path.name[:2] for path in NUMBERED] == [f"{n:02}" for n in range(1, 9)]
    for path in NUMBERED:
        assert f"examples/{path.name}" in listed
        assert len(path.read_text().splitlines()) < 80
