"""Score generated images against real ones, and keep what the numbers may be compared to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checks import one_of, whole
from .cache import FeatureCache
from .features import FeatureExtractor, extract, feature_extractor
from .frechet import Moments, frechet_distance
from .images import Images
from .kid import kernel_distance
from .precision_recall import precision_recall

METRICS = ("frechet", "kid", "precision_recall")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What `evaluate_images` found; None for what was not asked for or could not be measured.

    - `features`, `label`: the extractor's name and how reports write it; `is_fid`: see `FeatureExtractor`.
    - `n_generated`, `n_real`: images in each set. Fréchet distance, precision and recall depend on both.
    - `real`: fingerprint of the real images, None if unknown.
    - `frechet`; `frechet_floor`: the distance between `n_generated` *other* real images and the same
      reference, what a perfect model would score at this n.
    - `kid`, `kid_low`, `kid_high`: kernel distance with its 95 % interval, unbiased at every n.
    - `precision`, `recall`: with 3 nearest neighbours.
    - `bits_per_dim`, `bits_stderr`, `bits_n`: the bound on held-out images, its standard error, how many images;
      filled in by ``opportune evaluate --bits``.
    """

    features: str
    label: str
    is_fid: bool
    n_generated: int
    n_real: int
    real: str | None = None
    frechet: float | None = None
    frechet_floor: float | None = None
    kid: float | None = None
    kid_low: float | None = None
    kid_high: float | None = None
    precision: float | None = None
    recall: float | None = None
    bits_per_dim: float | None = None
    bits_stderr: float | None = None
    bits_n: int | None = None

    def compare(self, other: Scores) -> dict[str, float]:
        """`self − other` for every metric both have; an error where the two are not comparable."""
        for name, why in (
            ("features", "distances of different features are on different scales"),
            ("n_generated", "these metrics change with the number of images"),
            ("n_real", "these metrics change with the number of images"),
            ("real", "they were measured against different real images"),
        ):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and (name != "real" or (mine is not None and theirs is not None)):
                raise ValueError(
                    f"scores with {name}={mine!r} and {name}={theirs!r} cannot be compared: {why}. "
                    "Evaluate both with the same settings."
                )
        pairs = {key: (getattr(self, key), getattr(other, key)) for key in ("frechet", "kid", "precision", "recall")}
        return {key: a - b for key, (a, b) in pairs.items() if a is not None and b is not None}

    def describe(self) -> str:
        """One line per metric, with n and the floor beside every Fréchet distance."""
        n = f"n={self.n_generated:,}" + ("" if self.n_real == self.n_generated else f" against {self.n_real:,}")
        where = f"{self.label}, {n}"
        lines = []
        if self.frechet is not None:
            title = f"FID, {n}" if self.is_fid else f"Fréchet distance, {where}"
            floor = self.frechet_floor
            note = "no floor: too few real images" if floor is None else f"real against real: {floor:.4g}"
            lines.append(f"{title}: {self.frechet:.4g} ({note})")
        if self.kid is not None:
            lines.append(f"KID, {where}: {self.kid:.4g} (95 % interval {self.kid_low:.4g} to {self.kid_high:.4g})")
        if self.precision is not None:
            lines.append(f"Precision and recall, {where}: {self.precision:.3f} and {self.recall:.3f}")
        if self.bits_per_dim is not None:
            bits = f"{self.bits_per_dim:.4f} ± {self.bits_stderr:.4f}"
            lines.append(f"Bits per dimension, n={self.bits_n:,} held-out images: {bits} (standard error)")
        return "\n".join(lines)

    def to_json(self) -> str:
        """All fields, as a JSON object."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Scores:
        """The inverse of `to_json`; unknown fields are refused."""
        values = json.loads(text)
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"scores hold unknown fields {unknown}; they were written by another version.")
        return cls(**values)


def evaluate_images(
    generated: Images,
    real: Images,
    *,
    features: str | FeatureExtractor | Callable[[Tensor], Tensor] = "efficientnet-lite0-64",
    metrics: Sequence[str] = METRICS,
    reference_count: int | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 32,
    cache_folder: str | Path | None = None,
    real_key: str | None = None,
) -> Scores:
    """Score `generated` against `real` images, each `[N, C, H, W]` or an iterable of batches.

    - `reference_count`: how many real images to compare with; by default as many as were generated. The
      next real images, as many as were generated, measure the floor where there are enough.
    - A tensor of real images is first put in a fixed random order, as datasets are often sorted by class;
      an iterable is taken in its own order, so shuffle it.
    - `cache_folder`: keeps the features of the real images. `real_key` names them (a dataset's
      fingerprint), so that nothing needs to be read when they are cached; required with an iterable,
      otherwise a hash of the pixels.
    """
    for metric in metrics:
        one_of("metrics", metric, METRICS)
    extractor = feature_extractor(features, device=device)
    found = extract(extractor, generated, batch_size=batch_size)
    wanted = len(found) if reference_count is None else whole("reference_count", reference_count, low=1)
    limit = wanted + len(found)
    if isinstance(real, Tensor):
        order = torch.randperm(len(real), generator=torch.Generator().manual_seed(0))
        real = real[order[:limit]]
        real_key = fingerprint(real) if real_key is None else real_key
    if cache_folder is None:
        real_features = extract(extractor, real, batch_size=batch_size, limit=limit)
    elif real_key is None:
        raise ValueError("cache_folder needs real_key when real is an iterable: a name for these images.")
    else:
        real_features = FeatureCache(cache_folder).get(
            data=real_key,
            features=extractor.name,
            count=limit,
            compute=lambda: extract(extractor, real, batch_size=batch_size, limit=limit),
        )
    return score_features(
        found, real_features, extractor=extractor, metrics=metrics, reference_count=wanted, real_key=real_key
    )


def score_features(
    generated: Tensor,
    real: Tensor,
    *,
    extractor: FeatureExtractor,
    metrics: Sequence[str] = METRICS,
    reference_count: int | None = None,
    real_key: str | None = None,
) -> Scores:
    """`evaluate_images` from features `generated` `[M, D]` and `real` `[N, D]`, e.g. of several ranks."""
    count = len(generated)
    wanted = count if reference_count is None else reference_count
    if len(real) < wanted:
        raise ValueError(
            f"{wanted} real images are needed as reference and {len(real)} were given; "
            "give more, generate fewer, or set reference_count."
        )
    if min(count, wanted) < 4:
        raise ValueError(f"{count} generated and {wanted} real images are too few; give 4 or more of each.")
    reference, held_out = real[:wanted], real[wanted : wanted + count]
    values: dict[str, Any] = {}
    if "frechet" in metrics:
        moments = Moments.of(reference)
        values["frechet"] = frechet_distance(Moments.of(generated), moments)
        enough = len(held_out) == count
        values["frechet_floor"] = frechet_distance(Moments.of(held_out), moments) if enough else None
    if "kid" in metrics:
        kernel = kernel_distance(generated, reference)
        values |= {"kid": kernel.value, "kid_low": kernel.low, "kid_high": kernel.high}
    if "precision_recall" in metrics:
        shares = precision_recall(generated, reference)
        values |= {"precision": shares.precision, "recall": shares.recall}
    return Scores(
        features=extractor.name,
        label=extractor.label,
        is_fid=extractor.is_fid,
        n_generated=count,
        n_real=wanted,
        real=real_key,
        **values,
    )


def fingerprint(images: Tensor) -> str:
    """A hash of shape, type and pixels of `images` `[N, C, H, W]`."""
    digest = hashlib.sha256(f"{list(images.shape)} {images.dtype}".encode())
    for image in images.split(1024):
        digest.update(image.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
