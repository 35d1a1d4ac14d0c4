"""Devices: the "meta" device stands for an accelerator, since mixing it with the CPU fails in the same places."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.measure import probe

META = torch.device("meta")
SETTINGS = {"table": {"density": [1.0, 2.0]}, "phases": {"phases": [(0, "logit_normal")]}}
LOOKS_AT_DATA = {"kim"}  # numbers cannot come back from the meta device


@pytest.mark.filterwarnings("ignore:a floor of uniform under uniform", "ignore:unbiased=True cannot hold")
@pytest.mark.parametrize("moved", [False, True], ids=["sampler on the CPU", "sampler moved"])
@pytest.mark.parametrize("process", [op.DDPM(steps=20), op.EDM(), op.Flow(shift=3.0)], ids=repr)
@pytest.mark.parametrize("name", sorted(set(op.samplers()) - LOOKS_AT_DATA))
def test_a_draw_lies_on_the_device_of_the_data(name, process, moved):
    sampler = op.sampler(name, process, unbiased=True, **SETTINGS.get(name, {}))
    x0 = torch.empty(4, 3, device=META)
    draw = (sampler.to(META) if moved else sampler).draw(x0)
    assert {value.device for value in (draw.u, draw.t, draw.correction, draw.density)} == {META}
    for value in (process.corrupt(x0, x0, draw.t), process.target(x0, x0, draw.t)):
        assert value.device == META
    assert op.weighting("min_snr", process)(draw.t).device == META


@pytest.mark.parametrize("device", [torch.device("cpu"), META], ids=str)
def test_timesteps_of_ones_own_choice_may_lie_anywhere(device):
    """A probe's timesteps are made on the CPU, also by a sampler that was moved to the data's device."""
    sampler = op.sampler("gradient_variance", op.DDPM(steps=20)).to(META)
    draw = sampler.at(torch.rand(4, device=device), shape=(4,), device=META)
    assert {value.device for value in (draw.u, draw.t, draw.correction, draw.density)} == {META}


@pytest.mark.parametrize("name", op.weightings())
def test_weights_lie_on_the_device_of_the_time(name):
    for process in (op.DDPM(steps=20, prediction="v"), op.Flow()):
        weighting = op.weighting(name, process).to(META)
        t = process.time(torch.rand(4, device=META))
        assert weighting(t).device == weighting.apply_to(torch.ones(4, device=META), t).device == META


def test_what_a_policy_saw_is_gathered_where_the_ranks_talk(monkeypatch):
    """A policy on the CPU looks at data on an accelerator; ranks send both in one message."""
    monkeypatch.setattr(probe, "place", lambda: (0, 2))
    monkeypatch.setattr(probe, "gather", lambda local: torch.cat([local, local]))
    columns = probe._Columns()
    for part in (torch.rand(4, device=META), None, torch.rand(4, 7)):
        columns.add(part)
    u, nothing, context = columns.gathered()
    assert (u.shape, nothing, context.shape) == ((8,), None, (8, 7))
    assert u.device == context.device == META
