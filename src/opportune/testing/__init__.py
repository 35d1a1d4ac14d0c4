"""What a method must do to belong here: suites that ours and outside methods run, and data with a known optimum.

from opportune.testing import check_sampler
check_sampler(lambda process, **common: MySampler(process, **common), op.DDPM("linear", steps=100))
"""

from .process_suite import PROCESS_CHECKS, check_process
from .report import ConformanceError
from .sampler_suite import SAMPLER_CHECKS, check_sampler
from .weighting_suite import WEIGHTING_CHECKS, check_weighting

__all__ = [
    "PROCESS_CHECKS",
    "SAMPLER_CHECKS",
    "WEIGHTING_CHECKS",
    "ConformanceError",
    "check_process",
    "check_sampler",
    "check_weighting",
]
