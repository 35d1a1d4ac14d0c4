"""Findings survive the way through JSON, and files are replaced whole."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from tests.diagnostics.models import data, toy

import opportune as op
from opportune.diagnostics import density_map, gradient_variance, loss_profile, process_increment, read_json, write_json

PROCESS = op.DDPM("linear", steps=20)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.allclose(a.double(), b, equal_nan=True)
    return a == b


@pytest.mark.parametrize(
    "found",
    [
        loss_profile(toy(PROCESS), data(1), bins=3, label="one"),  # of one example: its errors are NaN
        gradient_variance(toy(PROCESS, op.weighting("p2", PROCESS)), data(), bins=2, pairs=2),
        process_increment(PROCESS, label="linear"),
        density_map(op.sampler("speed", PROCESS), bars=4),
    ],
    ids=lambda found: found.figure,
)
def test_there_and_back(found, tmp_path):
    path = write_json([found], tmp_path)
    assert path == tmp_path / f"{found.figure}.json"
    kept = json.loads(path.read_text())
    assert kept["figure"] == found.figure
    (back,) = read_json(path)
    assert type(back) is type(found)
    for field in dataclasses.fields(found):
        assert same(getattr(found, field.name), getattr(back, field.name)), field.name
    assert "NaN" not in path.read_text(), "which JSON does not know"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"figure": "los", "found": []}', '{"figure": "loss", "found": [{"a": 1}]}']
)
def test_what_is_no_finding_is_named(text, tmp_path):
    path = tmp_path / "loss.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"loss.json holds no findings of .*; make it again"):
        read_json(path)


def test_files_are_replaced_and_nothing_else_is_left(tmp_path):
    one, two = (process_increment(PROCESS, label=label) for label in ("one", "two"))
    write_json([one, two], tmp_path / "deep" / "down")
    path = write_json([two], tmp_path / "deep" / "down")
    assert [each["label"] for each in json.loads(path.read_text())["found"]] == ["two"]
    assert [each.name for each in path.parent.iterdir()] == ["increment.json"]


def test_findings_of_two_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="DensityMap, ProcessIncrement; give one or more findings of one kind"):
        write_json([process_increment(PROCESS), density_map(op.sampler("uniform", PROCESS))], tmp_path)
    with pytest.raises(ValueError, match="holds nothing"):
        write_json([], tmp_path)
