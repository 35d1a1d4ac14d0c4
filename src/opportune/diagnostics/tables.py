"""Findings in a few lines of text, for terminals: five parts of the noise axis, one line per stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .consistency import Consistency
from .density_map import DensityMap
from .found import Found, named_in, shortened
from .gradient_variance import GradientVariance
from .increment import ProcessIncrement
from .interdependence import Interdependence
from .loss_profile import LossProfile
from .over_training import DensityOverTraining, LossOverTraining

PARTS = 5
_LABEL, _COLUMN = 28, 10  # characters; with five parts a line fits a terminal of 80


def table_of(found: Sequence[Found]) -> str:
    """A title and a line per finding; findings are of one kind."""
    lines: Callable[[Any], list[str]] = _LINES[type(found[0])]
    return "\n".join(lines(found))


def parts_of(edges: Tensor, values: Tensor) -> list[float]:
    """Means over ``PARTS`` equal parts of the axis of values that are constant within bins, ``[PARTS]``."""
    means = []
    for part in range(PARTS):
        low, high = part / PARTS, (part + 1) / PARTS
        share = (edges[1:].clamp(low, high) - edges[:-1].clamp(low, high)).clamp(min=0)
        inside = share > 0
        means.append(float((values[inside] * share[inside]).sum() / share[inside].sum()) if inside.any() else math.nan)
    return means


def _header(title: str) -> str:
    columns = (f"u {part / PARTS:.1f}-{(part + 1) / PARTS:.1f}" for part in range(PARTS))
    return f"{title}\n{_line('', columns)}"


def _row(label: str, values: Sequence[float], form: str = "{:.4g}") -> str:
    return _line(label, map(form.format, values))


def _line(label: str, columns: Iterable[str], *, width: int = _COLUMN) -> str:
    return f"{shortened(label, _LABEL):<{_LABEL}}" + "".join(f"{column:>{width}}" for column in columns)


def _loss(found: Sequence[LossProfile]) -> list[str]:
    lines = [_header(f"loss on held-out images (target: {named_in(found, 'prediction')})")]
    lines += [_row(each.label, parts_of(each.edges, each.loss)) for each in found]
    if any(each.weighting for each in found):
        lines.append(f"share of the loss under {named_in(found, 'weighting')}, %")
        lines += [_row(each.label, _shares(each.edges, each.weighted), "{:.0f}") for each in found]
    return lines


def _gradient(found: Sequence[GradientVariance]) -> list[str]:
    lines = [_header("variance of one example's gradient (trace of its covariance)")]
    for each in found:
        lines.append(_row(each.label, parts_of(each.edges, each.variance)))
        lines.append(_row("  +- one standard error", _errors(each.edges, each.variance_error)))
    if any(each.weighting for each in found):
        lines.append(f"share of it under {named_in(found, 'weighting')}, %")
        lines += [_row(each.label, _shares(each.edges, each.weighted), "{:.0f}") for each in found]
    return lines


def _interdependence(found: Sequence[Interdependence]) -> list[str]:
    lines = []
    for each in found:
        lines.append(_header(f"{each.label}: % change of the loss at u after {each.steps} steps in one range"))
        names = [f"trained u {low:.2f}-{high:.2f}" for low, high in zip(each.edges, each.edges[1:], strict=False)]
        for name, row in zip(names, each.relative, strict=True):
            lines.append(_row(name, parts_of(each.edges, 100 * row), "{:+.1f}"))
        lines.append(_row("trained everywhere", parts_of(each.edges, 100 * each.everywhere / each.before), "{:+.1f}"))
    return lines


def _density(found: Sequence[DensityMap]) -> list[str]:
    edges = torch.linspace(0, 1, len(found[0].density) + 1, dtype=torch.float64)
    lines = [_header("density p(u); uniform is 1")]
    lines += [_row(each.label, parts_of(edges, each.density), "{:.2f}") for each in found]
    lines.append("effective density p(u) w(u), scaled to mean 1")
    return [*lines, *(_row(each.label, parts_of(edges, each.effective), "{:.2f}") for each in found)]


def _logged_density(found: Sequence[DensityOverTraining]) -> list[str]:
    lines = [_header("drawn at the first and the last record of the log, as a density")]
    for each in found:
        lines += [_row(f"{each.label}, first", parts_of(each.edges, each.drawn[0]), "{:.2f}")]
        lines += [_row(f"{each.label}, last", parts_of(each.edges, each.drawn[-1]), "{:.2f}")]
    return lines


def _logged_loss(found: Sequence[LossOverTraining]) -> list[str]:
    lines = [_header("held-out loss over training, from the log")]
    for each in found:
        for place in sorted({0, len(each.steps) // 2, len(each.steps) - 1}):
            name = f"{each.label}, step {int(each.steps[place])}"
            lines.append(_row(name, parts_of(each.edges, each.loss[place])))
    return lines


def _increment(found: Sequence[ProcessIncrement]) -> list[str]:
    lines = ["areas of the process increment, in u"]
    for each in found:
        areas = ", ".join(f"{name} {low:.3f}-{high:.3f}" for name, (low, high) in each.areas.items())
        lines += [each.process, f"  {areas}"]
    return lines


def _consistency(found: Sequence[Consistency]) -> list[str]:
    lines = []
    for each in found:
        lines.append(f"{each.label}: correlation of both models' images by where they start")
        lines.append(_line("", (f"u {start:.2g}" for start in each.starts.tolist()), width=8))
        for name, values in (
            ("same noise", each.similarity),
            ("  +- one standard error", each.similarity_error),
            ("other noise", each.control),
        ):
            lines.append(_line(name, (f"{value:.3f}" for value in values.tolist()), width=8))
    return lines


def _shares(edges: Tensor, values: Tensor) -> list[float]:
    means = parts_of(edges, values)
    return [100 * mean / sum(means) for mean in means]


def _errors(edges: Tensor, errors: Tensor) -> list[float]:
    """Of the means over parts: bins are independent of one another, so their variances add up."""
    found = []
    for part in range(PARTS):
        low, high = part / PARTS, (part + 1) / PARTS
        share = (edges[1:].clamp(low, high) - edges[:-1].clamp(low, high)).clamp(min=0)
        inside = share > 0
        found.append(float(((errors[inside] * share[inside]).square().sum().sqrt()) / share[inside].sum()))
    return found


_LINES: dict[type[Found], Callable[[Any], list[str]]] = {
    Consistency: _consistency,
    DensityMap: _density,
    DensityOverTraining: _logged_density,
    GradientVariance: _gradient,
    Interdependence: _interdependence,
    LossOverTraining: _logged_loss,
    LossProfile: _loss,
    ProcessIncrement: _increment,
}
