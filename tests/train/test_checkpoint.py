"""Saving, keeping, choosing: what a run relies on when nothing goes wrong, and what it is told when something did."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.train.scenarios import digest, parts_at, reseal, seal

from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError
from opportune.train.saved import open_checkpoint


def damage(folder: Path, name: str = "model.safetensors") -> None:
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, parts_at(1))
    checkpoints.save(2, parts_at(2))
    return checkpoints


def test_latest_returns_what_was_saved_last(saved: Checkpoints) -> None:
    newest = saved.latest()
    assert newest is not None and newest.step == 2
    assert newest.names == ("model", "optimizer", "sampler")
    assert digest(newest.parts()) == digest(parts_at(2))
    assert newest.made_with["torch"] == torch.__version__
    assert newest.made_with["torch_threads"] == torch.get_num_threads()


def test_other_tools_read_the_files(saved: Checkpoints) -> None:
    folder = saved.list()[-1]
    assert names(folder) == [
        "manifest.json", "manifest.sha256", "model.safetensors", "optimizer.safetensors", "sampler.safetensors",
    ]  # fmt: skip
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert torch.equal(weights["weight"], parts_at(2)["model"]["weight"])
    subprocess.run(["sha256sum", "-c", "--quiet", "--strict", "manifest.sha256"], cwd=folder, check=True)


def test_nothing_saved_yet_is_none_not_an_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).latest() is None
    assert Checkpoints(tmp_path / "absent").latest() is None
    assert not (tmp_path / "absent").exists()  # looking creates nothing


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep)
    for step in range(0, 12, 2):
        checkpoints.save(step, parts_at(step))
        assert len(checkpoints.list()) == min(keep, step // 2 + 1)
    assert names(tmp_path) == [f"step-{s:06d}" for s in range(12 - 2 * keep, 12, 2)]


def test_order_is_by_number_not_by_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (999_998, 999_999, 1_000_000):
        checkpoints.save(step, parts_at(step))
    assert checkpoints.list()[-1].name == "step-1000000"
    assert checkpoints.latest().step == 1_000_000


def test_a_damaged_newest_falls_back_with_a_warning(saved: Checkpoints, caplog: pytest.LogCaptureFixture) -> None:
    damage(saved.folder / "step-000002")
    with caplog.at_level(logging.WARNING):
        newest = saved.latest()
    assert newest is not None and digest(newest.parts()) == digest(parts_at(1))
    assert "step-000002" in caplog.text and "model.safetensors" in caplog.text and "SHA-256" in caplog.text


def test_no_warning_when_all_is_well(saved: Checkpoints, caplog: pytest.LogCaptureFixture) -> None:
    saved.latest()
    saved.save(3, parts_at(3))
    assert caplog.records == []


def test_none_valid_is_an_error_naming_each(saved: Checkpoints) -> None:
    damage(saved.folder / "step-000001")
    (saved.folder / "step-000002" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="none of the 2") as caught:
        saved.latest()
    assert "step-000001" in str(caught.value) and "manifest.json is missing" in str(caught.value)


def test_damaged_ones_do_not_count_as_kept(saved: Checkpoints) -> None:
    damage(saved.folder / "step-000002")
    saved.save(3, parts_at(3))
    assert names(saved.folder) == ["step-000001", "step-000002", "step-000003"]  # 1 and 3 are the two valid ones
    saved.save(4, parts_at(4))
    assert names(saved.folder) == ["step-000003", "step-000004"]


def test_with_keep_one_the_valid_one_survives_a_damaged_newer_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, parts_at(1))
    shutil.copytree(tmp_path / "step-000001", tmp_path / "step-000002")  # its manifest says step 1
    assert checkpoints.latest().step == 1
    checkpoints.save(3, parts_at(3))
    assert names(tmp_path) == ["step-000003"]


def test_the_same_step_again(saved: Checkpoints) -> None:
    before = (saved.folder / "step-000002" / "manifest.json").stat()
    saved.save(2, parts_at(2))
    assert (saved.folder / "step-000002" / "manifest.json").stat().st_ino == before.st_ino
    with pytest.raises(CheckpointError, match="another state of step 2"):
        saved.save(2, parts_at(7))
    assert digest(saved.latest().parts()) == digest(parts_at(2))
    assert names(saved.folder) == ["step-000001", "step-000002"]


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(saved: Checkpoints) -> None:
    damage(saved.folder / "step-000002")
    saved.save(2, parts_at(2))
    assert digest(saved.latest().parts()) == digest(parts_at(2))
    assert names(saved.folder) == ["step-000001", "step-000002"]


def test_going_back_needs_the_later_ones_gone(saved: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match="forget_after"):
        saved.save(0, parts_at(0))
    saved.forget_after(1)
    saved.save(2, parts_at(9))
    assert digest(saved.latest().parts()) == digest(parts_at(9))


def test_a_damaged_later_one_does_not_stop_a_run_that_fell_back(saved: Checkpoints) -> None:
    saved.save(10, parts_at(10))
    damage(saved.folder / "step-000010")
    saved.save(5, parts_at(5))
    assert saved.latest().step == 5


def test_foreign_things_are_never_touched(saved: Checkpoints) -> None:
    keepers = ["notes.txt", "step-7", "step-000007.bak", "step-0000008", ".staging-mine", "best"]
    for name in keepers:
        (saved.folder / name).mkdir()
        (saved.folder / name / "precious").write_text("x")
    (saved.folder / "step-000001" / "notes.txt").write_text("mine")
    (saved.folder / ".staging-step-000009-1").symlink_to(saved.folder / "best")
    for step in (3, 4, 5):
        saved.save(step, parts_at(step))
    for name in keepers:
        assert (saved.folder / name / "precious").read_text() == "x"
    assert (saved.folder / "step-000001" / "notes.txt").read_text() == "mine"
    assert [path.name for path in saved.list()] == ["step-000001", "step-000004", "step-000005"]


def test_a_checkpoint_that_is_a_link_is_refused_and_left_alone(saved: Checkpoints, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(saved.folder / "step-000001", elsewhere)
    (saved.folder / "step-000001").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="symbolic link"):
        saved.load(saved.folder / "step-000001")
    for step in (3, 4):
        saved.save(step, parts_at(step))
    assert (elsewhere / "manifest.json").exists()


def test_stale_staging_is_removed_and_a_live_writers_is_not(saved: Checkpoints) -> None:
    import fcntl

    stale, live = (saved.folder / f".staging-step-00000{i}-123" for i in (8, 9))
    for folder in (stale, live):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
    half = saved.folder / ".discarded-step-000000-77"
    half.mkdir()
    fd = os.open(live, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    saved.clean()
    assert live.exists() and not stale.exists() and not half.exists()
    os.close(fd)
    saved.save(3, parts_at(3))  # saving cleans too
    assert not live.exists()


def test_part_asked_for_and_absent_is_named(saved: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match="no part 'ema'; it has model, optimizer, sampler"):
        saved.latest().part("ema")


@pytest.mark.parametrize("name", ["", "../evil", "a/b", "Model", "a.b", "-x", "x" * 65, "ema\n", "/etc", "ｅma"])
def test_part_names_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="part name"):
        Checkpoints(tmp_path).save(1, {name: {}})
    assert names(tmp_path) == []


@pytest.mark.parametrize("step", [-1, 1.0, True, 10**18, "3", None])
def test_steps_are_checked(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ValueError, match="step must be"):
        Checkpoints(tmp_path).save(step, parts_at(1))


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be >= 1, got 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(CheckpointError, match="at least one part"):
        Checkpoints(tmp_path).save(1, {})


def test_a_state_that_cannot_be_saved_leaves_everything_as_it_was(saved: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"optimizer|hook"):
        saved.save(3, {"model": parts_at(3)["model"], "optimizer": {"hook": print}})
    assert names(saved.folder) == ["step-000001", "step-000002"]


def test_an_interrupt_while_saving_leaves_no_staging(saved: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    from opportune.train import disk

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved.save(3, parts_at(3))
    assert names(saved.folder) == ["step-000001", "step-000002"]


def test_a_part_without_tensors(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(0, {"progress": {"epoch": 3}, "nothing": None})
    assert Checkpoints(tmp_path).latest().parts() == {"progress": {"epoch": 3}, "nothing": None}


def test_fingerprints_see_tensors_and_numbers(tmp_path: Path) -> None:
    a, b, c = (Checkpoints(tmp_path / name) for name in "abc")
    for checkpoints in (a, b):
        checkpoints.save(4, parts_at(4))
    changed = parts_at(4)
    changed["sampler"]["seen"] = 5
    c.save(4, changed)
    assert a.latest().fingerprints() == b.latest().fingerprints()
    differing = {k for k, v in a.latest().fingerprints().items() if c.latest().fingerprints()[k] != v}
    assert differing == {"sampler"}


@pytest.mark.parametrize("name", ["with space", "ünïcode-日本", "a'b\"c"])
def test_odd_paths(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "deep" / "er"
    Checkpoints(folder).save(1, parts_at(1))
    assert digest(Checkpoints(folder).latest().parts()) == digest(parts_at(1))


def test_a_linked_run_folder_works(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Checkpoints(tmp_path / "link").save(1, parts_at(1))
    assert Checkpoints(tmp_path / "real").latest().step == 1


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for action in (lambda c: c.latest(), lambda c: c.save(1, parts_at(1))):
        with pytest.raises(CheckpointError, match="file"):
            action(Checkpoints(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="it is a file"):
        open_checkpoint(tmp_path / "file")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        open_checkpoint(tmp_path / "absent")


def test_a_vanished_folder_is_made_again(saved: Checkpoints) -> None:
    shutil.rmtree(saved.folder)
    saved.save(3, parts_at(3))
    assert saved.latest().step == 3


def test_later_format_versions_are_refused_with_the_remedy(saved: Checkpoints) -> None:
    folder = saved.folder / "step-000002"
    manifest = json.loads((folder / "manifest.json").read_text())
    seal(folder, json.dumps({**manifest, "version": 2}).encode())
    with pytest.raises(CheckpointError, match="format version 2; this opportune reads version 1"):
        saved.load(folder)


def test_resealing_as_the_tests_do_it_is_valid(saved: Checkpoints) -> None:
    """The forged checkpoints of the other tests are refused for what is in them, not for their checksums."""
    reseal(saved.folder / "step-000002")
    assert digest(saved.latest().parts()) == digest(parts_at(2))


def test_format_1_as_first_released_still_loads() -> None:
    golden = open_checkpoint(Path(__file__).parent / "golden" / "step-000003")
    assert digest(golden.parts()) == digest(parts_at(3))


def test_no_pickle_module_is_loaded_by_reading(saved: Checkpoints) -> None:
    """Not merely unused: making every unpickler fail changes nothing."""
    code = (
        "import sys, pickle, torch\n"
        "from opportune.train.checkpoint import Checkpoints\n"
        "def no(*a, **k): raise SystemExit('unpickled')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = torch.load = no\n"
        "import _pickle; _pickle.load = _pickle.loads = _pickle.Unpickler = no\n"
        "c = Checkpoints(sys.argv[1]); c.latest().parts(); c.save(9, {'a': torch.ones(2)})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(saved.folder)], check=True)
