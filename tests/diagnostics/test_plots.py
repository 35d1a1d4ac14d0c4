"""Every finding becomes a picture beside its data; without matplotlib one line says what to install."""

from __future__ import annotations

import sys

import pytest
import torch
from matplotlib import image
from tests.diagnostics.models import data, toy

import opportune as op
from opportune.diagnostics import (
    Consistency,
    DensityOverTraining,
    Interdependence,
    LossOverTraining,
    density_map,
    gradient_variance,
    loss_profile,
    process_increment,
)
from opportune.diagnostics.places import bin_edges
from opportune.diagnostics.plots import draw, save
from opportune.diagnostics.tables import parts_of, table_of

PROCESS = op.DDPM("cosine", steps=20)
OBJECTIVE = toy(PROCESS, op.weighting("min_snr", PROCESS))
RISING, SIX = (torch.linspace(0.1, 1, count, dtype=torch.float64) for count in (4, 6))


def matrix(**changes):
    fields = {
        "edges": bin_edges(4), "before": RISING, "everywhere": -RISING, "everywhere_error": RISING,
        "change": RISING[:, None] - RISING, "change_error": RISING.expand(4, 4),
        "steps": 3, "repeats": 2, "prediction": "eps",
    }  # fmt: skip
    return Interdependence(**(fields | changes))


def pair(channels):
    return Consistency(
        starts=SIX, similarity=SIX, similarity_error=SIX / 9, control=SIX / 2, control_error=SIX / 9,
        distance=SIX, examples=3, levels=5, outputs=torch.rand(2, 6, 2, channels, 8, 8), label="a, b",
    )  # fmt: skip


TABLE = RISING.expand(3, 4) * torch.tensor([[1.0], [2.0], [torch.nan]])
LOGGED = {"edges": bin_edges(4), "steps": torch.tensor([0.0, 10.0, 40.0])}
FOUND = {
    "loss": [loss_profile(OBJECTIVE, data(), bins=5, label=label) for label in ("step 1", "step 2")],
    "gradient": [gradient_variance(OBJECTIVE, data(), bins=3, pairs=2)],
    "interdependence": [matrix(), matrix(label="later")],
    "density": [density_map(op.sampler(name, PROCESS), label=name) for name in ("uniform", "speed")],
    "density_over_training": [
        DensityOverTraining(**LOGGED, density=TABLE, drawn=TABLE, weighting=RISING, effective=effective)
        for effective in (TABLE, torch.full_like(TABLE, torch.nan))
    ],
    "loss_over_training": [LossOverTraining(**LOGGED, loss=TABLE, average=TABLE * torch.nan, label="run")],
    "increment": [process_increment(PROCESS)],
    "consistency": [pair(3), pair(4)],
}


@pytest.mark.parametrize("name", FOUND)
def test_a_picture_beside_its_data_and_a_table(name, tmp_path):
    paths = save(FOUND[name], tmp_path)
    assert [path.name for path in paths] == [f"{name}.json", f"{name}.png"]
    pixels = image.imread(paths[1])[..., :3]
    assert (pixels.min(axis=2) < 0.9).mean() > 0.005, "more than axes on white"
    lines = table_of(FOUND[name]).splitlines()
    assert len(lines) >= 2 and max(map(len, lines)) <= 80, "a terminal shows it"
    assert save(FOUND[name], tmp_path, picture=False) == paths[:1]


def test_a_long_label_is_cut_and_said_so():
    every = [loss_profile(toy(PROCESS), data(2), bins=2, label="a-run-with-a-long-name-of-its-own step 12000")]
    line = table_of(every).splitlines()[2]
    assert line.startswith("…") and " step 12000 " in line and "a-run" not in line


def test_long_logs_are_pooled_to_what_a_picture_shows():
    steps = torch.arange(1, 1001, dtype=torch.float64)
    rising = (0.5 + steps / 1000)[:, None].expand(-1, 4)
    logged = {"edges": torch.linspace(0, 1, 5), "steps": steps, "weighting": torch.ones(4)}
    axes = draw(DensityOverTraining(**logged, density=rising, drawn=rising, effective=rising)).axes[0]
    (mesh,) = axes.collections
    shown = mesh.get_array()
    assert shown.shape == (59, 4) and float(shown[0, 0]) == pytest.approx(0.509)  # 17 records: 1 to 17
    assert axes.get_ylim() == (0, 1000), "the first record tells of what came from the start on"


def test_a_density_over_training_is_read_off_around_1_and_what_was_not_drawn_is_empty():
    drawn = torch.tensor([[4.0, 0.0, 0.0, 0.0], [0.5, 1.0, 1.5, 1.0]])
    logged = {"edges": bin_edges(4), "steps": torch.tensor([10.0, 20.0]), "weighting": torch.ones(4)}
    density = torch.ones(2, 4).where(drawn > 0, torch.nan)
    figure = draw(DensityOverTraining(**logged, density=density, drawn=drawn, effective=drawn))
    for axes in figure.axes[:2]:
        (mesh,) = axes.collections
        assert mesh.get_clim() == (0.25, 4), "1 is the middle of a scale of ratios, and nothing is below 0"
        assert mesh.get_array().mask.tolist() == (drawn == 0).tolist()
    assert "grey: nothing was drawn" in figure.get_suptitle()


def test_a_log_of_losses_ends_with_its_last_step():
    table = torch.rand(3, 4) + 0.1
    axes = draw(LossOverTraining(**LOGGED, loss=table, average=table)).axes[0]
    assert axes.get_ylim() == (0, 40)


def test_runs_of_two_weightings_are_each_under_their_own():
    found = [loss_profile(toy(PROCESS), data(), bins=5, label="plain"), FOUND["loss"][0]]
    _, weighted = draw(found).axes
    assert weighted.get_title() == "loss x each one's weighting (none, MinSNR)"
    drawn = [list(patch.get_data().values) for patch in weighted.patches]
    for each, values in zip(found, drawn, strict=True):
        assert values == pytest.approx(each.weighted.tolist())
    assert "share of the loss under each one's weighting (none, MinSNR), %" in table_of(found)


def test_weights_and_their_product_are_shown_where_there_are_any():
    titles = [axes.get_title() for axes in draw(FOUND["density"]).axes]
    assert titles == ["density p(u)"]
    found = density_map(op.sampler("speed", PROCESS), op.weighting("vlb", PROCESS), bars=20)
    titles = [axes.get_title() for axes in draw(found).axes]
    assert [title.split(" w(u)")[0].split(" p(u)")[0] for title in titles] == ["density", "VLB", "effective density"]
    assert "cut; highest" in titles[1], "a spike of the bound does not flatten the rest"
    unbiased = density_map(op.sampler("speed", PROCESS, unbiased=True))
    assert len(draw(unbiased).axes) == 2


def test_methods_are_told_apart_without_colour_and_many_have_room():
    names = ["uniform", "speed", "kim", "clts", "logit_normal", "log_normal"]
    found = [density_map(op.sampler(name, PROCESS), label=name) for name in names]
    figure = draw(found)
    (axes,) = figure.axes
    looks = {(str(patch.get_edgecolor()), str(patch.get_linestyle())) for patch in axes.patches}
    assert len(looks) == 6 and len({str(patch.get_linestyle()) for patch in axes.patches[:4]}) == 4
    assert axes.get_legend() is None and len(figure.legends[0].get_texts()) == 6, "beside the curves, not over them"


def test_every_row_of_matrices_says_whose_it_is():
    titles = [axes.get_title() for axes in draw([matrix(label="one"), matrix(label="two")]).axes[:4]]
    assert [title.split("\n")[0] for title in titles] == ["one", "one", "two", "two"]


def test_what_a_curve_shows_is_what_was_found():
    found = FOUND["loss"]
    raw, weighted = draw(found).axes
    for axes, field in ((raw, "loss"), (weighted, "weighted")):
        drawn = [patch.get_data() for patch in axes.patches]
        for each, stairs in zip(found, drawn, strict=True):
            assert list(stairs.values) == pytest.approx(getattr(each, field).tolist())
            assert list(stairs.edges) == pytest.approx(each.edges.tolist())
    assert [text.get_text() for text in raw.get_legend().get_texts()] == ["step 1", "step 2"]
    assert "more noise →" in raw.get_xlabel()


def test_the_matrix_has_what_was_trained_upwards():
    _, right, _ = draw(matrix()).axes
    cells = {tuple(round(float(x), 3) for x in text.get_position()): text.get_text() for text in right.texts}
    # trained in bin 0, measured in bin 3: 0.1 - 1 of 1 before; the other way round, 1 - 0.1 of 0.1 before
    assert cells[0.875, 0.125] == "-90" and cells[0.125, 0.875] == "+900"


def test_means_over_parts_of_the_axis():
    edges = torch.tensor([0.0, 0.1, 0.3, 1.0], dtype=torch.float64)
    values = torch.tensor([1.0, 3.0, 7.0], dtype=torch.float64)
    assert parts_of(edges, values) == pytest.approx([2, 5, 7, 7, 7])


def test_no_matplotlib(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "opportune\[plot\]"'):
        save(FOUND["increment"], tmp_path)
    assert save(FOUND["increment"], tmp_path, picture=False)[0].exists()


def test_findings_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="of one kind"):
        draw([FOUND["increment"][0], FOUND["gradient"][0]])
