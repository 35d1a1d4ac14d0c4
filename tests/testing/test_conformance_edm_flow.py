"""Every sampler of ours, on EDM and flow matching, passes the suite that outside methods are held to."""

from __future__ import annotations

import pytest
from tests.testing.conformance import every_sampler_and_check, hold

import opportune as op

pytestmark = every_sampler_and_check

PROCESSES = {
    "edm": lambda: op.EDM(),
    "flow": lambda: op.Flow(shift=3.0),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_every_sampler_conforms(name, process, check):
    hold(name, PROCESSES[process](), check)
