"""The same batches come out however the work is divided, stopped and taken up again."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.data.pictures import write_folder

from opportune.train.data import (
    BadImage,
    DataError,
    FolderSource,
    Loader,
    Order,
    StreamOrder,
    TensorSource,
    WorkerDied,
)
from opportune.train.data.order import flips

COUNT, SIZE = 21, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("good"), COUNT)


@pytest.fixture(scope="module")
def half_bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bad"), COUNT, bad=tuple(range(0, COUNT, 2)))


def loader_of(folder: Path, **more) -> Loader:
    return Loader(FolderSource(folder, size=8, labels=True), Order(COUNT, SIZE, seed=4), **{"flip": True, **more})


def digests(batches) -> list[str]:
    """SHA-256 over the raw bytes of each batch."""
    row = []
    for images, labels, ids in batches:
        raw = images.numpy().tobytes() + ids.numpy().tobytes() + (b"" if labels is None else labels.numpy().tobytes())
        row.append(hashlib.sha256(raw).hexdigest())
    return row


def take(loader: Loader, count: int) -> list:
    batches = iter(loader)
    return list(islice(batches, count))


def test_a_batch_is_what_it_says(folder: Path) -> None:
    batch = take(loader_of(folder, flip=False), 1)[0]
    assert batch.images.dtype == torch.float32 and batch.images.shape == (SIZE, 3, 8, 8)
    assert batch.ids.tolist() == Order(COUNT, SIZE, seed=4).batch(0).ids.tolist()
    source = FolderSource(folder, size=8, labels=True)
    for image, label, index in zip(batch.images, batch.labels, batch.ids.tolist(), strict=True):
        example = source.get(index)
        assert torch.equal(image, example.image.float() / 127.5 - 1) and label == example.label


def test_pixels_reach_both_ends_exactly() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    batch = take(Loader(TensorSource(images), Order(2, 2)), 1)[0]
    assert sorted(batch.images.flatten().tolist()) == [-1.0, 1.0] and batch.labels is None


@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_the_same_batches_for_any_number_of_workers(folder: Path, half_bad: Path, on_bad: str) -> None:
    place = folder if on_bad == "error" else half_bad
    wanted, bad = None, None
    for workers in (0, 1, 2, 4):
        loader = loader_of(place, workers=workers, on_bad=on_bad, max_bad_share=0.6)
        found = digests(take(loader, 9))
        wanted, bad = wanted or found, bad or loader.bad
        assert found == wanted and loader.bad == bad
    uncached = loader_of(place, workers=0, on_bad=on_bad, max_bad_share=0.6, cache_bytes=0)
    assert digests(take(uncached, 9)) == wanted and uncached.bad == bad


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_ranks_together_train_the_batches_of_one_process(folder: Path, half_bad: Path, world: int, on_bad: str) -> None:
    place = folder if on_bad == "error" else half_bad
    alone = take(loader_of(place, on_bad=on_bad, max_bad_share=1.0), 9)
    shares = [
        take(loader_of(place, rank=rank, world=world, on_bad=on_bad, max_bad_share=1.0), 9) for rank in range(world)
    ]
    for index, whole in enumerate(alone):
        for rank in range(world):
            for mine, all_of_them in zip(shares[rank][index], whole, strict=True):
                assert torch.equal(mine, all_of_them[rank::world])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "stop", [0, 1, 3, 4, 7]
)  # 7 batches of 6 are exactly 2 epochs of 21; batch 3 crosses the border
def test_a_resumed_loader_goes_on_as_if_nothing_had_happened(half_bad: Path, workers: int, stop: int) -> None:
    options = {"workers": workers, "on_bad": "skip", "max_bad_share": 0.6}
    whole = loader_of(half_bad, **options)
    wanted = digests(take(whole, 9))
    first = loader_of(half_bad, **options)
    before = digests(take(first, stop))
    state = json.loads(json.dumps(first.state_dict()))
    second = loader_of(half_bad, **{**options, "workers": 1 - workers // 2})  # the other number of workers
    second.load_state_dict(state)
    assert second.position == stop
    assert before + digests(take(second, 9 - stop)) == wanted
    assert second.bad == whole.bad and second.state_dict() == whole.state_dict()


def test_the_position_counts_batches_handed_out_not_those_prepared(folder: Path) -> None:
    loader = loader_of(folder, workers=2)
    batches = iter(loader)
    for count in (1, 2, 3):
        next(batches)
        assert loader.position == count


def test_a_checkpoint_of_another_order_is_refused(folder: Path) -> None:
    state = loader_of(folder).state_dict()
    source = FolderSource(folder, size=8)
    for order, word in ((Order(COUNT, 7, seed=4), "batch_size=6"), (Order(COUNT, SIZE, seed=5), "seed=4")):
        with pytest.raises(DataError, match=word):
            Loader(source, order).load_state_dict(state)
    one_more = TensorSource(torch.zeros(COUNT + 1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(DataError, match="count=21"):
        Loader(one_more, Order(COUNT + 1, SIZE, seed=4)).load_state_dict(state)


def test_flips_mirror_the_chosen_ones_and_no_others(folder: Path) -> None:
    plain, mirrored = (take(loader_of(folder, flip=flip), 9) for flip in (False, True))
    chosen = [flips(4, *Order(COUNT, SIZE, seed=4).batch(index)[1:]) for index in range(9)]
    for before, after, flipped in zip(plain, mirrored, chosen, strict=True):
        for old, new, turned in zip(before.images, after.images, flipped, strict=True):
            assert torch.equal(new, old.flip(-1) if turned else old)
            assert not torch.equal(old, old.flip(-1))
    assert 0.3 < np.concatenate(chosen).mean() < 0.7


@pytest.mark.parametrize("workers", [0, 2])
def test_no_random_stream_is_touched(folder: Path, workers: int) -> None:
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    take(loader_of(folder, workers=workers), 3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_a_batch_may_be_changed_without_harm(folder: Path) -> None:
    loader = loader_of(folder, flip=False)
    wanted = digests(take(loader_of(folder, flip=False), 9))
    found = []
    for batch in islice(loader, 9):
        found += digests([batch])
        batch.images.zero_()
        assert batch.labels is not None
        batch.labels.zero_()
    assert found == wanted


def test_memory_is_used_only_up_to_the_limit(folder: Path) -> None:
    needed = COUNT * 3 * 8 * 8
    for limit, cached in ((needed, True), (needed - 1, False)):
        own = write_folder(folder.parent / f"own{limit}", COUNT)
        loader = loader_of(own, workers=0, cache_bytes=limit)
        take(loader, 4)
        for file in own.rglob("*.png"):
            file.unlink()
        if cached:
            assert len(take(loader, 4)) == 4
        else:
            with pytest.raises(BadImage):
                take(loader, 4)


def test_workers_are_chosen_by_whether_the_set_fits(folder: Path) -> None:
    assert loader_of(folder).workers == 0
    assert loader_of(folder, cache_bytes=0).workers >= 1


# bad images


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_stops_the_run_and_is_named(tmp_path: Path, workers: int) -> None:
    write_folder(tmp_path, COUNT, bad=(5,))
    with pytest.raises(BadImage, match=r"cat/0005\.png"):
        take(loader_of(tmp_path, workers=workers), 4)


def test_a_skipped_image_is_replaced_by_the_next_of_the_order(tmp_path: Path) -> None:
    write_folder(tmp_path, COUNT, bad=(5, 8))
    source = FolderSource(tmp_path, size=8)
    bad = {index for index, file in enumerate(source.files) if file[-8:] in ("0005.png", "0008.png")}
    loader = loader_of(tmp_path, on_bad="skip", max_bad_share=0.1)
    found = [index for batch in take(loader, 7) for index in batch.ids.tolist()]
    row = [index for number in range(9) for index in Order(COUNT, SIZE, seed=4).batch(number).ids.tolist()]
    wanted = [next(index for index in row[place:] if index not in bad) for place in range(7 * SIZE)]
    assert found == wanted
    assert sorted(loader.bad) == [str(tmp_path / "cat/0005.png"), str(tmp_path / "dog/0008.png")]
    assert all("damaged" in reason for reason in loader.bad.values())


def test_a_skipped_image_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path, COUNT, bad=(5,))
    take(loader_of(tmp_path, on_bad="skip"), 12)
    assert len([record for record in caplog.records if "cat/0005.png" in record.getMessage()]) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_images_stop_the_run(half_bad: Path, workers: int) -> None:
    """11 of 21 are bad: a share of 0.53 lets them pass, one of 0.52 does not, and 5 % stops at the second."""
    take(loader_of(half_bad, workers=workers, on_bad="skip", max_bad_share=0.53), 9)
    for share, count in ((0.52, 11), (0.05, 2)):
        with pytest.raises(
            DataError, match=rf"^{count} of 21 images of folder:\S+ cannot be read, more than max_bad_share"
        ):
            take(loader_of(half_bad, workers=workers, on_bad="skip", max_bad_share=share), 9)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_set_without_one_good_image_is_an_error_not_a_loop(tmp_path: Path, workers: int) -> None:
    write_folder(tmp_path, COUNT, bad=tuple(range(COUNT)))
    with pytest.raises(DataError, match=r"no image of folder:\S+ can be read; the first: \S+0"):
        take(loader_of(tmp_path, workers=workers, on_bad="skip", max_bad_share=1.0), 1)


# workers


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named_within_ten_seconds(folder: Path, victim: int) -> None:
    """In a process of its own: the signal of a dying child may arrive anywhere in the main process."""
    program = (
        "import os, signal, sys, time, pathlib, multiprocessing\n"
        "from opportune.train.data import *\n"
        f"loader = Loader(FolderSource(pathlib.Path(sys.argv[1]), size=8), Order({COUNT}, {SIZE}), workers=2)\n"
        "batches = iter(loader); next(batches)\n"
        f"child = sorted(p.pid for p in multiprocessing.active_children())[{victim}]\n"
        "start = time.monotonic()\n"
        "try:\n"
        "    os.kill(child, signal.SIGKILL)\n"
        "    while time.monotonic() - start < 20: next(batches)\n"
        "except (WorkerDied, RuntimeError) as error:\n"
        "    told = 'Killed' in str(error) or 'exited' in str(error)\n"
        "    print(time.monotonic() - start < 10, str(child) in str(error), told)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True, text=True, timeout=30, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (run.stdout.strip(), run.returncode) == ("True True True", 0), run.stderr


class Deadly:
    """A source whose third example ends the process that reads it, as running out of memory would."""

    name, labelled, classes = "deadly", False, None

    def __len__(self) -> int:
        return 8

    def get(self, index: int):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return FolderSource(Path(os.environ["GOOD_FOLDER"]), size=8).get(index)


def test_an_image_that_kills_its_worker_is_a_clean_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOD_FOLDER", str(folder))
    start = time.monotonic()
    with pytest.raises(WorkerDied, match=r"worker of deadly was lost: .*pid.*workers=0"):
        take(Loader(Deadly(), Order(8, 2), workers=1), 4)
    assert time.monotonic() - start < 10


def test_workers_outlive_the_signals_that_end_a_training(folder: Path) -> None:
    """A launcher sends them to every process of a job; the main process alone acts on them."""
    program = (
        "import os, signal, sys, time, pathlib\n"
        "from itertools import islice\n"
        "from opportune.train.data import *\n"
        "seen = []\n"
        "kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)\n"
        "for kind in kinds: signal.signal(kind, lambda number, frame: seen.append(number))\n"
        f"batches = iter(Loader(FolderSource(pathlib.Path(sys.argv[1]), size=8), Order({COUNT}, {SIZE}), workers=2))\n"
        "next(batches)\n"
        "for kind in kinds: os.killpg(os.getpgid(0), kind); time.sleep(0.1)\n"
        "print(len(list(islice(batches, 20))), sorted(seen) == sorted(kinds))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True, text=True, timeout=30, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (run.stdout.strip(), run.returncode) == ("20 True", 0), run.stderr


def test_no_worker_stays_behind(folder: Path) -> None:
    import multiprocessing

    batches = iter(loader_of(folder, workers=2))
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []


def test_wrong_settings_are_refused(folder: Path) -> None:
    source = FolderSource(folder, size=8)
    with pytest.raises(ValueError, match=r"order\.count=20 differs from the 21"):
        Loader(source, Order(20, SIZE))
    with pytest.raises(ValueError, match="StreamOrder"):
        Loader(source, StreamOrder(SIZE))
    for wrong in (
        {"on_bad": "ignore"},
        {"max_bad_share": 2.0},
        {"workers": -1},
        {"world": 4},
        {"rank": 1},
        {"cache_bytes": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            loader_of(folder, **wrong)
