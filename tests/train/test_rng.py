"""The random streams go on where they were, through a real file."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError
from opportune.train.rng import rng_state, set_rng_state


def draws() -> list[Any]:
    """From every stream, including the second half of a Gaussian pair that Python and NumPy keep for later."""
    return [
        random.random(),
        random.gauss(0, 1),
        random.getrandbits(99),
        float(np.random.standard_normal()),
        int(np.random.randint(2**62)),
        torch.randn(5).tolist(),
        torch.rand(()).item(),
    ]


def test_all_streams_go_on_through_a_checkpoint(tmp_path: Path) -> None:
    for warm_up in range(4):  # odd and even: with and without a Gaussian kept for later
        for _ in range(warm_up):
            random.gauss(0, 1)
            np.random.standard_normal()
        Checkpoints(tmp_path).save(warm_up, {"rng-rank0": rng_state()})
        wanted = [draws() for _ in range(3)]
        set_rng_state(Checkpoints(tmp_path).latest().part("rng-rank0"))
        assert [draws() for _ in range(3)] == wanted


def test_taking_the_state_draws_nothing() -> None:
    set_rng_state(rng_state())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    wanted = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    rng_state()
    assert draws() == wanted


def test_a_missing_stream_is_named() -> None:
    state = rng_state()
    del state["torch"], state["python"]
    with pytest.raises(CheckpointError, match="no python, torch"):
        set_rng_state(state)


def test_another_number_of_gpus_is_refused_before_anything_changes() -> None:
    state = rng_state()
    state["cuda"] = [*state["cuda"], torch.zeros(16, dtype=torch.uint8)]
    wanted = draws()
    set_rng_state({**state, "cuda": state["cuda"][:-1]})
    with pytest.raises(CheckpointError, match="CUDA_VISIBLE_DEVICES"):
        set_rng_state(state)
    assert draws() == wanted


def test_numpy_is_left_alone_where_nobody_uses_it() -> None:
    """With NumPy hidden from the process, as on an installation without it."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch, random\n"
        "from opportune.train.rng import rng_state, set_rng_state\n"
        "del sys.modules['numpy']\n"
        "s = rng_state(); a = random.random(), torch.rand(1); set_rng_state(s)\n"
        "assert s['numpy'] is None and (random.random(), torch.rand(1)) == a and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_numpy_generator_is_refused_by_name() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        with pytest.raises(CheckpointError, match="PCG64"):
            rng_state()
    finally:
        np.random.set_bit_generator(before)
