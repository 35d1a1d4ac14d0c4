"""The random streams of this process as a state a checkpoint can hold: Python, NumPy, torch, CUDA."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from opportune.train.errors import CheckpointError


def rng_state() -> dict[str, Any]:
    """Everything the global generators of this process draw from next. NumPy only where it was imported."""
    return {
        "python": _python_state(),
        "numpy": _numpy_state() if "numpy" in sys.modules else None,
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Go on exactly where ``rng_state`` was taken."""
    missing = {"python", "numpy", "torch", "cuda"} - set(state)
    if missing:
        raise CheckpointError(f"the random state has no {', '.join(sorted(missing))}")
    if len(state["cuda"]) != torch.cuda.device_count():
        raise CheckpointError(
            f"the random state was taken with {len(state['cuda'])} CUDA devices and this machine shows "
            f"{torch.cuda.device_count()}: resume with as many (see CUDA_VISIBLE_DEVICES)"
        )
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss_next"]))
    if state["numpy"] is not None:
        _set_numpy_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for i, one in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(one, i)


def _python_state() -> dict[str, Any]:
    version, words, gauss_next = random.getstate()
    return {"version": version, "words": torch.tensor(words), "gauss_next": gauss_next}


def _numpy_state() -> dict[str, Any]:
    import numpy as np

    state: dict[str, Any] = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise CheckpointError(
            f"NumPy's global generator is a {state['bit_generator']}; only its default, MT19937, is saved. "
            "Use a numpy.random.Generator of your own for the other"
        )
    return {
        "words": torch.from_numpy(state["state"]["key"].astype("int64")),
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _set_numpy_state(state: dict[str, Any]) -> None:
    import numpy as np

    words = state["words"].numpy().astype("uint32")
    np.random.set_state(("MT19937", words, state["position"], state["has_gauss"], state["gauss"]))
