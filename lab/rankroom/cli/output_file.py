"""Write a command's output: a file, or a folder of files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import click

from rankroom.errors import with_remedy
from rankroom.text.amounts import size

T = TypeVar("T")


def write_file(pieces: Iterable[bytes], output: str, hint: str) -> None:
    """Write `pieces` to the file `output` and print its name, size and `hint`; with `-`, print the
    pieces instead."""
    if output == "-":
        for piece in pieces:
            click.echo(piece, nl=False)
        return
    file = Path(output)
    try:
        with _replacing(file) as out:
            for piece in _read(pieces, file):
                out.write(piece)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror or error}") from None
    click.echo(f"wrote {file} ({size(file.stat().st_size)}): {hint}")


def write_folder(files: Iterable[tuple[str, Iterable[bytes]]], output: str, hint: str) -> None:
    """Write files into an empty folder, as programs that read it take every file in it."""
    folder, count, written = Path(output), 0, 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise click.ClickException(f"{folder} is not empty")
        for name, pieces in _read(files, folder):
            with (folder / name).open("wb") as out:
                out.writelines(_read(pieces, folder))
                written += out.tell()
            count += 1
    except OSError as error:
        raise click.ClickException(f"cannot write {folder}: {error.strerror or error}") from None
    many = "file" if count == 1 else "files"
    click.echo(f"wrote {count} {many} ({size(written)}) into {folder}: {hint}")


def _read(pieces: Iterable[T], output: Path) -> Iterator[T]:
    """Yield `pieces`, and report an error in reading them as such, not as a failed write."""
    try:
        yield from pieces
    except OSError as error:
        about = {"output": output, "file": error.filename or "the record"}
        raise click.ClickException(UNREAD.format(**about, error=with_remedy(error))) from None


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `file` once it is complete; the old one stays until then, and
    if writing fails. What cannot be replaced safely (see `_target`) is opened and overwritten."""
    target = _target(file)
    if target is None:
        with file.open("wb") as out:
            yield out
        return
    fresh = target.with_name(f".rankroom-{secrets.token_hex(4)}.part")
    try:
        with fresh.open("xb") as out:
            yield out
            if target.exists():
                about = target.stat()
                with contextlib.suppress(OSError):
                    os.fchown(out.fileno(), -1, about.st_gid)
                os.fchmod(out.fileno(), stat.S_IMODE(about.st_mode))
        fresh.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def _target(file: Path) -> Path | None:
    """Return the path of a regular file, with symbolic links followed. None if it must not be
    replaced: a pipe, a device, a process's open file (as /dev/stdout is), a file of another owner
    or with several hard links, or one whose folder is not writable."""
    with contextlib.suppress(FileNotFoundError):
        about = file.stat()
        is_plain = stat.S_ISREG(about.st_mode) and about.st_nlink == 1
        if not is_plain or about.st_uid != os.geteuid() or not os.access(file, os.W_OK):
            return None
    while True:
        file = file.parent.resolve() / file.name
        if file.parts[1:2] == ("proc",) or not os.access(file.parent, os.W_OK | os.X_OK):
            return None
        if not file.is_symlink():
            return file
        file = file.parent / file.readlink()


UNREAD = "{output} was not written, as {file} cannot be read: {error}"
