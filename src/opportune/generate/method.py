"""What a generation method is: the noise levels it visits, and how it moves from one to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..processes import Flow, Process
from .levels import Level, even_levels, sigma_levels

Denoise = Callable[[Tensor, Level], tuple[Tensor, Tensor]]
"""``denoise(x [B, ...], level) -> (x0, eps)``, the estimates of both."""

Noise = Callable[[], Tensor]
"""``noise() -> [B, ...]``: fresh standard normal noise, each image's from its own stream."""


@dataclass(frozen=True)
class Method(ABC):
    """Settings are the dataclass fields; ``fits`` lists the processes it is for."""

    fits: ClassVar[tuple[type[Process], ...]]

    def levels(self, process: Process, steps: int) -> list[Level]:
        """The levels to visit, noisiest first; the clean image follows the last."""
        return even_levels(process, steps)

    @abstractmethod
    def run(self, x: Tensor, levels: Sequence[Level], denoise: Denoise, noise: Noise) -> Tensor:
        """From ``x`` ``[B, ...]`` at the first level to images ``[B, ...]``."""


@dataclass(frozen=True)
class OnSigmaAxis(Method):
    """A method whose levels are even in ``sigma^(1/rho)``; for a flow, evenly along u with the flow's shift."""

    rho: float = 7.0
    sigma_min: float | None = None
    sigma_max: float | None = None

    def levels(self, process: Process, steps: int) -> list[Level]:
        """See :func:`sigma_levels` and :func:`even_levels`."""
        if not isinstance(process, Flow):
            return sigma_levels(process, steps, rho=self.rho, sigma_min=self.sigma_min, sigma_max=self.sigma_max)
        if self != type(self)():
            raise ValueError("rho, sigma_min and sigma_max have no use with a Flow, whose levels follow its shift.")
        return even_levels(process, steps)
