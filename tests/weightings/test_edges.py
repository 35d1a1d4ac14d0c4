"""Zero terminal SNR, the ends of continuous time, half precision, bad input."""

import math
import warnings

import pytest
import torch

import opportune as op

BOUNDED_ON_EPS = {"constant": 1.0, "min_snr": 1.0, "p2": 1.0, "soft_min_snr": 1.0}
LIMIT_ON_V = {
    "constant": 1.0, "min_snr": 0.0, "p2": 0.0, "soft_min_snr": 0.0, "debiased": 0.0, "truncated_snr": 1.0, "edm": 4.0,
    "sigma_sqrt": 1.0, "cosmap": 2 / math.pi, "speed": 0.0, "learned_uncertainty": 4.0,
}  # fmt: skip


def zero_snr(prediction: str) -> op.DDPM:
    return op.DDPM("linear", prediction=prediction, zero_terminal_snr=True)


@pytest.mark.parametrize("name", [n for n in op.weightings() if n not in BOUNDED_ON_EPS and n != "speed"])
def test_infinite_weights_are_refused(name: str) -> None:
    weighting = op.weighting(name, zero_snr("eps"))
    with pytest.raises(ValueError, match=r"no finite weight at t=999 for prediction='eps'.*'v' or 'x0'"):
        weighting(torch.tensor([3]))


@pytest.mark.parametrize("name", sorted(BOUNDED_ON_EPS))
def test_bounded_weights_reach_their_limit_on_eps(name: str) -> None:
    weights = op.weighting(name, zero_snr("eps"))(torch.arange(1000))
    assert float(weights[999]) == pytest.approx(BOUNDED_ON_EPS[name], abs=1e-6)
    assert float(weights[998]) == pytest.approx(BOUNDED_ON_EPS[name], abs=1e-3), "a jump, not a limit"


@pytest.mark.parametrize("name", sorted(LIMIT_ON_V))
def test_limits_on_v_and_x0(name: str) -> None:
    on_v = op.weighting(name, zero_snr("v"))(torch.arange(1000)).detach()
    assert float(on_v[999]) == pytest.approx(LIMIT_ON_V[name], abs=1e-6)
    assert float(on_v[998]) == pytest.approx(LIMIT_ON_V[name], abs=1e-2)
    if name != "constant":
        on_x0 = op.weighting(name, zero_snr("x0"))(torch.arange(1000)).detach()
        assert float(on_x0[999]) == pytest.approx(LIMIT_ON_V[name], abs=1e-6), "SNR + 1 = 1 there"


@pytest.mark.parametrize("variance", ["small", "large"])
def test_vlb_at_zero_terminal_snr(variance: str) -> None:
    """In x0 space the last weight is SNR_{T-1}/2 (small), finite; on eps a cap makes it finite too."""
    process = zero_snr("x0")
    bars = process.alphas_cumprod
    before, last = bars[998] / (1 - bars[998]), op.weighting("vlb", process, variance=variance)(torch.tensor([999]))
    shrink = 1.0 if variance == "small" else float(1 - bars[998])
    assert float(last) == pytest.approx(float(before) / 2 * shrink, rel=1e-4)
    capped = op.weighting("vlb", zero_snr("eps"), variance=variance, cap_quantile=0.99)(torch.arange(1000))
    assert bool(torch.isfinite(capped).all()) and float(capped[999]) == pytest.approx(float(capped.max()))


def test_speed_on_eps_at_zero_terminal_snr_is_its_curve() -> None:
    weights = op.weighting("speed", zero_snr("eps"))(torch.arange(1000))
    assert bool(torch.isfinite(weights).all()) and 0.8 < float(weights[999]) < 0.9


@pytest.mark.parametrize("name", op.weightings())
@pytest.mark.parametrize(
    "process", [op.VP(), op.VE(), op.EDM(), op.Flow(), op.Flow(shift=3.0), op.Flow(prediction="x0")], ids=repr
)
def test_continuous_time_is_finite_to_both_ends(process: op.Process, name: str) -> None:
    u = torch.tensor([0.0, 2.0**-24, 1e-3, 0.5, 1 - 1e-3, 1 - 2.0**-24])
    weights = op.weighting(name, process)(process.time(u)).detach()
    assert weights.dtype == torch.float32
    assert bool(torch.isfinite(weights).all() and (weights >= 0).all()), weights
    assert bool(torch.isfinite(op.weighting(name, process).at(torch.tensor([0.0, 1.0]))).all())


@pytest.mark.parametrize("name", op.weightings())
def test_one_and_two_timesteps(name: str) -> None:
    for steps in (1, 2):
        weights = op.weighting(name, op.DDPM("linear", steps=steps))(torch.arange(steps)).detach()
        assert weights.shape == (steps,) and bool(torch.isfinite(weights).all())


@pytest.mark.parametrize("name", op.weightings())
def test_half_precision_does_not_touch_the_weights(name: str) -> None:
    for process in (op.DDPM("linear"), op.EDM()):
        t = process.time(torch.rand(32))
        losses = torch.rand(32)
        weighting = op.weighting(name, process)
        if name == "learned_uncertainty":
            torch.nn.init.normal_(weighting.linear)
        before, weighted = weighting(t), weighting.apply_to(losses, t)
        holder = torch.nn.Sequential(torch.nn.Linear(2, 2))
        holder.add_module("weighting", weighting)
        holder.half()
        assert holder[0].weight.dtype == torch.float16
        assert torch.equal(weighting(t), before)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(weighting(t), before)
            assert torch.equal(weighting.apply_to(losses, t), weighted)
        assert weighting.apply_to(losses.half(), t).dtype == torch.float32
        assert all(p.dtype == torch.float32 for p in [*weighting.parameters(), *weighting.buffers()])


def test_half_precision_time() -> None:
    """bfloat16 noise levels (a mixed-precision user's sigma) are read exactly, not through bfloat16 logarithms."""
    for process, sigma in ((op.VE(), 0.5), (op.Flow(), 0.25), (op.EDM(), 1.5)):
        weighting = op.weighting("min_snr", process)
        low = weighting(torch.tensor([sigma], dtype=torch.bfloat16))
        torch.testing.assert_close(low, weighting(torch.tensor([sigma], dtype=torch.float64)))


BAD = [
    ("vlb", {"cap_quantile": 1.0}, r"cap_quantile=1 is outside the allowed range \(0, 1\)"),
    ("p2", {"gamma": 0}, "gamma=0.*'constant'"), ("p2", {"gamma": -1}, r"gamma=-1.*\(0, inf\)"),
    ("p2", {"k": 0}, "k=0"), ("min_snr", {"gamma": 0}, "gamma=0"), ("min_snr", {"gamma": math.nan}, "gamma=nan"),
    ("min_snr", {"gamma": "5"}, "gamma='5'"), ("soft_min_snr", {"gamma": 1.0, "sigma_data": 1.0}, "one setting"),
    ("soft_min_snr", {"sigma_data": 0.0}, "sigma_data=0"), ("edm", {"sigma_data": -0.5}, "sigma_data=-0.5"),
    ("constant", {"target": "epsilon"}, "target='epsilon'.*did you mean 'eps'"),
    ("vlb", {"variance": "learned"}, "variance='learned'"), ("vlb", {"cap_quantile": 1.5}, "cap_quantile=1.5"),
    ("vlb", {"cap_quantile": 0.0}, "cap_quantile=0"), ("speed", {"lam": 5}, r"lam=5.*\[0.5, 1\]"),
    ("speed", {"tail": "dual"}, "tail='dual'"), ("speed", {"tau": 700}, "tau=700.*released"),
    ("speed", {"tau": 2000, "tail": "released"}, "tau=2000"), ("sigma_sqrt", {"target": "eps"}, "target='eps'"),
    ("sigma_sqrt", {"smallest_sigma": 0.0}, "smallest_sigma=0"), ("cosmap", {"target": "v"}, "target='v'"),
    ("learned_uncertainty", {"features": 0}, "features=0"), ("learned_uncertainty", {"seed": -1}, "seed=-1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "message"), BAD)
def test_bad_settings(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.weighting(name, op.DDPM("linear"), **settings)


def test_bad_times_and_processes() -> None:
    weighting = op.weighting("min_snr", op.DDPM("linear", steps=10))
    for bad in (torch.tensor([-1]), torch.tensor([10]), torch.tensor([2, 400])):
        with pytest.raises(ValueError, match=r"t runs from .* timesteps lie in \[0, 10\)"):
            weighting(bad)
    with pytest.raises(ValueError, match=r"t has dtype torch.float32"):
        weighting(torch.tensor([0.5]))
    with pytest.raises(ValueError, match="is not a process"):
        op.weighting("min_snr", "linear")
    assert weighting(torch.empty(0, dtype=torch.int64)).shape == (0,)


def test_an_option_without_effect_warns() -> None:
    with pytest.warns(UserWarning, match=r"lam=0.5 has no effect"):
        op.weighting("speed", op.DDPM("linear"), lam=0.5)
    with pytest.warns(UserWarning, match=r"variance='large' has no effect on Flow"):
        op.weighting("vlb", op.Flow(), variance="large")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.weighting("speed", op.DDPM("linear"))
        op.weighting("vlb", op.DDPM("linear"), variance="large")
        op.weighting("vlb", op.Flow())


@pytest.mark.parametrize("name", op.weightings())
def test_state_is_small_and_loads_without_pickle(name: str, tmp_path) -> None:
    weighting = op.weighting(name, op.DDPM("linear"))
    t = torch.arange(1000)
    weighting(t)
    torch.save(weighting.state_dict(), tmp_path / "state.pt")
    again = op.weighting(name, op.DDPM("linear"))
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(again(t), weighting(t))


@pytest.mark.parametrize("name", ["min_snr", "learned_uncertainty"])
@pytest.mark.parametrize(
    ("process", "wrong"),
    [(op.Flow(shift=3.0), 2.0), (op.EDM(), -1.0), (op.EDM(), math.nan), (op.VE(), 1e4), (op.VP(), 1.5)],
)
def test_times_outside_a_continuous_process_are_refused(name: str, process: op.Process, wrong: float) -> None:
    weighting, t = op.weighting(name, process), torch.tensor([wrong])
    for use in (weighting, lambda t: weighting.apply_to(torch.ones(1), t)):
        with pytest.raises(ValueError, match="outside the own times of"):
            use(t)


@pytest.mark.parametrize("name", ["min_snr", "learned_uncertainty"])
def test_losses_and_timesteps_must_go_together(name: str) -> None:
    weighting = op.weighting(name, op.DDPM())
    for losses, t in ((torch.ones(4), torch.zeros(4, 1).long()), (torch.ones(4, 1), torch.zeros(4).long())):
        with pytest.raises(ValueError, match="give one loss and one timestep per example"):
            weighting.apply_to(losses, t)


@pytest.mark.parametrize("process", [op.Flow(shift=3.3), op.EDM(), op.VE(), op.VP()])
def test_the_rounded_ends_of_a_continuous_process_are_inside(process: op.Process) -> None:
    ends = process.time(torch.tensor([0.0, 2.0**-24, 1 - 2.0**-24]))
    assert bool(torch.isfinite(op.weighting("min_snr", process)(ends)).all())
