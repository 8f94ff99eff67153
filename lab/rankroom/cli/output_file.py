"""The file that a command writes."""

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
