"""The command line: what is wrong is said in one message with exit code 2, before any file is made."""

from __future__ import annotations

import os
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.runs import SMALL, latest, tiny

from opportune.cli import COMMANDS, main
from opportune.cli.arguments import SHORT, taken_settings, toml_value
from opportune.cli.train import read
from opportune.recipes import recipes
from opportune.train.checkpoint import Checkpoints
from opportune.train.config import TrainConfig
from opportune.train.config_file import merged, names, read_toml
from opportune.train.errors import ConfigError
from opportune.train.logs import read_log
from opportune.train.trainer import Trainer

FLAGS = [f"--{name.replace('_', '-')}" for name in names() if not name.endswith(".settings")] + list(SHORT)


@given(st.sampled_from(FLAGS), st.data())
@settings(max_examples=300)
def test_a_flag_misspelled_by_one_edit_is_refused(flag: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(2, len(flag) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    wrong = data.draw(st.sampled_from([flag[:place] + flag[place + 1 :], flag[:place] + letter + flag[place:]]))
    if wrong in FLAGS or wrong == "--":
        return
    with pytest.raises(ConfigError, match="is unknown; did you mean '--"):
        read([wrong, "1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--stepz", "3"], "--stepz is unknown; did you mean '--steps'"),
        (["train", "--steps", "ten"], "--run.steps: 'ten' is not a whole number. See opportune train --help."),
        (["train", "--learning-rate", "x"], "Error parsing --optimizer.learning-rate: could not convert"),
        (["train", "--process", "edmm"], "Expected one of ('ddpm', 'edm', 'flow', 'vp', 've')"),
        (["train", "--recipe"], "Missing value for argument '--recipe'"),
        (["train", "fashion16"], "fashion16 belongs to no flag"),
        (["train", "--data.flip", "true"], "true belongs to no flag; truth values are given as --data.flip or"),
        (["generate", "x", "--weights", "emma"], "Expected one of ('auto', 'ema', 'raw')"),
        (["train", "--steps", "-1"], "run.steps=-1"),
        (["train", "--learning-rate", "nan"], "optimizer.learning_rate=nan is not a finite number"),
        (["train", "--learning-rate", "1e400"], "optimizer.learning_rate=inf"),
        (["train", "--sampler", "unifrom"], "did you mean 'uniform'"),
        (["train", "--recipe", "fashon16"], "did you mean 'fashion16'"),
        (["train", "--config", "none.toml"], "there is no configuration file none.toml"),
        (["train", "--resume", "latest"], "there is nothing to resume"),
        (["train", "--sampler.settings.floor"], "--sampler.settings.floor needs a value"),
        (["train", "--sampler.settings.floor", "0.1"], "floor=0.1 is not a setting of sampler Uniform"),
        (["train", "--weighting.settings.gamma", "5"], "gamma: weighting 'none' has no settings; name one of"),
        (["train", "--report-to", "wandbb"], "logs.report_to='wandbb' is unknown; did you mean 'wandb'"),
        (["train", "--report-to", "tensorboard,trackio", "--dry-run"], 'pip install "opportune[trackio]"'),
        (["train", "--output-dir", ""], "run.output_dir is empty"),
        (["train", "--output-dir", "/etc/hostname"], "/etc/hostname is a file, and a run needs a folder"),
        (["train", "--output-dir", "/etc/hostname/run"], "/etc/hostname is a file, and a run needs a folder"),
        (["train", "--steps", "1", "--schedule.warm-up-steps", "1"], "Set it to 0 (no warm-up)."),
        (["train", "--data.channels", "2"], "data.channels=2 is not allowed for images"),
        (["train", "--seed", "9" * 20], "run.seed=99999999999999999999 is outside the allowed range"),
        (["train", "--model.settings.widths", "abc"], "widths='abc' is not allowed; give a list of numbers"),
        (["train", "--model", "dit", "--model.settings.width", "abc"], "width='abc' is not allowed; give a whole"),
        (["train", "--model", "dit", "--model.settings.dropout", "1.5"], "dropout=1.5 is outside"),
        (["train", "--smapler.settings.floor", "0.1"], "section 'smapler' is unknown; did you mean 'sampler'"),
        (["train", "--ranks", "2"], "ranks=2 were asked for, and 1 came up"),
        (["train", "--data.source", "folder:/no/such/place"], "there is no folder /no/such/place"),
        (["train", "--hardware.device", "cuda"], "no CUDA device is visible"),
        (["train", "--mixed-precision", "fp16", "--hardware.device", "cpu"], "needs a GPU"),
        (["xyz"], "there is no command 'xyz'. See"),
        (["trian"], "there is no command 'trian'; did you mean 'train'"),
        (["generate", "/no/such/run"], "there is no run at /no/such/run"),
        (["generate"], "name the run"),
        (["generate", "x", "--card"], "--card goes with --export FOLDER"),
        (["generate", "x", "--push-to-hub", "me/x"], "--push-to-hub goes with --export FOLDER"),
        (["generate", "x", "--export", "y", "--push-to-hub", "me/my model"], "'me/my model' is not a name on the hub"),
        (["evaluate", "x", "--cuont", "3"], "did you mean '--count'"),
        (["encode", "--data.size", "32"], "name the autoencoder"),
    ],
)
def test_mistakes_are_explained_with_exit_code_2_and_no_file(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.startswith("error: ") and shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_layers_lie_over_one_another(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[run]\nsteps = 7\n[optimizer]\nlearning_rate = 0.5\n[sampler]\nname = "mixture"\nsettings = { floor = 0.5 }\n'
    )
    words = ["--recipe", "fashion16", "--config", str(tmp_path / "mine.toml"), "--learning-rate", "0.25"]
    found = read([*words, "--sampler.settings.of", "log_normal", "--output_dir=x", "--data.flip"]).settings
    assert (found.run.steps, found.optimizer.learning_rate, found.run.output_dir) == (7, 0.25, "x")
    assert found.ema.decay == 0.995 and found.process.settings == {"schedule": "cosine"}  # the recipe's
    assert found.sampler.settings == {"floor": 0.5, "of": "log_normal"} and found.data.flip
    for off in (["--no-ema.enabled"], ["--ema.no-enabled"], ["--no_ema.enabled"]):
        assert not read([*words, *off]).settings.ema.enabled
    # The settings of one method do not carry over to another.
    other = read([*words, "--sampler", "beta", "--process.settings.steps", "10"]).settings
    assert (other.sampler.name, other.sampler.settings) == ("beta", {})
    assert other.process.settings == {"schedule": "cosine", "steps": 10}


def test_flags_of_other_trainers_mean_what_they_mean_there() -> None:
    known = ["--train_batch_size", "8", "--max_train_steps", "9", "--lr_warmup_steps", "3", "--mixed_precision", "bf16"]
    more = ["--gradient_accumulation_steps", "2", "--checkpointing_steps", "4", "--report_to", "none"]
    found = read([*known, *more, "--resume_from_checkpoint", "latest"])
    data, run = found.settings.data, found.settings.run
    assert (data.batch_size, data.accumulation, run.steps, found.resume) == (8, 2, 9, "latest")
    assert found.settings.schedule.warm_up_steps == 3 and found.settings.checkpoint.every_steps == 4
    assert found.settings.hardware.precision == "bf16" and found.settings.logs.report_to == "none"


def test_unreadable_images_are_skipped_named_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    for index in range(10):
        Image.fromarray(numbers.integers(0, 256, (16, 16), dtype=np.uint8)).save(tmp_path / f"{index}.png")
    whole = (tmp_path / "0.png").read_bytes()
    (tmp_path / "cut_short.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jpg").touch()
    words = ["train", *SMALL, "--data.source", f"folder:{tmp_path}", "--steps", "6", "--batch-size", "4"]
    more = ["--data.on-bad", "skip", "--data.max-bad-share", "0.5", "--validation.every-steps", "0"]
    assert main([*words, *more, "--report-to", "none", "--output-dir", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("skipped 2 images that cannot be read, named in the warnings\ntrained 6")
    assert "cut_short.png" in caplog.text and "empty.jpg" in caplog.text


def test_settings_are_numbers_lists_or_text() -> None:
    texts = {"0.1": 0.1, "true": True, "[1, 2]": [1, 2], "kim": "kim", '"1"': "1", "{a = 1}": {"a": 1}}
    assert {text: toml_value(text) for text in texts} == texts
    assert taken_settings(["--steps", "3", "--sampler.settings.a", "1", "--x"]) == (
        ["--steps", "3", "--x"],
        {"sampler": {"settings": {"a": 1}}},
    )
    old = {"model": {"name": "dit", "settings": {"width": 1}}}
    assert merged(old, {"model": {"name": "unet"}}) == {"model": {"name": "unet"}}
    assert merged(old, {"model": {"settings": {"depth": 2}}})["model"]["settings"] == {"width": 1, "depth": 2}


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_passes_a_dry_run_and_makes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    batch = ["--batch-size", "4"] if name in ("fashion16", "cifar10-16") else []  # the small ones take a step
    assert main(["train", "--recipe", name, "--dry-run", *batch]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "shown.toml").write_text(shown)
    assert read(["--config", "shown.toml"]).settings == read(["--recipe", name, *batch]).settings
    for what in ("# parameters: ", "# memory per rank: ", "EMA", "# a step: ", "# disk: "):
        assert what in shown
    assert ("# measured here: " in shown) == bool(batch)
    assert [path.name for path in tmp_path.iterdir()] == ["shown.toml"]


def test_help_names_every_command_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0 and main([]) == 2
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in FLAGS)


def opportune(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "opportune", *words],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_recipe_from_the_command_line_to_images_and_scores(tmp_path: Path) -> None:
    words = ["train", "--recipe", "fashion16", "--steps", "20", "--schedule.warm-up-steps", "2", "--sampler", "kim"]
    more = [
        "--sampler.settings.every_steps",
        "5",
        "--logs.every-steps",
        "10",
        "--batch-size",
        "16",
        "--output-dir",
        "run",
    ]
    run = opportune(*words, *more, "--validation.examples", "16", cwd=tmp_path)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert err == ""  # no bar where nobody watches
    assert out == "trained 20 steps: run (now: opportune generate run)\n"
    assert [r["step"] for r in read_log(tmp_path / "run")] == [0, 10, 20, 20]
    assert read_toml(tmp_path / "run" / "config.toml")["sampler"]["name"] == "kim"
    run_folder = str(tmp_path / "run")
    assert main(["generate", run_folder, "--count", "9", "--steps", "2", "--device", "cpu"]) == 0
    assert len(list((tmp_path / "run" / "generated" / "images").iterdir())) == 9
    # Fewer than before would leave the others of that call among them.
    assert main(["generate", run_folder, "--count", "8", "--steps", "2", "--device", "cpu"]) == 2
    assert (tmp_path / "run" / "generated" / "grid.png").exists()
    assert main(["evaluate", run_folder, "--count", "8", "--steps", "2", "--device", "cpu"]) == 0
    assert '"n_generated": 8' in (tmp_path / "run" / "evaluation.json").read_text()
    assert main(["generate", run_folder, "--export", str(tmp_path / "pipeline"), "--card", "--device", "cpu"]) == 0
    assert (tmp_path / "pipeline" / "model_index.json").exists()
    assert '"name": "kim"' in (tmp_path / "pipeline" / "README.md").read_text()
    assert main(["generate", run_folder, "--export", str(tmp_path / "pipeline"), "--device", "cpu"]) == 2  # not twice
    assert main(["generate", run_folder, "--method", "euler", "--device", "cpu"]) == 2


def test_a_model_of_classes_makes_what_it_is_told_with_guidance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--recipe", "fashion16", *SMALL, "--steps", "3", "--batch-size", "4", "--report-to", "none"]
    more = ["--schedule.warm-up-steps", "0", "--validation.examples", "4"]
    make = ["--count", "3", "--steps", "2", "--device", "cpu", "--guidance", "2.5"]
    with_classes, without = str(tmp_path / "with"), str(tmp_path / "without")
    assert main([*words, *more, "--data.classes", "9", "--output-dir", with_classes]) == 2
    assert "embedded:fashion16 has 10 classes but data.classes=9" in capsys.readouterr().err
    assert not Path(with_classes).exists()
    assert main([*words, *more, "--data.classes", "10", "--output-dir", with_classes]) == 0
    assert main(["generate", with_classes, *make]) == 0
    assert main(["generate", with_classes, *make, "--label", "9"]) == 0
    capsys.readouterr()
    assert main(["generate", with_classes, *make, "--label", "10"]) == 2
    assert "label=10, and the model has the classes 0 to 9" in capsys.readouterr().err
    assert main([*words, *more, "--output-dir", without]) == 0
    assert main(["generate", without, *make]) == 2
    assert "guidance=2.5 needs labels" in capsys.readouterr().err
    assert main(["generate", without, "--device", "cpu", "--autoencoder", "x"]) == 2
    assert "autoencoder='x' has no use: this model makes images" in capsys.readouterr().err


def test_the_colour_recipe_trains_and_is_scored_on_parquet_files(tmp_path: Path) -> None:
    """Small files in the hub's schema of CIFAR-10 (JPEG in ``img``, ``label``), one per split."""
    import datasets
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    for split, count in (("train", 24), ("test", 16)):
        images = [Image.fromarray(numbers.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]
        rows = {"img": images, "label": [i % 10 for i in range(count)]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / f"{split}.parquet"))
    words = [
        *("train", "--recipe", "cifar10-16", "--data.source", f"parquet:{tmp_path}/{{split}}.parquet"),
        *("--steps", "4", "--batch-size", "4", "--schedule.warm-up-steps", "1", "--sampler", "logit_normal"),
        *("--validation.examples", "8", "--output-dir", str(tmp_path / "run"), "--report-to", "none"),
    ]
    assert main(words) == 0
    validated = [r for r in read_log(tmp_path / "run") if r["kind"] == "validation"]
    assert validated[-1]["step"] == 4 and validated[-1]["raw"]["loss"] > 0
    scored = ["evaluate", str(tmp_path / "run"), "--count", "8", "--steps", "2", "--device", "cpu"]
    assert main(scored) == 0
    assert '"n_generated": 8' in (tmp_path / "run" / "evaluation.json").read_text()


def test_the_command_stops_on_sigterm_and_resumes_with_its_own_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--recipe", "fashion16", "--steps", "100000", *SMALL, "--output-dir", "run", "--seed", "5"]
    run = opportune(*words, "--logs.every-steps", "5", cwd=tmp_path)
    log, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 300
    while not (log.exists() and '"kind": "train"' in log.read_text()):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 143, err
    assert out.startswith("stopped by SIGTERM after step ")
    assert out.endswith("saved; to continue: opportune train --resume latest --output-dir run\n")
    # --resume alone takes the rest from the folder: seed, model and all.
    found = read(["--resume", "latest", "--output-dir", str(tmp_path / "run")])
    assert found.settings.run.seed == 5 and found.settings.model.settings == {"width": 16, "depth": 1, "heads": 2}
    assert read(["--resume", "latest", "--output-dir", "elsewhere"]).settings.run.seed == TrainConfig().run.seed
    # So does a checkpoint, whether the run goes on there or branches off; wherever the folder has been moved to.
    (tmp_path / "run").rename(tmp_path / "moved")
    saved = str(Checkpoints(tmp_path / "moved" / "checkpoints").list()[0])
    assert read(["--resume", saved]).settings.run.output_dir == str(tmp_path / "moved")
    branch = read(["--resume", saved, "--output-dir", "branch"]).settings
    assert (branch.run.seed, branch.run.output_dir) == (5, "branch")
    # What people take for a checkpoint.
    assert main(["train", "--resume", str(tmp_path / "moved")]) == 2
    assert f"--resume latest --output-dir {tmp_path / 'moved'}" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "nowhere")]) == 2
    assert "there is no checkpoint at" in capsys.readouterr().err


def test_ctrl_c_while_libraries_load_ends_the_process_without_a_word() -> None:
    program = (
        "import os, signal\nfrom opportune.cli import ending_at_once\nwith ending_at_once(): pass\n"
        "try: os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt: print('as before')\n"
        "with ending_at_once(): os.kill(os.getpid(), signal.SIGINT)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "as before\n", "")


INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("loading", ["opportune.train.data", "tyro", "opportune.train.trainer"])
def test_ctrl_c_while_a_command_loads_leaves_no_traceback(loading: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    words = [sys.executable, "-m", "opportune", "train", "--resume", "latest", "--output-dir", str(tmp_path / "none")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPT_AT": loading}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")  # 130, to a shell


@pytest.mark.parametrize(
    ("words", "unbuffered"), [("--help", ""), ("generate --help", "1"), ("train --recipe imagenet-dit --dry-run", "")]
)
def test_output_that_nobody_reads_ends_the_command_without_a_word(words: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "opportune", *words.split()]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_another_pipe_that_breaks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(words: list[str]) -> None:
        raise BrokenPipeError("the tracker has gone")

    monkeypatch.setattr("opportune.cli.train.main", broken)
    assert main(["train"]) == 1
    assert capsys.readouterr().err == "error: the tracker has gone\n"


@pytest.mark.parametrize("damage", ["missing", "cut", "no toml", "unknown key"])
def test_a_run_whose_configuration_file_is_lost_resumes_with_the_one_in_its_checkpoint(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny(tmp_path / "run", run={"steps": 4, "seed": 5})
    Trainer(config).run()
    file = tmp_path / "run" / "config.toml"
    text = file.read_text()
    saved = str(latest(tmp_path / "run").path)
    words = [saved] if damage == "cut" else ["latest", "--output-dir", str(tmp_path / "run")]
    file.unlink()
    if damage != "missing":
        broken = {"cut": text[: text.index("[data]")], "no toml": text[:-3] + "=", "unknown key": "[rum]\n" + text}
        file.write_text(broken[damage])
    assert main(["train", "--resume", *words]) == 0
    assert f"{file} is of no use: " in caplog.text and f"Going on with the settings in {saved}." in caplog.text
    assert file.read_text() == text


def test_a_checkpoint_that_does_not_hold_its_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Checkpoints(tmp_path / "checkpoints").save(4, {"trainer": {"step": 4}})
    assert main(["train", "--resume", "latest", "--output-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert "does not say how it was configured; resume from another, or start a new run" in shown
    assert shown.count("\n") == 1
