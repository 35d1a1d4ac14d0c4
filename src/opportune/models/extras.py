"""Import optional libraries late, and say in one line how to install one that is missing."""

from __future__ import annotations

import importlib
from typing import Any


def require_diffusers() -> Any:
    """The `diffusers` module, or an ImportError naming the extra to install."""
    try:
        return importlib.import_module("diffusers")
    except ImportError as error:
        raise ImportError(f'this model needs diffusers: pip install "opportune[train]" ({error})') from error
