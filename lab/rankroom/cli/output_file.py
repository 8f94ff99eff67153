"""The file, or the folder of files, that a command writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from rankroom.text.amounts import size


def write_file(pieces: Iterable[bytes], output: str, hint: str) -> None:
    """Write a file and say so, or print it if `output` is -."""
    if output == "-":
        for piece in pieces:
            click.echo(piece, nl=False)
        return
    file = Path(output)
    try:
        with file.open("wb") as out:
            for piece in pieces:
                out.write(piece)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror or error}") from None
    click.echo(f"wrote {file} ({size(file.stat().st_size)}): {hint}")


def write_folder(files: Iterable[tuple[str, Iterable[bytes]]], output: str, hint: str) -> None:
    """Write files into a folder that has no others, as readers take all that is there."""
    folder, count, written = Path(output), 0, 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise click.ClickException(f"{folder} is not empty")
        for name, pieces in files:
            with (folder / name).open("wb") as out:
                out.writelines(pieces)
                written += out.tell()
            count += 1
    except OSError as error:
        raise click.ClickException(f"cannot write {folder}: {error.strerror or error}") from None
    many = "file" if count == 1 else "files"
    click.echo(f"wrote {count} {many} ({size(written)}) into {folder}: {hint}")
