from __future__ import annotations

import math

import pytest
import torch
from tests.reference import vlb
from torch import Tensor

from opportune.evaluate.bits_per_dim import bits_per_dim, log_probability
from opportune.processes import DDPM, EDM
from opportune.random_streams import generator
from opportune.testing.analytic import GaussianMixture

SIDE = 4  # 1 x 4 x 4 images
STD = 0.25


def gaussian(mean: float = 0.1) -> GaussianMixture:
    return GaussianMixture(torch.full((1, SIDE * SIDE), mean), torch.full((1, SIDE * SIDE), STD**2))


def eight_bit(count: int) -> Tensor:
    """uint8 images whose values are Gaussian on [-1, 1]; a value in 3,000 lies outside and is clamped."""
    values = gaussian().sample(count, seed=1).view(count, 1, SIDE, SIDE)
    return ((values + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


class Exact:
    """The posterior mean of Gaussian data, in the process's own prediction."""

    def __init__(self, process: DDPM, error: float = 0.0) -> None:
        self.process, self.error, self.times = process, error, []

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        self.times.append(time)
        bars = self.process.alphas_cumprod[time]
        alpha, sigma = bars.sqrt(), (1 - bars).sqrt()
        x0 = gaussian().posterior_mean(x.flatten(1).double(), alpha, sigma).view_as(x) + self.error
        a, s = alpha.view(-1, 1, 1, 1), sigma.view(-1, 1, 1, 1)
        return self.process.target(x0, (x - a * x0) / s, time).to(x.dtype)


def closed_form(process: DDPM, variance: str) -> float:
    """The bound's expectation for the exact denoiser: E(x0 - estimate)^2 is the posterior variance of x0."""
    bars = process.alphas_cumprod.tolist()
    total = vlb.normal_kl(0, 1 - bars[-1], 0, 1) + 0.5 * bars[-1] * (STD**2 + 0.1**2)
    spread = [1 / (1 / STD**2 + bar / (1 - bar)) for bar in bars]
    for t in range(1, len(bars)):
        before, beta = bars[t - 1], 1 - bars[t] / bars[t - 1]
        small = (1 - before) / (1 - bars[t]) * beta
        chosen = small if variance == "small" else beta
        gap = (math.sqrt(before) * beta / (1 - bars[t])) ** 2 * spread[t]
        total += 0.5 * (math.log(chosen / small) + (small + gap) / chosen - 1)
    # The decoder, with bins far narrower than its deviation: minus log(density times width).
    beta_1, beta_2 = 1 - bars[0], 1 - bars[1] / bars[0]
    decoder = (1 - bars[0]) / (1 - bars[1]) * beta_2
    total += 0.5 * (math.log(2 * math.pi * decoder) + spread[0] / decoder) - math.log(2 / 255)
    assert decoder > (2 / 255) ** 2 * 4 and beta_1 > 0
    return total / math.log(2)


# The first steps are wide enough for the decoder's closed form.
BETAS = torch.linspace(1e-3, 0.05, 200, dtype=torch.float64)


@pytest.mark.parametrize("variance", ["small", "large"])
@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
def test_gaussian_data_cost_what_the_closed_form_says(variance: str, prediction: str) -> None:
    process = DDPM(betas=BETAS, prediction=prediction)
    score = bits_per_dim(Exact(process), process, eight_bit(48), variance=variance, clip=None)
    want = closed_form(process, variance)
    assert score.n == 48 and 0 < score.stderr < 0.15
    assert abs(score.value - want) < 3.5 * score.stderr
    entropy = 0.5 * math.log2(2 * math.pi * math.e * STD**2) - math.log2(2 / 255)
    assert entropy < want  # it is a bound
    assert score.value == pytest.approx(score.prior + score.decoder + score.diffusion)


def test_many_steps_come_close_to_the_entropy() -> None:
    process = DDPM("cosine", steps=1000, prediction="v")
    score = bits_per_dim(Exact(process), process, eight_bit(512), timesteps=40, batch_size=512, variance="large")
    entropy = 0.5 * math.log2(2 * math.pi * math.e * STD**2) - math.log2(2 / 255)
    assert -3.5 * score.stderr < score.value - entropy < 0.05 + 3.5 * score.stderr < 0.2


@pytest.mark.parametrize("variance", ["small", "large"])
@pytest.mark.parametrize("process", [DDPM("linear", steps=6), DDPM("linear", steps=1), DDPM(betas=BETAS[:9])], ids=str)
def test_the_slow_twin_agrees(process: DDPM, variance: str) -> None:
    images = torch.tensor([[0, 90, 255, 140]], dtype=torch.uint8).view(1, 1, 2, 2)
    x0 = (images.flatten().double() / 127.5 - 1).tolist()

    def estimate(x_t: list[float], t: int) -> list[float]:
        """Near the truth, so that the twin's probabilities do not vanish; not clipped."""
        return [v + 0.002 * t * math.sin(5 * x) for v, x in zip(x0, x_t, strict=True)]

    def model(x: Tensor, time: Tensor) -> Tensor:
        truth = torch.tensor(x0, dtype=x.dtype).view(1, 1, 2, 2)
        step = (time + 1).view(-1, 1, 1, 1)
        guess = truth + 0.002 * step * torch.sin(5 * x)
        bar = process.alphas_cumprod[time].view(-1, 1, 1, 1)
        return ((x - bar.sqrt() * guess) / (1 - bar).sqrt()).to(x.dtype)

    stream = generator(7, "bits per dim", 0)
    noise = [torch.randn(1, 2, 2, generator=stream).flatten().tolist() for _ in range(process.steps)]
    score = bits_per_dim(model, process, images, seed=7, variance=variance, clip=None)
    prior, decoder, others = vlb.bits(x0, noise, estimate, process.betas.tolist(), variance)
    assert score.prior == pytest.approx(prior, rel=1e-6)
    assert score.decoder == pytest.approx(decoder, rel=1e-3, abs=1e-4)
    assert score.diffusion == pytest.approx(others, rel=1e-3, abs=1e-5)
    assert math.isnan(score.stderr)


def test_a_stratified_subset_estimates_the_same_number() -> None:
    process = DDPM(betas=BETAS)
    full = bits_per_dim(Exact(process, error=0.02), process, eight_bit(256))
    parts = bits_per_dim(Exact(process, error=0.02), process, eight_bit(256), timesteps=7)
    assert abs(parts.diffusion - full.diffusion) < 3.5 * (parts.stderr**2 - full.stderr**2) ** 0.5
    assert parts.prior == full.prior
    # The images themselves differ most: seven well placed timesteps in place of 199 add little to that.
    assert full.stderr < parts.stderr < 1.4 * full.stderr


def test_the_subset_meets_every_timestep_and_as_many_as_asked() -> None:
    process = DDPM(betas=BETAS[:20])
    model = Exact(process)
    bits_per_dim(model, process, eight_bit(64), timesteps=4)
    times = torch.stack(model.times)  # [calls, images]
    assert times.shape == (5, 64) and (times[0] == 0).all()
    edges = [1, 2, 4, 9, 20]
    for k in range(4):
        assert set(times[k + 1].tolist()) == set(range(edges[k], edges[k + 1]))
    model.times.clear()
    bits_per_dim(model, process, eight_bit(3))
    assert [set(t.tolist()) for t in model.times] == [{t} for t in range(20)]


def test_the_batch_size_and_the_form_of_the_images_do_not_matter() -> None:
    process = DDPM(betas=BETAS[:30])
    images = eight_bit(7)
    whole = bits_per_dim(Exact(process), process, images, timesteps=5)
    for other, size in ((images, 3), (images.float() / 127.5 - 1, 7), ([images[:2], images[2:]], 4)):
        again = bits_per_dim(Exact(process), process, other, timesteps=5, batch_size=size)
        assert again.value == pytest.approx(whole.value, rel=1e-5)
        assert again.stderr == pytest.approx(whole.stderr, rel=1e-4)
    assert bits_per_dim(Exact(process), process, images, timesteps=5, seed=1).value != whole.value
    assert "(n = 7)" in str(whole)


def test_labels_follow_their_images_through_the_batches() -> None:
    process = DDPM(betas=BETAS[:10])
    seen: list[Tensor] = []

    def model(x: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        seen.append(labels)
        return x

    bits_per_dim(model, process, eight_bit(5), timesteps=1, batch_size=2, labels=torch.arange(5))
    assert [s.tolist() for s in seen[::2]] == [[0, 1], [2, 3], [4]]


def test_clipping_can_only_help_a_model_that_leaves_the_range() -> None:
    process = DDPM(betas=BETAS, prediction="x0")
    black = torch.zeros(2, 1, SIDE, SIDE, dtype=torch.uint8)

    def wild(x: Tensor, time: Tensor) -> Tensor:
        return torch.full_like(x, -1.5)

    clipped = bits_per_dim(wild, process, black)
    assert clipped.value < 1 < 10 < bits_per_dim(wild, process, black, clip=None).value


def test_zero_terminal_snr_has_no_prior_cost() -> None:
    process = DDPM("linear", steps=20, prediction="v", zero_terminal_snr=True)
    score = bits_per_dim(Exact(process), process, eight_bit(4))
    assert score.prior == 0.0 and math.isfinite(score.value)


def test_the_decoder_spends_a_whole_probability_over_all_values() -> None:
    grid = torch.arange(256, dtype=torch.float64) / 127.5 - 1
    for mean, std in ((0.3, 0.01), (-1.2, 0.05), (0.999, 3.0), (0.0, 1e-4)):
        every = log_probability(grid, torch.full_like(grid, mean), std)
        assert float(every.exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_far_tails_cost_what_they_should() -> None:
    # 100 deviations away: ln Phi(-z) = -z^2/2 - ln(z sqrt(2 pi)) + ...
    x, std = torch.tensor([0.0, 0.0], dtype=torch.float64), 0.01
    near = 100.0
    mean = torch.tensor([1 / 255 + near * std, -1 / 255 - near * std], dtype=torch.float64)
    want = -(near**2) / 2 - math.log(near * math.sqrt(2 * math.pi))
    assert log_probability(x, mean, std).tolist() == pytest.approx([want, want], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"process": EDM()}, "needs a DDPM process"),
        ({"process": DDPM("cosine", zero_terminal_snr=True)}, "train with prediction='v' or 'x0'"),
        ({"variance": "tiny"}, "variance='tiny' is unknown"),
        ({"timesteps": 0}, "timesteps=0 is not allowed; give a whole number, 1 to 9"),
        ({"timesteps": 10}, "timesteps=10"),
        ({"images": torch.full((2, 1, 4, 4), 0.3)}, "are not 8-bit values.*give uint8 images"),
        ({"images": torch.full((2, 1, 4, 4), 3.0)}, "32 of 32 values"),
        ({"images": torch.zeros(2, 1, 4, 4, dtype=torch.int64)}, "torch.int64"),
        ({"images": []}, "no images were given"),
        ({"labels": torch.arange(3)}, "labels has 3 entries for 2 images"),
        ({"labels": torch.arange(1)}, "labels has 1 entries"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
    ids=str,
)
def test_bad_input_is_refused(arguments: dict, message: str) -> None:
    process = DDPM(betas=BETAS[:10])
    given = {"process": process, "images": eight_bit(2), **arguments}
    with pytest.raises(ValueError, match=message):
        bits_per_dim(lambda x, time, labels=None: x, **given)
