"""Make images with a trained model: one file per method, and batches that can be spread over processes."""

from .generate import generate, generate_many, methods
from .images import save_folder, save_grid

__all__ = ["generate", "generate_many", "methods", "save_folder", "save_grid"]
