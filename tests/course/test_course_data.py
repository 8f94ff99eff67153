"""The lessons' data: the built-in digits and text, and tiny files in the supported formats."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy
import pytest
from PIL import Image

from rankroom.course import data
from rankroom.course.data import IMAGE_SIDE_PIXELS, digits, load, load_images, load_text, read_idx
from rankroom.course.slow_images import SECONDS, SlowImages
from rankroom.errors import UsageError


def idx(array: numpy.ndarray, kind: int = 0x08) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def mnist(folder: Path, packed: bool, counts: tuple[int, int] = (30, 10)) -> Path:
    """Write MNIST's four files with a few random images; return the folder."""
    folder.mkdir(parents=True)
    chance = numpy.random.default_rng(0)
    for which, count in zip(("train", "t10k"), counts, strict=True):
        images = chance.integers(0, 256, (count, 28, 28), dtype="u1")
        labels = (numpy.arange(count) % 10).astype("u1")
        for what, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            data = idx(array)
            name = f"{which}-{what}" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(data) if packed else data)
    return folder


def test_the_built_in_digits_are_deterministic():
    one, other = digits(), digits()
    assert one.train.images.shape == (1438, 64) and one.test.images.shape == (359, 64)
    assert (one.train.images == other.train.images).all()
    assert one.train.images.max() == 1.0 and one.classes == 10
    assert set(one.test.labels) == set(range(10))


def test_images_are_channels_first_or_channels_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANKROOM_DATA", raising=False)
    first, last = load_images().train, load_images(channels_last=True).train
    assert first.images.shape == (1438, 1, 8, 8) and last.images.shape == (1438, 8, 8, 1)
    assert (first.images.reshape(-1, 64) == digits().train.images).all()
    assert (first.images[:, 0] == last.images[..., 0]).all() and (first.labels == last.labels).all()


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_files_are_loaded(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch):
    folder = mnist(tmp_path / "fashion", packed)
    monkeypatch.setenv("RANKROOM_DATA", str(folder))
    found = load()
    assert found.name == "fashion" and found.classes == 10
    assert found.train.images.shape == (30, 784) and found.train.images.dtype == "float32"
    assert 0.9 < found.train.images.max() <= 1 and list(found.test.labels) == list(range(10))
    assert load_images().train.images.shape == (30, 1, 28, 28)
    monkeypatch.setattr(data, "MAX_IMAGES_PER_PART", 20)
    assert len(load().train.images) == len(load().train.labels) == 20


def test_a_truncated_file_is_named(tmp_path: Path):
    folder = mnist(tmp_path / "mnist", False)
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(UsageError, match="train-images-idx3-ubyte is not a complete idx"):
        load(folder)


def test_a_damaged_archive_is_named(tmp_path: Path):
    folder = mnist(tmp_path / "mnist", True)
    file = folder / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for at in range(10, len(whole) - 8, 997):
        file.write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
        with pytest.raises(UsageError, match=r"ubyte\.gz is not a complete idx file"):
            load(folder)


def test_a_mismatch_of_images_and_labels_is_refused(tmp_path: Path):
    folder = mnist(tmp_path / "mnist", False)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(numpy.zeros(7, "u1")))
    with pytest.raises(UsageError, match="10 images but 7 labels"):
        load(folder)


def test_a_missing_file_is_named(tmp_path: Path):
    folder = mnist(tmp_path / "mnist", False)
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(UsageError, match="no file t10k-images"):
        load(folder)


def test_idx_files_of_floats_are_read(tmp_path: Path):
    file = tmp_path / "floats"
    values = numpy.arange(6, dtype=">f4").reshape(2, 3)
    file.write_bytes(idx(values, 0x0D))
    assert (read_idx(file) == values).all()


@pytest.mark.parametrize(
    ("files", "before", "classes"),
    [
        (("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"), 1, 10),
        (("train.bin", "test.bin"), 2, 100),
    ],
)
def test_cifar_files_are_loaded(tmp_path: Path, files: tuple[str, ...], before: int, classes: int):
    chance = numpy.random.default_rng(0)
    for number, name in enumerate(files):
        rows = chance.integers(0, 256, (20, before + 3072), dtype="u1")
        rows[:, before - 1] = (numpy.arange(20) + number) % classes
        rows[:, before : before + 1024] = 255  # the red channel
        rows[-1, before - 1] = classes - 1
        rows.tofile(tmp_path / name)
    found = load_images(tmp_path)
    assert found.classes == classes and found.test.images.shape == (20, 3, 32, 32)
    assert len(found.train.images) == 20 * (len(files) - 1)
    assert (found.train.images[:, 0] == 1).all() and found.train.images[:, 1].min() < 0.1
    assert list(found.train.labels[:3]) == [0, 1, 2]
    with (tmp_path / files[0]).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(UsageError, match=f"{files[0]} is not a complete CIFAR file"):
        load(tmp_path)
    for name in files[:-1]:
        (tmp_path / name).unlink()
    with pytest.raises(UsageError, match="CIFAR's files belong together"):
        load(tmp_path)


def test_image_folders_by_class_are_loaded(tmp_path: Path):
    for which, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(("n01440764", "n02102040")):
            folder = tmp_path / which / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (50, 40), (200 * label, 10, 10)).save(folder / f"{number}.JPEG")
    found = load(tmp_path)
    assert found.classes == 2 and found.train.images.shape == (
        8,
        3 * IMAGE_SIDE_PIXELS * IMAGE_SIDE_PIXELS,
    )
    assert load_images(tmp_path).test.images.shape == (4, 3, IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS)
    assert sorted(found.test.labels) == [0, 0, 1, 1]
    bright = found.train.images[found.train.labels == 1].mean()
    assert bright > found.train.images[found.train.labels == 0].mean()
    (tmp_path / "val" / "n01440764" / "0.JPEG").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"0\.JPEG is not an image"):
        load(tmp_path)


def test_a_folder_without_a_known_data_set_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="holds neither MNIST's files"):
        load(tmp_path)


def test_reads_by_data_loader_workers_are_counted():
    from torch.utils.data import DataLoader, Subset

    images = SlowImages()
    images[[3, 4]]
    assert len([*DataLoader(Subset(images, range(40)), batch_size=8, num_workers=2)]) == 5
    images[5]
    read = [number for each in images.reads for number in each.numbers]
    assert read[:2] == [3, 4] and sorted(read[2:-1]) == [*range(40)] and read[-1] == 5
    assert all(each.end - each.begin >= SECONDS for each in images.reads)
    noted = images._by_workers
    assert noted.exists()
    del images
    assert not noted.exists()


def test_the_built_in_text_is_pythons_language_reference(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANKROOM_TEXT", raising=False)
    one, other = load_text(), load_text()
    assert (one.train == other.train).all() and len(one.train) > 8 * len(one.test) > 80_000
    assert "statement" in "".join(one.characters[each] for each in one.train[:200])
    assert one.characters.isascii() and len(one.characters) < 128
    assert max(one.train.max(), one.test.max()) == len(one.characters) - 1


def test_a_users_own_text_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "mine.txt"
    monkeypatch.setenv("RANKROOM_TEXT", str(path))
    with pytest.raises(UsageError, match=r"mine\.txt \(RANKROOM_TEXT\) cannot be read"):
        load_text()
    path.write_text("Grüße " * 5_000, "utf-8")
    with pytest.raises(UsageError, match="20,000 ASCII characters"):
        load_text()
    path.write_text("Grüße " * 10_000, "utf-8")
    found = load_text()
    assert found.name == "mine.txt" and found.characters == " Ger" and len(found.train) == 36_000
    path.write_bytes(b"\xff\xfe" + b"ab" * 20_000)
    assert load_text().characters == "ab"
