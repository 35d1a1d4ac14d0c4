"""Write src/opportune/embedded/fashion16.bin from Debian's package `dataset-fashion-mnist`.

    sudo apt install dataset-fashion-mnist
    python scripts/make_embedded.py            # write the file, print its SHA-256
    python scripts/make_embedded.py --check    # compare with what is in the tree, write nothing

The same package, Pillow and zlib give the same bytes. After a change, paste the printed hash into
src/opportune/embedded/fashion16.py.
"""

import argparse
import gzip
import hashlib
import json
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).resolve().parent.parent / "src/opportune/embedded/fashion16.bin"
CLASSES = 10
SIZE = 16
PER_CLASS = {"train": 1000, "test": 200}
PREFIX = {"train": "train", "test": "t10k"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild the embedded 16x16 Fashion-MNIST subset.")
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder with the four *.gz files")
    parser.add_argument("--check", action="store_true", help="compare with the file in the tree")
    options = parser.parse_args()
    if not options.source.is_dir():
        sys.exit(f"No folder {options.source}. Install it with: sudo apt install dataset-fashion-mnist")
    blob = build(options.source)
    if options.check and blob != TARGET.read_bytes():
        sys.exit(f"{TARGET} differs from what this script makes (SHA-256 {hashlib.sha256(blob).hexdigest()}).")
    if not options.check:
        TARGET.write_bytes(blob)
    print(f"{TARGET.name}: {len(blob):,} bytes, SHA-256 {hashlib.sha256(blob).hexdigest()}")


def build(source: Path) -> bytes:
    """One line of JSON, then zlib over, for each split: images [N, 16, 16] uint8, labels [N] uint8."""
    splits, raw = [], b""
    for split, per_class in PER_CLASS.items():
        images, labels = read_split(source, PREFIX[split])
        rows = balanced_rows(labels, per_class)
        raw += b"".join(shrink(images[row]) for row in rows) + labels[rows].tobytes()
        splits.append({"name": split, "count": len(rows)})
    header = {"name": "fashion16", "size": SIZE, "classes": CLASSES, "splits": splits}
    return json.dumps(header).encode() + b"\n" + zlib.compress(raw, 9)


def read_split(source: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    images = gzip.decompress((source / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((source / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16)
    return pixels.reshape(-1, 28, 28), np.frombuffer(labels, np.uint8, offset=8)


def balanced_rows(labels: np.ndarray, per_class: int) -> np.ndarray:
    """The first `per_class` images of each class, class by class in turn: every ten in a row are balanced."""
    return np.stack([np.flatnonzero(labels == label)[:per_class] for label in range(CLASSES)], axis=1).ravel()


def shrink(image: np.ndarray) -> bytes:
    # BOX averages the area each new pixel covers: no aliasing, and no ringing that would clip at 0 and 255.
    return Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BOX).tobytes()


if __name__ == "__main__":
    main()
