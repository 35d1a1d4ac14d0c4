"""Parts of a run from its configuration: what one part must know of another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import opportune as op
from opportune.train.config import TrainConfig
from opportune.train.config_file import updated
from opportune.train.parts import make_process, make_sampler

U = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)


def sampler_of(**changes: dict[str, Any]) -> Any:
    config = updated(TrainConfig(), {"weighting": {"name": "min_snr", "settings": {"gamma": 2}}, **changes})
    return make_sampler(config, make_process(config))


def test_a_sampler_that_learns_from_losses_serves_the_weighting_in_use() -> None:
    sampler = sampler_of(sampler={"name": "kingma_gao"})
    expected = op.weighting("min_snr", sampler.process, gamma=2).at(U)
    torch.testing.assert_close(sampler.weight_at(U), expected)
    assert float(expected.std()) > 0.1


def test_a_weighting_named_for_the_sampler_is_kept() -> None:
    sampler = sampler_of(sampler={"name": "kingma_gao", "settings": {"weighting": "constant"}})
    torch.testing.assert_close(sampler.weight_at(U), torch.ones(50, dtype=torch.float64))


@pytest.mark.parametrize("name", ["uniform", "kim"])
def test_others_are_left_as_they_are(name: str) -> None:
    changed, plain = sampler_of(sampler={"name": name}), op.sampler(name, op.DDPM())
    assert changed.state_dict().keys() == plain.state_dict().keys()
    if name == "kim":  # its reward is measured under the bound
        torch.testing.assert_close(
            changed.weight_at(U), sampler_of(sampler={"name": name, "settings": {"weighting": "vlb"}}).weight_at(U)
        )
