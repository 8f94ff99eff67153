"""Completion in a line for the debugger: its commands, and names where it has stopped.

The main thread waits for that line meanwhile. To find attributes, a user's `__getattr__` may be
called, which may take any time: so another thread searches, with a timeout.
"""

from __future__ import annotations

import contextlib
import re
import rlcompleter
import threading
from typing import Any

SEARCH_TIMEOUT_S = 0.5
MAX_COMPLETIONS = 200  # completions
MAX_LINE_CHARS = 1000  # characters of a line
_WORD = re.compile(r"[\w.]*$")


class FrameCompletion:
    """Finds completions, but none while an earlier search is still running."""

    def __init__(self) -> None:
        self._search: threading.Thread | None = None

    def of(self, debugger: Any, line: str) -> dict[str, Any]:
        """Return where the line's last word begins, and its completions."""
        word = _WORD.search(line[-MAX_LINE_CHARS:])
        begin = len(line) - len(word[0]) if word else len(line)
        found: list[str] = []
        is_busy = self._search is not None and self._search.is_alive()
        if len(line) <= MAX_LINE_CHARS and not is_busy:

            def search() -> None:
                with contextlib.suppress(Exception):  # such as that of an invalid line
                    found.extend(possibilities(debugger, line[:begin], line[begin:]))

            self._search = threading.Thread(target=search, name="rankroom-complete", daemon=True)
            self._search.start()
            self._search.join(SEARCH_TIMEOUT_S)
        return {"begin": begin, "matches": found[:MAX_COMPLETIONS]}


def possibilities(debugger: Any, before: str, word: str) -> list[str]:
    """Return attributes or names of the frame, and commands if it is the first word; sorted."""
    frame = debugger.curframe
    # Before Python 3.13, reading `f_locals` again would undo what the debugger has assigned there.
    own = getattr(debugger, "curframe_locals", None)
    own = frame.f_locals if own is None else own
    if not word:
        return sorted(name for name in own if not name.startswith("_")) if before.strip() else []
    completer = rlcompleter.Completer({**frame.f_globals, **own})
    if "." in word:
        found = completer.attr_matches(word)
    else:
        found = completer.global_matches(word)
        if not before.strip():
            # Python 3.13 needs the position of the word in the line.
            commands = debugger.completenames(word, before + word, len(before), len(before + word))
            found += [*commands, *debugger.aliases]
    names = {each.rstrip("(): ") for each in found}
    return sorted(name for name in names if name.startswith(word))
