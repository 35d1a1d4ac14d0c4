"""The same density in the words of other trainers. Their axes and signs differ from ours: here they are turned.

Checked against the sources of diffusers 0.42, sd-scripts (flux and sd3 training) and NVlabs/edm.
"""

from __future__ import annotations

import math

from opportune.diagnostics.suggest.decide import Choice
from opportune.processes import DDPM, EDM, Flow, Process


def elsewhere(choice: Choice, process: Process) -> list[tuple[str, str]]:
    """``(trainer, what to write there)`` for a choice; empty where nothing is known."""
    found: list[tuple[str, str]] = []
    if isinstance(process, Flow):
        found += _flow(choice, process)
    if isinstance(process, EDM) and choice.name == "log_normal":
        mean, std = choice.settings["mean"], choice.settings["std"]
        found.append(("EDM, EDM2 (training loss)", f"P_mean={mean:g}, P_std={std:g}"))
    found.append((_OWN, _own_loop(choice, process)))
    return [(trainer, line) for trainer, line in found if line]


_OWN = "a loop of your own"


def _flow(choice: Choice, process: Flow) -> list[tuple[str, str]]:
    if choice.name == "logit_normal":
        mean, std = choice.settings["mean"], choice.settings["std"]
        shift = process.shift * math.exp(mean)
        return [
            # Index 0 of diffusers' scheduler is the most noise, so its u runs the other way.
            (
                f"diffusers' flow scripts (scheduler shift {process.shift:g})",
                f"--weighting_scheme logit_normal --logit_mean {-mean:g} --logit_std {std:g}",
            ),
            # There logit t = sigmoid_scale n + ln discrete_flow_shift.
            (
                "sd-scripts",
                f"--timestep_sampling shift --discrete_flow_shift {shift:.4g} --sigmoid_scale {std:g}",
            ),
        ]
    if choice.name == "shift":
        shift = choice.process_settings["shift"]
        return [
            ("diffusers' flow scripts", f"FlowMatchEulerDiscreteScheduler(shift={shift:g}), --weighting_scheme none")
        ]
    return []


def _own_loop(choice: Choice, process: Process) -> str:
    """One line of torch that draws ``u`` ``[B]``, and from it the process's own time."""
    settings = choice.settings
    if choice.name == "log_normal":
        sigma = f"(({settings['mean']:g}) + {settings['std']:g} * torch.randn(B)).exp()"
        return f"sigma = {sigma}" if isinstance(process, EDM) else ""
    lines = {
        "uniform": "torch.rand(B)",
        "beta": f"torch.distributions.Beta({settings.get('a')}, {settings.get('b')}).sample((B,))",
        "logit_normal": f"torch.sigmoid(({settings.get('mean')}) + {settings.get('std')} * torch.randn(B))",
        "table": f"(torch.multinomial(torch.tensor({settings.get('density')}), B, replacement=True) "
        f"+ torch.rand(B)) / {len(choice.masses)}",
    }
    if choice.name not in lines:
        return ""
    if isinstance(process, DDPM):
        return f"u = {lines[choice.name]}; t = (u * {process.steps}).long().clamp(max={process.steps - 1})"
    if isinstance(process, Flow):
        shift = process.shift
        return f"u = {lines[choice.name]}; t = {shift:g} * u / (1 + {shift - 1:g} * u)"
    return f"u = {lines[choice.name]}; t = process.time(u)"
