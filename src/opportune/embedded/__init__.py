"""Small data that comes with the package."""

from .fashion16 import load_fashion16

__all__ = ["load_fashion16"]
