"""Random numbers that depend on (seed, purpose, step) alone: no state but integers, no use of the global stream.

A fresh generator is seeded for each use. That makes a restart exact, keeps ranks in step whatever their batch sizes,
and lets every rank compute the numbers of the whole global batch.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one use, e.g. ``generator(seed, "draw", step)``."""
    text = f"{seed}/{purpose}/{'/'.join(map(str, counters))}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    made = torch.Generator(device=device)
    made.manual_seed(number & 0x7FFF_FFFF_FFFF_FFFF)
    return made


def uniforms(seed: int, purpose: str, step: int, *, count: int, rank: int = 0, world: int = 1) -> Tensor:
    """``[count]`` float64 in [0, 1): this rank's share of the global batch's ``count * world`` numbers."""
    every = torch.rand(count * world, dtype=torch.float64, generator=generator(seed, purpose, step), device="cpu")
    return every[rank::world]


def noise_like(
    shape: tuple[int, ...],
    *,
    seed: int,
    step: int,
    probe: int,
    rank: int,
    world: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Standard normal ``[B, ...]``; example i of rank r has the noise of global example ``i * W + r``, at any W."""
    examples = [
        torch.randn(
            shape[1:],
            generator=generator(seed, "noise", step, probe, i * world + rank, device=device),
            device=device,
            dtype=torch.float32,
        )
        for i in range(shape[0])
    ]
    return torch.stack(examples).to(dtype)
