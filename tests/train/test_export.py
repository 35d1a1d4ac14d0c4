"""Exported folders load with diffusers alone, and make our pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, DDIMPipeline, DDPMPipeline, DiffusionPipeline, DiTPipeline

from opportune.generate import generate
from opportune.models import ImageModel, LatentSpace, build_model
from opportune.processes import DDPM, EDM, Flow, Process
from opportune.random_streams import generator
from opportune.train.export import export_pipeline
from opportune.train.hub import push_to_hub

SHAPE = (3, 1, 8, 8)


def small(family: str = "unet", **settings: Any) -> ImageModel:
    sizes: dict[str, dict[str, Any]] = {
        "unet": {"widths": (8, 8), "group_count": 4, "blocks_per_level": 1, "dropout": 0.3},
        "dit": {"width": 16, "depth": 2, "heads": 2},
        "uvit": {"width": 16, "depth": 3, "heads": 2},
    }
    torch.manual_seed(0)
    model = build_model(family, **{"image_size": 8, "channels": 1, **sizes[family], **settings})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(scope="module")
def unet() -> ImageModel:
    return small()


def autoencoder(**settings: Any) -> AutoencoderKL:
    torch.manual_seed(1)
    return AutoencoderKL(block_out_channels=(8, 8), norm_num_groups=4, **{"latent_channels": 4, **settings}, **_BLOCKS)


_BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}


def load(folder: Path) -> Any:
    pipeline = DiffusionPipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def streams(count: int, seed: int = 0) -> list[torch.Generator]:
    """What diffusers needs to draw the noise that generate() draws."""
    return [generator(seed, "generate", i) for i in range(count)]


@pytest.mark.parametrize(
    "process",
    [
        DDPM("cosine", steps=60),
        DDPM("linear", steps=60, prediction="v"),
        DDPM("linear", steps=60, prediction="x0"),
        DDPM("cosine", steps=60, prediction="v", zero_terminal_snr=True),
    ],
    ids=str,
)
def test_a_ddim_pipeline_makes_the_same_pictures(unet: ImageModel, process: DDPM, tmp_path: Path) -> None:
    pipeline = load(export_pipeline(unet, process, tmp_path / "out"))
    assert isinstance(pipeline, DDIMPipeline)
    made = pipeline(
        batch_size=3, generator=streams(3), num_inference_steps=10, use_clipped_model_output=True, output_type="pt"
    ).images
    ours = generate(unet, process, SHAPE, method="ddim", steps=10)
    torch.testing.assert_close(made, (ours / 2 + 0.5).clamp(0, 1), rtol=1e-3, atol=1e-3)
    assert float(made.std()) > 0.005


@pytest.mark.parametrize("variance", ["small", "large"])
def test_a_ddpm_pipeline_makes_the_same_pictures(unet: ImageModel, variance: str, tmp_path: Path) -> None:
    process = DDPM("linear", steps=30, prediction="v")
    folder = export_pipeline(unet, process, tmp_path / "out", method="ddpm", variance=variance)
    pipeline = load(folder)
    assert isinstance(pipeline, DDPMPipeline)
    made = pipeline(batch_size=3, generator=streams(3), num_inference_steps=30, output_type="pt").images
    ours = generate(unet, process, SHAPE, method="ddpm", variance=variance, steps=30)
    torch.testing.assert_close(made, (ours / 2 + 0.5).clamp(0, 1), rtol=1e-3, atol=1e-3)


def test_a_dit_pipeline_makes_the_same_pictures(tmp_path: Path) -> None:
    model, process = small("dit", channels=4, classes=1000), DDPM("linear", steps=40, prediction="v")
    space = LatentSpace(autoencoder())
    pipeline = load(export_pipeline(model, process, tmp_path / "out", autoencoder=space))
    assert isinstance(pipeline, DiTPipeline)
    labels = torch.tensor([3, 999])
    for guidance in (1.0, 3.0):
        made = pipeline(
            labels.tolist(), guidance_scale=guidance, generator=streams(2), num_inference_steps=8, output_type="pt"
        ).images
        latents = generate(model, process, (2, 4, 8, 8), steps=8, labels=labels, guidance=guidance, clip=None)
        torch.testing.assert_close(made, (space.decode(latents) / 2 + 0.5).clamp(0, 1), rtol=1e-3, atol=1e-3)


def test_only_safetensors_and_json_are_written(unet: ImageModel, tmp_path: Path) -> None:
    folder = export_pipeline(unet, DDPM(steps=20), tmp_path / "a" / "out")
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert files == [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
    ]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["out"]


def test_the_card_shows_settings_and_no_secrets(unet: ImageModel, tmp_path: Path) -> None:
    settings = {
        "sampler": {"name": "adaptive", "learning_rate": 1e-4},
        "data": str(Path.home() / "pictures"),
        "hub_token": "abcdef",
        "logs": {"wandb_api_key": "1234567", "password": "hunter2", "url": "https://me:pass@example.org/x"},
        "note": "```\n# not a heading",
        "extra": ["hf_abcdefghijkl", 3],
    }
    folder = export_pipeline(unet, DDPM("cosine", steps=20), tmp_path / "out", card=settings)
    card = (folder / "README.md").read_text()
    for secret in ("abcdef", "1234567", "hunter2", "pass@", "hf_", str(Path.home()) + "/"):
        assert secret not in card
    assert "num_inference_steps=20, use_clipped_model_output=True" in card
    block = card.split("```json\n")[1].split("\n```")[0]
    shown = json.loads(block)
    assert shown["sampler"] == {"name": "adaptive", "learning_rate": 1e-4}
    assert shown["data"] == "~/pictures" and shown["note"] == settings["note"] and shown["extra"] == ["(left out)", 3]
    assert card.startswith("---\nlibrary_name: diffusers\n")
    assert not (export_pipeline(unet, DDPM(steps=20), tmp_path / "none") / "README.md").exists()


def test_a_folder_is_pushed_in_one_commit_or_stays_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    done: list[Any] = []
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda name, exist_ok: f"https://hub/{name}")
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **settings: done.append(settings))
    assert push_to_hub(tmp_path, "me/it") == "https://hub/me/it"
    assert [(d["repo_id"], d["folder_path"]) for d in done] == [("me/it", str(tmp_path))]

    def refused(**settings: Any) -> None:
        raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required\nand more")

    monkeypatch.setattr(huggingface_hub, "upload_folder", refused)
    with pytest.raises(OSError, match=r"is exported, and could not be pushed to me/it: Token is required\. Log in"):
        push_to_hub(tmp_path, "me/it")


def test_a_used_folder_is_left_alone(unet: ImageModel, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="exists and is not empty; give a new folder"):
        export_pipeline(unet, DDPM(steps=20), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    load(export_pipeline(unet, DDPM(steps=20), tmp_path / "empty"))


def test_a_failure_leaves_nothing_behind(unet: ImageModel, tmp_path: Path) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        export_pipeline(unet, DDPM(steps=20), tmp_path / "out", card={"x": Unprintable()})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "process", "arguments", "message"),
    [
        ("unet", EDM(), {}, "EDM.*cannot be exported.*opportune.generate"),
        ("unet", Flow(), {}, "Flow.*cannot be exported"),
        ("uvit", DDPM(), {}, "a UViT cannot be exported.*Export a UNet or a DiT"),
        (("unet", {"classes": 3}), DDPM(), {}, "UNet with classes=3.*pass no labels"),
        (("unet", {"condition_channels": 1}), DDPM(), {}, "condition_channels=1"),
        ("unet", DDPM(), {"autoencoder": "vae"}, "leave it out"),
        (("dit", {"channels": 4, "classes": 10}), DDPM(), {"autoencoder": "vae"}, "needs classes=1000"),
        (("dit", {"channels": 4, "classes": 1000}), DDPM(), {}, "autoencoder is missing"),
        (("dit", {"channels": 3, "classes": 1000}), DDPM(), {"autoencoder": "vae"}, "4 latent channels, the model 3"),
        (("dit", {"channels": 4, "classes": 1000}), DDPM(), {"autoencoder": "shifted"}, "shift_factor=0.1"),
        ("wrapped", DDPM(), {}, "without wrappers"),
        ("unet", DDPM(), {"method": "heun"}, "method='heun' is unknown"),
        ("unet", DDPM(), {"variance": "big"}, "variance='big'"),
    ],
    ids=str,
)
def test_what_diffusers_cannot_run_is_refused(
    model: Any, process: Process, arguments: dict, message: str, unet: ImageModel, tmp_path: Path
) -> None:
    if model == "wrapped":
        given: Any = torch.nn.Sequential(unet)
    else:
        name, settings = (model, {}) if isinstance(model, str) else model
        given = small(name, **settings)
    kinds = {"vae": {}, "shifted": {"shift_factor": 0.1}}
    if "autoencoder" in arguments:
        arguments = {**arguments, "autoencoder": autoencoder(**kinds[arguments["autoencoder"]])}
    with pytest.raises(ValueError, match=message) as caught:
        export_pipeline(given, process, tmp_path / "out", **arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
