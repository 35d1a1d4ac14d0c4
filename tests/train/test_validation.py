"""Validation: the same noise levels and noise for an example whatever the run, the batch size and the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import tiny

from opportune.models import LatentSpace
from opportune.objective import Objective
from opportune.processes import DDPM
from opportune.train.batches import Preparation
from opportune.train.config import TrainConfig
from opportune.train.data import DataError, LatentSource, TensorSource, hold_out
from opportune.train.encode import encode_latents
from opportune.train.held_out import HeldOut, open_data
from opportune.train.logs import read_log
from opportune.train.trainer import Trainer
from opportune.train.validation import Validation, fixed_u


class Exact(torch.nn.Module):
    """Predicts x_t itself: its loss at (x0, u, noise) can be written down."""

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return x


def measured(batch_size: int, count: int = 40, ids: list[int] | None = None) -> dict[str, Any]:
    images = torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    held_out = HeldOut(images, None, list(range(count)))
    if ids is not None:
        held_out = HeldOut(images[ids], None, ids)
    preparation = Preparation(TrainConfig(), TensorSource(images), device=torch.device("cpu"), rank=0, world=1)
    objective = Objective(Exact(), DDPM("cosine"))
    validation = Validation(held_out, preparation, objective, seed=0, batch_size=batch_size, bins=5)
    found = validation.measure(Exact(), lambda: True)
    assert found is not None
    return found


def test_the_loss_does_not_depend_on_the_batch_size_or_the_order() -> None:
    whole = measured(40)
    for batch_size in (1, 7, 64):
        found = measured(batch_size)
        assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)
        assert found["bins"] == pytest.approx(whole["bins"], rel=1e-6)
    shuffled = measured(40, ids=torch.randperm(40).tolist())
    assert shuffled["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert shuffled["bins"] == pytest.approx(whole["bins"], rel=1e-6)


def test_the_loss_is_the_mean_over_its_bins() -> None:
    found = measured(16)
    u = fixed_u(list(range(40)), 0)
    counts = torch.bincount((u * 5).long(), minlength=5)
    means = torch.tensor([0.0 if m is None else m for m in found["bins"]])
    assert float((means * counts).sum() / 40) == pytest.approx(found["loss"], rel=1e-6)
    # (x_t - eps)^2 = (a x0 + (s - 1) eps)^2 averages to a^2 + (1 - s)^2 for unit variances: 1 at u = 0.. and 0 at 1.
    assert found["bins"][0] > 1.5 and found["bins"][-1] < 0.1


def test_noise_levels_cover_the_axis_evenly() -> None:
    for seed in range(3):
        u = fixed_u(list(range(512)), seed).sort().values
        assert float(u.diff().max()) < 3 / 512 and float(u[0]) < 3 / 512 and float(u[-1]) > 1 - 3 / 512
    assert not fixed_u([5], 0).equal(fixed_u([5], 1))


def test_other_seeds_and_samplers_are_measured_on_the_same_pairs(tmp_path: Path) -> None:
    """Untrained models of one seed have one validation loss, whatever their sampler draws."""
    losses = []
    for name in ("uniform", "log_normal"):
        Trainer(tiny(tmp_path / name, run={"steps": 1}, sampler={"name": name})).run()
        losses.append(read_log(tmp_path / name)[0]["raw"])
    assert losses[0] == losses[1]


def test_validation_leaves_training_alone(tmp_path: Path) -> None:
    for name, every in (("often", 2), ("never", 0)):
        Trainer(tiny(tmp_path / name, validation={"every_steps": every})).run()
    often, never = ([r for r in read_log(tmp_path / n) if r["kind"] == "train"] for n in ("often", "never"))
    assert often == never


def test_images_are_set_apart_where_there_is_no_split(tmp_path: Path) -> None:
    from PIL import Image

    for index in range(24):
        Image.new("L", (16, 16), 10 * index).save(tmp_path / f"{index:02}.png")
    config = tiny(tmp_path / "run", data={"source": f"folder:{tmp_path}"}, validation={"examples": 8})
    training, held_out = open_data(config, verify=True)
    assert held_out is not None and len(held_out.ids) == 8
    shown = {float(image.mean()) for image in held_out.images}
    trained = {float(training.get(i).image.float().div(127.5).sub(1).mean()) for i in range(len(training))}  # type: ignore[union-attr, arg-type]
    assert len(trained) == 16 and not shown & trained
    with pytest.raises(DataError, match="set apart for validation"):
        open_data(tiny(tmp_path, data={"source": f"folder:{tmp_path}"}, validation={"examples": 20}), verify=True)


def test_a_latent_model_trains_on_what_encode_wrote(tmp_path: Path) -> None:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    encoder = AutoencoderKL(
        in_channels=1, out_channels=1, latent_channels=2, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, scaling_factor=0.5,
    )  # fmt: skip
    space = LatentSpace(encoder)
    images = torch.randint(0, 256, (40, 1, 16, 16), dtype=torch.uint8)
    source = TensorSource(images, torch.arange(40) % 3)
    encode_latents(source, space, tmp_path / "latents", encoder="tiny", batch_size=7)
    config = tiny(
        tmp_path / "run",
        data={"source": f"latents:{tmp_path / 'latents'}", "size": 8, "channels": 2, "classes": 3},
        model={"settings": {"width": 16, "depth": 1, "heads": 2, "patch_size": 4}},
        validation={"examples": 8},
    )
    training, held_out = open_data(config, verify=True)
    assert held_out is not None
    preparation = Preparation(config, training, device=torch.device("cpu"), rank=0, world=1)
    x0, conditions = preparation.fixed(held_out.images, held_out.labels)
    held = hold_out(LatentSource(tmp_path / "latents"), 8)[1]
    originals = [held.ids[i] for i in held_out.ids]  # type: ignore[attr-defined]
    pixels = images[originals].float().div(127.5).sub(1)
    assert x0.allclose(space.encode(pixels), atol=1e-5)  # the mean, scaled
    assert conditions["labels"].equal(torch.tensor([i % 3 for i in originals]))
    assert Trainer(config).run().exit_code == 0
    assert read_log(tmp_path / "run")[-1]["ema"]["loss"] < 2
