"""Configurations as nested dicts and TOML: read strictly, written so that they can be read again, compared."""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from opportune.checks import closest
from opportune.train.config import TrainConfig
from opportune.train.errors import ConfigError

FREE = frozenset(
    {
        "run.output_dir",
        "data.workers",
        "checkpoint.every_steps",
        "checkpoint.keep",
        "checkpoint.keep_every_steps",
        "logs.report_to",
        "logs.project",
        "hardware.device",
        "hardware.ranks",
        "hardware.timeout_seconds",
    }
)
"""Settings that decide nothing about the model, so a resumed run may change them."""

Made = TypeVar("Made")


def updated(config: Made, changes: Mapping[str, Any], where: str = "") -> Made:
    """``config`` with the values of a nested dict; an unknown key or wrong type is a ConfigError."""
    hints = get_type_hints(type(config), include_extras=True)
    new: dict[str, Any] = {}
    for key, value in changes.items():
        name = f"{where}{key}"
        if key not in hints:
            raise ConfigError(_unknown(key, where, list(hints)))
        now = getattr(config, key)
        if is_dataclass(now):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name}={value!r} is a single value, but {name} is a section: write [{name}].")
            new[key] = updated(now, value, where=f"{name}.")
        else:
            new[key] = _typed(name, value, hints[key])
    made: Made = replace(config, **new)  # type: ignore[type-var]
    return made


def read_toml(path: str | Path) -> dict[str, Any]:
    """The file as a nested dict; a ConfigError that names the file where it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on ``base``, section by section; the settings of another method or model replace the old ones."""
    made = {key: dict(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for section, values in over.items():
        old = made.get(section)
        if not isinstance(values, Mapping) or not isinstance(old, dict):
            made[section] = values
            continue
        renamed = "name" in values and values["name"] != old.get("name")
        if "settings" in values and not renamed and isinstance(values["settings"], Mapping):
            values = {**values, "settings": {**old.get("settings", {}), **values["settings"]}}
        elif renamed and "settings" not in values:
            old.pop("settings", None)
        old.update(values)
    return made


def to_toml(config: TrainConfig) -> str:
    """The whole configuration as TOML; settings that are None are left out."""
    return sections_to_toml(asdict(config))


def sections_to_toml(sections: Mapping[str, Mapping[str, Any]], within: str = "") -> str:
    """Sections of settings as TOML, below the table ``within``; settings that are None are left out."""
    blocks = []
    for section, values in sections.items():
        lines = [f"{key} = {_value(value)}" for key, value in values.items() if value is not None]
        blocks.append("\n".join([f"[{within}{section}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """As JSON would hold it."""
    made: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return made


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """``section.key: old -> new`` for every setting that differs and matters, in the order of the sections."""
    found = []
    for section in dict.fromkeys([*old, *new]):
        before, after = old.get(section, {}), new.get(section, {})
        for key in dict.fromkeys([*before, *after]):
            name = f"{section}.{key}"
            if before.get(key) != after.get(key) and name not in FREE:
                found.append(f"{name}: {before.get(key)!r} -> {after.get(key)!r}")
    return found


def names(config: Any = None, where: str = "") -> list[str]:
    """The dotted name of every setting."""
    config = TrainConfig() if config is None else config
    found: list[str] = []
    for each in fields(config):
        value = getattr(config, each.name)
        found.extend(names(value, f"{where}{each.name}.") if is_dataclass(value) else [f"{where}{each.name}"])
    return found


def _unknown(key: str, where: str, known: list[str]) -> str:
    elsewhere = [name for name in names() if name.rpartition(".")[2] == key]
    if not where and elsewhere:
        section, _, short = elsewhere[0].partition(".")
        return f"{key} stands outside any section; write it as {short} in [{section}]."
    near = closest(key, known)
    if not near and elsewhere:
        near = f"; did you mean {elsewhere[0]!r}?"
    kind = f"setting {where}{key}" if where else f"section {key!r}"
    return f"{kind} is unknown{near} Known: {', '.join(known)}."


def _typed(name: str, value: Any, hint: Any) -> Any:
    """``value`` as the type ``hint``, where that loses nothing."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
        return None if value is None else _typed(name, value, hint)
    if get_origin(hint) is Literal:
        if value not in get_args(hint) or not isinstance(value, str):
            near = closest(str(value), get_args(hint))
            raise ConfigError(f"{name}={value!r} is unknown{near} Known: {', '.join(get_args(hint))}.")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{name} is a whole number of {len(str(value))} digits; give a smaller one.") from None
    if get_origin(hint) is dict:
        hint = dict
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{name}={value!r} is a {_kind(value)}; it must be a {_KINDS[hint]}.")
    return value


_KINDS: dict[type, str] = {
    int: "whole number",
    float: "number",
    bool: "truth value (true or false)",
    str: 'text (in "quotes")',
    dict: "table of settings",
    list: "list",
    type(None): "nothing",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _value(value: Any) -> str:
    """A value in TOML's notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(key))} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    raise ConfigError(f"{value!r} cannot be written to a configuration file; give numbers, text, lists or tables.")


def _text(value: str) -> str:
    """TOML's basic strings are JSON's, but for DEL and for characters beyond the first 65,536."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
