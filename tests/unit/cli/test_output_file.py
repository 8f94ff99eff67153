"""Files that commands write: completely, or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rankroom.cli.output_file import write_file, write_folder


def unread(error: BaseException) -> Iterator[bytes]:
    """A record that cannot be read to its end."""
    yield b"new"
    raise error


STALE = OSError(errno.ESTALE, "Stale file handle", "events.jsonl")
WORDS = r"was not written, as events\.jsonl cannot be read: Stale file handle"


@pytest.mark.parametrize("before", [None, "old"])
def test_a_read_failure_leaves_the_existing_file_unchanged(tmp_path: Path, before: str | None):
    file = tmp_path / "page.html"
    if before is not None:
        file.write_text(before)
    with pytest.raises(click.ClickException, match=f"page.html {WORDS}"):
        write_file(unread(STALE), str(file), "")
    with pytest.raises(KeyboardInterrupt):
        write_file(unread(KeyboardInterrupt()), str(file), "")
    found = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert found == ({} if before is None else {"page.html": "old"})


def test_a_read_failure_is_not_reported_as_an_unwritable_folder(tmp_path: Path):
    with pytest.raises(click.ClickException, match=f"traces {WORDS}"):
        write_folder([("rank0.json", unread(STALE))], str(tmp_path / "traces"), "")


def test_replacing_a_file_keeps_its_mode_and_symlinks_to_it(tmp_path: Path):
    file, link = tmp_path / "page.html", tmp_path / "folder" / "link"
    link.parent.mkdir()
    link.symlink_to("../page.html")
    write_file([b"first"], str(link), "")  # creates its target
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask()
    file.chmod(0o640)
    write_file([b"second"], str(link), "")
    assert link.is_symlink() and file.read_text() == "second"
    assert file.stat().st_mode & 0o777 == 0o640
    assert len(list(tmp_path.iterdir())) == 2 and list(link.parent.iterdir()) == [link]


def test_pipes_descriptors_and_hard_links_are_written_in_place(tmp_path: Path):
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file([b"through ", b"it"], str(pipe), "")
    reader.join()
    assert read == [b"through it"] and pipe.is_fifo()
    # As when the file is a process's standard output.
    file, other = tmp_path / "out", tmp_path / "other"
    with file.open("wb") as opened:
        write_file([b"into it"], f"/dev/fd/{opened.fileno()}", "")
        assert os.fstat(opened.fileno()).st_size == len(b"into it")
    other.hardlink_to(file)
    write_file([b"by both names"], str(file), "")
    assert other.read_text() == "by both names"


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path):
    with pytest.raises(click.ClickException, match=r"cannot write .*page: No such file"):
        write_file([b"x"], str(tmp_path / "no" / "page"), "")
    with pytest.raises(click.ClickException, match=r"cannot write .*: Is a directory"):
        write_file([b"x"], str(tmp_path), "")


def umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found
