"""Every setting is known by its name, type and range, and refused otherwise before any file is made."""

from __future__ import annotations

import math
import re
import string
import tomllib
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opportune.recipes import recipe, recipes
from opportune.train.config import TrainConfig
from opportune.train.config_check import check
from opportune.train.config_file import differences, names, read_toml, to_dict, to_toml, updated
from opportune.train.errors import ConfigError
from opportune.train.schedule import factor

NAMES = names()


def nested(name: str, value: Any) -> dict[str, Any]:
    section, _, key = name.partition(".")
    return {section: {key: value}}


@st.composite
def one_edit(draw: Any, words: list[str]) -> tuple[str, str]:
    """A setting's name, and the same with one letter lost, added, changed or swapped with its neighbour."""
    word = draw(st.sampled_from(words))
    place = draw(st.integers(0, len(word) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase))
    kind = draw(st.sampled_from(["lose", "add", "change", "swap"]))
    if kind == "lose":
        wrong = word[:place] + word[place + 1 :]
    elif kind == "add":
        wrong = word[:place] + letter + word[place:]
    elif kind == "change":
        wrong = word[:place] + letter + word[place + 1 :]
    else:
        wrong = word[:place] + word[place : place + 2][::-1] + word[place + 2 :]
    return word, wrong


@given(one_edit(NAMES))
@settings(max_examples=2000)
def test_a_key_misspelled_by_one_edit_is_refused_and_the_right_one_named(pair: tuple[str, str]) -> None:
    right, wrong = pair
    if wrong in NAMES or "." not in wrong:
        return
    section, key = right.split(".")
    try:
        updated(TrainConfig(), nested(wrong, asdict(TrainConfig())[section][key]))
    except ConfigError as error:
        meant = key if wrong.split(".")[0] == section else section
        # "steps" is a word in several sections: any of those it may have meant will do.
        assert meant in str(error)
    else:
        raise AssertionError(f"{wrong} was accepted")


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_another_type_is_refused(name: str) -> None:
    section, key = name.split(".")
    good = asdict(TrainConfig())[section][key]
    for wrong in ({"a": 1}, [1], "text", True, 1.5):
        if isinstance(wrong, type(good)) or (isinstance(good, (str, type(None))) and isinstance(wrong, str)):
            continue
        if name == "sampler.unbiased" and wrong is True:
            continue
        with pytest.raises(ConfigError, match=re.escape(name)):
            updated(TrainConfig(), nested(name, wrong))
            pytest.fail(f"{name}={wrong!r} was accepted")


def test_a_number_out_of_range_is_refused() -> None:
    numbers = {n: asdict(TrainConfig())[n.split(".")[0]][n.split(".")[1]] for n in NAMES}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        for wrong in (-1, math.nan, math.inf, -math.inf) if isinstance(value, float) else (-1,):
            config = updated(TrainConfig(), nested(name, wrong))
            with pytest.raises(ConfigError, match=re.escape(name)):
                check(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"batch_size": 10, "accumulation": 4}}, "does not divide by data.accumulation=4"),
        ({"run": {"steps": 5}, "schedule": {"warm_up_steps": 5}}, "schedule.warm_up_steps=5 is not less than"),
        ({"schedule": {"final_share": 0.1}}, "no effect on schedule.name='constant'"),
        ({"data": {"source": "latents:x", "flip": True}}, "latents cannot be mirrored"),
        ({"data": {"low_resolution_factor": 3}}, "does not divide data.size=16"),
        ({"data": {"low_resolution_factor": 1}}, "would show the network its answer"),
        ({"hardware": {"sharding": "fsdp2", "precision": "fp16"}}, "use bf16"),
        ({"hardware": {"sharding": "fsdp2"}, "sampler": {"name": "gradient_variance"}}, "measures gradients"),
        ({"optimizer": {"beta1": 0, "momentum_decay": "mdlrc"}}, "no momentum"),
        ({"sampler": {"name": "unifrm"}}, r"\[sampler\].*did you mean 'uniform'"),
        ({"sampler": {"settings": {"flor": 1}}}, r"\[sampler\] flor=1 is not a setting"),
        ({"weighting": {"name": "min_srn"}}, "did you mean 'min_snr'"),
        ({"process": {"settings": {"shift": 3}}}, r"\[process\] shift=3 is not a setting of process ddpm"),
        ({"process": {"settings": {"schedule": "cosin"}}}, "did you mean 'cosine'"),
        ({"model": {"name": "unet-2m"}}, r"\[model\].*did you mean"),
        ({"model": {"settings": {"widhts": [8]}}}, "did you mean 'widths'"),
        ({"data": {"size": 18}, "model": {"name": "dit-s-8"}}, "not a multiple of patch_size=8"),
    ],
)
def test_combinations_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(updated(TrainConfig(), changes))


def test_a_key_outside_any_section_is_told_its_place() -> None:
    with pytest.raises(ConfigError, match=r"write it as steps in \[run\]"):
        updated(TrainConfig(), {"steps": 3})
    with pytest.raises(ConfigError, match="is a section"):
        updated(TrainConfig(), {"run": 3})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "twice.toml").write_text("[run]\nseed = 1\nseed = 2\n")
    with pytest.raises(ConfigError, match=r"twice.toml is not valid TOML"):
        read_toml(tmp_path / "twice.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path)


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_a_valid_configuration(name: str) -> None:
    check(updated(TrainConfig(), recipe(name)))


def test_the_recipes_are_those_promised() -> None:
    assert recipes() == ["celebahq-ldm", "cifar10-16", "cifar10-ddpm", "fashion16", "imagenet-dit", "imagenet-uvit"]


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
values = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=4), texts)
def test_a_written_configuration_reads_back_the_same(chosen: dict[str, Any], folder: str) -> None:
    config = updated(TrainConfig(), {"run": {"output_dir": folder}, "sampler": {"settings": chosen}})
    assert updated(TrainConfig(), tomllib.loads(to_toml(config))) == config


def test_differences_leave_out_what_decides_nothing() -> None:
    old = to_dict(TrainConfig())
    new = to_dict(updated(TrainConfig(), {"run": {"output_dir": "x", "seed": 1}, "data": {"workers": 3}}))
    assert differences(old, new) == ["run.seed: 0 -> 1"]


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = updated(TrainConfig(), {"schedule": {"name": "cosine", "warm_up_steps": 4, "final_share": 0.1}}).schedule
    shares = [factor(schedule, step, 24) for step in range(24)]
    assert shares[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert shares[4] == 1.0 and shares[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(shares[4:]))
    assert shares[4 + 19 // 2] > 0.5 > shares[4 + 19 // 2 + 2]
    linear = updated(TrainConfig(), {"schedule": {"name": "linear"}}).schedule
    assert [factor(linear, step, 5) for step in range(5)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert {factor(TrainConfig().schedule, step, 5) for step in range(5)} == {1.0}
