"""Fashion-MNIST at 16x16: a balanced subset for demos and tests that need real images and no download.

The images are by Zalando SE under the MIT licence (LICENSE-fashion-mnist.txt beside this file);
scripts/make_embedded.py makes the file. Source: Xiao, Rasul, Vollgraf, 2017, arXiv:1708.07747.
"""

import hashlib
import json
import zlib
from importlib.resources import files
from typing import Any, Literal

import torch
from torch import Tensor

DATA_FILE = files(__package__) / "fashion16.bin"
SHA256 = "23996ce804dfb8be3f2719947036c0b990eff1803153502fdc87b51fc68b950c"


def load_fashion16(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Images `[N, 1, 16, 16]` uint8 in [0, 255] and labels `[N]` int64 in [0, 9].

    N is 10,000 for `"train"` and 2,000 for `"test"`, taken from the original training and test sets.
    Classes come in turn, 0 to 9, so the first 10·k images hold k of each class.
    """
    header, raw = _read_checked()
    pixels, start = header["size"] ** 2, 0
    for part in header["splits"]:
        count = part["count"]
        middle, end = start + count * pixels, start + count * (pixels + 1)
        if part["name"] == split:
            # bytearray: tensors over `bytes` would share read-only memory with every later call
            images = torch.frombuffer(bytearray(raw[start:middle]), dtype=torch.uint8)
            labels = torch.frombuffer(bytearray(raw[middle:end]), dtype=torch.uint8)
            return images.view(count, 1, header["size"], header["size"]), labels.long()
        start = end
    known = ", ".join(repr(part["name"]) for part in header["splits"])
    raise ValueError(f"split={split!r} is unknown: choose one of {known}.")


def _read_checked() -> tuple[dict[str, Any], bytes]:
    blob = DATA_FILE.read_bytes()
    found = hashlib.sha256(blob).hexdigest()
    if found != SHA256:
        raise ValueError(
            f"{DATA_FILE} is damaged: its SHA-256 is {found[:16]}…, expected {SHA256[:16]}… "
            f"({len(blob):,} bytes read). Reinstall it: pip install --force-reinstall --no-deps opportune"
        )
    line, _, packed = blob.partition(b"\n")
    return json.loads(line), zlib.decompress(packed)
