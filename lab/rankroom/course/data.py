"""Images to learn from: scikit-learn's digits unless RANKROOM_DATA names something larger.

RANKROOM_DATA is a folder with MNIST's or Fashion-MNIST's four idx files (`.gz` or not), or one in
ImageNet's layout (`train/CLASS/*.JPEG`, `val/CLASS/*.JPEG`). Nothing is ever downloaded.
"""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from rankroom.errors import UsageError

PIXELS = 32  # an ImageNet image is scaled to so many, squared: lessons are about ranks
MOST = 20_000  # images of a folder, spread evenly over its classes
_KINDS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_ENDS = (".jpeg", ".jpg", ".png")


class Part(NamedTuple):
    """`images` are float32 from 0 to 1, one row of pixels each; `labels` int64."""

    images: Any
    labels: Any


class Data(NamedTuple):
    """What to learn from, what to test with, and where it is from."""

    train: Part
    test: Part
    name: str
    classes: int


def load(folder: str | os.PathLike[str] | None = None) -> Data:
    """The data in `folder`, or in RANKROOM_DATA, or the digits. Raises UsageError."""
    chosen = folder or os.environ.get("RANKROOM_DATA")
    if not chosen:
        return digits()
    path = Path(chosen).expanduser()
    if (path / "train").is_dir() and (path / "val").is_dir():
        return image_folders(path)
    if any(path.glob("train-images*")):
        return idx_files(path)
    raise UsageError(NOTHING.format(path=path))


def digits() -> Data:
    """1,797 handwritten digits of 8 × 8 pixels, which come with scikit-learn; a fifth to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    order = _order(len(images))
    images, labels = images[order], labels[order].astype("int64")
    cut = len(images) // 5
    return Data(Part(images[cut:], labels[cut:]), Part(images[:cut], labels[:cut]), "digits", 10)


def idx_files(folder: Path) -> Data:
    """MNIST or Fashion-MNIST in the format they are published in."""
    parts = [
        Part(
            _flat(read_idx(_only(folder, f"{which}-images"))),
            read_idx(_only(folder, f"{which}-labels")).astype("int64"),
        )
        for which in ("train", "t10k")
    ]
    for part in parts:
        if len(part.images) != len(part.labels):
            raise UsageError(
                f"{folder}: {len(part.images)} images with {len(part.labels)} labels: one of the "
                "files is another one's"
            )
    classes = int(max(part.labels.max() for part in parts)) + 1
    return Data(parts[0], parts[1], folder.name, classes)


def read_idx(path: Path) -> Any:
    """The array in an idx file: two zero bytes, a kind, the dimensions, then the values."""
    import numpy

    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        kind, dimensions = _KINDS[raw[2]], raw[3]
        shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
        array = numpy.frombuffer(raw, kind, offset=4 + 4 * dimensions)
        return array.reshape(shape)
    except (OSError, EOFError, KeyError, IndexError, ValueError, struct.error) as error:
        raise UsageError(f"{path} is no whole idx file ({error}): fetch it again") from None


def image_folders(folder: Path) -> Data:
    """Folders of images by class, as ImageNet comes; in grey and small."""
    classes = sorted(each.name for each in (folder / "train").iterdir() if each.is_dir())
    if not classes:
        raise UsageError(f"{folder}/train has no folders: each class has one, with its images")
    parts = [_images(folder / which, classes) for which in ("train", "val")]
    return Data(parts[0], parts[1], folder.name, len(classes))


def _images(folder: Path, classes: list[str]) -> Part:
    import numpy
    from PIL import Image

    most = max(1, MOST // len(classes))
    images, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(p for p in (folder / name).glob("*") if p.suffix.lower() in _ENDS)
        for path in found[:most]:
            try:
                with Image.open(path) as image:
                    small = image.convert("L").resize((PIXELS, PIXELS))
            except OSError as error:
                raise UsageError(f"{path} is no image ({error})") from None
            images.append(numpy.asarray(small, "float32").reshape(-1) / 255)
            labels.append(label)
    if not images:
        raise UsageError(f"{folder} has no images of the classes in train")
    order = _order(len(images))
    return Part(numpy.stack(images)[order], numpy.array(labels, "int64")[order])


def _order(count: int) -> Any:
    """The same shuffle on every rank and on every day."""
    import numpy

    return numpy.random.default_rng(0).permutation(count)


def _flat(images: Any) -> Any:
    return images.reshape(len(images), -1).astype("float32") / 255


def _only(folder: Path, start: str) -> Path:
    for path in sorted(folder.glob(f"{start}*")):
        return path
    raise UsageError(f"{folder} has no file {start}-…: MNIST's four files belong together")


NOTHING = (
    "{path} (RANKROOM_DATA) holds neither MNIST's files (train-images-idx3-ubyte and three more) "
    "nor folders train and val with a folder for each class"
)
