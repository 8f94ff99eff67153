"""Files are replaced atomically."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from rankroom.system.files import write_atomically


def test_a_reader_sees_a_whole_file_while_threads_write(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    texts = {letter * 100_000 for letter in "abcd"}
    write_atomically(path, "a" * 100_000)

    def write(text: str) -> None:
        for _ in range(20):
            write_atomically(path, text)

    writers = [threading.Thread(target=write, args=[text]) for text in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in texts
    assert [each.name for each in tmp_path.iterdir()] == ["file.json"]


def test_a_file_is_private_unless_another_mode_is_given(tmp_path: Path) -> None:
    write_atomically(tmp_path / "secret", "x")
    write_atomically(tmp_path / "open", "x", mode=0o644)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) & 0o044


def test_a_symlink_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    fresh = f".shared.{os.getpid()}.{threading.get_ident()}"
    (tmp_path / fresh).symlink_to(other)
    write_atomically(tmp_path / "shared", "new")
    assert (tmp_path / "shared").read_text() == "new" and not (tmp_path / "shared").is_symlink()
    assert other.read_text() == "kept"


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "folder", "new")  # a folder cannot be replaced by a file
    with pytest.raises(OSError):
        write_atomically(tmp_path / "nowhere" / "file", "new")
    assert path.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
