"""The sampler suite catches planted faults, those of other code bases among them."""

from __future__ import annotations

import pytest
import torch

import opportune as op
from opportune.samplers.table import TableSampler
from opportune.samplers.uniform import Uniform
from opportune.testing import ConformanceError
from opportune.testing.sampler_suite import (
    a_restart_is_invisible,
    a_seed_fixes_the_stream,
    corrections_match_the_mode,
    draws_follow_the_declared_density,
    unbiased_estimates_are_unbiased,
)


class RoundedIndex(Uniform):
    """The index map of the adaptive paper's released code: both ends get half their mass."""

    def _place(self, v, context):
        index = (v * (self.cells - 1)).round()
        return (index + 0.5) / self.cells


class ForgetsItsSchedule(TableSampler):
    """A density that follows an unsaved counter."""

    seen = 0

    def _prepare(self):
        self.seen += 1
        self.set_masses(torch.linspace(1, 1 + self.seen / 50, self.cells))


class GlobalStream(Uniform):
    """Draws from torch's global stream."""

    def _uniforms(self, count):
        return torch.rand(count, dtype=torch.float64)


class WrongCorrection(Uniform):
    """Declares a density it does not correct for."""

    def __init__(self, process, **common):
        super().__init__(process, **common)
        self.set_masses(torch.linspace(0.5, 1.5, self.cells))

    def _correction(self, density, u, context):
        return torch.ones_like(density)


class AimNotNormalised(Uniform):
    """Corrects towards something that is not a density, and so changes the size of the loss."""

    def _aim(self, u, context):
        return torch.full_like(u, 1.0 if self.steps_watched == 0 else 1.5)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (RoundedIndex, draws_follow_the_declared_density),
        (ForgetsItsSchedule, a_restart_is_invisible),
        (GlobalStream, a_seed_fixes_the_stream),
        (WrongCorrection, unbiased_estimates_are_unbiased),
        (AimNotNormalised, corrections_match_the_mode),
    ],
)
def test_the_suite_catches_planted_faults(mutant, check):
    with pytest.raises(ConformanceError):
        check(mutant, op.DDPM(steps=60))
