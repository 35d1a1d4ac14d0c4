"""Feature extractors by name, and the loop that runs one over many images.

Fréchet distance, KID and precision/recall compare features, so their values mean something only together
with the extractor's `name`: two scores with different names are never compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checks import finite, one_of, whole
from . import networks
from .images import Images, batches, resize, to_rgb8


@dataclass(frozen=True)
class FeatureExtractor:
    """Calls `compute` on uint8 RGB `[B, 3, H, W]`, giving features `[B, D]`.

    - `name`: identifies network, weights and input size; scores with different names are not comparable.
    - `label`: how a report writes it.
    - `is_fid`: True only for the reference Inception network, whose Fréchet distance may be called FID.
    """

    name: str
    label: str
    compute: Callable[[Tensor], Tensor]
    device: torch.device
    is_fid: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]`, uint8 or float in [-1, 1], grey or RGB -> features `[B, D]` on CPU."""
        with torch.inference_mode():
            features = self.compute(to_rgb8(images).to(self.device))
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(images):
            got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"{self.label} returned {got} for {len(images)} images; it must return [B, D].")
        # The copy leaves inference mode, so that callers may do with it what they like.
        return finite(f"features of {self.label}", features.float().cpu()).clone()


def feature_extractor(
    features: str | FeatureExtractor | Callable[[Tensor], Tensor],
    *,
    device: torch.device | str = "cpu",
    weights: str | Path | None = None,
    label: str | None = None,
) -> FeatureExtractor:
    """The extractor called `features`, or your own function of uint8 RGB `[B, 3, H, W]` -> `[B, D]`.

    - "efficientnet-lite0-64": EfficientNet-Lite0 at 64 px, for images up to that size; about 20 times
      faster on CPU than "efficientnet-lite0", the same network at the 224 px it was trained with. Weights
      come with the package.
    - "inception": the network of the original FID, through torch-fidelity. Its weights are downloaded, or
      read from the file `weights`.
    - "dinov2": DINOv2 ViT-L/14 (Stein et al. 2023), through transformers; `weights` is another hub name or
      a folder.
    - "pixels": the image at 8×8 px. For tests and toys: it sees colours and layout, not content.

    `label` names your own function in reports and tells two of them apart; its `__name__` if left out.
    """
    if isinstance(features, FeatureExtractor):
        return features
    device = torch.device(device)
    if not isinstance(features, str):
        name = label or str(getattr(features, "__name__", type(features).__name__))
        return FeatureExtractor(f"custom: {name}", name, features, device)
    one_of("features", features, _BUILDERS)
    if weights is not None and features not in ("inception", "dinov2"):
        raise ValueError(f"weights={str(weights)!r} has no use with features={features!r}; leave it out.")
    return _BUILDERS[features](device, weights)


def extract(extractor: FeatureExtractor, images: Images, *, batch_size: int = 32, limit: int | None = None) -> Tensor:
    """Features `[N, D]`, float32 on CPU, of all `images` or the first `limit`.

    Batches of 32 are also the fastest on CPU: larger buffers go back to the system after every layer.
    """
    whole("batch_size", batch_size, low=1)
    found: list[Tensor] = []
    low, high = float("inf"), float("-inf")
    for batch in batches(images, batch_size=batch_size, limit=limit):
        if batch.is_floating_point():
            low, high = min(low, float(batch.min())), max(high, float(batch.max()))
        found.append(extractor(batch))
    if not found:
        raise ValueError("no images were given; there is nothing to evaluate.")
    if 0.0 <= low < high <= 1.0:
        warnings.warn(
            f"all float images lie in [{low:.3g}, {high:.3g}]: are they in [0, 1]? They are read as [-1, 1]; "
            "pass 2 * images - 1, or uint8.",
            stacklevel=2,
        )
    return torch.cat(found)


def _efficientnet(size_px: int) -> Callable[[torch.device, str | Path | None], FeatureExtractor]:
    def build(device: torch.device, weights: str | Path | None) -> FeatureExtractor:
        network = networks.efficientnet_lite0(device)
        suffix = "" if size_px == 224 else f"-{size_px}"
        label = "EfficientNet-Lite0" + ("" if size_px == 224 else f" at {size_px} px")
        # The scaling the Lite family was trained with: (value − 127) / 128.
        return FeatureExtractor(
            f"efficientnet-lite0{suffix}",
            label,
            lambda images: network((resize(images, size_px) - 127.0) / 128.0),
            device,
        )

    return build


def _inception(device: torch.device, weights: str | Path | None) -> FeatureExtractor:
    network, digest = networks.inception(device, weights)
    if digest.startswith(networks.INCEPTION_SHA256):
        return FeatureExtractor("inception", "Inception", network, device, is_fid=True)
    short = digest[:8]
    return FeatureExtractor(f"inception:{short}", f"Inception with weights {short}", network, device)


def _dinov2(device: torch.device, weights: str | Path | None) -> FeatureExtractor:
    source = "facebook/dinov2-large" if weights is None else str(weights)
    network, digest = networks.dinov2(device, source)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)  # ImageNet's, as it was trained
    spread = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)
    label = "DINOv2 ViT-L/14" if weights is None else f"DINOv2 with weights {digest[:8]}"
    return FeatureExtractor(
        f"dinov2:{digest[:8]}",
        label,
        lambda images: network((resize(images, 224) / 255.0 - mean) / spread),
        device,
    )


def _pixels(device: torch.device, weights: str | Path | None) -> FeatureExtractor:
    return FeatureExtractor(
        "pixels", "pixels at 8 px", lambda images: (resize(images, 8) / 127.5 - 1.0).flatten(1), device
    )


_BUILDERS: dict[str, Callable[[torch.device, str | Path | None], FeatureExtractor]] = {
    "efficientnet-lite0": _efficientnet(224),
    "efficientnet-lite0-64": _efficientnet(64),
    "inception": _inception,
    "dinov2": _dinov2,
    "pixels": _pixels,
}
