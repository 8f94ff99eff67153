"""A page that leads a browser to an address with a token in it, which no command line then shows.

All users of a machine see the command line that a browser is started with. So it
is given the page's name, and the page is a file that only its user can read.
"""

from __future__ import annotations

import html
from pathlib import Path

from rankroom.system.files import write_atomically


def write(path: Path, url: str) -> None:
    """Write the page that leads to `url`, in a folder that is there. Raises OSError."""
    write_atomically(path, PAGE.format(url=html.escape(url)))


PAGE = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">'
    '<a href="{url}">JupyterLab</a>\n'
)
