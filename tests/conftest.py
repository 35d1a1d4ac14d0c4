"""What every test starts from: one thread, fixed seeds, repeatable hypothesis examples."""

import random

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tests run in two processes; two threads in each would fight over the cores

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Fixed global seeds, so that a test gives the same numbers alone and in the whole suite."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
