"""The events of a Chrome trace, from text that may be damaged.

Programs that are killed leave half a file, some omit a comma or the last bracket, and NaN is not
JSON. Sound stretches are parsed whole by the standard parser; only where it fails are events parsed
one by one. Repairs are counted in `repaired`, losses in `dropped`.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from rankroom.errors import RankroomError

Json = dict[str, Any]

BLOCK_CHARS = 1 << 22  # characters that are parsed at once
WINDOW_CHARS = 1 << 16
MAX_EVENT_CHARS = 1 << 20  # characters; an event that is longer is broken
MAX_FILE_CHARS = 8 << 30  # characters of one file, after decompression
READ_TIMEOUT_S = 300.0  # for one file
MAX_HEADER_CHARS = (
    1 << 24
)  # characters before the events: a few lines, unless a whole file is embedded

_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"\}\s*,\s*(?=\{)")  # between events; inside one, a name follows a comma
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(r"[,}\n\]\[]\s*(?=\{)")  # where an event may begin after a broken one
_SPACE = re.compile(r"[\s,\0]*")
_OPENING = re.compile(r"[\s\0\ufeff]*")
_TOKEN = re.compile(r'-?\w[\w.+-]*|"(?:[^"\\\n]|\\.)*"|\}')  # a literal, a string or a brace
_MORE_KEYS = re.compile(r'\s*,\s*"')  # more keys of an object, after its events
_END = re.compile(r"\s*\}?\s*")
_AGAIN = re.compile(r'\{\s*"traceEvents"\s*:\s*\[')
_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


class TraceError(RankroomError):
    """A file that is not a trace, or cannot be read."""


class Events:
    """The events of one file, in lists; `about` holds the other keys of the file's object.

    `about` is complete once all events have been read. Raises TraceError for a file that is not a
    trace at all, never for damage.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: Json = {}
        self.dropped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.is_cut = False  # there is more in the file than was read
        self._text = ""
        self._over = False
        self._lines = False  # events one per line, without an array
        self._closed = False  # the array of events ended with its bracket
        self._read = 0  # characters
        self._until = time.monotonic() + READ_TIMEOUT_S
        self._blocks = self._decoded()

    def __iter__(self) -> Iterator[list[Json]]:
        for piece in self.stretches():
            yield self._parsed(piece) if isinstance(piece, str) else piece

    def stretches(self) -> Iterator[str | list[Json]]:
        """Yield the same events, but as text, not yet parsed, where it is probably sound."""
        self._begin()
        while True:
            if (cut := self._last_sound()) > 0:
                piece, self._text = self._text[:cut], self._text[cut:]
                yield _without_comma(piece)
            elif len(self._text) > MAX_EVENT_CHARS or self._over:
                yield self._one_by_one(whole=self._over)
            if self._read > MAX_FILE_CHARS:
                self.stop(f"{MAX_FILE_CHARS >> 30} GB of text")
            elif time.monotonic() > self._until:
                self.stop(f"{READ_TIMEOUT_S:.0f} seconds")
            if self._over and not self._text:
                break
            self._more()
        if not self._closed:
            self.repaired["closing bracket missing"] += 1

    def stop(self, after: str) -> None:
        """Stop reading: the rest is dropped, which is counted with how much was read (`after`)."""
        if not (self._over and not self._text):
            self.dropped[f"the rest of the file, after {after}"] += 1
            self.is_cut = True
        self._over = self._closed = True
        self._text = ""

    # -- text

    def _decoded(self) -> Iterator[str]:
        rest = b""
        with _opened(self.path) as file:
            for data in self._unpacked(file):
                data = rest + data
                # A multi-byte character may continue in the next block.
                end = len(data)
                while end and len(data) - end < 4 and data[end - 1] & 0xC0 == 0x80:
                    end -= 1
                if end and data[end - 1] >= 0xC0:
                    end -= 1
                else:
                    end = len(data)
                rest = data[end:]
                yield self._to_text(data[:end])
        if rest:
            yield self._to_text(rest)

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield the file's bytes, decompressed; of a damaged file, those before the damage."""
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            while data := file.read(BLOCK_CHARS):
                yield data
            return
        unpack = zlib.decompressobj(31)
        while data := file.read(BLOCK_CHARS >> 4):
            while data:
                try:
                    yield unpack.decompress(data, BLOCK_CHARS)
                except zlib.error:
                    self.repaired["compressed file damaged"] += 1
                    return
                data = unpack.unconsumed_tail or unpack.unused_data
                if unpack.eof:
                    if data[:2] != b"\x1f\x8b":
                        return
                    unpack = zlib.decompressobj(31)  # concatenated files
        if not unpack.eof:
            yield unpack.flush()
            self.repaired["compressed file cut off"] += 1

    def _to_text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace")
            self.repaired["bytes that are not UTF-8"] += text.count("\ufffd")
            return text

    def _more(self) -> None:
        text = next(self._blocks, None)
        if text is None:
            self._over = True
        else:
            self._text += text
            self._read += len(text)

    def _begin(self) -> None:
        """Read up to the first event."""
        while not self._over and len(self._text) < 64:
            self._more()
        start = _OPENING.match(self._text)
        self._text = self._text[start.end() if start else 0 :]
        if not self._text:
            raise TraceError(EMPTY.format(path=self.path))
        if self._text[0] == "[":
            self._text = self._text[1:]
            return
        if self._text[0] != "{":
            raise TraceError(NO_TRACE.format(path=self.path, begins=self._text[:24]))
        while not (found := _EVENTS.search(self._text)):
            if self._over or len(self._text) > MAX_HEADER_CHARS:
                # Events one per line, without an array, are a trace, too.
                if '"ph"' not in self._text:
                    raise TraceError(NO_EVENTS.format(path=self.path))
                self._lines = self._closed = True
                return
            self._more()
        self._read_about(self._text[1 : found.start()])
        self._text = self._text[found.end() :]

    def _read_about(self, text: str) -> None:
        """Read keys and values beside the events, one by one as far as possible."""
        at = 0
        while True:
            at = cast(re.Match[str], _SPACE.match(text, at)).end()
            try:
                key, at = _DECODER.raw_decode(text, at)
                at = cast(re.Match[str], _OPENING.match(text, at)).end()
                if not isinstance(key, str) or text[at : at + 1] != ":":
                    return
                at = cast(re.Match[str], _OPENING.match(text, at + 1)).end()
                self.about[key], at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError, IndexError):
                return

    # -- events

    def _last_sound(self) -> int:
        """Return where to cut the text so that the last event before it is whole; 0 for nowhere."""
        for back in (1 << 16, MAX_EVENT_CHARS):
            begin = max(0, len(self._text) - back)
            between = list(_BETWEEN.finditer(self._text, begin))
            if between:
                return between[-1].start() + 1
        return 0

    def _parsed(self, piece: str) -> list[Json]:
        try:
            events = _DECODER.decode(f"[{piece}]")
        except (ValueError, RecursionError):
            events = None
        if events is None or not all(map(dict.__instancecheck__, events)):
            self._text = piece + self._text
            return self._one_by_one(whole=self._over)
        return cast(list[Json], events)

    def _one_by_one(self, whole: bool) -> list[Json]:
        """Parse the events of the text, of which any may be broken; `whole` if this is the rest."""
        text, at = self._text, 0
        events: list[Json] = []
        while True:
            if at > WINDOW_CHARS:
                # A parse error takes time for all the text before it, as its lines are counted.
                text, at = text[at:], 0
            begin = at
            at = cast(re.Match[str], _SPACE.match(text, at)).end()
            if at >= len(text):
                break
            if text[at] == "{":
                if events and not self._lines:
                    self._count_commas(text[begin:at])
                event, end = self._event(text, at, whole)
                if end < 0:
                    break  # wait for the rest of it
                if event is not None:
                    events.append(event)
                at = end
            elif text[at] == "]":
                if not whole and len(text) - at < MAX_EVENT_CHARS:
                    break  # the keys after the events are read at once
                at = self._after_array(text, at + 1)
            elif text[at] == "[":
                self._closed = False
                self.repaired["arrays one after another"] += 1
                at += 1
            else:
                at = self._pass_over(text, at)
        self._text = text[at:]
        return events

    def _count_commas(self, between: str) -> None:
        commas = between.count(",")
        if commas == 0:
            self.repaired["missing commas"] += 1
        elif commas > 1:
            self.repaired["commas too many"] += commas - 1

    def _event(self, text: str, at: int, whole: bool) -> tuple[Json | None, int]:
        """Return the event at `at` and where it ends: -1 if more text is needed to tell."""
        try:
            event, end = _DECODER.raw_decode(text, at)
            return event, end
        except json.JSONDecodeError as error:
            ends, escapes = _is_at_end(error, text), error.msg.startswith("Invalid \\")
        except (ValueError, RecursionError):
            ends = escapes = False
        if not whole and len(text) - at < MAX_EVENT_CHARS:
            return None, -1
        if escapes and (mended := self._without_escapes(text, at)) is not None:
            return mended
        following = None if ends else _NEXT.search(text, at + 1)
        end = following.end() if following else len(text)
        self.dropped["cut off" if following is None else "damaged"] += 1
        return None, end

    def _without_escapes(self, text: str, at: int) -> tuple[Json, int] | None:
        """Parse the event at `at`, taking invalid backslashes, as in paths, literally."""
        for most in (2048, WINDOW_CHARS):
            piece = text[at : at + most]
            places = [found.start() for found in _ESCAPE.finditer(piece)]
            try:
                event, end = _DECODER.raw_decode(_ESCAPE.sub(r"\\\\", piece))
            except (ValueError, RecursionError):
                continue
            self.repaired["backslashes that escape nothing"] += 1
            # Without the backslashes that were added.
            return event, at + end - sum(place + i < end for i, place in enumerate(places))
        return None

    def _after_array(self, text: str, at: int) -> int:
        """Handle what follows the bracket: more keys, another array, or nothing."""
        self._closed = True
        if _MORE_KEYS.match(text, at):
            rest = text[at:]
            self._read_about(rest)
            more = _EVENTS.search(rest)
            if more is None:
                return len(text)
            self.repaired["arrays one after another"] += 1
            self._closed = False
            return at + more.end()
        closing = _END.match(text, at)
        at = closing.end() if closing else at
        again = _AGAIN.match(text, at)
        if again:
            self.repaired["arrays one after another"] += 1
            self._closed = False
            return again.end()
        return at

    def _pass_over(self, text: str, at: int) -> int:
        """Skip what is not an event: a literal, or text up to the next event."""
        token = _TOKEN.match(text, at)
        self.dropped["text that is not an event"] += 1
        if token and token[0] in ("null", "true", "false"):
            return token.end()
        following = _NEXT.search(text, at)
        if following is None:
            return len(text)
        return following.end()


def _without_comma(piece: str) -> str:
    """Return a stretch of events without the comma that separates it from the one before."""
    start = cast(re.Match[str], _OPENING.match(piece)).end()
    return piece[start + 1 :] if piece[start : start + 1] == "," else piece


def _is_at_end(error: json.JSONDecodeError, text: str) -> bool:
    """True if the text is sound up to its end, and merely incomplete."""
    if error.msg.startswith("Unterminated string"):
        rest = text[error.pos : error.pos + WINDOW_CHARS]
        return len(text) - error.pos < WINDOW_CHARS and not {"\n", "{"} & set(rest)
    return len(text) - error.pos < 8


def _opened(path: Path) -> IO[bytes]:
    """Open the file. Raises TraceError if it cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(UNREADABLE.format(path=path, error=error.strerror or error)) from None


EMPTY = "{path} is empty"
UNREADABLE = "cannot read {path}: {error}"
NO_TRACE = (
    "{path} is not a trace: it begins with {begins!r}; supported formats: Horovod timelines and "
    "Chrome JSON, also gzipped"
)
NO_EVENTS = "{path} is not a trace: it is JSON, but has neither `traceEvents` nor a list of events"
