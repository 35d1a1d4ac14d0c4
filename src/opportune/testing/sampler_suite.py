"""Conformance of samplers: the claims every sampler makes about itself, tested.

Each check takes ``make(process, **common) -> Sampler`` and a process, and raises :class:`ConformanceError`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..objective import Objective
from ..processes import Process
from ..samplers import Sampler
from ..types import Draw
from .report import require
from .toy import ToyNetwork, batches, train

LIFE = 130
"""Toy training steps after which every method is past its warm-up or in the midst of it."""
_BATCH = 500
_LIMIT = 5.0  # standard deviations


class MakeSampler(Protocol):
    """``make(process, seed=..., unbiased=..., accumulation=...)``."""

    def __call__(self, process: Process, **common: Any) -> Sampler: ...


def draws_follow_the_declared_density(make: MakeSampler, process: Process) -> None:
    """Chi-square of 1000 draws per cell against ``probs()`` (or ``density`` over 64 bins), fresh and in mid-life."""
    for life in (0, LIFE):
        sampler = make(process, seed=3)
        train(sampler, process, life)
        bins = process.steps or 64
        counts, expected = torch.zeros(bins), torch.zeros(bins, dtype=torch.float64)
        x = torch.randn(_BATCH, 4, generator=torch.Generator().manual_seed(11))
        sampler.draw(x)  # a policy declares the density of the batch it saw last; every draw below sees the same one
        for _ in range(math.ceil(1000 * bins / _BATCH)):
            expected += _bin_masses(sampler, bins) * _BATCH
            drawn = sampler.draw(x)
            where = drawn.t if process.steps else (drawn.u.double() * bins).long()
            counts += torch.bincount(where, minlength=bins)
        value = chi_square_p_value(counts, expected)
        require(
            value > 1e-6,
            f"draws do not follow the declared density after {life} steps (chi-square p = {value:.1e}); worst bins: "
            f"{_worst(counts, expected)}.",
        )


def the_density_integrates_to_one(make: MakeSampler, process: Process) -> None:
    """The mean of ``density`` over the axis is 1, ``probs`` sums to 1, neither is negative or not finite."""
    for life in (0, LIFE):
        sampler = make(process, seed=3)
        train(sampler, process, life)
        points = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
        density = sampler.density(points)
        require(density.shape == points.shape, f"density returned shape {tuple(density.shape)}.")
        require(bool(torch.isfinite(density).all() and (density >= 0).all()), "density is negative or not finite.")
        total = float(density.double().mean())
        require(abs(total - 1) < 5e-3, f"density integrates to {total:.5f} after {life} steps.")
        if process.steps is not None:
            probs = sampler.probs()
            require(
                probs.shape == (process.steps,),
                f"probs has shape {tuple(probs.shape)} for T = {process.steps}.",
            )
            require(abs(float(probs.sum()) - 1) < 1e-9, f"probs sums to {float(probs.sum())}.")


def unbiased_estimates_are_unbiased(make: MakeSampler, process: Process) -> None:
    """With ``unbiased=True`` the mean of correction * f(u) is that of f under uniform u, for f = 1, u, u^2, a bump."""
    sampler = make(process, seed=5, unbiased=True)
    train(sampler, process, LIFE)
    drawn = [sampler.draw(torch.randn(_BATCH, 4)) for _ in range(200)]
    u = torch.cat([d.u for d in drawn]).double()
    correction = torch.cat([d.correction for d in drawn]).double()
    if process.steps is not None:  # within a timestep f is constant: only the timestep is the sampler's to choose
        u = process.axis(torch.cat([d.t for d in drawn])).double()
    grid = (torch.arange(process.cells, dtype=torch.float64) + 0.5) / process.cells
    never = 1 - float((sampler.density(grid) > 0).double().mean())
    require(
        never < 1e-3 or bool(sampler._warned),
        f"{never:.1%} of the axis is never drawn and no warning was given.",
    )
    if never >= 1e-3:
        return
    for name, f in _TEST_FUNCTIONS.items():
        terms = correction * f(u)
        spread = float(terms.std() / math.sqrt(terms.numel()))
        z = (float(terms.mean()) - float(f(grid).mean())) / max(spread, 1e-6)
        require(abs(z) < _LIMIT, f"correction is biased for f = {name}: {z:.1f} standard errors off.")


def corrections_match_the_mode(make: MakeSampler, process: Process) -> None:
    """``correction`` is ``1 / density`` when unbiased; else 1 before anything is learned, and 1 on average after."""
    x = torch.randn(64, 4)
    sampler = make(process, seed=1, unbiased=False)
    require(bool((sampler.draw(x).correction == 1).all()), "unbiased=False must start with corrections of exactly 1.")
    train(sampler, process, LIFE)
    later = torch.cat([sampler.draw(torch.randn(_BATCH, 4)).correction for _ in range(100)]).double()
    z = (float(later.mean()) - 1) / max(float(later.std()) / math.sqrt(later.numel()), 1e-6)
    require(abs(z) < _LIMIT, f"unbiased=False: corrections must average 1, and are {z:.1f} standard errors off.")
    corrected = make(process, seed=1, unbiased=True).draw(x)
    product = corrected.correction * corrected.density
    require(bool((product - 1).abs().max() < 1e-4), "unbiased=True must return 1 / density.")


def draws_have_the_declared_form(make: MakeSampler, process: Process) -> None:
    """Shapes, dtypes and ranges of a draw, for batches of any shape, for one example, and in half precision."""
    for x in (
        torch.randn(7, 3, 8, 8),
        torch.randn(5, 4, 16),
        torch.randn(1, 2),
        torch.randn(6, 2, 3, 4, 4).half(),
    ):
        _check_form(make(process, seed=1).draw(x), x, process)


def a_seed_fixes_the_stream(make: MakeSampler, process: Process) -> None:
    """Same seed, same draws; another seed, others; the global stream is neither read nor moved."""
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    first = make(process, seed=9)
    one = [first.draw(x).u for _ in range(5)]
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = make(process, seed=9)
    two = [again.draw(x).u for _ in range(5)]
    require(bool(torch.equal(before, torch.get_rng_state())), "making or drawing moved the global random stream.")
    require(all(map(torch.equal, one, two)), "the same seed gave different draws.")
    require(not torch.equal(one[0], one[1]), "two draws in a row are identical.")
    other = make(process, seed=10)
    require(not torch.equal(one[0], other.draw(x).u), "another seed gave the same draw.")


def a_restart_is_invisible(make: MakeSampler, process: Process) -> None:
    """Save to bytes with weights_only loading, restore into a fresh sampler: the next 1,000 draws are identical."""
    for life in (0, 1, 41, LIFE):
        sampler = make(process, seed=4)
        network = ToyNetwork()
        train(sampler, process, life, network=network)
        restored = make(process, seed=77)
        restored.load_state_dict(_through_bytes(sampler.state_dict()))
        twin = ToyNetwork()
        twin.load_state_dict(network.state_dict())
        for continued, model in ((sampler, network), (restored, twin)):  # both learn on, on the same losses
            model.eval()
            torch.manual_seed(6)
            train(continued, process, 45, network=model)
        x = torch.randn(100, 4, generator=torch.Generator().manual_seed(5))
        same = all(torch.equal(sampler.draw(x).u, restored.draw(x).u) for _ in range(10))
        require(
            same,
            f"after {life} steps, saving and loading changed what is drawn next: some state is not saved.",
        )


def bad_losses_never_enter(make: MakeSampler, process: Process) -> None:
    """After NaN and infinite losses the density is still finite, and the state holds no NaN."""
    sampler = make(process, seed=2)
    train(sampler, process, 60)
    for bad in (math.nan, math.inf, -math.inf):
        for _ in range(45):
            _watch_losses(sampler, bad)
    for name, value in sampler.state_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point():
            require(not bool(torch.isnan(value).any()), f"a NaN loss entered the state: {name}.")
    density = sampler.density(torch.linspace(0, 0.999, 101))
    require(bool(torch.isfinite(density).all()), "after NaN losses the density is not finite.")


def measuring_leaves_no_trace(make: MakeSampler, process: Process) -> None:
    """``watch`` changes no weight, buffer, gradient or mode of the model, and no global random number."""
    sampler = make(process, seed=2)
    network = ToyNetwork()
    train(sampler, process, 3, network=network)
    objective_of = Objective(network, process)
    for step in range(60):
        network.train()
        network.drop.eval()  # a user may keep some parts in eval mode
        x0 = batches(1, seed=step)[0]
        draw = sampler.draw(x0)
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        kept = [p.detach().clone() for p in network.parameters()]
        losses = objective_of.losses(x0, draw).detach()
        stream = torch.get_rng_state()
        with sampler.watch(draw, losses, objective_of.probe(x0), model=network):
            pass
        require(bool(torch.equal(stream, torch.get_rng_state())), "measuring moved the global random stream.")
        require(all(map(torch.equal, kept, network.parameters())), "measuring changed the weights.")
        whole = all(p.grad is not None and bool((p.grad == 1).all()) for p in network.parameters())
        require(whole, "measuring changed the gradients.")
        require(network.training and not network.drop.training, "measuring changed the mode of a module.")


def one_timestep_is_enough(make: MakeSampler, process: Process) -> None:
    """On a process with T = 1 every draw is timestep 0 (discrete processes only)."""
    if process.steps is None:
        return
    single = type(process)(steps=1)  # type: ignore[call-arg]
    sampler = make(single, seed=0)
    train(sampler, single, 45)
    require(bool((sampler.draw(torch.randn(9, 4)).t == 0).all()), "with T = 1 a draw was not timestep 0.")


def bad_batches_are_refused(make: MakeSampler, process: Process) -> None:
    """An empty batch, a scalar and a negative size raise ValueError."""
    for bad in (torch.zeros(0, 4), torch.zeros(()), 0, -3):
        try:
            make(process, seed=0).draw(bad)
        except ValueError:
            continue
        require(False, f"draw({bad!r}) was accepted; it must raise ValueError.")


SAMPLER_CHECKS: tuple[Callable[[MakeSampler, Process], None], ...] = (
    draws_have_the_declared_form,
    a_seed_fixes_the_stream,
    corrections_match_the_mode,
    the_density_integrates_to_one,
    draws_follow_the_declared_density,
    unbiased_estimates_are_unbiased,
    a_restart_is_invisible,
    bad_losses_never_enter,
    measuring_leaves_no_trace,
    one_timestep_is_enough,
    bad_batches_are_refused,
)


def check_sampler(make: MakeSampler, process: Process) -> None:
    """Run every check; raises :class:`ConformanceError` at the first that fails."""
    for check in SAMPLER_CHECKS:
        check(make, process)


# ---- parts ---------------------------------------------------------------------------------------------------


def chi_square_p_value(counts: Tensor, expected: Tensor) -> float:
    """p-value of observed against expected counts; bins that expect fewer than 5 are pooled."""
    counts, expected = counts.double(), expected.double()
    thin = expected < 5
    if bool(thin.any()):
        counts = torch.cat([counts[~thin], counts[thin].sum()[None]])
        expected = torch.cat([expected[~thin], expected[thin].sum()[None]])
    impossible = (expected <= 1e-9) & (counts > 0)
    if bool(impossible.any()):
        return 0.0
    present = expected > 1e-9
    counts, expected = counts[present], expected[present]
    if counts.numel() < 2:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(counts.numel() - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def _bin_masses(sampler: Sampler, bins: int) -> Tensor:
    if sampler.process.steps is not None:
        return sampler.probs()
    fine = 256
    points = (torch.arange(bins * fine, dtype=torch.float64) + 0.5) / (bins * fine)
    masses = sampler.density(points).double().reshape(bins, fine).mean(dim=1)
    return masses / masses.sum()


def _worst(counts: Tensor, expected: Tensor) -> str:
    z = (counts - expected) / expected.clamp_min(1e-9).sqrt()
    worst = z.abs().topk(min(3, z.numel())).indices.tolist()
    return ", ".join(f"{i}: {counts[i]:.0f} drawn, {expected[i]:.1f} declared" for i in worst)


_TEST_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "1": torch.ones_like,
    "u": lambda u: u,
    "u^2": torch.square,
    "a bump at 0.3": lambda u: torch.exp(-(((u - 0.3) / 0.1) ** 2)),
}


def _check_form(draw: Draw, x: Tensor, process: Process) -> None:
    size = x.shape[0]
    require(draw.shape == tuple(x.shape), f"draw.shape is {draw.shape} for a batch {tuple(x.shape)}.")
    for name in ("u", "t", "correction", "density"):
        require(getattr(draw, name).shape == (size,), f"draw.{name} has not the shape [B].")
    require(bool((draw.u >= 0).all() and (draw.u < 1).all()), "draw.u leaves [0, 1).")
    require(draw.u.dtype == torch.float32, f"draw.u is {draw.u.dtype}, not float32, for {x.dtype} data.")
    require(
        bool(torch.isfinite(draw.correction).all() and (draw.correction > 0).all()),
        "a correction is not positive.",
    )
    if process.steps is not None:
        require(draw.t.dtype == torch.int64, f"draw.t is {draw.t.dtype}, not int64.")
        require(
            bool((draw.t >= 0).all() and (draw.t < process.steps).all()),
            f"draw.t leaves [0, {process.steps}).",
        )
    require(bool(torch.equal(draw.t, process.time(draw.u))), "draw.t is not the process's time at draw.u.")


def _through_bytes(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def _watch_losses(sampler: Sampler, value: float) -> None:
    draw = sampler.draw(torch.randn(16, 4))
    network = ToyNetwork()

    def probe(asked: Draw) -> Tensor:
        anchor = sum(p.sum() for p in network.parameters()) * 0.0
        return torch.full_like(asked.u, value) + anchor

    with sampler.watch(draw, torch.full_like(draw.u, value), probe, model=network):
        pass
