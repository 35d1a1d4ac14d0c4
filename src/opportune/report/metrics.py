"""What runs are judged by, as curves over steps: held-out loss, Fréchet distance, KID; less is better in all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .arrange import Setting
from .runs import Evaluation, Run


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric of one run: ``steps`` ascending, and its value at each."""

    steps: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def final(self) -> float:
        return self.values[-1]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric in one setting. ``curves``: by the path of the run, for those that have one.

    ``title`` and ``words`` name it in a heading and within a sentence, ``note`` says how it was measured.
    """

    key: str
    title: str
    words: str
    note: str
    curves: dict[str, Curve]


def metrics_of(setting: Setting, *, frechet: bool = True) -> list[Metric]:
    """The metrics that at least one run has, those of images first: they are what training is for."""
    scores = [each.scores for run in setting.runs for each in run.evaluations]
    found = []
    if scores:
        first = scores[0]
        name = "FID" if first.is_fid else "Fréchet distance"
        how = f"{first.label}, {first.n_generated:,} generated images against {first.n_real:,} real ones"
        floors = sorted({each.frechet_floor for each in scores if each.frechet_floor is not None})
        if floors:
            how += f"; as many other real images score {floors[0]:.4g}"
        how += "."
        if frechet:
            found.append(_scored("frechet", name, name, how, setting, lambda each: each.scores.frechet))
        found.append(_scored("kid", "KID", "KID", f"{first.label}.", setting, lambda each: each.scores.kid))
    weights = weights_of(setting.runs)
    found.append(
        Metric(
            key="loss",
            title="Held-out loss",
            words="held-out loss",
            note=f"Mean over held-out images at fixed noise levels, even over u; not weighted; {weights} weights.",
            curves={str(run.path): curve for run in setting.runs if (curve := _held_out(run, weights))},
        )
    )
    return [metric for metric in found if metric.curves]


def weights_of(runs: tuple[Run, ...]) -> str:
    """``"ema"`` where every held-out loss has one, which is what images are generated with, else ``"raw"``."""
    return "ema" if all("ema" in record for run in runs for record in run.validation) else "raw"


def _held_out(run: Run, weights: str) -> Curve | None:
    return _curve([(record["step"], record[weights]["loss"]) for record in run.validation])


def _scored(
    key: str, title: str, words: str, note: str, setting: Setting, value: Callable[[Evaluation], float | None]
) -> Metric:
    curves = {}
    for run in setting.runs:
        # What has no known step was measured on a finished model, as far as anyone can tell: it is the last.
        points = [(run.reached if each.step is None else each.step, value(each)) for each in run.evaluations]
        curve = _curve([(step, found) for step, found in points if found is not None])
        if curve:
            curves[str(run.path)] = curve
    return Metric(key=key, title=title, words=words, note=note, curves=curves)


def _curve(points: list[tuple[int, float]]) -> Curve | None:
    ordered = sorted(dict(points).items())
    return Curve(steps=tuple(float(x) for x, _ in ordered), values=tuple(y for _, y in ordered)) if ordered else None
