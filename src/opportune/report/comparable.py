"""What may be compared: measurements that were made differently are refused, by name and with the remedy."""

from __future__ import annotations

from dataclasses import replace

from ..train.errors import ConfigError
from .arrange import Setting, flat
from .runs import Run

HELD_OUT = (
    "data.source", "data.size", "data.channels", "data.classes", "data.low_resolution_factor",
    "process.name", "process.settings", "validation.examples", "validation.split", "validation.seed",
)  # fmt: skip
"""Settings the loss on held-out images depends on, apart from the model."""


def check_held_out(setting: Setting) -> None:
    """The held-out losses were measured on the same images at the same noise levels."""
    validated = [run for run in setting.runs if run.validation]
    for other in validated[1:]:
        first = validated[0]
        for name, (a, b) in _differences(first, other).items():
            raise ConfigError(
                f"{first.path} and {other.path} cannot be compared in one setting: their held-out losses were measured "
                f"with {name}={a!r} and {b!r}. Report them apart, or train one again with the other's {name}."
            )


def check_scores(setting: Setting, *, frechet: bool = True) -> str | None:
    """The scores of images are comparable; returns a note where that holds for KID alone.

    A Fréchet distance depends on how many images it was measured with, KID does not.
    """
    found = [(run, each) for run in setting.runs for each in run.evaluations]
    note = None
    for run, each in found[1:]:
        first_run, first = found[0]
        one, other = first.scores, each.scores
        unequal = (one.n_generated, one.n_real) != (other.n_generated, other.n_real)
        if unequal and not (frechet and one.frechet is not None and other.frechet is not None):
            note = (
                "KID was measured with different numbers of images, which it allows: it is unbiased at every number. "
                "Whether the real images are the same cannot be told from their fingerprints then."
            )
            # A fingerprint is one of the images that were used, so it changes with their number.
            other = replace(other, n_generated=one.n_generated, n_real=one.n_real, real=None)
        if first.weights is not None and each.weights is not None and first.weights != each.weights:
            raise ConfigError(
                f"{first.path} scores {first.weights} weights and {each.path} {each.weights} weights. "
                "Evaluate both with the same --weights."
            )
        try:
            one.compare(other)
        except ValueError as error:
            remedy = " Or leave the Fréchet distances out: --no-frechet." if unequal else ""
            raise ConfigError(f"{first_run.path} and {run.path}: {error}{remedy}") from error
    return note


def _differences(one: Run, other: Run) -> dict[str, tuple[object, object]]:
    a, b = ({**flat(run.config), "process.settings": run.config["process"].get("settings", {})} for run in (one, other))
    return {name: (a.get(name), b.get(name)) for name in HELD_OUT if a.get(name) != b.get(name)}
