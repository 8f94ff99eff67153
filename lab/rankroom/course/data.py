"""What lessons train on: images and text that are on the machine already. Nothing is downloaded.

Images are scikit-learn's digits unless RANKROOM_DATA names a folder: with MNIST's or
Fashion-MNIST's four idx files (`.gz` or not), with CIFAR-10's or CIFAR-100's binary files, or in
ImageNet's layout (`train/CLASS/*.JPEG`, `val/CLASS/*.JPEG`). Text is Python's own language
reference unless RANKROOM_TEXT names a file.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from rankroom.errors import UsageError

# Images of folders are scaled down to so many squared: lessons are about ranks.
IMAGE_SIDE_PIXELS = 32
# Images of a part; those from folders are spread evenly over the classes.
MAX_IMAGES_PER_PART = 20_000
MAX_TEXT_CHARACTERS = 1_000_000  # read at most from the file that RANKROOM_TEXT names
MIN_TEXT_CHARACTERS = 30_000  # characters, so that the last tenth is enough to test with
IDX_TYPE_CODES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# Of a file that is damaged, cut off, or no idx file at all.
READ_ERRORS = (OSError, EOFError, KeyError, IndexError, ValueError, struct.error, zlib.error)
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
_CIFAR_PIXELS = 3 * 32 * 32


class Part(NamedTuple):
    """`images` are float32 from 0 to 1, `labels` int64."""

    images: Any
    labels: Any


class Data(NamedTuple):
    """Images to train on and to test with, the name of their source, and the number of classes."""

    train: Part
    test: Part
    name: str
    classes: int


class Text(NamedTuple):
    """`train` and `test` are int64: the index of each character in `characters`."""

    train: Any
    test: Any
    name: str
    characters: str


def load_images(folder: str | os.PathLike[str] | None = None, channels_last: bool = False) -> Data:
    """Return the images in `folder`, else in RANKROOM_DATA, else the digits.

    Their shape is (count, channels, rows, columns), as PyTorch's layers take them; with
    `channels_last` (count, rows, columns, channels), as TensorFlow's do. Raises UsageError.
    """
    chosen = folder or os.environ.get("RANKROOM_DATA")
    data = _in_folder(Path(chosen).expanduser()) if chosen else _digits()
    return _each(data, lambda images: images.transpose(0, 2, 3, 1)) if channels_last else data


def load(folder: str | os.PathLike[str] | None = None) -> Data:
    """Return what `load_images` does, but each image as a row of pixels, for networks without
    convolutions."""
    return _each(load_images(folder), lambda images: images.reshape(len(images), -1))


def digits() -> Data:
    """Return the digits, whatever RANKROOM_DATA says, each as a row of 64 pixels."""
    return _each(_digits(), lambda images: images.reshape(len(images), -1))


def load_text(path: str | os.PathLike[str] | None = None) -> Text:
    """Return the text in `path`, else in RANKROOM_TEXT, else the part of Python's language
    reference that `help("topics")` shows; its last tenth is for testing. Characters beyond ASCII
    are left out. Raises UsageError."""
    import numpy

    chosen = path or os.environ.get("RANKROOM_TEXT")
    name, text = _file(Path(chosen).expanduser()) if chosen else ("Python", _reference())
    codes = numpy.frombuffer(text.encode("ascii", "ignore"), "u1")
    if len(codes) < MIN_TEXT_CHARACTERS:
        raise UsageError(SHORT.format(name=name, count=len(codes), fewest=MIN_TEXT_CHARACTERS))
    found, places = numpy.unique(codes, return_inverse=True)
    cut = len(places) * 9 // 10
    places = places.astype("int64")
    return Text(places[:cut], places[cut:], name, bytes(found).decode("ascii"))


def _reference() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UsageError(NO_REFERENCE) from None
    return "\n".join(topics[name] for name in sorted(topics))


def _file(path: Path) -> tuple[str, str]:
    try:
        with path.open(encoding="utf-8", errors="ignore") as file:
            return path.name, file.read(MAX_TEXT_CHARACTERS)
    except OSError as error:
        raise UsageError(f"{path} (RANKROOM_TEXT) cannot be read ({error.strerror})") from None


def _each(data: Data, change: Any) -> Data:
    """Return the data with `change` applied to the images of both parts."""
    import numpy

    train, test = (
        Part(numpy.ascontiguousarray(change(images)), labels) for images, labels in data[:2]
    )
    return data._replace(train=train, test=test)


def _in_folder(path: Path) -> Data:
    if (path / "train").is_dir() and (path / "val").is_dir():
        return image_folders(path)
    if any(path.glob("train-images*")):
        return idx_files(path)
    if (path / "test_batch.bin").is_file() or (path / "test.bin").is_file():
        return cifar_files(path)
    raise UsageError(NOTHING.format(path=path))


def _digits() -> Data:
    """Return scikit-learn's 1,797 handwritten digits of 8 × 8 pixels; a fifth is for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = _order(len(images))
    images = (images.astype("float32") / 16).reshape(-1, 1, 8, 8)[order]
    labels = labels[order].astype("int64")
    cut = len(images) // 5
    return Data(Part(images[cut:], labels[cut:]), Part(images[:cut], labels[:cut]), "digits", 10)


def idx_files(folder: Path) -> Data:
    """Return MNIST or Fashion-MNIST, read from the idx files in which they are published."""
    parts = [
        Part(
            read_idx(_only(folder, f"{which}-images"))[:, None],
            read_idx(_only(folder, f"{which}-labels")).astype("int64"),
        )
        for which in ("train", "t10k")
    ]
    for part in parts:
        if len(part.images) != len(part.labels):
            raise UsageError(
                f"{folder}: {len(part.images)} images but {len(part.labels)} labels: these files "
                "do not belong together"
            )
    return _of_bytes(parts, folder.name)


def read_idx(path: Path) -> Any:
    """Return the array in an idx file: two zero bytes, a type code, the number of dimensions, the
    dimensions, then the values. Raises UsageError."""
    import numpy

    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        kind, dimensions = IDX_TYPE_CODES[raw[2]], raw[3]
        shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
        array = numpy.frombuffer(raw, kind, offset=4 + 4 * dimensions)
        return array.reshape(shape)
    except READ_ERRORS as error:
        raise UsageError(
            f"{path} is not a complete idx file ({error}): download it again"
        ) from None


def cifar_files(folder: Path) -> Data:
    """Return CIFAR-10 or CIFAR-100, read from the binary files for C programs: each image is its
    label (in CIFAR-100 after a coarse one), then 1,024 bytes each of red, green and blue."""
    names = {10: ("data_batch_*.bin", "test_batch.bin"), 100: ("train.bin", "test.bin")}
    classes = 10 if (folder / "test_batch.bin").is_file() else 100
    before = 1 if classes == 10 else 2
    parts = [_cifar(folder, name, before) for name in names[classes]]
    return _of_bytes(parts, folder.name)


def _cifar(folder: Path, names: str, before: int) -> Part:
    import numpy

    rows = []
    for path in sorted(folder.glob(names)):
        raw = numpy.fromfile(path, "u1")
        if not len(raw) or len(raw) % (before + _CIFAR_PIXELS):
            raise UsageError(f"{path} is not a complete CIFAR file: download it again")
        rows.append(raw.reshape(-1, before + _CIFAR_PIXELS))
    if not rows:
        raise UsageError(f"{folder} has no files {names}: CIFAR's files belong together")
    table = numpy.concatenate(rows)
    return Part(table[:, before:].reshape(-1, 3, 32, 32), table[:, before - 1].astype("int64"))


def _of_bytes(parts: list[Part], name: str) -> Data:
    """Return the data of images whose pixels are 0 to 255, scaled to 0 to 1."""
    train, test = (
        Part(
            part.images[:MAX_IMAGES_PER_PART].astype("float32") / 255,
            part.labels[:MAX_IMAGES_PER_PART],
        )
        for part in parts
    )
    classes = int(max(part.labels.max() for part in parts)) + 1
    return Data(train, test, name, classes)


def image_folders(folder: Path) -> Data:
    """Return images from a folder per class, in ImageNet's layout; in color and scaled down."""
    classes = sorted(each.name for each in (folder / "train").iterdir() if each.is_dir())
    if not classes:
        raise UsageError(f"{folder}/train has no folders: each class has one, with its images")
    parts = [_images(folder / which, classes) for which in ("train", "val")]
    return Data(parts[0], parts[1], folder.name, len(classes))


def _images(folder: Path, classes: list[str]) -> Part:
    import numpy
    from PIL import Image

    most = max(1, MAX_IMAGES_PER_PART // len(classes))
    images, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(p for p in (folder / name).glob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        for path in found[:most]:
            try:
                with Image.open(path) as image:
                    small = image.convert("RGB").resize((IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS))
            except OSError as error:
                raise UsageError(f"{path} is not an image ({error})") from None
            images.append(numpy.asarray(small, "float32").transpose(2, 0, 1) / 255)
            labels.append(label)
    if not images:
        raise UsageError(f"{folder} has no images of the classes in train")
    order = _order(len(images))
    return Part(numpy.stack(images)[order], numpy.array(labels, "int64")[order])


def _order(count: int) -> Any:
    """Return a permutation that is the same on every rank and on every day."""
    import numpy

    return numpy.random.default_rng(0).permutation(count)


def _only(folder: Path, start: str) -> Path:
    for path in sorted(folder.glob(f"{start}*")):
        return path
    raise UsageError(f"{folder} has no file {start}-…: MNIST's four files belong together")


NOTHING = (
    "{path} (from RANKROOM_DATA, unless you gave it) holds neither MNIST's files "
    "(train-images-idx3-ubyte and three more), nor CIFAR's (data_batch_1.bin to test_batch.bin), "
    "nor folders train and val with a folder for each class"
)
NO_REFERENCE = (
    "this Python has no language reference (pydoc_data): set RANKROOM_TEXT to a text file"
)
SHORT = (
    "{name} (RANKROOM_TEXT) has {count:,} ASCII characters, and lessons need {fewest:,}: name a "
    "longer text"
)
