"""The benchmark itself: its network's gradient, its generator, that it resumes, and the arithmetic of regret."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from benchmarks import _cell, _plans, _pool
from benchmarks._generate import generate
from benchmarks._network import ResidualMLP
from benchmarks._regret import Table, interval, reach
from torch.nn.functional import silu

import opportune as op
from opportune.testing import analytic

ROOT = Path(__file__).resolve().parents[2]
TINY = {"steps": 30, "pairs": 256, "generated": 64, "width": 16}
UNIFORM = {"label": "uniform", "sampler": "uniform", "settings": {}, "fixed": True}


def test_network_gradient_is_autograds():
    network = ResidualMLP(5, width=16, seed=1)
    x, time_ = torch.randn(7, 5), torch.rand(7) * 1000

    def plain():
        weights, biases = network.layers(network.flat)
        phase = time_[:, None] * network.frequencies
        h = torch.cat([x, phase.sin(), phase.cos()], dim=1) @ weights[0] + biases[0]
        for i in range(1, len(weights) - 1, 2):
            h = h + silu(silu(h) @ weights[i] + biases[i]) @ weights[i + 1] + biases[i + 1]
        return silu(h) @ weights[-1] + biases[-1]

    assert torch.allclose(network(x, time_), plain(), atol=1e-6)
    found, expected = (
        torch.autograd.grad(f().square().sum(), network.flat)[0] for f in (lambda: network(x, time_), plain)
    )
    assert torch.allclose(found, expected, atol=1e-5)
    assert expected.abs().max() > 0.01


@pytest.mark.parametrize("setting", _cell.SETTINGS)
def test_the_optimal_denoiser_generates_the_data(setting):
    process = _cell.make_process(setting)
    data = analytic.modes(2, count=3, std=0.3, seed=1)
    data = data.scaled(process.sigma_data) if setting == "edm" else data

    class Optimal:
        def __call__(self, network_input, network_time):
            t = torch.exp(4 * network_time) if setting == "edm" else network_time / (1000 if setting == "flow" else 1)
            t = t if setting in ("edm", "flow") else t.long()
            alpha, sigma = (c[:, None] for c in process.coefficients(t))
            x_t = network_input / process.network_input(torch.ones_like(network_input), t)
            x0 = data.posterior_mean(x_t, alpha, sigma)
            return process.target(x0, (x_t - alpha * x0) / sigma, t)

    noise = torch.randn(1000, 2, generator=torch.Generator().manual_seed(1))
    made = generate(Optimal(), process, noise, data.bounds(), steps=30)
    unit = math.sqrt(data.variance())
    assert analytic.sliced_wasserstein(made, data.sample(8000, seed=3)) / unit < 0.12
    assert analytic.sliced_wasserstein(unit * noise, data.sample(8000, seed=3)) / unit > 0.2


def test_a_fine_tune_begins_with_what_was_learned_before():
    """Trained on the same data before, the first steps are far ahead of a fresh network's; a plan may ask for it."""
    before = {"data": "report-modes2", "steps": 1000}
    fresh = _cell.run(_cell.cell("flow", "report-modes2", UNIFORM, 3, **TINY))
    spec = _cell.cell("flow", "report-modes2", UNIFORM, 3, **TINY, before=before)
    tuned = _cell.run(spec)
    assert tuned["curve"]["own"][0] < 0.5 * fresh["curve"]["own"][0]
    assert _cell.key(spec) != _cell.key(_cell.cell("flow", "report-modes2", UNIFORM, 3, **TINY))
    plan = _plans.read(str(ROOT / "benchmarks/plans/fine-tune.toml"))
    assert all(cell["before"]["steps"] == 3000 for cell in _plans.cells(plan)[0])


def test_a_cell_is_reproducible_and_methods_share_data_and_weights():
    first = _cell.run(_cell.cell("flow", "report-modes2", UNIFORM, 3, **TINY))
    again = _cell.run(_cell.cell("flow", "report-modes2", UNIFORM, 3, **TINY))
    other = _cell.run(_cell.cell("flow", "report-modes2", UNIFORM, 4, **TINY))
    assert first["final"] == again["final"]
    assert first["final"] != other["final"]
    assert first["curve"]["step"][-1] == 30
    assert all(math.isfinite(v) for v in first["final"].values())
    # Same objective by another name: an unweighted table equal to uniform must give the very same network.
    flat = {"label": "flat", "sampler": "beta", "settings": {"a": 1.0, "b": 1.0}}
    assert _cell.run(_cell.cell("flow", "report-modes2", flat, 3, **TINY))["final"] == first["final"]


def test_training_lowers_the_excess():
    budget = {**TINY, "steps": 300, "width": 32}
    result = _cell.run(_cell.cell("linear", "report-modes2", UNIFORM, 0, **budget))
    assert result["curve"]["eps"][-1] < 0.5 * result["curve"]["eps"][0]


def test_key_tells_results_apart_and_ignores_labels():
    cell = _cell.cell("linear", "report-modes2", UNIFORM, 0)
    renamed = {**cell, "method": {**UNIFORM, "label": "another name", "fixed": False}}
    assert _cell.key(cell) == _cell.key(renamed)
    others = [
        _cell.cell("cosine", "report-modes2", UNIFORM, 0),
        _cell.cell("linear", "report-modes2", UNIFORM, 1),
        _cell.cell("linear", "report-modes2", UNIFORM, 0, steps=2999),
        _cell.cell("linear", "report-modes2", {**UNIFORM, "settings": {"unbiased": True}}, 0),
        _cell.cell("linear", "report-modes2", {**UNIFORM, "weighting": "min_snr"}, 0),
    ]
    assert len({_cell.key(c) for c in [cell, *others]}) == 6
    with pytest.raises(ValueError, match="budget \\['stesp'\\]"):
        _cell.cell("linear", "report-modes2", UNIFORM, 0, stesp=3)


def test_tune_and_report_share_no_mixture():
    seeds = [arguments["seed"] for _, arguments in _cell.DATA.values()]
    assert len(set(seeds)) == len(seeds)
    assert set(_plans.PLANS["grid"]["data"]).isdisjoint(_plans.PLANS["full"]["data"])
    assert set(_plans.PLANS["grid"]["seeds"]).isdisjoint(_plans.PLANS["full"]["seeds"])


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'settings = ["linear"]\ndata = ["report-modes2"]\nseeds = [0, 1, 2, 3, 4, 5]\n'
        '[[methods]]\nsampler = "uniform"\nfixed = true\n'
        "[budget]\nsteps = 150\npairs = 256\ngenerated = 64\nwidth = 16\n"
    )
    out = tmp_path / "cells"
    command = [sys.executable, "benchmarks/analytic.py", "--plan", str(plan), "--workers", "1", "--out", str(out)]
    command += ["--results", str(tmp_path / "results")]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.time() + 300  # a busy machine
    while len(list(out.glob("*.json"))) < 2 and time.time() < deadline and run.poll() is None:
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    assert 2 <= len(kept) < 6
    command += ["--workers", "0", "--seeds", "0", "1", "2", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert f"{len(kept)} were done" in done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["values"]["linear/report-modes2"]["uniform"]["seeds"] == [0, 1, 2, 3]
    assert "Regret on vlb" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.png").stat().st_size > 1000


def test_a_failing_cell_is_reported_and_costs_no_other(tmp_path):
    def run(cell):
        if cell["n"] == 1:
            raise RuntimeError("boom")
        return {"n": cell["n"]}

    def key(cell):
        return str(cell["n"])

    (tmp_path / "2.json").write_text('{"n": ')  # half a file, as no kill of ours leaves but a full disk may
    cells = [{"n": n} for n in range(3)]
    results, failures = _pool.work(cells, folder=tmp_path, run=run, key=key, workers=0)
    assert [r["n"] for r in results] == [0, 2]
    assert failures == [("1", "RuntimeError: boom")]
    assert not (tmp_path / "1.json").exists()
    assert json.loads((tmp_path / "2.json").read_text()) == {"n": 2}


def made(setting, label, seed, vlb, *, fixed=False, curve=(4.0, 2.0, 1.0), cost=1.0):
    method = {"label": label, "sampler": "x", "fixed": fixed}
    return {
        "spec": {"setting": setting, "data": "d", "seed": seed, "method": method, "steps": 300},
        "final": {"own": vlb, "eps": vlb, "vlb": vlb, "sw": vlb},
        "curve": {
            "step": [100 * (at + 1) for at in range(len(curve))],
            "own": list(curve),
            "eps": list(curve),
            "vlb": list(curve),
        },
        "ms_per_step": cost,
    }


def test_regret_on_a_table_small_enough_to_do_by_hand():
    table = Table(
        [
            made("a", "uniform", 0, 2.0, fixed=True), made("a", "uniform", 1, 4.0, fixed=True),
            made("a", "narrow", 0, 1.0, fixed=True), made("a", "narrow", 1, 3.0, fixed=True),
            made("a", "ours", 0, 1.1), made("a", "ours", 1, 3.3),
            made("b", "uniform", 0, 1.0, fixed=True), made("b", "uniform", 1, 1.0, fixed=True),
            made("b", "narrow", 0, 5.0, fixed=True), made("b", "narrow", 1, None, fixed=True),
            made("b", "ours", 0, 0.9), made("b", "ours", 1, 0.9),
            made("b", "half done", 0, 0.1, fixed=True),
        ]
    )  # fmt: skip
    a, b = ("a", "d"), ("b", "d")
    assert table.best_fixed(a, "vlb") == ("narrow", 2.0)
    assert table.best_fixed(b, "vlb") == ("uniform", 1.0)  # not the diverged, nor the one with a seed missing
    assert table.regret(a, "ours", "vlb").mean == pytest.approx(0.1)  # (0.1 + 0.3) / 2 over 2
    assert table.regret(a, "ours", "vlb").half == pytest.approx(12.706 * 0.05 * math.sqrt(2) / math.sqrt(2))
    assert table.regret(a, "uniform", "vlb").mean == pytest.approx(0.5)
    assert table.regret(b, "ours", "vlb").mean == pytest.approx(-0.1)
    assert math.isinf(table.regret(b, "narrow", "vlb").mean)
    assert table.overall("ours", "vlb") == {
        "worst": pytest.approx(0.1), "worst_at": ["a", "d"], "mean": pytest.approx(0.0), "places": 2,
    }  # fmt: skip
    assert table.against(a, "ours", "vlb").mean == pytest.approx(-0.8 / 3)
    assert table.best_fixed(a, "sw") == ("narrow", 2.0)


def test_steps_and_time_to_uniforms_final_value():
    table = Table(
        [
            made("a", "uniform", 0, 1.0, fixed=True, curve=(4, 2, 1), cost=2.0),
            made("a", "twice as fast", 0, 1.0, curve=(2, 0.5, 0.4), cost=3.0),
            made("a", "never", 0, 1.0, curve=(4, 3, 2), cost=2.0),
        ]
    )
    fast = table.speed(("a", "d"), "twice as fast", "vlb")
    assert fast["steps"] == pytest.approx(0.5)  # half-way from 100 to 200 in the logarithm
    assert fast["time"] == pytest.approx(0.75)
    assert table.speed(("a", "d"), "uniform", "vlb")["steps"] == pytest.approx(1.0)
    assert table.speed(("a", "d"), "never", "vlb") == {"reached": 0, "of": 1, "cost": 1.0}


def test_a_collapse_late_in_a_run_shows_also_where_it_ends_well():
    table = Table(
        [
            made("a", "uniform", 0, 1.0, fixed=True, curve=(9, 8, 4, 2)),
            made("a", "uniform", 1, 1.0, fixed=True, curve=(9, 8, 2, 2)),
            made("a", "ours", 0, 1.0, curve=(99, 6, 2, 1)),
            made("a", "ours", 1, 1.0, curve=(1, 1, 6, 1)),
            made("a", "ours", 2, 1.0, curve=(1, 1, None, 1)),
        ]
    )
    late = table.late(("a", "d"), "ours", "vlb")  # beside 8, 3 and 2; what came before half of the run does not count
    assert late == {0: pytest.approx(-0.25), 1: pytest.approx(1.0), 2: math.inf}
    assert table.late(("a", "d"), "ours", "vlb", base="nobody") == {}


def test_reach_counts_from_the_last_crossing():
    assert reach([10, 20, 30, 40], [0.5, 2.0, 4.0, 1.0], 2.0) == pytest.approx(35)
    assert reach([10, 20], [1.0, 0.5], 1.0) == 10
    assert reach([10, 20], [3.0, 2.0], 1.0) == math.inf
    assert reach([10, 20], [0.5, None], 1.0) == math.inf


def test_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(4.303 / math.sqrt(3))
    assert interval([1.0]).half is None
    assert interval([1.0, math.inf]).mean == math.inf


def test_every_named_plan_makes_cells_and_says_what_is_left_out():
    for name, plan in _plans.PLANS.items():
        cells, left_out = _plans.cells(plan)
        assert cells, name
        labels = {c["method"]["label"] for c in cells}
        assert labels | set(left_out) == {m["label"] for m in plan["methods"]}
        assert len({_cell.key(c) for c in cells}) == len(cells)
    assert isinstance(op.sampler("uniform", op.Flow()), op.Sampler)
