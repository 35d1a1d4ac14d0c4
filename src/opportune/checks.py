"""Argument checks whose messages name the argument, the value, the allowed range and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor


def number(
    name: str,
    value: float,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` as a float if it is finite and inside the range, else raise ValueError."""
    left = "(" if open_low or math.isinf(low) else "["
    right = ")" if open_high or math.isinf(high) else "]"
    allowed = f"{left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are welcome
        raise ValueError(f"{name}={value!r} is not a number; give a number in {allowed}.")
    value = float(value)
    too_low = value <= low if open_low else value < low
    too_high = value >= high if open_high else value > high
    if not math.isfinite(value) or too_low or too_high:
        raise ValueError(f"{name}={value:g} is outside the allowed range {allowed}; give a finite number in it.")
    return value


def whole(name: str, value: int, *, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number in [low, high], else raise ValueError."""
    allowed = f"{low} to {high}" if high is not None else f"{low} or more"
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low or (high is not None and value > high):
        raise ValueError(f"{name}={value!r} is not allowed; give a whole number, {allowed}.")
    return int(value)


def flag(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False, else raise ValueError: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is not allowed; give True or False.")
    return value


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return ``value`` if known; else a ValueError that lists the known values and names the closest."""
    names = sorted(known)
    if value in names:
        return value
    near = closest(str(value), names) or "."
    raise ValueError(f"{name}={value!r} is unknown{near} Known: {', '.join(names)}.")


def closest(value: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` or an empty string."""
    near = difflib.get_close_matches(value, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def row(name: str, values: Any, *, one_per: str) -> Tensor:
    """``[n]`` float64 on the CPU, a copy; raise ValueError unless it is one row of finite numbers."""
    try:
        given = torch.as_tensor(values).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}={values!r} is not numbers; give one number per {one_per}.") from None
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(given.shape)}; give one number per {one_per}, in one row.")
    return finite(name, given).clone()


def finite(name: str, value: Tensor) -> Tensor:
    """Raise ValueError if the tensor is empty or holds NaN or infinity (synchronises; not for the hot path)."""
    if value.numel() == 0:
        raise ValueError(f"{name} is empty, shape {tuple(value.shape)}; give at least one value.")
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(f"{name} holds {bad} NaN or infinite values of {value.numel()}; give finite numbers.")
    return value
