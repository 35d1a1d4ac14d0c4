"""``opportune suggest``: from a measured run to a density and a weighting for the next, as lines to paste."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opportune.checks import one_of, whole
from opportune.cli.arguments import known_flags, parse, with_run, written_out
from opportune.diagnostics.found import plain, write_whole
from opportune.diagnostics.suggest import Choice, Suggestion
from opportune.diagnostics.suggest.elsewhere import elsewhere
from opportune.diagnostics.suggest.forecast import EXPONENT
from opportune.diagnostics.suggest.run import suggest_for
from opportune.names import weightings
from opportune.train.config import TrainConfig
from opportune.train.errors import ConfigError
from opportune.train.parts import make_process
from opportune.train.trained_images import device_of


@dataclass(frozen=True, kw_only=True)
class SuggestArguments:
    """A density and a weighting for the next run like this one, or for the rest of it."""

    run: str = ""
    """Folder of a finished or running training, or one of its checkpoints."""
    objective: str | None = None
    """What is to become good: own (the network's own loss) or a weighting's name; left out, what the run trains."""
    probe_steps: int = 200
    """For a checkpoint that lies alone, without log or an earlier one: steps a copy of it is trained for."""
    examples: int = 64
    """For a checkpoint without log: held-out images its losses are measured on."""
    seed: int = 0
    """Of noise and resampling."""
    output: str | None = None
    """File for everything that was found, as JSON."""
    device: str = "auto"
    """auto, cpu or cuda; for a checkpoint without log."""


def main(words: Sequence[str]) -> int:
    """Run ``opportune suggest`` with these words; returns the exit code."""
    arguments = parse(
        SuggestArguments,
        known_flags(written_out(with_run(words), {}), SuggestArguments),
        default=SuggestArguments(),
        prog="opportune suggest",
        description="Suggest a density and a weighting from a measured run: opportune suggest RUN [options].",
    )
    _check(arguments)
    found, config = suggest_for(
        arguments.run,
        objective=arguments.objective,
        probe_steps=arguments.probe_steps,
        examples=arguments.examples,
        seed=arguments.seed,
        device=device_of(arguments.device),
    )
    print(described(found, config))
    if arguments.output is not None:
        write_whole(Path(arguments.output), json.dumps(as_json(found, config), indent=1) + "\n")
    return 0


def _check(arguments: SuggestArguments) -> None:
    if not arguments.run:
        raise ConfigError("name the run: opportune suggest RUN_FOLDER.")
    if arguments.objective is not None:
        one_of("objective", arguments.objective, ("own", *weightings()))
    whole("probe_steps", arguments.probe_steps, low=1)
    whole("examples", arguments.examples, low=2)
    whole("seed", arguments.seed, low=0)


# ---- in words --------------------------------------------------------------------------------------------------


def described(found: Suggestion, config: TrainConfig) -> str:
    """The suggestion, what it rests on, and the lines to paste."""
    lines = [
        f"{make_process(config)!r}, trained with {_method(config.sampler.name, config.sampler.settings)}, weighting "
        f"{_method(config.weighting.name, config.weighting.settings)}; objective: {found.objective}",
        f"evidence: {found.profile.source}; {found.measured:.0%} of what is left to learn measured at two standard "
        "errors or better",
        *(f"mind: {caveat}" for caveat in _caveats(config)),
        "",
    ]
    if found.choice is None:
        lines.append(f"keep what you have: {found.reason}.")
    else:
        lines += _advice(found, found.choice, config)
    return "\n".join([*lines, "", *_candidates(found)])


def _advice(found: Suggestion, choice: Choice, config: TrainConfig) -> list[str]:
    numbers = {**choice.settings, **choice.process_settings}
    settled = [f"{key} {numbers[key]:g} ({a:.2f} to {b:.2f})" for key, (a, b) in choice.intervals.items()]
    name, settings = found.weighting
    lower, low, high = found.lower_by(choice)
    gained = f"{_efolds(choice)} by the density"
    if found.weighting_efolds:
        gained += f", {found.weighting_efolds:.2f} by the weighting"
    worth = math.exp(choice.efolds + found.weighting_efolds)
    lines = [
        f"train with {choice.name}{': ' if settled else ''}{', '.join(settled)}; weighting {_method(name, settings)}",
        f"why: {found.reason}",
        f"expected: as if trained on {worth:.2f} times the examples (e-folds of them: {gained}); the reducible loss "
        f"{_zero(lower):.0%} lower after as many steps ({_zero(low):.0%} to {_zero(high):.0%})",
        "",
        "in the configuration file:",
        "",
        to_toml(found, choice, config),
        "",
        "or on the command line of opportune train:",
        f"  {' '.join(flags(found, choice, config))}",
        "",
        "in other trainers:",
        *(f"  {trainer}: {line}" for trainer, line in elsewhere(choice, make_process(config))),
    ]
    if name != "none":
        lines.append(f"  and there each loss times op.weighting({name!r}, process, {_arguments(settings)}).at(u)")
    if choice.process_settings:
        lines.append(
            "  (another shift also changes which noise levels validation looks at: do not compare those curves)"
        )
    return lines


def to_toml(found: Suggestion, choice: Choice, config: TrainConfig) -> str:
    """The sections to put in place of those of the run's configuration file."""
    weighting, weighting_settings = found.weighting
    lines = ["[sampler]", f'name = "{choice.sampler}"']
    if config.sampler.unbiased is not None:  # what was said of another method must not be left standing
        lines.append("unbiased = false")
    lines.append(f"settings = {_table(choice.settings)}")
    lines += ["", "[weighting]", f'name = "{weighting}"', f"settings = {_table(weighting_settings)}"]
    if choice.process_settings:
        settings = {**config.process.settings, **choice.process_settings}
        lines += ["", "[process]", f'name = "{config.process.name}"', f"settings = {_table(settings)}"]
    return "\n".join(lines)


def flags(found: Suggestion, choice: Choice, config: TrainConfig) -> list[str]:
    """Words for the command line of ``opportune train``, quoted for a shell."""
    weighting, weighting_settings = found.weighting
    words = ["--sampler", choice.sampler]
    if config.sampler.unbiased is not None:
        words += ["--sampler.unbiased", "False"]
    words += ["--weighting", weighting]
    for section, settings in (
        ("sampler", choice.settings),
        ("weighting", weighting_settings),
        ("process", choice.process_settings),
    ):
        for key, value in settings.items():
            text = json.dumps(value)
            words += [f"--{section}.settings.{key}", f"'{text}'" if isinstance(value, list) else text]
    return words


def _candidates(found: Suggestion) -> list[str]:
    """The best of every family, and what each is expected to gain by itself, without another weighting."""
    head = ("density alone", "e-folds of examples gained", "reducible loss lower by")
    rows = [
        (_numbers(each), _efolds(each), f"{_zero(1 - math.exp(-EXPONENT * each.efolds)):.0%}") for each in found.choices
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]


def _numbers(choice: Choice) -> str:
    if choice.name == "table":
        return f"table of {len(choice.masses)} bins"
    return _method(choice.name, {**choice.settings, **choice.process_settings})


def _efolds(choice: Choice) -> str:
    middle, low, high = map(_zero, (choice.efolds, *choice.efolds_interval))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _zero(value: float) -> float:
    """What is shown as 0 without the sign of a rounded trifle."""
    return 0.0 if abs(value) < 0.005 else value


def _arguments(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _method(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({_arguments(settings)})" if settings else name


def _table(settings: Mapping[str, Any]) -> str:
    """A TOML inline table; its text, numbers, lists and truth values are JSON's."""
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()) + "}"


def _caveats(config: TrainConfig) -> list[str]:
    found = []
    if config.schedule.name != "constant":
        found.append(
            f"the learning rate follows a {config.schedule.name} schedule, and a fall that a lower learning rate "
            "brings looks like learning; early in the decay the log says more"
        )
    if config.weighting.name == "learned_uncertainty":
        found.append("the weighting learns; what is shown takes it as it starts")
    return found


def as_json(found: Suggestion, config: TrainConfig) -> dict[str, Any]:
    """Everything that was found."""
    profile, choice = found.profile, found.choice
    name, settings = found.weighting
    values: dict[str, Any] = plain(
        {
            "keep": found.keep,
            "reason": found.reason,
            "choice": None if choice is None else choice.name,
            "toml": None if choice is None else to_toml(found, choice, config),
            "weighting": {"name": name, "settings": settings, "efolds": found.weighting_efolds},
            "objective": found.objective,
            "measured": found.measured,
            "source": profile.source,
            "left_to_learn": found.share,
            "profile": {key: getattr(profile, key) for key in ("fall", "error", "level", "drawn")},
            "choices": [{**asdict(each), "lower_by": found.lower_by(each)} for each in found.choices],
        }
    )
    return values
