"""Damage is always noticed, and a hostile file never runs anything."""

import json
import os
import pickle
import random
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.scenarios import digest, reseal, seal

from opportune.train.checkpoint import Checkpoints
from opportune.train.errors import CheckpointError
from opportune.train.manifest import Manifest
from opportune.train.saved import open_checkpoint


def state(seed: int) -> dict[str, Any]:
    stream = torch.Generator().manual_seed(seed)
    model = {f"layer.{i}.weight": torch.randn(32, 32, generator=stream) for i in range(4)}
    moments = {i: {"step": torch.tensor(7.0), "exp_avg": weight / 3} for i, weight in enumerate(model.values())}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1, 2, 3]}]
    return {
        "model": model,
        "ema": {name: weight * 0.5 for name, weight in model.items()},
        "optimizer": {"state": moments, "param_groups": groups},
        # a tensor in every part: two files with the same bytes could be exchanged without any damage
        "sampler": {"queue": [1.5, float("inf"), 3], "seen": 2**60, "mean": torch.randn(3, generator=stream)},
    }


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real checkpoints of about 50 KB each; tests change copies."""
    folder = tmp_path_factory.mktemp("originals")
    for step in (100, 200):
        Checkpoints(folder).save(step, state(step))
    return folder


@pytest.fixture
def folder(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals, tmp_path / "run"))


# --- accidents -------------------------------------------------------------------------------------------------


def a_file(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(folder.iterdir()))


def truncate(folder: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    os.truncate(path, chance.randrange(path.stat().st_size))


def append(folder: Path, chance: random.Random) -> None:
    with a_file(folder, chance).open("ab") as file:
        file.write(chance.randbytes(chance.randint(1, 600)))


def flip_a_bit(folder: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def zero_a_block(folder: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data))
    size = min(chance.choice([1, 16, 512, 4096]), len(data) - start)
    if not any(data[start : start + size]):
        data[start] = 1  # zeroing zeros is no damage
    else:
        data[start : start + size] = bytes(size)
    path.write_bytes(data)


def swap_two_files(folder: Path, chance: random.Random) -> None:
    one, other = chance.sample(sorted(folder.iterdir()), 2)
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)


def bring_a_file_from_the_other(folder: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    shutil.copy(folder.parent / "step-000100" / path.name, path)


def remove_a_file(folder: Path, chance: random.Random) -> None:
    a_file(folder, chance).unlink()


def add_a_file(folder: Path, chance: random.Random) -> None:
    name = chance.choice(["extra.safetensors", "model.safetensors.bak", "notes.txt", ".hidden", "MODEL.safetensors"])
    (folder / name).write_bytes(chance.randbytes(chance.randint(0, 99)))


def rename_a_file(folder: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    path.rename(folder / chance.choice(["renamed.safetensors", path.name.upper(), path.name + "~"]))


def rename_the_folder(folder: Path, chance: random.Random) -> None:
    shutil.rmtree(folder.parent / "step-000100")
    shutil.copytree(folder, folder.parent / "step-000100")
    shutil.rmtree(folder)
    (folder.parent / "step-000100").rename(folder.parent / "step-000300")


ACCIDENTS: list[Callable[[Path, random.Random], None]] = [
    truncate, append, flip_a_bit, flip_a_bit, zero_a_block, swap_two_files, bring_a_file_from_the_other,
    remove_a_file, add_a_file, rename_a_file,
]  # fmt: skip


def assert_all_noticed(originals: Path, tmp_path: Path, seeds: range) -> None:
    wanted = digest(state(100))
    for seed in seeds:
        chance = random.Random(seed)
        run = Path(shutil.copytree(originals, tmp_path / "run"))
        accident = chance.choice(ACCIDENTS)
        accident(run / "step-000200", chance)
        with pytest.raises(CheckpointError, match="step-000200"):
            open_checkpoint(run / "step-000200")
            pytest.fail(f"{accident.__name__} with seed {seed} was not noticed")
        fallback = Checkpoints(run).latest()
        assert fallback is not None and fallback.step == 100
        if seed % 50 == 0:
            assert digest(fallback.parts()) == wanted
        shutil.rmtree(run)


def test_every_random_accident_is_noticed(originals: Path, tmp_path: Path) -> None:
    assert_all_noticed(originals, tmp_path, range(2000))


@pytest.mark.nightly
def test_every_one_of_many_random_accidents_is_noticed(originals: Path, tmp_path: Path) -> None:
    assert_all_noticed(originals, tmp_path, range(10_000, 20_000))


def test_every_single_bit_of_the_manifest_counts(folder: Path) -> None:
    path = folder / "step-000200" / "manifest.json"
    intact = path.read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        data = bytearray(intact)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            open_checkpoint(path.parent)
    path.write_bytes(intact)
    open_checkpoint(path.parent)


def test_a_checkpoint_under_another_steps_name_is_noticed(folder: Path) -> None:
    rename_the_folder(folder / "step-000200", random.Random(0))
    with pytest.raises(CheckpointError, match="step-000300"):
        open_checkpoint(folder / "step-000300")


def test_damage_between_opening_and_reading_is_noticed(folder: Path) -> None:
    checkpoint = open_checkpoint(folder / "step-000200")
    path = folder / "step-000200" / "ema.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    checkpoint.part("model")
    with pytest.raises(CheckpointError, match=r"ema\.safetensors has SHA-256"):
        checkpoint.part("ema")


def test_a_removed_part_with_a_manifest_to_match_is_named_when_asked_for(folder: Path) -> None:
    step = folder / "step-000200"
    manifest = json.loads((step / "manifest.json").read_text())
    del manifest["parts"]["sampler"]
    (step / "sampler.safetensors").unlink()
    seal(step, json.dumps(manifest).encode())
    with pytest.raises(CheckpointError, match="no part 'sampler'"):
        open_checkpoint(step).part("sampler")


# --- attacks ---------------------------------------------------------------------------------------------------


class Gadget:
    def __init__(self, canary: Path, how: int) -> None:
        self.canary, self.how = str(canary), how

    def __reduce__(self) -> tuple[Any, ...]:
        return [
            (os.system, (f"touch '{self.canary}'",)),
            (os.mkdir, (self.canary,)),
            (eval, (f"open({self.canary!r}, 'w')",)),
            (exec, (f"open({self.canary!r}, 'w')",)),
            (Path.touch, (Path(self.canary),)),
        ][self.how % 5]


def payloads(canary: Path) -> list[bytes]:
    """Every kind of file in which loaders of model weights have been found to run code."""
    out = [pickle.dumps(Gadget(canary, how), protocol) for how in range(5) for protocol in range(6)]
    for how in range(5):
        for new in (True, False):
            buffer = BytesIO()
            torch.save({"weight": Gadget(canary, how)}, buffer, _use_new_zipfile_serialization=new)
            out.append(buffer.getvalue())
        buffer = BytesIO()
        np.save(buffer, np.array([Gadget(canary, how)], dtype=object), allow_pickle=True)
        out.append(buffer.getvalue())
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Gadget(canary, how)))
            archive.writestr("inner.zip", out[-1])
        out.append(buffer.getvalue())
    return out


def test_the_gadgets_do_work_when_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for payload in payloads(canary)[:30]:
        pickle.loads(payload)
        assert canary.exists()
        canary.rmdir() if canary.is_dir() else canary.unlink()


def read_everything(folder: Path) -> None:
    open_checkpoint(folder).parts()


def test_a_pickle_in_any_file_is_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    canary, step = tmp_path / "canary", folder / "step-000200"
    for path in sorted(step.iterdir()):
        intact = path.read_bytes()
        for payload in payloads(canary):
            path.write_bytes(payload)
            with pytest.raises(CheckpointError):
                read_everything(step)
            if path.suffix == ".safetensors":  # and with checksums that fit
                manifest = (step / "manifest.json").read_bytes(), (step / "manifest.sha256").read_bytes()
                reseal(step)
                with pytest.raises(CheckpointError, match="not a safetensors file"):
                    read_everything(step)
                (step / "manifest.json").write_bytes(manifest[0])
                (step / "manifest.sha256").write_bytes(manifest[1])
            elif path.name == "manifest.json":
                checksum = (step / "manifest.sha256").read_bytes()
                seal(step, payload)
                with pytest.raises(CheckpointError):
                    read_everything(step)
                (step / "manifest.sha256").write_bytes(checksum)
        path.write_bytes(intact)
    read_everything(step)
    assert not canary.exists()


def with_header(header: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header + body


def tensor_header(**changes: Any) -> bytes:
    return json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        with_header(b"{}", size=2**62),
        with_header(b"{}", size=2**64 - 1),
        with_header(b"{" * 100_000),
        with_header(b"[" * 100_000),
        with_header(b'{"w":' * 50_000 + b"1" + b"}" * 50_000),
        with_header(tensor_header(shape=[2**62])),
        with_header(tensor_header(shape=[2**32, 2**32])),
        with_header(tensor_header(shape=[-1]), b"\0" * 4),
        with_header(tensor_header(data_offsets=[0, 2**62])),
        with_header(tensor_header(data_offsets=[4, 0]), b"\0" * 4),
        with_header(tensor_header(data_offsets=[0, 4]), b""),
        with_header(tensor_header(), b"\0" * 8),
        with_header(tensor_header(dtype="pickle"), b"\0" * 4),
        with_header(tensor_header(dtype="F8_E8M0", data_offsets=[0, 1]), b"\0"),
        with_header(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":3}', b"\0" * 4),
        with_header(b"\xff\xfe not utf-8"),
    ],
)
def test_hostile_safetensors_are_refused_quickly(folder: Path, data: bytes) -> None:
    step = folder / "step-000200"
    (step / "model.safetensors").write_bytes(data)
    reseal(step)
    began = time.process_time()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_checkpoint(step).part("model")
    assert time.process_time() - began < 5  # a hang is minutes


def change(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def apply(manifest: dict[str, Any]) -> Any:
        *way, last = path.split(".")
        place = manifest
        for key in way:
            place = place[key]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
        return manifest

    return apply


@pytest.mark.parametrize(
    "changed",
    [
        change("format", "other"),
        change("version", "1"),
        change("version", True),
        change("version", KeyError),
        change("extra", 1),
        change("step", -1),
        change("step", 200.0),
        change("step", True),
        change("step", 2**70),
        change("step", KeyError),
        change("made_with", []),
        change("parts", {}),
        change("parts", []),
        change("parts", None),
        change("parts.model", None),
        change("parts.model.bytes", -1),
        change("parts.model.bytes", 1e3),
        change("parts.model.bytes", True),
        change("parts.model.bytes", 2**62),
        change("parts.model.sha256", "0" * 63),
        change("parts.model.sha256", "G" * 64),
        change("parts.model.sha256", None),
        change("parts.model.state", KeyError),
        change("parts.model.file", "../../etc/passwd"),
        lambda m: {**m, "parts": {**m["parts"], "../model": m["parts"]["model"]}},
        lambda m: {**m, "parts": {**m["parts"], "/etc/passwd": m["parts"]["model"]}},
        lambda m: {**m, "parts": {**m["parts"], "Model": m["parts"]["model"]}},
        lambda m: {**m, "parts": {**m["parts"], "model\0": m["parts"]["model"]}},
        lambda m: [m],
        lambda m: None,
        lambda m: "opportune-checkpoint",
    ],
)
def test_a_manifest_we_would_not_write_is_refused(folder: Path, changed: Callable[[Any], Any]) -> None:
    step = folder / "step-000200"
    manifest = changed(json.loads((step / "manifest.json").read_text()))
    seal(step, json.dumps(manifest).encode())
    with pytest.raises(CheckpointError, match=r"manifest|part name|model\.safetensors"):
        read_everything(step)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"{",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"format":"opportune-checkpoint","version":1,"version":1}',
        b'{"format":"opportune-checkpoint","version":NaN}',
        b'{"format":"opportune-checkpoint","version":Infinity}',
        b'{"format":"opportune-checkpoint","version":1e999}',
        b'{"format":"opportune-checkpoint","version":' + b"9" * 100_000 + b"}",
        b'\xef\xbb\xbf{"format":"opportune-checkpoint"}',
        '{"format":"opportune-checkpoint","version":"１"}'.encode(),
        b"{}" + b" " * 2**24,
    ],
    ids=range(13),
)
def test_json_we_would_not_write_is_refused_quickly(folder: Path, raw: bytes) -> None:
    step = folder / "step-000200"
    seal(step, raw)
    began = time.process_time()
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_everything(step)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"seen",1152921504606846976', b'"seen",NaN'),
        (b'"seen",1152921504606846976', b'"seen",-Infinity'),
        (b'"seen",1152921504606846976', b'"seen",1e999'),
        (b'"step":200', b'"step":200,"step":200'),
        (b'"model":{', b'"model":{"sha256":"","sha256":"",'),
    ],
)
def test_one_thing_that_is_not_json_in_a_good_manifest(folder: Path, old: bytes, new: bytes) -> None:
    step = folder / "step-000200"
    manifest = (step / "manifest.json").read_bytes()
    assert manifest.count(old) == 1
    seal(step, manifest.replace(old, new))
    with pytest.raises(CheckpointError, match=r"NaN|Infinity|out of range|duplicate"):
        open_checkpoint(step)


def test_no_manifest_names_a_file_outside() -> None:
    good = {"bytes": 0, "sha256": "0" * 64, "state": None}
    for name in ("../model", "/etc/passwd", "a/b", "..", ""):
        whole = {"format": "opportune-checkpoint", "version": 1, "step": 1, "made_with": {}, "parts": {name: good}}
        with pytest.raises(CheckpointError, match="part name"):
            Manifest.from_bytes(json.dumps(whole).encode())


def test_a_deep_structure_is_refused(folder: Path) -> None:
    step = folder / "step-000200"
    manifest = json.loads((step / "manifest.json").read_text())
    manifest["parts"]["sampler"]["state"] = json.loads("[" * 500 + "]" * 500)
    seal(step, json.dumps(manifest).encode())
    with pytest.raises(CheckpointError, match="nested deeper"):
        read_everything(step)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "manifest.sha256"])
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder", "device"])
def test_only_regular_files_are_opened(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    path = folder / "step-000200" / name
    intact = tmp_path / "elsewhere"
    shutil.move(path, intact)
    if kind == "link":
        path.symlink_to(intact)  # the very same bytes, and still refused
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)  # opening this for reading would wait for ever
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=rf"{name} (is a symbolic link|is not a regular file)"):
        open_checkpoint(path.parent)


@pytest.mark.nightly
def test_random_garbage_never_does_anything_but_be_refused(folder: Path) -> None:
    """Mutations of the safetensors header and the manifest with checksums that fit: refused, or a plain state."""
    step = folder / "step-000200"
    model, manifest = (step / "model.safetensors").read_bytes(), (step / "manifest.json").read_bytes()
    refused = 0
    for seed in range(20_000):
        chance = random.Random(seed)
        data = bytearray(model if seed % 2 else manifest)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(min(len(data), 600) if seed % 2 else len(data))
            data[at : at + chance.choice([0, 1, 1, 3])] = chance.randbytes(chance.choice([0, 1, 1, 8]))
        if seed % 2:
            (step / "model.safetensors").write_bytes(data)
            reseal(step)
        else:
            (step / "model.safetensors").write_bytes(model)
            seal(step, bytes(data))
        try:
            read_everything(step)
        except CheckpointError:
            refused += 1
        (step / "manifest.json").write_bytes(manifest)
    assert refused > 15_000
