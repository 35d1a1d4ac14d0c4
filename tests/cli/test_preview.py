"""``opportune preview``: the bars say what the numbers say, in 80 columns, and mistakes take one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from matplotlib import image

import opportune as op
from opportune.cli import main
from opportune.cli.preview import BLOCKS, TERMINAL_BARS, block_rows, named
from opportune.diagnostics import density_map, read_json


def shown(capsys, *words):
    assert main(["preview", *words]) == 0
    return capsys.readouterr().out


def heights(text):
    """Of every panel, the height of each bar in eighths of a row, read back from the characters."""
    panels, rows = [], []
    for line in text.splitlines():
        if line.endswith("|"):
            rows.append(line[-TERMINAL_BARS - 1 : -1])
        elif rows:
            panels.append([sum(BLOCKS.index(row[i]) for row in rows) for i in range(TERMINAL_BARS)])
            rows = []
    return panels


def test_bars_are_as_high_as_the_density(capsys):
    (bars,) = heights(shown(capsys, "table:density=[1,2,4,4]", "--process", "ddpm:steps=4"))
    quarter = TERMINAL_BARS // 4
    assert bars == [8] * quarter + [16] * quarter + [32] * 2 * quarter


def test_rows_of_blocks_count_from_below():
    assert block_rows([0, 0.25, 0.5, 1.0, 7.0, 0.28125], 1.0) == ["   ██ ", "   ██ ", "  ███▁", " █████"]


def test_weighting_and_effective_density_of_each_method(capsys):
    text = shown(capsys, "uniform", "table:density=[4,1]", "--process", "ddpm:steps=2", "--weighting", "p2")
    uniform, table, weight, first, second = heights(text)
    assert set(uniform) == {32}
    assert (table[0], table[-1]) == (32, 8)
    assert first == weight and weight[0] < weight[-1] == 32, "more weight on more noise"
    ratio = (4 * weight[0]) / weight[-1]  # of the two halves of the axis, density times weight
    assert second[0] / second[-1] == pytest.approx(ratio, abs=0.3) and second != table
    assert "weight w(u) on the network's own eps loss" in text and "effective density p(u)·w(u)" in text


def test_an_unbiased_method_leaves_the_objective(capsys):
    density, effective = heights(shown(capsys, "table:density=[4,1],unbiased=true", "--process", "ddpm:steps=2"))
    assert (density[0], density[-1]) == (32, 8) and set(effective) == {32}
    assert len(heights(shown(capsys, "table:density=[4,1]"))) == 1


def test_it_fits_a_plain_terminal_and_names_the_direction(capsys):
    text = shown(
        capsys,
        "stratified:of=kim",
        "logit_normal:mean=-0.123456789,std=0.123456789,unbiased=true,accumulation=12,seed=123",
        "--process", "flow:shift=3", "--weighting", "vlb", "--at-step", "7",
    )  # fmt: skip
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    panels = heights(text)
    assert len(panels) == 5
    assert text.count("more noise →") == len(panels)
    assert "Flow(shift=3" in text


def test_a_spike_is_cut_and_said_so(capsys):
    text = shown(capsys, "uniform", "--weighting", "vlb")
    weight = heights(text)[1]
    assert "; highest 0.211, cut at" in text
    assert weight[0] == 32 and weight[40] > 2, "the spike at the clean end must not flatten the rest"


def test_methods_say_in_words_what_training_will_change(capsys):
    learns = "learns while training; shown before it has learned anything"
    assert f"kim: {learns}" in shown(capsys, "kim")
    assert learns in shown(capsys, "uniform", "--weighting", "learned_uncertainty")
    assert "clts: changes with the step; shown at step 0" in shown(capsys, "clts")
    fixed = shown(capsys, "speed")
    assert "learn" not in fixed and "changes" not in fixed
    assert "--at-step changes nothing" in shown(capsys, "speed", "--at-step", "3")


def test_a_schedule_at_a_step(capsys):
    phases = 'phases:phases=[[0,"table",{density=[1,2]}],[10,"uniform"]]'
    (early,) = heights(shown(capsys, phases, "--process", "ddpm:steps=2", "--at-step", "9"))
    (late,) = heights(shown(capsys, phases, "--process", "ddpm:steps=2", "--at-step", "10"))
    assert (early[0], early[-1]) == (16, 32) and set(late) == {32}


@pytest.mark.parametrize("process", ["ddpm:schedule=cosine,prediction=v", "edm", "flow:shift=2", "vp", "ve", "Flow"])
def test_every_process(capsys, process):
    assert heights(shown(capsys, "uniform", "--process", process)) == [[32] * TERMINAL_BARS]


def test_settings_after_the_name():
    assert named("kim") == ("kim", {})
    assert named("beta:a=2,b=3.5") == ("beta", {"a": 2, "b": 3.5})
    assert named("mixture:of=logit_normal, unbiased=true") == ("mixture", {"of": "logit_normal", "unbiased": True})
    assert named('stratified:of="beta",of_settings={a=2,b=1}')[1] == {"of": "beta", "of_settings": {"a": 2, "b": 1}}
    assert named("ddpm:schedule=cosine,steps=10")[1] == {"schedule": "cosine", "steps": 10}


@pytest.mark.parametrize(
    "words, said",
    [
        (["unifrom"], "did you mean 'uniform'?"),
        (["uniform", "--process", "fow"], "did you mean 'flow'?"),
        (["uniform", "--process", "flow:shif=3"], "did you mean 'shift'?"),
        (["uniform", "--process", "flow:shift=-1"], "shift=-1"),
        (["uniform", "--weighting", "minsnr"], "did you mean 'min_snr'?"),
        (["uniform", "--weighting", "min_snr:gama=1"], "did you mean 'gamma'?"),
        (["beta:q=1"], "q=1 is not a setting"),
        (["beta:a"], "name:setting=value"),
        (["kim", "--at-step", "-1"], "at_step=-1"),
        (["kim", "--at-step", "x"], "--at-step"),
        (["kim", "--what"], "--what"),
        ([], "METHOD"),
        (["table"], "density"),
        (["uniform", "--png", "a.jpg"], "ends in .png"),
        (["uniform", "--png", "."], "ends in .png"),
        (
            ["uniform", "--process", "ddpm:zero_terminal_snr=true", "--weighting", "debiased"],
            "no finite weight",
        ),
    ],
)
def test_what_is_wrong_takes_one_line_and_code_2(capsys, words, said):
    assert main(["preview", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ") and told.err.count("\n") == 1 and said in told.err


def test_help_lists_every_method(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["preview", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "logit_normal" in text and "flow" in text and "min_snr" in text


def test_a_picture(capsys, tmp_path):
    path = tmp_path / "densities.png"
    text = shown(capsys, "uniform", "kim", "--png", str(path))
    assert str(path) in text and "kim: learns while training" in text and "█" not in text
    one = image.imread(path)
    weighted = tmp_path / "weighted.png"
    shown(capsys, "uniform", "kim", "--weighting", "vlb", "--png", str(weighted))
    three = image.imread(weighted)
    assert three.shape[1] > 2 * one.shape[1], "density, weighting and effective density side by side"
    assert one[..., :3].std() > 0.02 and three[..., :3].std() > 0.02
    shown(capsys, "speed:k=2", "--weighting", "p2", "--png", str(tmp_path / "new" / "a.png"))
    (data,) = read_json(tmp_path / "new" / "a.json")
    process = op.DDPM()
    expected = density_map(op.sampler("speed", process, k=2), op.weighting("p2", process), bars=256)
    torch.testing.assert_close(data.effective, expected.effective)
    assert (data.label, data.weighted_by, data.process) == ("speed:k=2", "P2", repr(process))


def test_piped_where_only_ascii_can_be_written():
    code = "import sys; from opportune.cli import main; main(sys.argv[1:]); print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "preview", "speed", "--weighting", "min_snr"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    text = done.stdout.decode("ascii")
    assert "more noise >" in text and "@@@@" in text and "p(u)*w(u)" in text and done.stderr == b""
    assert text.rstrip().endswith("False"), "matplotlib is loaded only for a picture"
