"""Metrics found in a log: lines such as `epoch 3  loss 0.412  acc 0.91`, of ranks that report none.

Only lines that consist entirely of such pairs are used, and only after three with the same names
and increasing steps. The metrics' names begin with `log/`, to show where they come from. A run
whose lines have too many forms is given up, and floods are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LINES_TO_ACCEPT_FORM = 3  # lines of the same form required before any is used
MAX_FORMS = 8  # forms in one run; with more, this would be guesswork
MAX_LINE_LENGTH, MAX_TEXT_LENGTH = (
    400,
    4 << 10,
)  # maximum characters of a line, and of a text that is searched
PREFIX = "log/"
_STEP = r"(?:epoch|step|iter|iteration|batch)"
# Each of these matches a text in one way only: if there were two ways, a line of many pairs that
# fails to match at its end would take exponential time, and block all other threads.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf"
_SEPARATOR = r"(?:[ \t]*[:=][ \t]*|[ \t]+)"
# Names may have letters of any alphabet, numbers may not: with IGNORECASE, `ı` would match `i`.
_NUMBER = rf"(?a:{_NUMBER})"
_PAIR = re.compile(rf"([a-z][\w./-]*?){_SEPARATOR}({_NUMBER})%?(?![\w.])", re.IGNORECASE)
_LINE = re.compile(
    rf"^[ \t\[(]*{_STEP}[ \t:=#]*(\d+)(?:\s*(?:/|of)\s*\d+)?(?![\w.])[\])]?"
    rf"((?:[ \t,;|:-]+(?!of\b)[a-z][\w./-]*?{_SEPARATOR}(?:{_NUMBER})%?(?![\w.]))+)[ \t\r,;|]*$",
    re.IGNORECASE | re.MULTILINE,
)

Values = dict[str, float]
Add = Callable[[int, int, Values], None]


class LogMetrics:
    """Reads the log lines of one rank; calls `add(t, step, values)` for those that are metrics."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self.begin()

    def begin(self) -> None:
        """Start a run."""
        self._rest: dict[str, str] = {}  # by stream: the incomplete last line
        self._waiting: dict[tuple[str, ...], list[tuple[int, int, Values]]] = {}
        self._known: set[tuple[str, ...]] = set()
        self._is_off = False

    def take(self, t: int, stream: str, text: str) -> None:
        """Search `text`, which was written at `t`, in microseconds since the epoch."""
        if self._is_off:
            return
        lines, _, rest = (self._rest.get(stream, "") + text).rpartition("\n")
        self._rest[stream] = rest[-MAX_LINE_LENGTH:]
        if len(lines) > MAX_TEXT_LENGTH:
            return
        for match in _LINE.finditer(lines):
            if match.end() - match.start() <= MAX_LINE_LENGTH:
                self._line(t, stream, int(match[1]), match[2])

    def _line(self, t: int, stream: str, step: int, pairs: str) -> None:
        values = {name: float(value) for name, value in _PAIR.findall(pairs)}
        form = stream, *values
        if form in self._known:
            self._add(t, step, values)
            return
        waiting = self._waiting.setdefault(form, [])
        if waiting and waiting[-1][1] >= step:
            waiting.clear()
        waiting.append((t, step, values))
        if len(waiting) == LINES_TO_ACCEPT_FORM:
            self._known.add(form)
            for each in self._waiting.pop(form):
                self._add(*each)
        self._is_off = len(self._waiting) + len(self._known) > MAX_FORMS
