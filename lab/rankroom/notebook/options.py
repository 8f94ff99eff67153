"""The options of a magic line: parsed strictly; an error lists the valid ones."""

from __future__ import annotations

import argparse
import copy
import functools
import shlex
from typing import Any, NoReturn

from rankroom.errors import UsageError


class Options(argparse.ArgumentParser):
    """An argument parser that raises UsageError in one line instead of ending the process."""

    def __init__(self, magic: str) -> None:
        super().__init__(prog=magic, add_help=False, allow_abbrev=False)
        self.magic = magic

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.magic}: {message}; {self.valid()}")

    def valid(self) -> str:
        """Return the valid options, as text."""
        names = [
            f"{action.option_strings[-1]}{'' if action.nargs == 0 else ' ' + meta(action)}"
            for action in self._actions
            if action.option_strings
        ]
        return f"options: {', '.join(names)}" if names else "it takes no options"

    @functools.cached_property
    def _of_empty_line(self) -> argparse.Namespace:
        return self.parse_args([])

    def read(self, line: str) -> argparse.Namespace:
        """Return the options in `line`. Raises UsageError."""
        if not line:  # most cells, and parsing it takes a fiftieth of an empty cell's time
            return copy.copy(self._of_empty_line)
        try:
            words = shlex.split(line)
        except ValueError as error:
            self.error(f"cannot read {line!r} ({str(error).lower()})")
        # Options may stand between other words, as in `%ranks pull --ranks 0 loss`.
        known, extra = self.parse_known_intermixed_args(words)
        if extra:
            what = "unknown option" if extra[0].startswith("-") else "unexpected"
            self.error(f"{what} {extra[0]!r}")
        return known


def meta(action: Any) -> str:
    """Return the name of an option's value for messages."""
    return str(action.metavar or action.dest.upper())
