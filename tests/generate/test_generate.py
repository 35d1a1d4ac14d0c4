"""What a user of generate() relies on: the same pictures however the work is split, ranges, modes and messages."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.generate.exact import SHAPE, Exact, data, start
from tests.ranks import on_ranks

from opportune.generate import generate, generate_many, methods
from opportune.generate.levels import even_levels, sigma_levels
from opportune.models import build_model, guided
from opportune.processes import DDPM, EDM, VE, VP, Flow

PROCESS = DDPM("cosine", steps=50, prediction="v")


@pytest.fixture(scope="module")
def unet() -> Any:
    torch.manual_seed(0)
    model = build_model(
        "unet", image_size=8, channels=1, classes=3, widths=(8, 8), group_count=4, blocks_per_level=1, dropout=0.5
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("settings", [{"method": "ddpm"}, {"method": "ddim", "eta": 0.5}, {"method": "heun"}], ids=str)
def test_pictures_do_not_depend_on_batches_ranks_or_order(unet: Any, settings: dict) -> None:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    common = {"steps": 5, "seed": 3, "clip": None, **settings}
    whole = generate(unet, PROCESS, (7, 1, 8, 8), labels=labels, **common)
    assert float((whole[0] - whole[4]).abs().max()) > 0.1  # same class, another picture
    parts: dict[int, torch.Tensor] = {}
    for rank in range(3):
        for begin, images in generate_many(
            unet, PROCESS, 7, (1, 8, 8), batch_size=2, rank=rank, world=3, labels=labels, **common
        ):
            assert begin not in parts
            parts.update({begin + k: image for k, image in enumerate(images)})
    assert sorted(parts) == list(range(7))
    torch.testing.assert_close(torch.stack([parts[i] for i in range(7)]), whole, rtol=1e-4, atol=1e-4)
    backwards = generate(unet, PROCESS, (2, 1, 8, 8), indices=[6, 2], labels=labels[[6, 2]], **common)
    torch.testing.assert_close(backwards, whole[[6, 2]], rtol=1e-4, atol=1e-4)
    other = generate(unet, PROCESS, (7, 1, 8, 8), labels=labels, **{**common, "seed": 4})
    assert float((other - whole).abs().max()) > 0.1


def _share() -> dict[str, Any]:
    made = generate_many(Exact(PROCESS, data()), PROCESS, 5, SHAPE, batch_size=2, steps=3)
    return {str(begin): images for begin, images in made}


def test_ranks_are_found_by_themselves() -> None:
    first, second = on_ranks(2, _share)
    assert sorted(first) == ["0", "4"] and sorted(second) == ["2"]
    together = torch.cat([first["0"], second["2"], first["4"]])
    whole = generate(Exact(PROCESS, data()), PROCESS, (5, *SHAPE), steps=3)
    torch.testing.assert_close(together, whole)


def test_the_model_runs_in_evaluation_mode_and_nothing_else_changes(unet: Any) -> None:
    unet.train()
    unet.inner.mid_block.eval()
    modes = [part.training for part in unet.modules()]
    stream = torch.get_rng_state()
    twice = [generate(unet, PROCESS, (2, 1, 8, 8), steps=3) for _ in range(2)]
    assert torch.equal(*twice)  # dropout is off
    assert [part.training for part in unet.modules()] == modes
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(parameter.grad is None for parameter in unet.parameters()) and not twice[0].requires_grad
    unet.eval()


def test_guidance_is_that_of_the_models_room(unet: Any) -> None:
    labels = torch.tensor([0, 2])
    shape = (2, 1, 8, 8)
    mixed = generate(unet, PROCESS, shape, steps=4, clip=None, labels=labels, guidance=3.0)
    torch.testing.assert_close(mixed, generate(guided(unet, 3.0), PROCESS, shape, steps=4, clip=None, labels=labels))
    plain = generate(unet, PROCESS, shape, steps=4, clip=None, labels=labels)
    assert float((mixed - plain).abs().max()) > 0.01


def test_condition_reaches_the_model() -> None:
    model = build_model("uvit", image_size=8, channels=1, condition_channels=1, width=16, depth=3, heads=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    small = torch.linspace(-1, 1, 4 * 16).view(4, 1, 4, 4)
    whole = generate(model, PROCESS, (4, 1, 8, 8), steps=3, clip=None, condition=small)
    assert (
        float((whole - generate(model, PROCESS, (4, 1, 8, 8), steps=3, clip=None, condition=-small)).abs().max()) > 1e-3
    )
    parts = [
        i for _, i in generate_many(model, PROCESS, 4, (1, 8, 8), batch_size=3, steps=3, clip=None, condition=small)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["ddim", "ddpm", "heun"])
def test_clipping_keeps_a_slightly_wrong_network_in_range_on_a_cosine_schedule(method: str) -> None:
    process = DDPM("cosine")

    def off(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return Exact(process, data())(x, time) + 0.02

    clipped = generate(off, process, (16, *SHAPE), method=method, steps=20)
    assert float(clipped.abs().max()) <= 1.0
    assert 0.1 < float(clipped.std()) < 0.8  # not all driven to the borders
    if method == "ddim":
        wild = generate(off, process, (16, *SHAPE), method=method, steps=20, clip=None)
        assert float(wild.abs().max()) > 10
    narrow = generate(off, process, (4, *SHAPE), method=method, steps=20, clip=0.25)
    assert float(narrow.abs().max()) <= 0.25


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 64, 333, 999, 1000])
def test_any_number_of_steps_begins_at_the_noisiest_timestep(steps: int) -> None:
    times = [level.t for level in even_levels(DDPM("linear"), steps)]
    assert times[0] == 999 and len(times) == steps and times[-1] >= 0
    assert all(a > b for a, b in pairwise(times))
    gaps = {a - b for a, b in pairwise(times)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 5, 40, 300, 900])
def test_timesteps_on_the_sigma_axis_are_used_once_each(schedule: str, steps: int) -> None:
    levels = sigma_levels(DDPM(schedule), steps)
    times = [level.t for level in levels]
    assert len(times) == steps and all(a > b for a, b in pairwise(times))
    assert 70 < levels[0].sigma / levels[0].alpha <= 80
    if steps > 1:
        assert times[-1] == 0


@pytest.mark.parametrize(
    ("process", "ends"),
    [(EDM(), (80.0, 0.002)), (VE(), (100.0, 0.02)), (VE(sigma_max=50.0), (50.0, 0.02)), (VP(), (152.2, 0.002))],
    ids=repr,
)
def test_the_range_of_sigma_is_the_one_the_network_knows(process: Any, ends: tuple[float, float]) -> None:
    levels = sigma_levels(process, 5)
    assert [levels[k].sigma / levels[k].alpha for k in (0, -1)] == pytest.approx(ends, rel=1e-3)


@pytest.mark.parametrize(
    ("process", "std"),
    [(DDPM(betas=torch.full((10,), 0.1)), 1.0), (EDM(prediction="x0"), 80.0), (Flow(), 1.0)],
    ids=str,
)
def test_generation_starts_from_noise_of_the_full_size(process: Any, std: float) -> None:
    met: list[torch.Tensor] = []

    def model(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        met.append(x)
        return x

    generate(model, process, (3, *SHAPE), steps=2, dtype=torch.float64)
    torch.testing.assert_close(met[0], start(3, std))


def test_bounds_of_sigma_are_followed() -> None:
    for process in (EDM(), VE(), VP()):
        levels = sigma_levels(process, 9, sigma_min=0.05, sigma_max=30.0, rho=3.0)
        sigmas = [level.sigma / level.alpha for level in levels]
        want = [(30 ** (1 / 3) + k / 8 * (0.05 ** (1 / 3) - 30 ** (1 / 3))) ** 3 for k in range(9)]
        assert sigmas == pytest.approx(want, rel=1e-6)


def test_flow_times_carry_the_shift() -> None:
    times = [level.t for level in even_levels(Flow(shift=3.0), 4)]
    assert times == pytest.approx([1.0, 3 * 0.75 / 2.5, 3 * 0.5 / 2, 3 * 0.25 / 1.5])


def test_the_natural_method_of_each_process() -> None:
    first = {repr(p): methods(p)[0] for p in (DDPM(), VP(), EDM(), VE(), Flow())}
    assert list(first.values()) == ["ddim", "ddim", "heun", "heun", "euler"]
    exact = Exact(EDM(), data())
    generate(exact, EDM(), (1, *SHAPE), steps=7)
    assert len(exact.calls) == 13  # Heun: two per step, one for the last


def test_the_network_is_told_what_it_was_trained_with() -> None:
    for process, kind in ((DDPM(), torch.int64), (Flow(), torch.float32), (EDM(), torch.float32)):
        exact = Exact(process, data())
        generate(exact, process, (2, *SHAPE), steps=3)
        assert all(time.shape == (2,) and time.dtype == kind for time in exact.calls)
    assert exact.calls[0][0].item() == pytest.approx(1.0955, abs=1e-3)  # ln(80) / 4


@pytest.mark.parametrize(
    ("process", "arguments", "message"),
    [
        (DDPM(), {"method": "dimm"}, "method='dimm' is unknown; did you mean 'ddim'"),
        (DDPM(), {"method": "euler"}, "method='euler' does not fit DDPM.*use one of: ddim, ddpm, heun"),
        (Flow(), {"method": "ddpm"}, "does not fit Flow.*use one of: euler, heun"),
        (DDPM(steps=100), {"steps": 101}, "steps=101 is not allowed; give a whole number, 1 to 100"),
        (DDPM(), {"steps": 0}, "steps=0"),
        (DDPM(), {"steps": 999, "method": "heun"}, r"steps=999 is more than the 930 timesteps.*method='ddim'"),
        (Flow(), {"sigma_max": 3.0}, "have no use with a Flow"),
        (DDPM(), {"etta": 0.5}, "etta=0.5 is not a setting.*did you mean 'eta'"),
        (DDPM(), {"eta": 1.5}, r"eta=1.5 is outside the allowed range \[0, 1\]"),
        (DDPM(), {"method": "ddpm", "variance": "big"}, "variance='big' is unknown"),
        (EDM(), {"sigma_min": 90.0}, "sigma_min=90 is not below sigma_max=80"),
        (VP(), {"sigma_max": 1e4, "method": "heun"}, "leaves the process's range, 0.001 to 152"),
        (EDM(), {"rho": 0.0}, "rho=0"),
        (DDPM(), {"clip": 0.0}, "clip=0"),
        (DDPM(), {"seed": -1}, "seed=-1"),
        (DDPM(), {"guidance": 2.0}, "guidance=2 needs labels"),
        (DDPM(), {"guidance": 2.0, "labels": torch.tensor([0, 1])}, "needs a model with a null class"),
        (DDPM(), {"labels": torch.tensor([0])}, r"give int64 \[2\]"),
        (DDPM(), {"labels": torch.tensor([0.0, 1.0])}, r"give int64 \[2\]"),
        (DDPM(), {"labels": torch.tensor([0, -1])}, "labels run from -1 to 0"),
        (DDPM(), {"condition": torch.zeros(1, 1, 4, 4)}, r"give \[2, c, h, w\]"),
        (DDPM(), {"indices": [1]}, "indices has 1 entries for 2 images"),
        (
            DDPM("cosine", zero_terminal_snr=True),
            {},
            "prediction='eps' says nothing of the image at the last timestep.*train with",
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_input_is_refused_in_one_line(process: Any, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        generate(Exact(process, data()), process, (2, *SHAPE), **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 0, 2, 2), (2, 2, 2, 2.0)])
def test_bad_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        generate(Exact(PROCESS, data()), PROCESS, shape)


def test_what_does_not_fit_the_model_is_refused(unet: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("this model takes [B, 1, 8, 8]")):
        generate(unet, PROCESS, (2, 3, 8, 8), steps=2)
    with pytest.raises(ValueError, match="labels run from 1 to 4; give classes 0 to 2, or 3 for no class"):
        generate(unet, PROCESS, (2, 1, 8, 8), steps=2, labels=torch.tensor([1, 4]))
    with pytest.raises(ValueError, match=r"model returned shape \[2, 4, 2, 2\]"):
        generate(lambda x, t: torch.cat([x, x], 1), PROCESS, (2, *SHAPE), steps=2)
    with pytest.raises(ValueError, match="labels has 2 entries for count=3"):
        list(generate_many(unet, PROCESS, 3, (1, 8, 8), labels=torch.tensor([0, 1])))
    with pytest.raises(ValueError, match="rank=2"):
        list(generate_many(unet, PROCESS, 3, (1, 8, 8), rank=2, world=2))


def test_a_diverged_model_is_named() -> None:
    def broken(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, float("nan"))

    with pytest.raises(ValueError, match=r"3 of 3 images hold NaN.*earlier checkpoint"):
        generate(broken, PROCESS, (3, *SHAPE), steps=2)


def test_a_low_precision_network_gets_its_own_precision() -> None:
    layer = torch.nn.Conv2d(2, 2, 1).to(torch.bfloat16)
    seen: list[torch.dtype] = []
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    images = generate(Net(), PROCESS, (2, *SHAPE), steps=2)
    assert seen == [torch.bfloat16] * 2 and images.dtype == torch.float32
