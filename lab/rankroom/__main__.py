"""`python -m rankroom`."""

import contextlib
import os
import sys

# `-m` puts the current directory first in sys.path, but nothing must be imported from there.
with contextlib.suppress(FileNotFoundError):  # the current directory has been deleted
    if sys.path[0] == os.getcwd() and not getattr(sys.flags, "safe_path", False):  # noqa: PTH109
        del sys.path[0]

from rankroom.cli import main

main(prog_name="rankroom")
