"""Every sampler of ours, on discrete processes, passes the suite that outside methods are held to."""

from __future__ import annotations

import pytest
from tests.testing.conformance import every_sampler_and_check, hold

import opportune as op

pytestmark = every_sampler_and_check

PROCESSES = {
    "ddpm": lambda: op.DDPM("linear", steps=60),
    "cosine": lambda: op.DDPM("cosine", steps=60, prediction="v", zero_terminal_snr=True),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_every_sampler_conforms(name, process, check):
    hold(name, PROCESSES[process](), check)
