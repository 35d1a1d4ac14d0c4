"""A latents folder is complete and unchanged, or it is refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.ranks import on_ranks

from opportune.train.data import DataError, LatentSource, Loader, Order, write_latents

MADE_FROM = {"images": "folder:x", "encoder": "tiny", "size": "32"}


def latents(count: int = 10, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, 4, 6, 5, generator=torch.Generator().manual_seed(1)).to(dtype)


def written(folder: Path, values: torch.Tensor, *, labelled: bool = True, **more) -> Path:
    pairs = ((value, index % 3 if labelled else None) for index, value in enumerate(values))
    return write_latents(folder, pairs, made_from=MADE_FROM, shard_examples=4, **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_written_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    values = latents(dtype=dtype)
    source = LatentSource(written(tmp_path / "l", values, classes=("a", "b", "c")), made_from=MADE_FROM, labels=True)
    assert len(source) == 10 and source.shape == (4, 6, 5) and source.classes == ("a", "b", "c")
    for index in range(10):
        found = source.get(index)
        assert torch.equal(found.image, values[index].float()) and found.label == index % 3
    assert source.get(9).name == "latents-00002.safetensors[1]"
    assert sorted(file.name for file in (tmp_path / "l").iterdir()) == [
        "latents-00000.safetensors", "latents-00001.safetensors", "latents-00002.safetensors",
        "manifest.json", "manifest.sha256",
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_latents_reach_the_batch_as_they_are(tmp_path: Path, workers: int) -> None:
    values = latents()
    source = LatentSource(written(tmp_path / "l", values), labels=True)
    batch = next(iter(Loader(source, Order(10, 4, seed=1), workers=workers)))
    assert torch.equal(batch.images, values[batch.ids])
    assert batch.labels is not None and torch.equal(batch.labels, batch.ids % 3)


def test_latents_are_not_mirrored(tmp_path: Path) -> None:
    source = LatentSource(written(tmp_path / "l", latents()))
    with pytest.raises(DataError, match="flip=True cannot mirror"):
        next(iter(Loader(source, Order(10, 4), flip=True)))


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    folder = written(tmp_path / "l", latents())
    generator = torch.Generator().manual_seed(0)
    trials = 0
    for file in sorted(folder.iterdir()):
        raw = file.read_bytes()
        # The last part of the checksum file is only the name of the file it is for.
        length = 64 if file.name == "manifest.sha256" else len(raw)
        places = torch.randint(length, (40,), generator=generator).tolist()
        for place in places:
            damaged = bytearray(raw)
            damaged[place] ^= 1 << place % 8
            for wrong in (bytes(damaged), raw[:place]):
                file.write_bytes(wrong)
                with pytest.raises(DataError, match=r"Encode the latents again|Encode them again"):
                    LatentSource(folder)
                trials += 1
        file.unlink()
        with pytest.raises(DataError):
            LatentSource(folder)
        file.write_bytes(raw)
    assert trials == 400 and len(LatentSource(folder)) == 10


def rewritten(folder: Path, tensors: dict[str, torch.Tensor], **manifest) -> None:
    """What a faulty but self-consistent writer leaves: checksums agree, contents do not."""
    raw = safetensors.torch.save(tensors)
    (folder / "latents-00000.safetensors").write_bytes(raw)
    data = json.loads((folder / "manifest.json").read_text()) | manifest
    for shard in data["shards"]:
        shard["sha256"] = hashlib.sha256(raw).hexdigest()
    text = json.dumps(data).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest())


def test_nan_wrong_shape_and_missing_labels_behind_good_checksums(tmp_path: Path) -> None:
    values, labels = latents(4), torch.zeros(4, dtype=torch.int64)
    folder = written(tmp_path / "l", values)
    broken = values.clone()
    broken[2, 0, 0, 0] = float("nan")
    cases = [
        ({"latents": broken, "labels": labels}, "NaN"),
        ({"latents": values[:, :, :-1].contiguous(), "labels": labels}, "shape"),
        ({"latents": values[:3], "labels": labels[:3]}, "shape"),
        ({"latents": values}, "cannot be read"),
        ({"labels": labels}, "cannot be read"),
    ]
    for tensors, reason in cases:
        rewritten(folder, tensors)
        with pytest.raises(DataError, match=reason):
            LatentSource(folder)
    rewritten(folder, {"latents": values, "labels": labels})
    assert len(LatentSource(folder)) == 4


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    folder = written(tmp_path / "l", latents(4))
    good = json.loads((folder / "manifest.json").read_text())["shards"][0]
    for name in (
        "../secret.safetensors",
        "/etc/passwd",
        "latents-00000.safetensors/../../x",
        "latents-00000.safetensors\n",
    ):
        rewritten(folder, {"latents": latents(4)}, shards=[good | {"file": name}])
        with pytest.raises(DataError, match="damaged"):
            LatentSource(folder)


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"format": "x"}, {"count": 5}, {"shards": []}, {"shape": [4]}, {"dtype": "int8"}]
)
def test_a_manifest_of_another_kind_is_refused(tmp_path: Path, change: dict) -> None:
    folder = written(tmp_path / "l", latents(4))
    rewritten(folder, {"latents": latents(4), "labels": torch.zeros(4, dtype=torch.int64)}, **change)
    with pytest.raises(DataError, match="damaged"):
        LatentSource(folder)


def test_stale_latents_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "l", latents())
    with pytest.raises(DataError, match=r"stale: .* size='32', this run needs size='64'"):
        LatentSource(folder, made_from={"encoder": "tiny", "size": "64"})


def test_labels_must_have_been_written(tmp_path: Path) -> None:
    folder = written(tmp_path / "l", latents(), labelled=False)
    assert LatentSource(folder).get(0).label is None
    with pytest.raises(DataError, match="no labels"):
        LatentSource(folder, labels=True)


def test_what_must_not_be_written(tmp_path: Path) -> None:
    good = latents(1)[0]
    cases = [
        ([(good, None), (good * float("inf"), None)], "latent 1 holds NaN or infinity"),
        ([(good, None), (good[:2], None)], "latent 1 is"),
        ([(good, 1), (good, None)], "latent 1 is"),
        ([(good.long(), 1)], "int64"),
        ([], "no latents"),
    ]
    for pairs, reason in cases:
        with pytest.raises(DataError, match=reason):
            write_latents(tmp_path / "l", pairs, made_from={})
        assert not (tmp_path / "l").exists()


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = written(tmp_path / "l", latents(4))
    with pytest.raises(DataError, match="exists already"):
        written(folder, latents(8))
    assert len(LatentSource(written(folder, latents(8), overwrite=True))) == 8


def test_a_killed_writer_leaves_nothing_that_passes_for_latents(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, torch, pathlib\n"
        "from opportune.train.data import write_latents\n"
        "def examples():\n"
        "    for i in range(10):\n"
        "        if i == 7: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield torch.zeros(4, 2, 2), None\n"
        "write_latents(pathlib.Path(sys.argv[1]), examples(), made_from={}, shard_examples=2)\n"
    )
    folder = tmp_path / "l"
    run = subprocess.run([sys.executable, "-c", program, str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match=r"l\.partial was left by an encoding that did not finish"):
        LatentSource(folder)
    assert len(LatentSource(written(folder, latents()))) == 10
    assert not (tmp_path / "l.partial").exists()


def refused(folder: str) -> bool:
    try:
        LatentSource(Path(folder))
    except DataError:
        return True
    return False


def test_ranks_share_the_shards_they_check(tmp_path: Path) -> None:
    folder = written(tmp_path / "l", latents())
    shard = bytearray((folder / "latents-00001.safetensors").read_bytes())
    shard[-1] ^= 1
    (folder / "latents-00001.safetensors").write_bytes(shard)
    assert on_ranks(2, refused, str(folder)) == [False, True]  # and all are told: see ranks.on_all
    assert refused(str(folder))
