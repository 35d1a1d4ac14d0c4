"""From a profile to a suggestion: the nearest density of each family, with intervals; or to keep what there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opportune import names
from opportune.checks import whole
from opportune.diagnostics.density_map import bar_means
from opportune.diagnostics.suggest.evidence import LEAST_RECORDS, Profile, from_records
from opportune.diagnostics.suggest.families import STEPS, Family, families
from opportune.diagnostics.suggest.forecast import (
    EXPONENT,
    MISS,
    efolds_of_density,
    efolds_of_weighting,
    left_to_learn,
)
from opportune.processes import Process
from opportune.samplers.objective_weight import Weighting, objective_weight

LEAST_EFOLDS = 0.03
"""A density, or a weighting, that gains less is not worth the change."""
LEAST_MEASURED = 0.6
"""Share of what is left to learn that must be measured at two standard errors or better."""
WEIGHTINGS: tuple[tuple[str, dict[str, float]], ...] = (
    ("none", {}),
    ("p2", {"gamma": 0.25}),
    ("p2", {"gamma": 0.5}),
    ("min_snr", {"gamma": 5.0}),
)
"""Tried beside the run's own."""
_RESAMPLED = 200
_SIDE = 1.64  # standard errors: intervals hold 90 %


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One density, the best of its family.

    Attributes:
        name: "logit_normal", "log_normal", "beta", "shift", "table" or "uniform".
        sampler: of ``op.samplers()``, which draws it.
        settings: of that sampler.
        process_settings: of the process, where they change with it (``shift``).
        intervals: per number, what 90 % of resampled profiles lead to.
        masses: ``[bins]`` float64 probability of each bin of u, from clean to noise.
        efolds: of examples it gains on what was drawn, averaged over where the objective still falls.
        efolds_interval: 90 %, from the errors of the falls.
    """

    name: str
    sampler: str
    settings: dict[str, Any]
    process_settings: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    masses: Tensor
    efolds: float
    efolds_interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What to train with.

    Attributes:
        choice: the density suggested; None means keep what you have.
        reason: why this, or why nothing.
        choices: the best of every family, the table last.
        weighting: name and settings of the weighting to train it with; the run's own where no other gains.
        weighting_efolds: what that gains on the run's own.
        objective: what is to become good: the name of a weighting, or "own".
        profile: what it rests on.
        share: ``[bins]`` of what is left to learn.
        measured: share of it that stands clear of its noise.
    """

    choice: Choice | None
    reason: str
    choices: list[Choice]
    weighting: tuple[str, dict[str, Any]]
    weighting_efolds: float
    objective: str
    profile: Profile
    share: Tensor
    measured: float

    @property
    def keep(self) -> bool:
        """Whether nothing should be changed."""
        return self.choice is None

    def lower_by(self, choice: Choice) -> tuple[float, float, float]:
        """Expected share by which the reducible objective ends lower, and its 90 % interval.

        ``1 - exp(-EXPONENT efolds)``; the interval has the errors of the falls, and what such forecasts missed by.
        """
        efolds = choice.efolds + (self.weighting_efolds if choice is self.choice else 0.0)
        low, high = choice.efolds_interval
        side = math.hypot(EXPONENT * (high - low) / 2, _SIDE * MISS)
        change = EXPONENT * efolds
        return 1 - math.exp(-change), 1 - math.exp(side - change), 1 - math.exp(-side - change)


def suggest(
    process: Process,
    evidence: Profile | Sequence[Mapping[str, Any]],
    *,
    objective: Weighting | str | None = None,
    weighting: str = "none",
    weighting_settings: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Suggestion:
    """A fixed density, and a weighting, for the next run like the one measured, or for the rest of it.

    Args:
        process: of the run.
        evidence: the records of its ``metrics.jsonl`` (``opportune.train.logs.read_log``), or a
            :class:`~opportune.diagnostics.suggest.evidence.Profile`.
        objective: what is to become good: a weighting (name or instance), or "own", weight 1 on the process's own loss.
            None is what the run was trained for: its weighting, and without one its own loss.
        weighting: name of what the run's losses were multiplied with, or "none".
        weighting_settings: of that weighting.
        seed: of the resampling behind the intervals.
    """
    whole("seed", seed, low=0)
    profile = evidence if isinstance(evidence, Profile) else from_records(evidence)
    own = (weighting, dict(weighting_settings or {}))
    trained = _bin_weights(process, _made(process, *own), profile.bins)
    wanted = trained if objective is None else _bin_weights(process, _objective(objective), profile.bins)
    share = left_to_learn(profile.fall, profile.error, wanted, profile.drawn)
    again = [left_to_learn(fall, profile.error, wanted, profile.drawn) for fall in profile.resampled(_RESAMPLED, seed)]
    choices = _choices(process, share, torch.stack(again), profile.drawn)
    measured = float(share[profile.certainty() >= 2].sum())
    chosen, reason = _decided(choices, profile, measured)
    other, gained = own, 0.0
    if chosen is not None:
        other, gained = _weighting(process, own, chosen, share, profile.level, trained)
    return Suggestion(
        choice=chosen,
        reason=reason,
        choices=choices,
        weighting=other,
        weighting_efolds=gained,
        objective=_said(objective, weighting),
        profile=profile,
        share=share,
        measured=measured,
    )


def _choices(process: Process, share: Tensor, again: Tensor, drawn: Tensor) -> list[Choice]:
    """The best member of each family, named families first, the table last."""
    bins = len(share)
    found: list[Choice] = []

    def add(name: str, sampler: str, masses: Tensor, **more: Any) -> None:
        low, high = torch.quantile(efolds_of_density(again, masses, drawn), _ENDS).tolist()
        efolds = float(efolds_of_density(share, masses, drawn))
        found.append(
            Choice(name=name, sampler=sampler, masses=masses, efolds=efolds, efolds_interval=(low, high), **more)
        )

    add("uniform", "uniform", torch.full_like(share, 1 / bins), settings={})
    for family in families(process):
        values = _nearest(family, process, share, drawn)
        ends = _likely_ends(family, process, values, again, drawn)
        numbers = dict(zip(family.settings, values.tolist(), strict=True))
        of_process = {"process_settings": numbers} if family.of_process else {}
        add(
            family.name,
            family.sampler,
            family.masses(process, values[None], bins)[0],
            settings={} if family.of_process else numbers,
            intervals={key: (low, high) for key, (low, high) in zip(family.settings, ends, strict=True)},
            **of_process,
        )
    table = [round(float(mass) * bins, 3) for mass in share]
    masses = torch.tensor(table, dtype=torch.float64)
    add("table", "table", masses / masses.sum(), settings={"density": table})
    return found


def _nearest(family: Family, process: Process, share: Tensor, drawn: Tensor) -> Tensor:
    return family.best(lambda grid: efolds_of_density(share, family.masses(process, grid, len(share)), drawn))


_ENDS = torch.tensor([0.05, 0.95], dtype=torch.float64)


def _likely_ends(family: Family, process: Process, values: Tensor, again: Tensor, drawn: Tensor) -> list[list[float]]:
    """``[settings][2]`` between which 90 % of the resampled shares ``again`` ``[S, bins]`` have their best."""
    width = torch.full_like(values, 0.1)  # of the grid, as a share of each range; narrower where a cell of it says all
    for _ in range(3):
        grid = family.near(values, width)
        likely = grid[efolds_of_density(again, family.masses(process, grid, again.shape[1]), drawn).argmax(dim=1)]
        ends = torch.quantile(likely, _ENDS, dim=0).T
        cell = (grid.amax(dim=0) - grid.amin(dim=0)) / (STEPS - 1)
        coarse = ends.diff(dim=1)[:, 0] < 4 * cell
        if not bool(coarse.any()):
            break
        width = torch.where(coarse, width / 4, width)
    return ends.tolist()


def _decided(choices: list[Choice], profile: Profile, measured: float) -> tuple[Choice | None, str]:
    if profile.records is not None and profile.records < LEAST_RECORDS:
        return None, (
            f"the log has {profile.records} records, and a fall cannot be told from noise in fewer than "
            f"{LEAST_RECORDS}; train longer, or log more often (logs.every_steps)"
        )
    if measured < LEAST_MEASURED:
        return None, (
            f"only {measured:.0%} of what seems left to learn was measured at two standard errors or better "
            f"({LEAST_MEASURED:.0%} is asked for); train longer, or measure on more examples"
        )
    *named, table = choices
    most = max(choice.efolds for choice in named)
    easiest = next(choice for choice in named if choice.efolds >= most - LEAST_EFOLDS / 3)
    best = table if table.efolds > easiest.efolds + LEAST_EFOLDS else easiest
    low, high = best.efolds_interval
    if best.efolds < LEAST_EFOLDS or low <= 0:
        return None, (
            f"the best found would gain {best.efolds:.3f} e-folds of examples ({low:.3f} to {high:.3f}); below "
            f"{LEAST_EFOLDS}, or with 0 in the interval, a change is not worth its trouble"
        )
    return best, "the run drew too little where the objective still falls, and too much where it does not"


def _weighting(
    process: Process, own: tuple[str, dict[str, Any]], choice: Choice, share: Tensor, level: Tensor, now: Tensor
) -> tuple[tuple[str, dict[str, Any]], float]:
    """The weighting that gains most with a density, and what; the run's own where none gains enough."""
    best, most = own, 0.0
    for name, settings in WEIGHTINGS:
        try:
            weight = _bin_weights(process, _made(process, name, settings), len(share))
        except ValueError:  # not every weighting is finite on every process
            continue
        gained = efolds_of_weighting(share, choice.masses, level, weight, now)
        if gained > most + LEAST_EFOLDS:
            best, most = (name, dict(settings)), gained
    return best, most


def _made(process: Process, name: str, settings: Mapping[str, Any]) -> Weighting | None:
    return None if name == "none" else names.weighting(name, process, **settings)


def _objective(objective: Weighting | str) -> Weighting | str | None:
    return None if objective == "own" else objective


def _bin_weights(process: Process, weighting: Weighting | str | None, bins: int) -> Tensor:
    """Mean weight per bin ``[bins]``; a single cell's extreme weight (cosine's last) is cut, as in ``adaptive``."""
    middles = (torch.arange(process.cells, dtype=torch.float64) + 0.5) / process.cells
    weights = objective_weight(process, weighting)(middles)
    if not bool(torch.isfinite(weights).all()) or not bool((weights > 0).any()):
        raise ValueError(f"{weighting!r} has weights that are not finite, or none above 0, on {process!r}.")
    return bar_means(weights.clamp(max=float(torch.quantile(weights, 0.99))), bins)


def _said(objective: Weighting | str | None, weighting: str) -> str:
    if objective is None:
        return "own" if weighting == "none" else weighting
    return objective if isinstance(objective, str) else type(objective).__name__
