"""Adds a method of your own: one class, held to the suite that every method of the library passes.

docs/add_a_method.md tells the rest: methods that follow a schedule, that learn, and how others find yours by name.
"""

import argparse
from typing import Unpack

import torch
from torch import Tensor

import opportune as op
from opportune.checks import number
from opportune.processes import Process
from opportune.samplers import Common, FixedSampler
from opportune.testing import check_sampler
from opportune.testing.toy import train


class Triangular(FixedSampler):
    """p(u) rises to its peak and falls again: p(u) = 2u/peak up to the peak, 2(1-u)/(1-peak) after it.

    Published without correction, so it re-targets the objective.

    Args:
        peak: where the density is largest; a larger value means more noise.
    """

    def __init__(self, process: Process, *, peak: float = 0.5, **common: Unpack[Common]) -> None:
        super().__init__(process, **common)
        self.peak = number("peak", peak, low=0, high=1, open_low=True, open_high=True)
        self._build()

    def cumulative(self, u: Tensor, log_snr: Tensor) -> Tensor:
        rising = u**2 / self.peak
        falling = 1 - (1 - u) ** 2 / (1 - self.peak)
        return torch.where(u < self.peak, rising, falling)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    for process in (op.DDPM("linear", steps=100), op.Flow(shift=3.0)):
        check_sampler(Triangular, process)
        print(f"Triangular passes every check on {process}")

    sampler = Triangular(op.Flow(shift=3.0), peak=0.25)
    records = train(sampler, sampler.process, options.steps)  # a toy network; your loop is the one of the other files
    drawn = torch.cat([record.draw.u for record in records])
    print(f"mean u of {len(drawn)} draws: {drawn.mean():.3f} (exactly: {(1 + sampler.peak) / 3:.3f})")


if __name__ == "__main__":
    main()
