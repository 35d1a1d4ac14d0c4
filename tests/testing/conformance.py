"""What the conformance tests of samplers share; they lie in several files so that they run side by side."""

from __future__ import annotations

import pytest

import opportune as op
from opportune.testing import SAMPLER_CHECKS

SETTINGS = {
    "table": {"density": [1.0, 2.0, 0.5, 1.0]},
    "stratified": {"of": "logit_normal"},
    "low_discrepancy": {"of": "logit_normal"},
    "mixture": {"of": "logit_normal", "floor": 0.2},
    "within": {"of": "logit_normal", "low": 0.2, "high": 0.9},
    "phases": {"phases": [(0, "uniform"), (60, "logit_normal")]},
    # Short warm-ups, so that the suite meets each method past its own.
    "kingma_gao": {"warmup_steps": 20, "refresh_steps": 10, "bins": 20},
    "info_noise": {"warmup_steps": 20, "refresh_steps": 10, "bins": 20},
    "second_moment": {"warmup_steps": 20, "bins": 20},
    "gradient_variance": {"warmup_steps": 20, "every_steps": 5, "bins": 8},
    "kim": {"every_steps": 5},
    "adaptive": {"warmup_steps": 20},
    "clts": {"ramp_steps": 200},
    "curriculum": {"switch_step": 100},
}

every_sampler_and_check = [
    pytest.mark.parametrize("check", SAMPLER_CHECKS, ids=lambda check: check.__name__),
    pytest.mark.parametrize("name", op.samplers()),
    pytest.mark.filterwarnings("ignore:unbiased=True cannot hold"),
    pytest.mark.filterwarnings("ignore:[A-Za-z]+ has drawn for"),  # some checks draw only
    pytest.mark.filterwarnings("ignore:SpeeD draws uniformly"),
    pytest.mark.filterwarnings("ignore:bins=20 has no effect"),
]


def hold(name, process, check):
    """Hold the sampler of that name, with settings that let the suite meet it past its warm-up, to one check."""
    check(lambda p, **common: op.sampler(name, p, **SETTINGS.get(name, {}), **common), process)
