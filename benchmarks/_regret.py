"""The arithmetic of the comparison: intervals, steps to a target, distance to the best fixed density in hindsight."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

METRICS = ("own", "eps", "vlb", "sw")

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """Mean and half-width of its 95 % t-interval (None for a single value)."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3g}" if self.half is None else f"{self.mean:.3g} ± {self.half:.2g}"


def interval(values: Sequence[float]) -> Interval:
    """95 % interval of the mean; a value that is not finite (a diverged run) makes the mean infinite."""
    if not values:
        raise ValueError("values is empty: an interval needs at least one.")
    if not all(math.isfinite(v) for v in values):
        return Interval(math.inf, None, len(values))
    half = None
    if len(values) > 1:
        quantile = _T[len(values) - 2] if len(values) - 1 <= len(_T) else 1.96
        half = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(mean(values), half, len(values))


def reach(steps: Sequence[float], values: Sequence[float | None], target: float) -> float:
    """Step from which a curve stays at or below ``target``, log-linear between measurements; inf if it does not.

    Counted from the last crossing: an untrained network may start below by luck and rise first.
    """
    known = [math.inf if value is None else value for value in values]
    above = [index for index, value in enumerate(known) if value > target]
    if not above:
        return float(steps[0])
    last = above[-1]
    if last == len(known) - 1:
        return math.inf
    high, low = known[last], known[last + 1]
    if not math.isfinite(high) or low <= 0:
        return float(steps[last + 1])
    share = math.log(high / target) / math.log(high / low)
    return steps[last] + share * (steps[last + 1] - steps[last])


Where = tuple[str, str]
"""(setting, data)."""


class Table:
    """Results by where and method.

    Args:
        results: of cells; a method is known by its label, and ``fixed`` methods are what hindsight may choose from.
    """

    def __init__(self, results: Iterable[dict[str, Any]]) -> None:
        self.cells: dict[Where, dict[str, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
        self.fixed: set[str] = set()
        for result in results:
            spec = result["spec"]
            label = spec["method"]["label"]
            self.cells[spec["setting"], spec["data"]][label][spec["seed"]] = result
            if spec["method"].get("fixed"):
                self.fixed.add(label)

    def places(self) -> list[Where]:
        """Every (setting, data)."""
        return list(self.cells)

    def methods(self) -> list[str]:
        """Labels in the order they were given."""
        return list(dict.fromkeys(label for methods in self.cells.values() for label in methods))

    def values(self, where: Where, label: str, metric: str) -> dict[int, float]:
        """Final value by seed; infinite where the run diverged."""
        runs = self.cells[where].get(label, {})
        finals = {seed: run["final"][metric] for seed, run in runs.items()}
        return {seed: math.inf if value is None else value for seed, value in finals.items()}

    def best_fixed(self, where: Where, metric: str) -> tuple[str, float] | None:
        """``(label, mean)`` of the fixed density that turned out best, among those run with every seed."""
        seeds = max((len(runs) for runs in self.cells[where].values()), default=0)
        scores = {}
        for label in self.cells[where]:
            values = self.values(where, label, metric)
            if label in self.fixed and len(values) == seeds:
                scores[label] = mean(values.values())
        return min(scores.items(), key=lambda item: item[1]) if scores else None

    def regret(self, where: Where, label: str, metric: str) -> Interval | None:
        """How far above the best fixed density, 0.05 being 5 %; negative is better. Seeds are paired."""
        best = self.best_fixed(where, metric)
        if best is None:
            return None
        reference = self.values(where, best[0], metric)
        mine = self.values(where, label, metric)
        common = sorted(set(mine) & set(reference))
        if not common:
            return None
        scale = mean(reference[seed] for seed in common)
        return interval([(mine[seed] - reference[seed]) / scale for seed in common])

    def against(self, where: Where, label: str, metric: str, base: str = "uniform") -> Interval | None:
        """Relative difference to another method, seeds paired; negative is better."""
        reference, mine = self.values(where, base, metric), self.values(where, label, metric)
        common = sorted(set(mine) & set(reference))
        if not common:
            return None
        scale = mean(reference[seed] for seed in common)
        return interval([(mine[seed] - reference[seed]) / scale for seed in common])

    def late(self, where: Where, label: str, metric: str, base: str = "uniform") -> dict[int, float]:
        """By seed, how far above another method it ever was in the second half of a run: a collapse shows here.

        Against the mean over that method's seeds at the same step; 0.05 is 5 %, negative is always below.
        """
        reference = [run["curve"][metric] for run in self.cells[where].get(base, {}).values()]
        if not reference:
            return {}
        usual = [math.inf if None in at else mean(at) for at in zip(*reference, strict=True)]
        worst = {}
        for seed, run in self.cells[where].get(label, {}).items():
            steps, values = run["curve"]["step"], run["curve"][metric]
            half = next(index for index, step in enumerate(steps) if step >= steps[-1] / 2)
            found = zip(values[half:], usual[half:], strict=True)
            worst[seed] = max(math.inf if value is None else value / other - 1 for value, other in found)
        return worst

    def overall(self, label: str, metric: str) -> dict[str, Any]:
        """Worst and mean regret over everywhere the method was run."""
        found = {where: self.regret(where, label, metric) for where in self.places()}
        regrets = {where: r.mean for where, r in found.items() if r is not None}
        if not regrets:
            return {}
        worst = max(regrets, key=lambda where: regrets[where])
        return {
            "worst": regrets[worst],
            "worst_at": list(worst),
            "mean": mean(regrets.values()),
            "places": len(regrets),
        }

    def speed(self, where: Where, label: str, metric: str, base: str = "uniform") -> dict[str, Any]:
        """Steps and time to the final value of ``base`` as a share of what ``base`` needs for it.

        Time counts what the method costs per step beside ``base``. Seeds that never get there are counted apart.
        """
        runs, reference = self.cells[where].get(label, {}), self.cells[where].get(base, {})
        finals = [run["curve"][metric][-1] for run in reference.values()]
        if not runs or not finals or None in finals or metric == "sw":
            return {}
        target = mean(finals)
        total = float(next(iter(reference.values()))["spec"]["steps"])
        steps = [reach(run["curve"]["step"], run["curve"][metric], target) for run in runs.values()]
        reached = [s / total for s in steps if math.isfinite(s)]
        cost = _least_cost(runs) / _least_cost(reference)
        answer: dict[str, Any] = {"reached": len(reached), "of": len(steps), "cost": cost}
        if reached:
            found = interval(reached)
            answer |= {"steps": found.mean, "steps_half": found.half, "time": found.mean * cost}
        return answer


def _least_cost(runs: dict[int, dict[str, Any]]) -> float:
    """Processor time of a step, the least over seeds: what other programs on the machine cost is only ever added."""
    return min(run["ms_per_step"] for run in runs.values())
