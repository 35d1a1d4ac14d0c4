"""``opportune diagnose``: what a run learns at which noise level, as figures with their data beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opportune import names
from opportune.checks import one_of, whole
from opportune.cli import INTERRUPTED, USAGE, say
from opportune.cli.arguments import known_flags, parse, written_out
from opportune.cli.preview import named
from opportune.diagnostics import (
    Found,
    consistency,
    density_map,
    density_over_training,
    gradient_variance,
    interdependence,
    loss_over_training,
    loss_profile,
    process_increment,
)
from opportune.diagnostics.plots import matplotlib_part, save
from opportune.diagnostics.runs import Stage, open_stages
from opportune.diagnostics.tables import table_of
from opportune.objective import Objective
from opportune.step import Batch
from opportune.train.errors import ConfigError, RunFolderError
from opportune.train.trained_images import device_of
from opportune.weightings import Weighting

WHAT = ("loss", "gradient", "interdependence", "density", "increment", "consistency")
_BARS = 200


@dataclass(frozen=True, kw_only=True)
class DiagnoseArguments:
    """Where a model learns: losses, gradients and densities along the noise axis u, 0 clean -> 1 noise."""

    runs: tuple[str, ...] = ()
    """Run folders, or checkpoints RUN/checkpoints/step-...: of one run at several stages, or of several runs."""
    what: str = "loss,gradient,interdependence,density,increment"
    """Which of loss, gradient, interdependence, density, increment, consistency; separated by commas."""
    output: str = ""
    """Folder for the figures; left out: diagnostics/ in the first run's folder."""
    stages: int = 3
    """Checkpoints looked at per run folder, spread from its first to its newest."""
    bins: int = 20
    """Equal parts of the noise axis (loss, gradient, density)."""
    examples: int = 64
    """Held-out images, each looked at once per bin."""
    pairs: int = 8
    """Pairs of images per bin that the gradient's variance is taken from; more for narrower error bands."""
    ranges: int = 6
    """Equal parts of the noise axis that are trained one by one (interdependence; newest stage only)."""
    steps: int = 20
    """Optimizer steps in each of them."""
    repeats: int = 2
    """Times each is trained, with other batches."""
    weighting: str = ""
    """Weighting to look through, e.g. vlb or min_snr:gamma=5; left out, the run's own. none: raw losses only."""
    weights: str = "raw"
    """raw (the weights that are trained) or ema (their moving average); interdependence trains the raw ones."""
    against: str = ""
    """Another run or checkpoint of the same process: adds the consistency of both models' images."""
    batch_size: int = 64
    """Images at a time."""
    seed: int = 0
    """Of noise levels and noise; equal seeds are comparable number by number."""
    device: str = "auto"
    """auto, cpu or cuda."""
    pictures: bool = True
    """Draw; --no-pictures writes the data alone and needs no matplotlib."""


def main(words: Sequence[str]) -> int:
    """Run ``opportune diagnose`` with these words; returns the exit code."""
    arguments = parse(
        DiagnoseArguments,
        known_flags(written_out(_with_runs(words), {}), DiagnoseArguments),
        default=DiagnoseArguments(),
        prog="opportune diagnose",
        description="What a run learns at which noise level: opportune diagnose RUN|CHECKPOINT ... [options].",
    )
    what = _checked(arguments)
    stages = open_stages(arguments.runs, at_most=arguments.stages, device=device_of(arguments.device))
    diagnosis = Diagnosis(arguments, stages)
    damaged: list[str] = []
    folder = Path(arguments.output or stages[0].run / "diagnostics")
    print("noise axis u: 0 clean -> 1 noise", flush=True)
    try:
        for name in what:
            try:
                for found in getattr(diagnosis, name)():
                    paths = save(found, folder, picture=arguments.pictures)
                    print(f"\n{table_of(found)}\n{'  '.join(map(str, paths))}", flush=True)
            except RunFolderError as error:  # what does without the damaged file is still to come
                damaged.append(str(error))
    except KeyboardInterrupt:
        print(f"stopped; what is listed above is complete, in {folder}", file=sys.stderr)
        return INTERRUPTED
    return max([say(f"error: {message}", USAGE) for message in dict.fromkeys(damaged)], default=0)


class Diagnosis:
    """Each method yields the findings of one ``--what``: one list per figure, one entry per stage or run."""

    def __init__(self, arguments: DiagnoseArguments, stages: Sequence[Stage]) -> None:
        self.arguments, self.stages = arguments, stages
        self.several_runs = len({stage.run.resolve() for stage in stages}) > 1
        self.other = _other(arguments.against, self.newest()[0]) if arguments.against else None
        self._batches: dict[Path, Batch] = {}

    def loss(self) -> Iterator[Sequence[Found]]:
        given = self.arguments
        yield [
            loss_profile(
                self.objective(stage),
                self.held_out(stage),
                bins=given.bins,
                seed=given.seed,
                batch_size=given.batch_size,
                label=self.label(stage),
            )
            for stage in self.stages
        ]
        logged = [loss_over_training(stage.records(), label=stage.run.name) for stage in self.newest()]
        yield from _present([each for each in logged if each is not None])

    def gradient(self) -> Iterator[Sequence[Found]]:
        given = self.arguments
        yield [
            gradient_variance(
                self.objective(stage),
                self.held_out(stage),
                bins=given.bins,
                pairs=given.pairs,
                seed=given.seed,
                label=self.label(stage),
            )
            for stage in self.stages
        ]

    def interdependence(self) -> Iterator[Sequence[Found]]:
        given = self.arguments
        found = []
        for stage in self.newest():
            objective = stage.objective()
            objective.model.train()  # type: ignore[attr-defined]
            found.append(
                interdependence(
                    objective,
                    stage.optimizer(objective),
                    stage.batches(seed=given.seed),
                    self.held_out(stage),
                    bins=given.ranges,
                    steps=given.steps,
                    repeats=given.repeats,
                    max_gradient_norm=stage.config.optimizer.max_gradient_norm,
                    seed=given.seed,
                    batch_size=given.batch_size,
                    label=self.label(stage),
                    tell=_tell,
                )
            )
        yield found

    def density(self) -> Iterator[Sequence[Found]]:
        yield [
            density_map(stage.sampler(), self.weighting(stage), bars=_BARS, label=self.label(stage))
            for stage in self.stages
        ]
        logged = [
            density_over_training(
                stage.records(),
                stage.process,
                self.weighting(stage),
                label=f"{stage.run.name}: {stage.config.sampler.name}",
            )
            for stage in self.newest()
        ]
        yield from _present([each for each in logged if each is not None])

    def increment(self) -> Iterator[Sequence[Found]]:
        found = [process_increment(stage.process, label=stage.run.name) for stage in self.newest()]
        yield list({each.process: each for each in found}.values())

    def consistency(self) -> Iterator[Sequence[Found]]:
        given, first, second = self.arguments, self.newest()[0], self.other
        if second is None:
            return
        found = consistency(
            first.objective(weights=given.weights).model,
            second.objective(weights=given.weights).model,
            first.process,
            self.held_out(first),
            clip=None if first.config.data.source.startswith("latents:") else 1.0,
            seed=given.seed,
            batch_size=given.batch_size,
            label=f"{first.run.name} step {first.step}, {second.run.name} step {second.step}",
        )
        yield [found]

    def newest(self) -> list[Stage]:
        """The last stage of each run."""
        last = {stage.run.resolve(): stage for stage in sorted(self.stages, key=lambda stage: stage.step)}
        return [last[run] for run in dict.fromkeys(stage.run.resolve() for stage in self.stages)]

    def label(self, stage: Stage) -> str:
        return f"{stage.run.name} step {stage.step}" if self.several_runs else f"step {stage.step}"

    def objective(self, stage: Stage) -> Objective:
        found = stage.objective(weights=self.arguments.weights)
        return Objective(found.model, stage.process, self.weighting(stage))

    def weighting(self, stage: Stage) -> Weighting | None:
        """The run's own, or the one asked for."""
        if self.arguments.weighting in ("", "none"):
            return None if self.arguments.weighting else stage.weighting
        name, settings = named(self.arguments.weighting)
        return names.weighting(name, stage.process, **settings).to(stage.device)

    def held_out(self, stage: Stage) -> Batch:
        """Read once per run."""
        run = stage.run.resolve()
        if run not in self._batches:
            self._batches[run] = stage.held_out(self.arguments.examples)
        return self._batches[run]


def _with_runs(words: Sequence[str]) -> list[str]:
    """``RUN RUN --more`` as ``--runs RUN RUN --more``."""
    words = list(words)
    return ["--runs", *words] if words and not words[0].startswith("-") else words


def _checked(arguments: DiagnoseArguments) -> list[str]:
    """What to do, once everything that can be known to be wrong is known to be right: before anything slow."""
    if not arguments.runs:
        raise ConfigError("name the run: opportune diagnose RUN_FOLDER.")
    what = [one_of("--what", word.strip(), WHAT) for word in arguments.what.split(",")]
    if arguments.against and "consistency" not in what:
        what.append("consistency")
    if "consistency" in what and not arguments.against:
        raise ConfigError("consistency compares two models; name the other with --against RUN.")
    for name, low in (
        ("stages", 1), ("bins", 1), ("examples", 2), ("pairs", 2), ("ranges", 2), ("steps", 1), ("repeats", 1),
        ("batch_size", 1), ("seed", 0),
    ):  # fmt: skip
        whole(name, getattr(arguments, name), low=low)
    one_of("weights", arguments.weights, ("raw", "ema"))
    if arguments.pictures:
        matplotlib_part("figure")
    return list(dict.fromkeys(what))


def _other(path: str, first: Stage) -> Stage:
    """The stage whose model is compared with the first run's, where the two can be given the same images."""
    second = open_stages([path], at_most=1, device=first.device)[0]
    if repr(second.process) != repr(first.process) or second.config.process != first.config.process:
        raise ConfigError(
            f"{path} was trained on {second.process!r} and {first.run} on {first.process!r}; consistency compares "
            "models of one process."
        )
    for name in ("size", "channels", "classes", "low_resolution_factor"):
        one, other = getattr(first.config.data, name), getattr(second.config.data, name)
        if one != other:
            raise ConfigError(
                f"{first.run} has data.{name}={one!r} and {path} has {other!r}, so their models cannot be given the "
                "same images; name a run with the same."
            )
    return second


def _present(found: list[Found]) -> list[Sequence[Found]]:
    return [found] if found else []


def _tell(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rtrained {done} of {total} copies", end="" if done < total else "\n", file=sys.stderr, flush=True)
