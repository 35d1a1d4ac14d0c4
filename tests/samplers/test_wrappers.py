"""Wrappers: strata are filled exactly, densities stay exact, and everything else reaches the sampler within."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from tests.ranks import on_ranks
from torch import Tensor

import opportune as op
from opportune.samplers import Common
from opportune.samplers.phases import Phases
from opportune.samplers.stratified import Stratified
from opportune.testing.toy import train
from opportune.types import Request, StepRecord

DDPM = op.DDPM("linear", steps=1000)
SPREADING = ["stratified", "low_discrepancy"]


def quantiles(sampler: op.Sampler, draws: list[op.Draw]) -> Tensor:
    """Where draws of a continuous-time fixed density fall in its cumulative distribution."""
    cdf = torch.cat([torch.zeros(1, dtype=torch.float64), sampler._masses(4096).cumsum(0)])
    position = torch.cat([d.u for d in draws]).double() * 4096
    cell = position.long()
    return cdf[cell] + (position - cell) * (cdf[cell + 1] - cdf[cell])


class Learner(op.Sampler):
    """A sampler that looks at the data and records what reaches it."""

    needs = "probe"

    def __init__(self, process: op.Process, **common: Any) -> None:
        super().__init__(process, **common)
        self.register_buffer("power", torch.ones(()))
        self.seen: list[StepRecord] = []

    def _look(self, x: Tensor) -> Tensor:
        return x.flatten(1).mean(dim=1, keepdim=True).abs() + 0.5

    def _place(self, v: Tensor, context: Tensor | None) -> Tensor:
        return v ** (1 / self._power(context))

    def _density(self, u: Tensor, context: Tensor | None) -> Tensor:
        power = self._power(context)
        return power * u.clamp_min(1e-9) ** (power - 1)

    def _power(self, context: Tensor | None) -> Tensor:
        return self.power if context is None else context[:, 0].double() + self.power

    def request(self, draw: op.Draw) -> Request:
        probe = self.probe_draw(draw, torch.full((self.global_size(draw),), 0.5), 0)
        return Request(draws=(probe,), after=True)

    def learn(self, record: StepRecord) -> None:
        self.seen.append(record)
        self.power += 1

    def warm_up_steps(self) -> int:
        return 7


# ---- strata ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPREADING)
@pytest.mark.parametrize("inner", ["uniform", "logit_normal", "speed"])
@pytest.mark.parametrize("batch", [1, 7, 49, 64])
def test_an_optimizer_step_fills_every_stratum_once(name: str, inner: str, batch: int) -> None:
    """Over the accumulated micro-batches too; 49 is a size at which a spacing by steps of 1/B yields 50 points."""
    process = op.Flow()
    sampler = op.sampler(name, process, of=inner, accumulation=3)
    for _ in range(3):
        v = quantiles(sampler, [sampler.draw(batch) for _ in range(3)]).sort().values
        count = 3 * batch
        if name == "low_discrepancy":
            gaps = torch.cat([v.diff(), (v[:1] + 1 - v[-1:])])
            torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / count), rtol=0, atol=1e-5)
        else:
            left = torch.arange(count, dtype=torch.float64) / count
            assert bool((v >= left - 1e-5).all() and (v <= left + 1 / count + 1e-5).all())


@pytest.mark.parametrize("name", SPREADING)
def test_strata_reduce_the_variance_of_counts(name: str) -> None:
    def counts_variance(sampler: op.Sampler) -> float:
        counts = [torch.bincount(sampler.draw(60).t // 100, minlength=10).double() for _ in range(300)]
        return float(torch.stack(counts).var(dim=0).mean())

    plain = counts_variance(op.sampler("beta", DDPM))
    spread = counts_variance(op.sampler(name, DDPM, of="beta"))
    assert plain > 4.0, "sixty independent draws over ten bins"
    assert spread < 0.5


@pytest.mark.parametrize("name", SPREADING)
def test_no_position_in_the_batch_is_tied_to_a_noise_band(name: str) -> None:
    sampler = op.sampler(name, DDPM)
    u = torch.stack([sampler.draw(8).u for _ in range(3000)]).double()
    assert float((u.mean(dim=0) - 0.5).abs().max()) < 5 * (1 / 12 / 3000) ** 0.5
    assert float((u[:, 0].var() - 1 / 12).abs()) < 0.01
    neighbours = torch.corrcoef(u[:, :2].T)[0, 1]
    assert -0.2 < float(neighbours) < -0.05, "without replacement: -1/7; a running offset would give near 1"


@pytest.mark.parametrize("name", SPREADING)
def test_each_example_keeps_the_density_within(name: str) -> None:
    sampler = op.sampler(name, op.DDPM("linear", steps=10), of="beta", of_settings={"a": 2.0, "b": 3.0})
    first = torch.tensor([int(sampler.draw(6).t[2]) for _ in range(3000)])
    counts = torch.bincount(first, minlength=10).double()
    expected = sampler.probs() * 3000
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 33.7, "99.99 % of a chi-square with 9 degrees of freedom"


@pytest.mark.filterwarnings("ignore:strata=1 has no effect")
@pytest.mark.parametrize(("strata", "batch"), [(4, 8), (4, 10), (3, 7), (1, 5)])
def test_fewer_strata_are_filled_evenly(strata: int, batch: int) -> None:
    sampler = op.sampler("stratified", op.Flow(), strata=strata)
    total = torch.zeros(strata)
    for _ in range(400):
        counts = torch.bincount((sampler.draw(batch).u * strata).long(), minlength=strata)
        assert int(counts.max()) - int(counts.min()) <= 1
        total += counts
    share = total / total.sum()
    assert float((share - 1 / strata).abs().max()) < 0.02, "where strata does not divide the batch, no one is favoured"


def test_more_strata_than_examples_warn_once() -> None:
    sampler = op.sampler("stratified", DDPM, strata=100, accumulation=2)
    with pytest.warns(UserWarning, match="strata=100 is more than the 16 examples of an optimizer step") as caught:
        for _ in range(4):
            sampler.draw(8)
    assert len(caught) == 1
    both = torch.cat([sampler.draw(8).u, sampler.draw(8).u])
    assert (both * 16).long().sort().values.tolist() == list(range(16))


def _draw_on_rank(batch: int, accumulation: int) -> dict[str, list[Tensor]]:
    drawn = {}
    for name in SPREADING:
        sampler = op.sampler(name, op.Flow(), accumulation=accumulation, seed=5)
        drawn[name] = [sampler.draw(batch).u for _ in range(2 * accumulation)]
    return drawn


def test_strata_span_ranks_and_accumulation() -> None:
    batch, accumulation, world = 5, 3, 2
    ranks = on_ranks(world, _draw_on_rank, batch, accumulation)
    alone = _draw_on_rank(batch * world, accumulation)
    count = batch * accumulation * world
    for name in SPREADING:
        for step in range(2):
            part = slice(step * accumulation, (step + 1) * accumulation)
            u = torch.cat([torch.cat(rank[name][part]) for rank in ranks]).double().sort().values
            if name == "stratified":
                assert (u * count).long().tolist() == list(range(count))
            else:
                torch.testing.assert_close(u.diff(), torch.full((count - 1,), 1 / count).double(), rtol=0, atol=1e-6)
        # One process with the whole batch draws the same: example i of rank r is global example i * W + r.
        together = [torch.stack(parts, dim=1).flatten() for parts in zip(*(rank[name] for rank in ranks), strict=True)]
        assert all(map(torch.equal, alone[name], together))


def test_places_within_strata_are_fresh_for_every_micro_batch() -> None:
    sampler = op.sampler("stratified", op.Flow(), accumulation=2)
    first, second = ((sampler.draw(16).u.double() * 32) % 1 for _ in range(2))
    assert not bool(torch.isclose(first, second, atol=1e-3).all())


# ---- mixture -----------------------------------------------------------------------------------------------------


def test_mixture_is_a_floor_under_the_density_within() -> None:
    within = op.sampler("speed", DDPM)
    mixed = op.sampler("mixture", DDPM, of="speed", floor=0.25)
    torch.testing.assert_close(mixed.probs(), 0.25 / 1000 + 0.75 * within.probs())
    drawn = mixed.draw(40_000)
    torch.testing.assert_close(drawn.density.double(), mixed.probs()[drawn.t] * 1000, rtol=1e-5, atol=0)
    share = float((drawn.t >= 700).double().mean())
    assert share == pytest.approx(float(mixed.probs()[700:].sum()), abs=0.01)


def test_mixture_goes_its_share_of_the_way_back_also_for_what_the_method_aims_at() -> None:
    mixed = op.sampler("mixture", DDPM, of="adaptive", floor=0.25)
    mixed.inner.aim = torch.linspace(0.5, 1.5, 1000, dtype=torch.float64) / 1000
    drawn = mixed.draw(50)
    aimed = 0.25 + 0.75 * mixed.inner.aim[drawn.t] * 1000
    torch.testing.assert_close((drawn.correction * drawn.density).double(), aimed, rtol=1e-5, atol=0)


def test_the_ends_of_mixture() -> None:
    within = op.sampler("beta", DDPM, seed=4)
    assert torch.equal(op.sampler("mixture", DDPM, of="beta", floor=0.0, seed=4).draw(50).t, within.draw(50).t)
    assert float(op.sampler("mixture", DDPM, of="beta", floor=1.0).probs().std()) < 1e-12


def test_mixture_fills_holes_so_unbiased_holds() -> None:
    table = torch.tensor([0.0, 1.0, 1.0, 0.0])
    with pytest.warns(UserWarning, match="cannot hold for Given: 500 of 1000"):
        op.sampler("stratified", DDPM, of="table", of_settings={"density": table}, unbiased=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = op.sampler("mixture", DDPM, of="table", of_settings={"density": table}, floor=0.2, unbiased=True)
    drawn = mixed.draw(20_000)
    assert float(drawn.correction.max()) == pytest.approx(1 / 0.2, rel=1e-5)
    terms = drawn.correction.double() * drawn.u.double()
    assert abs(float(terms.mean()) - 0.5) < 5 * float(terms.std()) / 20_000**0.5
    with pytest.warns(UserWarning, match="cannot hold"):
        op.sampler("mixture", DDPM, of="table", of_settings={"density": table}, floor=0.0, unbiased=True)


# ---- phases ------------------------------------------------------------------------------------------------------


def test_phases_switch_at_optimizer_steps() -> None:
    sampler = op.sampler("phases", DDPM, phases=[[0, "uniform"], [2, "beta", {"a": 5.0}], (4, "mode")], accumulation=2)
    alone = [op.sampler("uniform", DDPM), op.sampler("beta", DDPM, a=5.0), op.sampler("mode", DDPM)]
    for draw in range(12):
        wanted = alone[min(draw // 4, 2)].probs()
        torch.testing.assert_close(sampler.probs(), wanted)
        drawn = sampler.draw(9)
        torch.testing.assert_close(drawn.density.double(), wanted[drawn.t] * 1000, rtol=1e-5, atol=0)


def test_a_phases_clock_starts_with_it_and_its_numbers_are_its_own() -> None:
    sampler = op.sampler("phases", DDPM, phases=[[0, "uniform"], [3, "uniform"], [6, "clts", {"ramp_steps": 2}]])
    drawn = [sampler.draw(20).u for _ in range(6)]
    assert not any(torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    gammas = []
    for _ in range(4):
        sampler.draw(20)
        gammas.append(float(sampler.all[2]._shown))
    assert gammas == [0.0, 0.5, 1.0, 1.0]


def test_a_phases_clock_counts_optimizer_steps_under_accumulation() -> None:
    phases = [(0, "uniform"), (2, "clts", {"ramp_steps": 2})]
    sampler = op.sampler("phases", DDPM, phases=phases, accumulation=3)
    gammas = []
    for _ in range(12):
        sampler.draw(4)
        gammas.append(float(sampler.all[1]._shown))
    assert gammas == [0.0] * 9 + [0.5] * 3


def test_each_phase_keeps_its_own_correction_unless_told_otherwise() -> None:
    def make(**common: Any) -> op.Sampler:
        phases = [(0, "beta", {"unbiased": True}), (1, "beta", {"unbiased": False})]
        return op.sampler("phases", DDPM, phases=phases, **common)

    def corrections(sampler: op.Sampler) -> list[bool]:
        return [bool((sampler.draw(20).correction != 1).all()) for _ in range(2)]

    assert corrections(make()) == [True, False]
    assert corrections(make(unbiased=True)) == [True, True]
    assert corrections(make(unbiased=False)) == [False, False]
    assert corrections(op.sampler("stratified", process := DDPM, of=make())) == [True, False]
    assert process is DDPM


def test_only_the_phase_in_force_learns_and_the_last_step_of_a_phase_is_its_own() -> None:
    first, second = Learner(DDPM), Learner(DDPM)
    sampler = op.sampler("phases", DDPM, phases=[(0, first), (2, second)])
    x = torch.randn(4, 3)
    for _ in range(5):
        draw = sampler.draw(x)
        with sampler.watch(draw, draw.u, lambda d: d.u):
            sampler.probs()  # looking at the coming density in between must not switch the phase early
    assert [record.step for record in first.seen] == [0, 1]
    assert [record.step for record in second.seen] == [0, 1, 2]
    assert sampler.steps_watched == 5


@pytest.mark.parametrize(
    ("phases", "match"),
    [
        (None, r"phases=None; give a list of \(start_step, sampler\)"),
        ([], "phases=\\[\\]"),
        ("uniform", "phases='uniform'"),
        ([(1, "uniform")], "start_step=1 where 0 is needed"),
        ([(0, "uniform"), (0, "mode")], "start_step=0 where more than 0 is needed"),
        ([(0, "uniform"), (5, "mode"), (3, "beta")], "start_step=3 where more than 5"),
        ([(0, "uniform"), (-1, "mode")], "start_step=-1"),
        ([(0, "uniform"), 7], "phases holds 7"),
        ([(0, "unifrom")], "did you mean 'uniform'"),
        ([(0, "beta", {"q": 1})], "q=1 is not a setting"),
        ([(0, 3)], "of=3 is not a sampler"),
    ],
)
def test_bad_phases(phases: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.sampler("phases", DDPM, phases=phases)


def test_phases_ask_each_phase_about_its_share_of_the_run() -> None:
    sampler = op.sampler("phases", DDPM, phases=[(0, "uniform"), (90, "clts", {"ramp_steps": 50})])
    with pytest.warns(UserWarning, match="ramp_steps=50 is longer than the run of 10 steps"):
        sampler.check_run(100)


# ---- what all wrappers hand on -----------------------------------------------------------------------------------

WRAPPERS: dict[str, dict[str, Any]] = {
    "stratified": {},
    "low_discrepancy": {},
    "mixture": {"floor": 0.2},
}


def around(name: str, inner: op.Sampler, **common: Any) -> op.Sampler:
    if name == "phases":
        return op.sampler("phases", inner.process, phases=[(0, inner)], **common)
    return op.sampler(name, inner.process, of=inner, **WRAPPERS[name], **common)


@pytest.mark.parametrize("name", [*WRAPPERS, "phases"])
def test_a_learner_within_sees_the_data_asks_and_learns(name: str) -> None:
    inner = Learner(DDPM)
    sampler = around(name, inner)
    assert (sampler.needs, sampler.warm_up_steps()) == ("probe", 7)
    x = torch.randn(6, 2, 4, 4)
    for step in range(3):
        draw = sampler.draw(x)
        assert draw.context is not None and torch.equal(draw.context, inner._look(x))
        floor = 0.2 if name == "mixture" else 0.0
        power = draw.context[:, 0].double() + inner.power
        wanted = floor + (1 - floor) * power * draw.u.double() ** (power - 1)
        torch.testing.assert_close(draw.density.double(), wanted, rtol=1e-4, atol=1e-6)
        with sampler.watch(draw, draw.u, lambda d: d.u * 2):
            pass
        record = inner.seen[-1]
        assert record.step == step and record.before is not None and record.before.tolist() == [[1.0] * 6]
        assert torch.equal(record.draw.u, draw.u)
    assert float(inner.power) == 4.0


@pytest.mark.parametrize("name", [*WRAPPERS, "phases"])
def test_a_skipped_step_teaches_nothing(name: str) -> None:
    inner = Learner(DDPM)
    sampler = around(name, inner)
    draw = sampler.draw(torch.randn(4, 3))
    with sampler.watch(draw, draw.u, lambda d: d.u) as watching:
        watching.skip()
    assert inner.seen == [] and sampler.steps_watched == 0


@pytest.mark.parametrize("name", [*WRAPPERS, "phases"])
def test_the_state_of_the_one_within_is_saved_and_restored(name: str) -> None:
    def life(sampler: op.Sampler, steps: int) -> list[Tensor]:
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
        seen = []
        for _ in range(steps):
            draw = sampler.draw(x)
            seen.append(draw.u)
            with sampler.watch(draw, draw.u, lambda d: d.u):
                pass
        return seen

    sampler = around(name, Learner(DDPM, seed=8))
    life(sampler, 5)
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    other = around(name, Learner(DDPM, seed=1))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert all(map(torch.equal, life(sampler, 6), life(other, 6)))
    assert other.steps_watched == 11


@pytest.mark.parametrize("name", [*WRAPPERS, "phases"])
def test_common_settings_hold_within_and_are_taken_from_within(name: str) -> None:
    taken = around(name, op.sampler("beta", DDPM, seed=6, unbiased=True, accumulation=4))
    assert (taken.seed, taken.accumulation) == (6, 4)
    product = (draw := taken.draw(30)).correction * draw.density
    torch.testing.assert_close(product, torch.ones(30))
    inner = op.sampler("mixture", DDPM, of="beta", seed=6)
    given = around(name, inner, seed=2, unbiased=True, accumulation=3)
    for each in (given, inner, inner.of):
        assert each.accumulation == 3 and each.unbiased
    assert given.seed == 2 and (name == "phases" or inner.of.seed == 2)
    product = (draw := given.draw(30)).correction * draw.density
    torch.testing.assert_close(product, torch.ones(30))
    off = around(name, op.sampler("beta", DDPM, unbiased=True), unbiased=False)
    assert bool((off.draw(30).correction == 1).all())


def test_wrappers_nest_in_any_order() -> None:
    flow = op.Flow()
    inside = op.sampler("mixture", flow, of=op.sampler("stratified", flow, of="beta"), floor=0.5)
    v = inside._uniforms(8)
    assert sorted((v * 8).long().tolist()) == list(range(8)), "strata reach through the mixture"
    outside = op.sampler("stratified", flow, of=op.sampler("phases", flow, phases=[(0, "beta"), (2, "uniform")]))
    for _ in range(3):
        drawn = outside.draw(8)
    assert sorted((drawn.u * 8).long().tolist()) == list(range(8)), "strata reach into the phase in force"
    half = op.sampler("mixture", flow, of="table", of_settings={"density": [1.0, 0.0]}, floor=0.5)
    strata = op.sampler("stratified", flow, of=half).draw(8).u
    assert int((strata < 0.5).sum()) == 6, "half of eight uniform (two of them low), the other four low"


def test_settings_for_the_one_within_by_name() -> None:
    sampler = op.sampler(
        "stratified", DDPM, of="mixture", of_settings={"of": "logit_normal", "of_settings": {"mean": 2.0}}, seed=3
    )
    torch.testing.assert_close(
        sampler.probs(), 1e-4 + 0.9 * op.sampler("logit_normal", DDPM, mean=2.0).probs(), rtol=1e-6, atol=0
    )
    assert sampler.of.of.seed == 3


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"of": "beat"}, "did you mean 'beta'"),
        ({"of": 5}, "of=5 is not a sampler"),
        ({"of": "beta", "of_settings": 3}, "of_settings=3 is not settings"),
        ({"of": "beta", "of_settings": {"alpha": 1.0}}, "alpha=1.0 is not a setting"),
        ({"of": op.sampler("beta", DDPM), "of_settings": {"a": 1.0}}, "of_settings=.* has no effect"),
        ({"of": op.sampler("beta", op.Flow())}, "of=Beta was made for Flow.*use one process"),
        ({"accumulation": 0}, "accumulation=0"),
    ],
)
def test_bad_settings_of_wrappers(name: str, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        op.sampler(name, DDPM, **settings)


def test_bad_settings_of_single_wrappers() -> None:
    with pytest.raises(ValueError, match=r"floor=1\.5"):
        op.sampler("mixture", DDPM, floor=1.5)
    with pytest.raises(ValueError, match="strata=0"):
        op.sampler("stratified", DDPM, strata=0)
    with pytest.raises(ValueError, match=r"accumulation=\[1, 2\]"):
        Phases(DDPM, phases=[(0, op.sampler("beta", DDPM)), (3, op.sampler("beta", DDPM, accumulation=2))])
    with pytest.raises(ValueError, match="of='beta' is not a setting of sampler Phases"):
        op.sampler("phases", DDPM, of="beta")


def test_an_int_reaches_the_one_within() -> None:
    """A policy may refuse to draw without data; the wrapper must leave that to it."""

    class Refuses(Learner):
        def _context(self, x: Tensor | int) -> Tensor | None:
            if isinstance(x, int):
                raise ValueError("needs the data")
            return super()._context(x)

    common: Common = {"seed": 1}
    sampler = Stratified(DDPM, of=Refuses(DDPM), **common)
    with pytest.raises(ValueError, match="needs the data"):
        sampler.draw(4)


@pytest.mark.parametrize("inner", ["second_moment", "kingma_gao", "info_noise", "gradient_variance", "kim"])
@pytest.mark.parametrize("name", [*WRAPPERS, "phases"])
def test_every_learning_method_trains_inside_a_wrapper(name: str, inner: str) -> None:
    """The real methods, by name: they are handed what they need, and draws carry the wrapper's exact density."""
    process = op.DDPM("linear", steps=100)
    settings = {"phases": [[0, inner]]} if name == "phases" else {"of": inner, **WRAPPERS[name]}
    sampler = op.sampler(name, process, seed=1, unbiased=True, **settings)
    assert sampler.needs == op.sampler(inner, process).needs != "nothing"
    train(sampler, process, 45)
    draw = sampler.draw(torch.randn(400, 4))
    torch.testing.assert_close(draw.correction * draw.density, torch.ones(400), rtol=1e-4, atol=0)
    torch.testing.assert_close(draw.density, sampler._density(draw.u, draw.context).float())
    assert sampler.steps_watched == sampler.inner.steps_watched == 45


def test_wrappers_that_change_nothing_say_so() -> None:
    with pytest.warns(UserWarning, match="strata=1 has no effect"):
        op.sampler("stratified", DDPM, strata=1)
    with pytest.warns(UserWarning, match="floor of uniform under uniform has no effect"):
        op.sampler("mixture", DDPM)


@pytest.mark.parametrize(("floor", "what"), [(0.0, "Beta alone"), (1.0, "uniform alone")])
def test_a_mixture_of_one_says_so(floor: float, what: str) -> None:
    with pytest.warns(UserWarning, match=what) as caught:
        op.sampler("mixture", op.DDPM(steps=10), of="beta", floor=floor).draw(4)
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["stratified", "low_discrepancy"])
def test_one_example_a_step_has_no_strata_and_is_told_so_once(name: str) -> None:
    with pytest.warns(UserWarning, match="has no effect where an optimizer step has one example") as caught:
        sampler = op.sampler(name, DDPM, of="beta")
        sampler.draw(1), sampler.draw(1)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.sampler(name, DDPM, of="beta", accumulation=2).draw(1)
        op.sampler(name, DDPM, of="beta").draw(2)
