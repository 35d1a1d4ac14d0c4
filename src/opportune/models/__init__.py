"""Image models with one calling convention. diffusers is imported when a model is built, not before."""

from .base import ImageModel
from .build import build_model, count_parameters, model_names, model_settings
from .guidance import drop_labels, guided
from .latents import LatentSpace

__all__ = [
    "ImageModel",
    "LatentSpace",
    "build_model",
    "count_parameters",
    "drop_labels",
    "guided",
    "model_names",
    "model_settings",
]
