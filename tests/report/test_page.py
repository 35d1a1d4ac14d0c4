"""The page: everything in one file, what is in it is right, and nothing of a run folder is more than text."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from PIL import Image
from tests.report.folders import NASTY, edited
from tests.train.runs import stop_at, tiny

from opportune.cli.train import read
from opportune.report.arrange import arrange
from opportune.report.figure_data import MAX_POINTS, figures_of
from opportune.report.metrics import metrics_of
from opportune.report.page import write_report
from opportune.report.pictures import MAX_STEPS, encoded, grids_of
from opportune.report.runs import read_runs
from opportune.report.words import duration, mean_text
from opportune.train.config import TrainConfig
from opportune.train.config_file import read_toml, updated
from opportune.train.errors import ConfigError, RunFolderError


class Page(HTMLParser):
    """Elements, text and JSON of a page, as a browser's parser sees them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: dict[str, object] = {}
        self._inside: list[str] = []
        self.feed(html)
        self.words = re.sub(r"\s+", " ", " ".join(self.text))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, text):
        if self._inside[-1:] == ["script"]:
            self.data[str(self.elements[-1][1]["id"])] = json.loads(text)
        elif self._inside[-1:] != ["style"]:
            self.text.append(text)


def page_of(paths, tmp_path, **asked):
    target = tmp_path / "report.html"
    write_report(paths, target, **asked)
    return Page(target.read_text())


def test_the_page_needs_nothing_else(trained, tmp_path):
    page = page_of(sorted(trained.iterdir()), tmp_path)
    named = [
        value for _, attributes in page.elements for key, value in attributes.items() if key in ("src", "xlink:href")
    ]
    named += [attributes.get("href") for tag, attributes in page.elements]
    assert all(value.startswith(("data:", "#")) for value in named if value)
    assert {attributes["type"] for tag, attributes in page.elements if tag == "script"} == {"application/json"}
    (policy,) = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "script" not in policy
    assert "@import" not in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


def test_identifiers_are_unique_and_found(trained, tmp_path):
    page = page_of(sorted(trained.iterdir()), tmp_path)
    found = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(found) == len(set(found))
    asked = [a[key] for _, a in page.elements for key in ("href", "xlink:href") if (a.get(key) or "").startswith("#")]
    asked += ["#" + a["aria-labelledby"] for _, a in page.elements if a.get("aria-labelledby")]
    asked += re.findall(r"url\((#[^)]+)\)", (tmp_path / "report.html").read_text())
    assert asked and {each[1:] for each in asked} <= set(found)


def test_labels_are_text_wherever_they_stand(comparison, tmp_path):
    page = page_of([comparison], tmp_path)
    assert page.words.count(NASTY) >= 8  # tables, legends, captions; not 49, not an element
    tags = {tag for tag, _ in page.elements}
    assert "b" not in {tag for tag, a in page.elements if a.get("onerror")} and not [
        a for _, a in page.elements if "onerror" in a
    ]
    assert "quick" not in tags
    assert all(a.get("src", "data:").startswith("data:") for tag, a in page.elements if tag == "img")
    results = page.data["s0-results"]["results"]["loss"]
    assert [outcome["label"] for outcome in results] == ["uniform", NASTY]


def test_values_of_a_configuration_are_text(runs, tmp_path):
    for seed in (0, 1):
        path = runs / f"adaptive-{seed}" / "config.toml"
        path.write_text(path.read_text().replace('name = "adamw"', "name = '</pre><script>alert(1)</script>'"))
    page = page_of(sorted(runs.iterdir()), tmp_path)
    assert "</pre><script>alert(1)</script>" in page.words
    assert {a["type"] for tag, a in page.elements if tag == "script"} == {"application/json"}
    assert "differ in more than how timesteps are chosen and weighted: optimizer.name" in page.words


def test_the_numbers_of_the_figures_are_those_of_the_runs(trained, tmp_path):
    page = page_of(sorted(trained.iterdir()), tmp_path)
    run, other = read_runs([trained / "adaptive-0", trained / "adaptive-1"])
    series = page.data["s0-loss-steps-data"]["data"]["series"][1]
    # The loss before the first step is left out: it would press flat what came after.
    values = [record["ema"]["loss"] for record in run.validation[1:]]
    others = [record["ema"]["loss"] for record in other.validation[1:]]
    assert series["label"] == "adaptive" and series["seeds"][0]["y"] == values
    assert series["mean"]["y"] == pytest.approx([(a + b) / 2 for a, b in zip(values, others, strict=True)])
    assert series["mean"]["x"] == [5, 10, 12]
    seconds = [3 * record["seconds_per_step"] for record in run.timing]
    times = page.data["s0-loss-time-data"]["data"]["series"][1]["seeds"][0]["x"]
    assert times == pytest.approx([seconds[0] + seconds[1] * 2 / 3, sum(seconds[:3]) + seconds[3] / 3, sum(seconds)])
    shares = page.data["s0-density-1-data"]["data"]
    counts = [
        [a + b for a, b in zip(x["bins"]["count"], y["bins"]["count"], strict=True)]
        for x, y in zip(run.train, other.train, strict=True)
    ]
    assert shares["edges"] == [0, 3, 6, 9, 12]
    assert shares["values"] == [[count * 4 / sum(column) for count in column] for column in counts]
    scores = page.data["s0-frechet-steps-data"]["data"]["series"][0]["seeds"][0]
    assert scores["x"] == [8, 12] and scores["y"] == [
        each.scores.frechet for each in read_runs([trained / "uniform-0"])[0].evaluations
    ]


def test_profiles_are_relative_to_the_same_seed(runs, tmp_path):
    def halve(record):
        if record["kind"] == "validation":
            record["ema"]["bins"] = [value / 2 for value in record["ema"]["bins"]]

    shutil.rmtree(runs / "adaptive-0")
    shutil.rmtree(runs / "adaptive-1")
    for seed in (0, 1):
        shutil.copytree(runs / f"uniform-{seed}", runs / f"half-{seed}")
        edited(runs / f"half-{seed}" / "metrics.jsonl", halve)
        path = runs / f"half-{seed}" / "config.toml"
        path.write_text(path.read_text().replace('name = "uniform"', 'name = "adaptive"'))
    page = page_of(sorted(runs.iterdir()), tmp_path)
    base, half = page.data["s0-profile-ratio-data"]["data"]["series"]
    assert half["mean"]["y"] == pytest.approx([0.5] * 4) and base["mean"]["y"] == [1.0] * 4
    assert half["mean"]["x"] == [0.125, 0.375, 0.625, 0.875]


def test_gradient_variance_of_a_diagnosis_is_drawn(runs, tmp_path):
    for seed in (0, 1):
        found = {
            "figure": "gradient",
            "found": [{"edges": [0.0, 0.5, 1.0], "variance": v} for v in ([9, 9], [2.0 + seed, None])],
        }
        folder = runs / f"uniform-{seed}" / "diagnostics"
        folder.mkdir()
        (folder / "gradient.json").write_text(json.dumps(found))
        Image.new("RGB", (40, 30), "red").save(folder / "gradient.png")
    page = page_of(sorted(runs.iterdir()), tmp_path)
    (series,) = page.data["s0-gradient-variance-data"]["data"]["series"]
    assert series["mean"]["x"] == [0.25] and series["mean"]["y"] == [2.5]
    assert "2 pictures of" in page.words
    (runs / "uniform-0" / "diagnostics" / "gradient.json").write_text('{"found": [{"edges": [0, 1]}]}')
    with pytest.raises(RunFolderError, match="make it again with `opportune diagnose`"):
        page_of(sorted(runs.iterdir()), tmp_path)


def test_unfinished_and_coming_runs_are_marked(comparison, tmp_path):
    shutil.rmtree(comparison / "runs" / "adaptive-0")
    stop_at(tiny(comparison / "runs" / "adaptive-0", sampler={"name": "adaptive"}, run={"seed": 0}), 7)
    cell = {"label": NASTY, "setting": "small & <quick>", "seed": 0, "baseline": False, "plan": "p"}
    (comparison / "runs" / "adaptive-0" / "cell.json").write_text(json.dumps(cell))
    (comparison / "runs" / "adaptive-1" / "metrics.jsonl").unlink()
    told = write_report([comparison], tmp_path / "told.html").notes
    assert told[0].startswith("1 of 4 runs have not begun") and len(told) == 2
    assert "adaptive-0 is unfinished, at step 7 of 12, and not counted in any mean." in told[1]
    page = page_of([comparison], tmp_path)
    assert "1 of 4 runs have not begun and are left out: adaptive-1." in page.words
    assert f"1 of 3 runs is unfinished and not counted in any mean: {NASTY}, seed 0 (step 7 of 12)." in page.words
    assert [outcome["label"] for outcome in page.data["s0-results"]["results"]["loss"]] == ["uniform"]
    assert page.data["s0-loss-steps-data"]["data"]["series"][1]["mean"] is None


def test_settings_are_named_where_there_are_several(comparison, tmp_path):
    for seed in (0, 1):
        other = comparison / "runs" / f"other-{seed}"
        shutil.copytree(comparison / "runs" / f"uniform-{seed}", other)
        edited(other / "cell.json", lambda cell: cell.update(setting="other"))
    report = write_report([comparison], tmp_path / "report.html")
    assert {line.partition(": ")[0] for line in report.headlines} == {"small & <quick>", "other"}
    files = set(re.findall(r"<summary><code>(.*?)</code>", report.path.read_text()))
    assert {"small-quick-uniform.toml", "other-uniform.toml"} <= files


def test_pictures_of_equal_steps_side_by_side(runs, tmp_path):
    (runs / "adaptive-0" / "samples" / "step-000008.png").unlink()
    (runs / "uniform-0" / "samples" / "step-000012.png").unlink()
    (setting,) = arrange(read_runs(sorted(runs.iterdir())))
    grids, shown = grids_of(setting)
    assert {number: run.seed for number, run in shown.items()} == {0: 0, 1: 0}
    assert [(grid.step, sorted(grid.files)) for grid in grids] == [(8, [0]), (12, [1])]
    page = page_of(sorted(runs.iterdir()), tmp_path)
    assert page.words.count("No images of this step.") == 2
    sources = [a["src"] for tag, a in page.elements if tag == "img"]
    original = Image.open(runs / "uniform-0" / "samples" / "step-000008.png")
    embedded = Image.open(io.BytesIO(base64.b64decode(sources[0].partition(",")[2])))
    assert embedded.tobytes() == original.convert(embedded.mode).tobytes()


def test_many_and_large_pictures_stay_within_the_budget(runs, tmp_path):
    import numpy as np

    noise = np.random.default_rng(0)
    for step in range(20):
        pixels = noise.integers(0, 255, (900, 900, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(runs / "uniform-0" / "samples" / f"step-{step:06d}.png")
    (setting,) = arrange(read_runs([runs / "uniform-0"]))
    grids, _ = grids_of(setting)
    steps = [grid.step for grid in grids]
    assert len(steps) == MAX_STEPS and steps[0] == 0 and steps[-1] == 19
    page_of([runs / "uniform-0"], tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 5_000_000


def test_a_picture_that_is_none_is_named(runs, tmp_path):
    path = runs / "uniform-0" / "samples" / "step-000012.png"
    path.write_bytes(b"GIF89a")
    with pytest.raises(RunFolderError, match=r"step-000012.png cannot be read as a picture"):
        page_of([runs / "uniform-0"], tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert encoded([]) == {}


def test_long_runs_are_thinned_to_what_a_picture_shows(runs):
    records = [json.loads(line) for line in (runs / "uniform-0" / "metrics.jsonl").read_text().splitlines()]
    (first, *_) = [record for record in records if record["kind"] == "validation"]
    lines = [json.dumps({**first, "step": step}) for step in range(5000)]
    (runs / "uniform-0" / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    (setting,) = arrange(read_runs([runs / "uniform-0"]))
    figure = next(f for f in figures_of(setting, metrics_of(setting))["steps"] if f.key == "loss-steps")
    xs = figure.data["series"][0]["seeds"][0]["x"]
    assert MAX_POINTS / 2 < len(xs) <= MAX_POINTS and xs[-1] == 4999


def test_data_on_request(trained, tmp_path):
    write_report([trained / "uniform-0"], tmp_path / "one.html")
    assert [path.name for path in tmp_path.iterdir()] == ["one.html"]
    write_report([trained / "uniform-0"], tmp_path / "one.html", data=True)
    files = {path.name for path in (tmp_path / "one_data").iterdir()}
    figures = {name.removesuffix(".svg") for name in files if name.endswith(".svg")}
    assert {"s0-loss-steps", "s0-loss-time", "s0-density-0", "s0-profile", "s0-gradient"} <= figures
    assert {f"{name}.json" for name in figures} | {"s0-results.json"} == {
        name for name in files if name.endswith(".json")
    }
    page = Page((tmp_path / "one.html").read_text())
    for name in figures:
        assert json.loads((tmp_path / "one_data" / f"{name}.json").read_text()) == page.data[f"{name}-data"]
        assert "var(--" not in (tmp_path / "one_data" / f"{name}.svg").read_text()


def test_a_report_is_written_over_the_last_one_or_not_at_all(trained, tmp_path):
    write_report([trained / "uniform-0"], tmp_path / "deep" / "report.html")
    before = (tmp_path / "deep" / "report.html").read_text()
    write_report(sorted(trained.iterdir()), tmp_path / "deep" / "report.html")
    assert (tmp_path / "deep" / "report.html").read_text() != before
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.html"]
    with pytest.raises(ConfigError, match="is a folder; name a file"):
        write_report([trained / "uniform-0"], tmp_path / "deep")


def test_commands_and_configurations_train_the_same_again(runs, tmp_path):
    """What stands under "How to reproduce", written down as it says, is what `opportune train` then does."""
    page = page_of(sorted(runs.iterdir()), tmp_path)
    text = (tmp_path / "report.html").read_text()
    for name, toml in re.findall(r"<summary><code>(.*?)</code>.*?</summary><pre>(.*?)</pre>", text, re.DOTALL):
        (tmp_path / name).write_text(html.unescape(toml))
    lines = [line for part in page.text for line in part.splitlines() if line.startswith("opportune train ")]
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line)[2:]
        words[1] = str(tmp_path / words[1])
        made = read(words).settings
        original = updated(TrainConfig(), read_toml(f"{made.run.output_dir}/config.toml"))
        assert replace(made, run=replace(made.run, output_dir=original.run.output_dir)) == original


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "–"), (0.0123, "12.3 ms"), (1.5, "1.50 s"), (150, "2.50 min"), (9000, "2.50 h")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_means_show_the_interval_to_two_digits():
    from opportune.report.estimate import Estimate

    assert mean_text(Estimate(mean=0.21758, low=0.20392, high=0.23124, n=2)) == "0.218 ± 0.014"
    assert mean_text(Estimate(mean=-62.4, low=-102.4, high=-22.4, n=2), signed=True) == "−62 ± 40"
    assert mean_text(Estimate(mean=0.5, low=None, high=None, n=1), signed=True) == "+0.5000"
    assert mean_text(None) == "–"
