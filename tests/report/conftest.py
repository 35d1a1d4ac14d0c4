"""Four real runs, trained once: two samplers with two seeds each, scored and with pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.report.folders import NASTY, score
from tests.train.runs import tiny

from opportune.train.trainer import Trainer

LABELS = ("uniform", "adaptive")
SEEDS = (0, 1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs ``uniform-0``, ``uniform-1``, ``adaptive-0`` and ``adaptive-1``. Not to be changed."""
    root = tmp_path_factory.mktemp("runs")
    for sampler in LABELS:
        for seed in SEEDS:
            run = root / f"{sampler}-{seed}"
            Trainer(tiny(run, sampler={"name": sampler}, run={"seed": seed}), progress=False).run()
            for step in (8, 12):
                score(run, step)
    return root


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed at will."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def comparison(runs: Path, tmp_path: Path) -> Path:
    """The runs as the folder of a comparison, with labels that need escaping."""
    root = tmp_path / "comparison"
    root.mkdir()
    (root / "plan.toml").write_text('recipe = "fashion16"\n')
    shutil.move(runs, root / "runs")
    names = {"uniform": "uniform", "adaptive": NASTY}
    for run in (root / "runs").iterdir():
        sampler, seed = run.name.split("-")
        cell = {
            "label": names[sampler],
            "setting": "small & <quick>",
            "seed": int(seed),
            "baseline": sampler == "uniform",
        }
        (run / "cell.json").write_text(json.dumps({**cell, "plan": "p"}))
    cost = {"cost": 1.5, "low": 1.4, "high": 1.6, "clock": "cpu", "forwards_per_step": 0.0}
    (root / "cost.json").write_text(json.dumps({NASTY: {"small & <quick>": cost}}))
    return root
