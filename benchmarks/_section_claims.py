"""The part of docs/benchmarks.md on the claims of Kim et al.; every figure is computed from results/claims.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

RESULT = Path(__file__).parent / "results" / "claims.json"
FIFTH, TENTH = 0.2, 0.1
Share = tuple[float, float]
"""A share of the whole axis and its standard error."""


def section() -> str:
    """The section, or nothing where the benchmark was not run."""
    if not RESULT.exists():
        return ""
    found = json.loads(RESULT.read_text())
    setup = found["setup"]
    last = str(setup["stages"][-1])
    schedules = list(found["profiles"])
    early = {s: {f: share(found, s, last, f, "raw", 0, FIFTH) for f in ("loss", "gradient")} for s in schedules}
    clean, noisy = (
        {f: share(found, "cosine", last, f, "weighted", low, low + TENTH) for f in ("loss", "gradient")}
        for low in (0.0, 1 - TENTH)
    )
    crossed = {s: asymmetry(found["interdependence"][s]) for s in schedules}
    rows = "\n".join(f"| {s} | {shown(early[s]['loss'])} | {shown(early[s]['gradient'])} |" for s in schedules)
    matrix = "\n".join(
        f"| {s} | {c['own']:+.1f} % | {c['others']:.1f} % | {c['others_over_error']:.1f} | {c['unequal']:.1f} % "
        f"| {c['unequal_over_error']:.1f} |"
        for s, c in crossed.items()
    )
    return f"""## Do the paper's claims hold on a small real run?

{found["data"]}; a UNet of 0.28 M parameters that predicts the noise,
{last} steps of batch 64, {len(setup["seeds"])} seeds.
Everything is measured with `opportune.diagnostics` on {setup["examples"]} held-out images, gradients of single images
in {setup["pairs"]} pairs per bin. ± is one standard error: the measurement's, or half the difference of the two seeds
where that is larger. u is 0 for clean, 1 for noise.

Reproduce: `python benchmarks/claims.py --source 'parquet:PATH/{{split}}.parquet' --output benchmarks/results/claims`

![losses, gradient variances and interdependence](../benchmarks/results/claims.png)

**Early (near-clean) noise levels dominate loss and gradient variance under the simple loss.** {verdict_early(early)}

| schedule | share of the loss at u < 0.2 | share of the gradient variance at u < 0.2 |
|---|---|---|
{rows}

**Under the variational bound both ends dominate on the cosine schedule.** {verdict_ends(clean, noisy)}

| | share at u < 0.1 | share at u > 0.9 |
|---|---|---|
| loss | {shown(clean["loss"])} | {shown(noisy["loss"])} |
| gradient variance | {shown(clean["gradient"])} | {shown(noisy["gradient"])} |

**Training some noise levels changes the others, and not symmetrically.** {verdict_crossed(crossed)}
From the checkpoint of step {setup["at"]}, {setup["steps"]} steps in each of {setup["bins"]} equal parts of the axis,
{setup["repeats"]} repeats, one seed. Changes are per cent of the loss before; those of others, and the differences
between i on j and j on i, are root mean squares over all pairs of parts. The ratio to their standard error is about 1
where there is nothing.

| schedule | change of the part trained | of others | over its error | i on j less j on i | over its error |
|---|---|---|---|---|---|
{matrix}
"""


def share(found: dict[str, Any], schedule: str, stage: str, figure: str, form: str, low: float, high: float) -> Share:
    """Which share of the integral over u lies in [low, high], over seeds."""
    field = "weighted" if form == "weighted" else {"loss": "loss", "gradient": "variance"}[figure]
    single = [
        _share(seed[stage][figure], field, low, high) for seed in found["profiles"][schedule].values() if stage in seed
    ]
    values, errors = torch.tensor(single, dtype=torch.float64).T
    measurement = float(errors.square().sum().sqrt()) / len(single)
    between = float(values.std()) / len(single) ** 0.5 if len(single) > 1 else 0.0
    return float(values.mean()), max(measurement, between)


def asymmetry(found: dict[str, Any]) -> dict[str, float]:
    """Root mean squares, in per cent of the loss before, and over their standard errors."""
    before, change, error = (
        torch.tensor(found[name], dtype=torch.float64) for name in ("before", "change", "change_error")
    )
    change, error = 100 * change / before, 100 * error / before
    off = ~torch.eye(len(before), dtype=torch.bool)
    upper = torch.ones_like(change).triu(1).bool()
    unequal, unequal_error = (change - change.T)[upper], (error.square() + error.T.square()).sqrt()[upper]
    return {
        "own": float(change.diag().mean()),
        "others": _size(change[off]),
        "others_over_error": _size(change[off]) / _size(error[off]),
        "unequal": _size(unequal),
        "unequal_over_error": _size(unequal) / _size(unequal_error),
    }


def verdict_early(early: dict[str, dict[str, Share]]) -> str:
    """Held where the cleanest fifth has more than half, by two standard errors."""
    held = [s for s, each in early.items() if all(value - 2 * error > 0.5 for value, error in each.values())]
    more = [s for s, each in early.items() if all(value - 2 * error > FIFTH for value, error in each.values())]
    if len(held) == len(early):
        return "It held for all three schedules: the cleanest fifth of the axis has more than half of both."
    text = (
        f"It held for {_listed(held)}" if held else "It held for none of the schedules in the sense of more than half"
    )
    rest = [s for s in more if s not in held]
    if rest:
        text += (
            f"; for {_listed(rest)} the cleanest fifth has more than its fifth of both, but not surely more than half"
        )
    neither = [s for s in early if s not in more]
    if neither:
        text += f"; it did not hold for {_listed(neither)}"
    return text + "."


def verdict_ends(clean: dict[str, Share], noisy: dict[str, Share]) -> str:
    """Held where both tenths together have more than half and each more than its tenth, by two standard errors."""
    parts = []
    for figure, name in (("loss", "the loss"), ("gradient", "the gradient variance")):
        each = {"clean": clean[figure], "noisy": noisy[figure]}
        above = [end for end, (value, error) in each.items() if value - 2 * error > TENTH]
        together = sum(value for value, _ in each.values())
        error = sum(error**2 for _, error in each.values()) ** 0.5
        if len(above) == 2 and together - 2 * error > 0.5:
            parts.append(f"It held for {name}")
        elif above:
            parts.append(f"For {name} only the {' and '.join(above)} end surely has more than its share")
        else:
            parts.append(f"For {name} neither end surely has more than its share")
    return "; ".join([parts[0], parts[1][0].lower() + parts[1][1:]]) + "."


def verdict_crossed(crossed: dict[str, dict[str, float]]) -> str:
    """Held where changes and differences stand clear of their errors."""
    held = [s for s, c in crossed.items() if min(c["others_over_error"], c["unequal_over_error"]) > 2]
    if len(held) == len(crossed):
        return "It held for all three schedules."
    return (
        f"It held for {_listed(held) or 'none of the schedules'}; elsewhere the changes do not stand clear of errors."
    )


def shown(share: Share) -> str:
    return f"{100 * share[0]:.1f} ± {100 * share[1]:.1f} %"


def _share(found: dict[str, Any], field: str, low: float, high: float) -> Share:
    """Inside over all, with the error of a quotient of independent sums."""
    edges, values, errors = (
        torch.tensor(found[name], dtype=torch.float64) for name in ("edges", field, f"{field}_error")
    )
    width, middle = edges.diff(), (edges[1:] + edges[:-1]) / 2
    inside = (middle > low) & (middle < high)
    a, b = float((values * width)[inside].sum()), float((values * width)[~inside].sum())
    variance_a = float((errors * width)[inside].square().sum())
    variance_b = float((errors * width)[~inside].square().sum())
    return a / (a + b), (b**2 * variance_a + a**2 * variance_b) ** 0.5 / (a + b) ** 2


def _size(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


if __name__ == "__main__":
    print(section())
