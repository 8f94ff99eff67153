"""A page that redirects a browser to a URL with a token in it, so that no command line shows it.

All users of a machine can see the command line that starts a browser. So the browser is given the
page's path, and only its user can read that file.
"""

from __future__ import annotations

import html
from pathlib import Path

from rankroom.system.files import write_atomically


def write(path: Path, url: str) -> None:
    """Write the page that redirects to `url` into an existing folder. Raises OSError."""
    write_atomically(path, PAGE.format(url=html.escape(url)))


PAGE = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">'
    '<a href="{url}">JupyterLab</a>\n'
)
