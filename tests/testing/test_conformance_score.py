"""Every sampler of ours, on score-based processes, passes the suite that outside methods are held to."""

from __future__ import annotations

import pytest
from tests.testing.conformance import every_sampler_and_check, hold

import opportune as op

pytestmark = every_sampler_and_check

PROCESSES = {
    "vp": lambda: op.VP(),
    "ve": lambda: op.VE(),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_every_sampler_conforms(name, process, check):
    hold(name, PROCESSES[process](), check)
