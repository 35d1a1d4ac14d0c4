"""What a step costs with each method, and how much of it is the sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .arrange import Method, Setting
from .clock import StepCost, step_cost
from .estimate import Estimate, estimate
from .lines import is_number, read_object

COST = "cost.json"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step's cost relative to the baseline's, measured in turns by ``opportune compare``, with its interval."""

    cost: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Per step, over seeds. ``relative``: to the baseline's step, of the same seeds where they match.

    ``measured``: the same as the comparison measured it apart from training, where it did.
    """

    label: str
    number: int
    seconds: Estimate | None
    relative: Estimate | None
    sampler: Estimate | None
    data: Estimate | None
    measured: Measured | None = None


def costs(setting: Setting) -> list[Cost]:
    """One per method whose runs recorded times."""
    base = _by_seed(setting.baseline) if setting.baseline else {}
    found = []
    for method in setting.methods:
        own = _by_seed(method)
        ratios = [own[seed].seconds / base[seed].seconds for seed in own if seed in base and base[seed].seconds > 0]
        if own:
            found.append(
                Cost(
                    label=method.label,
                    number=method.number,
                    seconds=_over(own, lambda cost: cost.seconds),
                    relative=None if method.baseline else estimate(ratios),
                    sampler=_over(own, lambda cost: cost.sampler),
                    data=_over(own, lambda cost: cost.data),
                    measured=measured_cost(method),
                )
            )
    return found


def measured_cost(method: Method) -> Measured | None:
    """What the comparison that a method's runs belong to has measured of it."""
    run = method.runs[0]
    path = run.comparison / COST if run.comparison is not None else None
    if path is None or not path.is_file():
        return None
    of_label = read_object(path).get(method.label)
    found = of_label.get(run.setting) if isinstance(of_label, dict) else None
    if not isinstance(found, dict) or not is_number(found.get("cost")):
        return None
    low, high = (found[name] if is_number(found.get(name)) else None for name in ("low", "high"))
    return Measured(cost=found["cost"], low=low, high=high)


def _by_seed(method: Method) -> dict[int, StepCost]:
    return {run.seed: cost for run in method.runs if (cost := step_cost(run)) is not None}


def _over(costs_by_seed: dict[int, StepCost], value: Callable[[StepCost], float | None]) -> Estimate | None:
    return estimate([found for cost in costs_by_seed.values() if (found := value(cost)) is not None])
