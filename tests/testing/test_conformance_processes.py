"""Every process and weighting of ours passes its suite; planted faults do not."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.testing import (
    PROCESS_CHECKS,
    WEIGHTING_CHECKS,
    ConformanceError,
    check_process,
    check_weighting,
)
from opportune.weightings.base import Weighting
from opportune.weightings.constant import Constant

PROCESSES = [
    op.DDPM("linear"),
    op.DDPM("quadratic", steps=100),
    op.DDPM("cosine", prediction="v"),
    op.DDPM("scaled_linear", prediction="x0"),
    op.DDPM("constant", steps=200),
    op.DDPM("cosine", prediction="v", zero_terminal_snr=True),
    op.VP(),
    op.VP(prediction="v"),
    op.VE(),
    op.VE(prediction="x0"),
    op.EDM(),
    op.EDM(prediction="x0"),
    op.Flow(),
    op.Flow(shift=3.0, prediction="eps"),
]


@pytest.mark.parametrize("check", PROCESS_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_every_process_conforms(process, check):
    check(process)


@pytest.mark.parametrize("check", WEIGHTING_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", op.weightings())
def test_every_weighting_conforms(name, check):
    settings = {"target": "eps"} if name == "constant" else {}  # by default it is weight 1 on whatever is predicted
    check(lambda process: op.weighting(name, process, **settings))


class Backwards(op.Flow):
    def coefficients(self, t):
        return t, 1 - t


class RoundedTime(op.DDPM):
    def time(self, u):
        return (u.double() * (self.steps - 1)).round().long()


@pytest.mark.parametrize("mutant", [Backwards(), RoundedTime()])
def test_the_process_suite_catches_planted_faults(mutant):
    with pytest.raises(ConformanceError):
        check_process(mutant)


class EpsFormulaOnEveryTarget(Weighting):
    """The bug four code bases shipped: Min-SNR's eps weight used for whatever the network predicts."""

    def log_weight(self, u, log_snr):
        return log_snr.clamp(max=1.6)

    def forward(self, t):
        return (5 / self.process.log_snr(self.process.axis(t)).exp()).clamp(max=1).float()


def test_the_weighting_suite_catches_the_right_formula_on_the_wrong_target():
    with pytest.raises(ConformanceError, match="another objective"):
        check_weighting(EpsFormulaOnEveryTarget)


def test_the_gradient_check_would_see_a_missing_conversion():
    class NoConversion(Constant):
        def forward(self, t):
            return torch.ones_like(t, dtype=torch.float32)

    with pytest.raises(ConformanceError, match="another objective"):
        check_weighting(NoConversion)
