"""Numbers and findings in words, as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .arrange import Setting
from .estimate import Estimate
from .metrics import Metric
from .outcome import Outcome

DASH = "–"
MINUS = "−"


def mean_text(found: Estimate | None, *, signed: bool = False) -> str:
    """``0.2188 ± 0.0088``, the half-width of the interval to two digits; the mean alone where there is no interval."""
    if found is None:
        return DASH
    sign = "+" if signed and found.mean > 0 else ""
    if found.high is None:
        return f"{sign}{_number(found.mean, 4)}"
    half = found.high - found.mean
    if half == 0:
        return f"{sign}{_number(found.mean, 4)} ± 0"
    decimals = min(8, max(0, 1 - math.floor(math.log10(half))))
    return f"{sign}{found.mean:.{decimals}f} ± {half:.{decimals}f}".replace("-", MINUS)


def share_text(found: Estimate | None) -> str:
    """``72 % (65 to 79 %)``; an interval ends at 0, below which there are no shares."""
    if found is None:
        return DASH
    if found.low is None or found.high is None or found.low == found.high:
        return f"{100 * found.mean:.0f} %"
    return f"{100 * found.mean:.0f} % ({100 * max(found.low, 0.0):.0f} to {100 * found.high:.0f} %)"


def reach_text(outcome: Outcome) -> str:
    """When a method came to the baseline's final value: steps, or a plain "never"."""
    count = len(outcome.reaches)
    if not count:
        return DASH
    if outcome.never:
        return "never" if outcome.never == count else f"never in {outcome.never} of {count} seeds"
    return steps_text(outcome.steps)


def steps_text(found: Estimate | None) -> str:
    """Whole steps, or tenths where there are few."""
    if found is None:
        return DASH
    decimals = 0 if found.mean >= 20 else 1
    said = f"{found.mean:,.{decimals}f}"
    if found.high is not None and found.high > found.mean:
        said += f" ± {found.high - found.mean:,.{decimals}f}"
    return said


def duration(seconds: float | None) -> str:
    """``12 ms``, ``3.4 s``, ``5.6 min``, ``7.8 h``."""
    if seconds is None:
        return DASH
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return f"{_number(seconds / size, 3)} {unit}"
    return f"{_number(1000 * seconds, 3)} ms"


class Finding(NamedTuple):
    """A sentence for the head of the report, and what it rests on."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.detail}".rstrip()


def headline(setting: Setting, metric: Metric, found: Sequence[Outcome]) -> Finding:
    """What this metric says about speed, with no more certainty than there is."""
    base = next((outcome for outcome in found if outcome.baseline), None)
    others = [outcome for outcome in found if not outcome.baseline]
    if setting.baseline is None:
        return Finding("These runs have no baseline, so nothing is said about speed; name one with --baseline LABEL.")
    if base is None:
        return Finding(f"{setting.baseline.label}, the baseline, has no finished run with a {metric.words} yet.")
    if not others:
        return Finding(f"{base.label} ends at a {metric.words} of {mean_text(base.final)} ({_seeds(base.final)}).")
    measured = [outcome for outcome in others if outcome.reaches]
    if not measured:
        ends = "; ".join(f"{outcome.label} {mean_text(outcome.final)}" for outcome in found)
        return Finding(f"The {metric.words} was measured once per run, which tells nothing about speed: {ends}.")
    goal = f"{base.label}’s final {metric.words}"
    reached = [outcome for outcome in measured if outcome.steps_share is not None]
    if not reached:
        told = "; ".join(f"{outcome.label}: {reach_text(outcome)}" for outcome in measured)
        return Finding(f"No method reached {goal} in every seed.", f"{told}.")
    return _of_the_best(min(reached, key=_steps_share), goal)


def choice_text(setting: Setting) -> str:
    """A warning that goes with every headline that names the best of several."""
    count = sum(not method.baseline for method in setting.methods)
    if setting.baseline is None or count < 2:
        return ""
    return f"Each line names the best of {count} methods; choosing the best of several flatters it."


def _of_the_best(best: Outcome, goal: str) -> Finding:
    """The best method's shares, and first of all whether they may be chance."""
    steps, time = best.steps_share, best.cost_share or best.time_share
    kind = "computation" if best.cost_share else "time"
    shares = f"{100 * _steps_share(best):.0f} % of the steps"
    if time is not None:
        shares += f" and {100 * time.mean:.0f} % of the {kind}"
    if steps is None or steps.low is None or steps.high is None:
        if round(100 * _steps_share(best)) >= 100:
            return Finding(f"In one seed no method was faster to {goal}; {best.label} took {shares}.")
        return Finding(f"In one seed {best.label} reached {goal} in {shares}.", "One seed cannot tell what is chance.")
    pairs = "" if best.paired else ", not paired with the baseline’s"
    detail = f"95 % intervals over {steps.n} seeds{pairs}: {_interval(steps)} of the steps"
    if time is not None and time.low is not None:
        detail += f", {_interval(time)} of the {kind}"
    if steps.low <= 1 <= steps.high:
        return Finding(f"No method was clearly faster to {goal}; {best.label} took {shares}.", f"{detail}.")
    return Finding(f"{best.label} reached {goal} in {shares}.", f"{detail}.")


def _steps_share(outcome: Outcome) -> float:
    return outcome.steps_share.mean if outcome.steps_share else math.inf


def _interval(found: Estimate) -> str:
    low, high = found.low or 0.0, found.high or 0.0
    return f"{100 * max(low, 0.0):.0f} to {100 * high:.0f} %"


def _seeds(found: Estimate | None) -> str:
    return "no seed" if found is None else "one seed" if found.n == 1 else f"{found.n} seeds"


def _number(value: float, digits: int) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.{digits}g}".replace("-", MINUS)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}".replace("-", MINUS)
