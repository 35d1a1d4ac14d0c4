"""The picture of benchmarks/claims.py: losses, gradient variances and interdependence of three schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from opportune.diagnostics import GradientVariance, Interdependence, LossProfile
from opportune.diagnostics.plots.axes import NOISE_AXIS, over_noise, shades, stairs

ROWS = (
    ("loss", LossProfile, "loss", "loss"),
    ("gradient", GradientVariance, "variance", "gradient variance"),
    ("loss", LossProfile, "weighted", "loss under the VLB"),
    ("gradient", GradientVariance, "weighted", "gradient variance under the VLB"),
)
_TICKS = (0.001, 0.03, 0.5, 0.97, 0.999)
_END = 0.0005


def draw(found: dict[str, Any], path: Path) -> None:
    """One column per schedule; bands are one standard error of the mean over seeds."""
    schedules = list(found["profiles"])
    rows = len(ROWS) + 1
    figure = Figure(figsize=(4.6 * len(schedules), 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, len(schedules), squeeze=False)
    for column, schedule in enumerate(schedules):
        seeds = found["profiles"][schedule]
        stages = list(next(iter(seeds.values())))
        for row, (figure_name, kind, field, title) in enumerate(ROWS):
            here = axes[row][column]
            for stage, colour in zip(stages, shades(len(stages)), strict=True):
                measured = [kind.from_dict(seed[stage][figure_name]) for seed in seeds.values() if stage in seed]
                values, error = over_seeds(measured, field)
                edges = measured[0].edges.clamp(_END, 1 - _END) if "VLB" in title else measured[0].edges
                stairs(here, edges, values, error.clamp(max=0.9 * values), label=f"step {stage}", colour=colour)
            over_noise(here, f"{schedule}: {title}", log=True)
            if "VLB" in title:
                here.set_xscale("logit")
                here.set_xlim(_END, 1 - _END)
                here.set_xticks(_TICKS, [f"{at:g}" for at in _TICKS])
                here.set_xticks([], minor=True)
                here.set_xlabel(f"{NOISE_AXIS} (both ends stretched)")
        axes[0][column].legend(frameon=False, fontsize=8)
        matrix = Interdependence.from_dict(found["interdependence"][schedule])
        share = 100 * matrix.relative
        reach = float(share.abs().quantile(0.9))
        last = axes[-1][column]
        edges = matrix.edges.tolist()
        mesh = last.pcolormesh(edges, edges, share.numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach)
        middles = ((matrix.edges[1:] + matrix.edges[:-1]) / 2).tolist()
        for i, u in enumerate(middles):
            for j, v in enumerate(middles):
                value = float(share[i, j])
                colour = "white" if abs(value) > 0.6 * reach else "black"
                last.text(v, u, f"{value:+.0f}", ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(mesh, ax=last, label="loss change, %")
        last.set(xlabel=f"measured at — {NOISE_AXIS}", ylabel="trained at — u")
        last.set_title(f"{schedule}: {matrix.steps} steps in one sixth")
    figure.savefig(path, dpi=80)


def over_seeds(measured: list[Any], field: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over seeds and its error: the measurement's, or half the difference of two seeds where that is larger."""
    values = torch.stack([getattr(each, field) for each in measured])
    errors = torch.stack([getattr(each, f"{field}_error") for each in measured])
    measurement = errors.square().sum(dim=0).sqrt() / len(measured)
    between = values.std(dim=0) / len(measured) ** 0.5 if len(measured) > 1 else torch.zeros_like(measurement)
    return values.mean(dim=0), torch.maximum(measurement, between)
