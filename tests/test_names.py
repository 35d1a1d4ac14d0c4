"""Methods by name: unknown names and settings are refused with help; outside packages are found."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import opportune as op


@pytest.mark.parametrize(
    ("name", "meant"),
    [("unifrom", "uniform"), ("logitnormal", "logit_normal"), ("kimm", "kim"), ("adaptiv", "adaptive")],
)
def test_an_unknown_sampler_lists_the_known_and_the_closest(name, meant):
    with pytest.raises(ValueError, match=rf"did you mean '{meant}'\?") as error:
        op.sampler(name, op.DDPM())
    assert all(known in str(error.value) for known in op.samplers())


def test_an_unknown_weighting_lists_the_known_and_the_closest():
    with pytest.raises(ValueError, match=r"did you mean 'min_snr'\?"):
        op.weighting("minsnr", op.DDPM())


def test_a_sampler_that_is_printed_says_what_it_is():
    printed = repr(op.sampler("stratified", op.Flow(shift=3.0), of="beta", of_settings={"a": 1.5, "b": 1.0}))
    assert "Beta(Flow(shift=3, prediction='velocity'), a=1.5, b=1)" in printed


def test_hyphens_count_as_underscores():
    assert type(op.sampler("log-normal", op.DDPM())) is type(op.sampler("log_normal", op.DDPM()))


def test_an_unknown_setting_names_the_closest():
    with pytest.raises(ValueError, match=r"maen=.*did you mean 'mean'\?.*Its settings: accumulation, mean, seed"):
        op.sampler("log_normal", op.DDPM(), maen=1.0)


@pytest.mark.parametrize("name", ["gradient_variance", "second_moment"])
def test_a_setting_the_method_fixes_itself_is_not_one_of_its_settings(name):
    """Both hand a minimum_count of their own to the engine they share with methods where it can be set."""
    with pytest.raises(ValueError, match=r"minimum_count=3 is not a setting of sampler .* Its settings: .*seed"):
        op.sampler(name, op.DDPM(), minimum_count=3)


@pytest.mark.parametrize("name", op.samplers())
def test_something_that_is_no_process_is_refused(name):
    settings = {"table": {"density": [1.0]}, "phases": {"phases": [(0, "uniform")]}}.get(name, {})
    with pytest.raises(ValueError, match="process='ddpm' is not a process"):
        op.sampler(name, "ddpm", **settings)


def test_an_outside_package_can_register_a_sampler(tmp_path):
    """A real installed distribution (metadata on the path), found in a fresh interpreter."""
    (tmp_path / "outside.py").write_text(
        textwrap.dedent("""
        from opportune.samplers.uniform import Uniform
        class Triangle(Uniform):
            def cumulative(self, u, log_snr):
                return u**2
        class NoSampler: ...
        """)
    )
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[opportune.samplers]\ntri-angle = outside:Triangle\nbroken = outside:NoSampler\n"
    )
    code = textwrap.dedent("""
        import opportune as op
        assert "tri_angle" in op.samplers()
        sampler = op.sampler("tri-angle", op.DDPM(steps=10))
        assert abs(float(sampler.probs()[-1]) - 0.19) < 1e-9, sampler.probs()
        try:
            op.sampler("broken", op.DDPM())
        except ValueError as error:
            print(error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "not a subclass of Sampler" in done.stdout


def test_numpys_numbers_are_numbers():
    process = op.DDPM(steps=np.int64(10))
    sampler = op.sampler("logit_normal", process, mean=np.float32(0.5), seed=np.int32(3))
    assert len(sampler.draw(np.int64(4))) == 4 and type(sampler.state_dict()["_extra_state"]["seed"]) is int
    with pytest.raises(ValueError, match="looks at the data"):
        op.sampler("kim", process).draw(np.int64(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: op.DDPM(zero_terminal_snr="false"),
        lambda: op.sampler("speed", op.DDPM(), dual="false"),
        lambda: op.sampler("kim", op.DDPM(), normalise=1),
    ],
)
def test_a_text_is_no_truth_value(make):
    with pytest.raises(ValueError, match="is not allowed; give True or False"):
        make()


def test_the_state_of_another_method_is_refused():
    other = op.sampler("uniform", op.DDPM(steps=10)).state_dict()
    with pytest.raises(ValueError, match="not that of this Kim"):
        op.sampler("kim", op.DDPM(steps=10)).load_state_dict(other)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("uniform", {}), ("logit_normal", {"mean": -1.0}), ("stratified", {"of": "beta"}), ("kingma_gao", {"bins": 5})],
)
def test_a_refused_state_leaves_nothing_behind(name, settings):
    """The density of another method, other settings or another T would be drawn from under the old name."""
    process = op.DDPM(steps=10)
    asked = op.sampler(name, process, **settings)
    before = copy.deepcopy(asked.state_dict())
    for other in (
        op.sampler("logit_normal", process, seed=5),
        op.sampler("stratified", process, of="logit_normal", seed=5),
        op.sampler("logit_normal", op.DDPM(steps=12), seed=5),
    ):
        other.draw(4)
        with pytest.raises(ValueError, match="same settings"):
            asked.load_state_dict(other.state_dict())
    after = asked.state_dict()
    assert all(
        torch.equal(value, after[key]) if isinstance(value, torch.Tensor) else value == after[key]
        for key, value in before.items()
    )


def test_a_state_of_the_same_shape_from_another_method_is_refused_and_leaves_nothing_behind():
    """Both keep one histogram of equally many bins: only the method's name tells them apart."""
    process = op.DDPM(steps=100)
    saved, asked = (op.sampler(name, process, bins=20) for name in ("kingma_gao", "info_noise"))
    saved.history.add(torch.rand(64), torch.rand(64))
    with pytest.raises(ValueError, match=r"not that of this InfoNoise \(another method saved it\)"):
        asked.load_state_dict(saved.state_dict())
    assert not bool(asked.history.sums.any())
    inside = op.sampler("stratified", process, of=asked)
    with pytest.raises(ValueError, match="another method saved it"):
        inside.load_state_dict(op.sampler("stratified", process, of=saved).state_dict())


def test_a_state_saved_before_methods_were_named_still_loads():
    state = op.sampler("kingma_gao", op.DDPM(steps=100), seed=5).state_dict()
    del state["_extra_state"]["method"]
    sampler = op.sampler("kingma_gao", op.DDPM(steps=100))
    sampler.load_state_dict(state)
    assert sampler.seed == 5


def test_draws_do_not_depend_on_the_default_device():
    """A default device of "meta" stands for any that is not the CPU: numbers still come from the CPU's streams."""
    for name in ("stratified", "low_discrepancy", "uniform", "adaptive"):
        plain = op.sampler(name, op.DDPM(steps=10)).draw(8).u
        sampler = op.sampler(name, op.DDPM(steps=10))
        with torch.device("meta"):
            assert torch.equal(sampler.draw(8).u, plain)


def test_which_samplers_serve_the_weighting_in_use():
    """Those that learn from losses do; kim's reward is measured under the bound unless it is told otherwise."""
    serving = {name for name in op.samplers() if op.names.serves_weighting(name)}
    assert serving == {"adaptive", "gradient_variance", "info_noise", "kingma_gao", "second_moment"}
