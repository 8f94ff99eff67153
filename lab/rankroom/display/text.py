"""What a terminal would show of a rank's output: colors, carriage returns, control characters."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

# CSI sequences; OSC, DCS and the like up to their end; two-character escapes; a lone ESC.
_ESCAPE = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -/]*[0-~])?"
)
_TOKEN = re.compile(f"{_ESCAPE.pattern}|[^\x1b]")
_SGR = re.compile("\x1b\\[([0-9;:]*)m")
_SGR_WHOLE = re.compile("(\x1b\\[[0-9;:]*m)")
_ERASE = re.compile("\x1b\\[0?K")
_WIPE = "\x1b[2K"
# Control characters, those that change the direction of text, and lone surrogates (which no JSON
# encoder between here and the notebook file accepts). Tab and line feed stay.
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Limits of carriage returns: characters that one goes back over, and how many there may be.
_MAX_RETURN_CHARS = 2_000
MAX_RETURNS = 1_000


def clean(text: str) -> str:
    """Return `text` without escape sequences; control characters become visible signs."""
    return _ODD.sub(_sign, _ESCAPE.sub("", text))


def keep_colours(text: str) -> str:
    """Return `text` for a terminal: with its colors, without other escape sequences."""
    if "\x1b" not in text:
        return clean(text)
    pieces = _SGR_WHOLE.split(text)
    return "".join(p if i % 2 else clean(p) for i, p in enumerate(pieces)) + "\x1b[0m"


def keep_lines(text: str) -> str:
    """Apply `keep_colours` to each line, so that an unfinished escape sequence affects no other."""
    return "\n".join(map(keep_colours, text.split("\n")))


def clip(text: str, most: int) -> str:
    """Return at most `most` characters of `text`; an ellipsis stands for the rest."""
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def one_line(text: str, most: int) -> str:
    """Return the first line of `text` that is not blank, cleaned and clipped."""
    for line in text[: 8 * most].split("\n"):
        if said := clean(line).strip():
            return clip(said, most)
    return ""


def overprint(line: str) -> str:
    """Return what remains visible of a line after its carriage returns and backspaces."""
    if "\b" in line:
        line = "\r".join(map(_retyped, line.split("\r")))
    line = line.rstrip("\r")  # a line end as on Windows, or a progress bar that pauses
    if "\r" not in line:
        return line
    shown = ""
    for part in line.split("\r")[-MAX_RETURNS:]:
        if not part:
            continue
        part = part[:_MAX_RETURN_CHARS]
        before, is_wiped, rest = part.rpartition(_WIPE)
        if is_wiped:  # what the line held before is erased
            shown, part = "", " " * len(_ESCAPE.sub("", before)) + rest
            if not rest:
                continue
        if _ERASE.search(part):
            shown = part
        else:
            # What extends beyond the new text loses its color, but keeps its column.
            shown = part + _ESCAPE.sub("", shown)[len(_ESCAPE.sub("", part)) :]
    return shown


def to_html(line: str, most: int) -> str:
    """Return one line as HTML: escaped, colors as spans, at most `most` visible characters."""
    if "\x1b" not in line:
        return html.escape(clip(clean(line), most))
    out = []
    for css, text in styled(line):
        text = clean(text)
        if not text:
            continue
        shown = html.escape(clip(text, most))
        out.append(f'<span style="{css}">{shown}</span>' if css else shown)
        most -= len(text)
        if most < 0:
            break
    return "".join(out)


def styled(line: str) -> Iterator[tuple[str, str]]:
    """Yield pieces of a line with the CSS of their SGR state; other escapes stay in the text."""
    style: dict[str, str] = {}
    pieces = _SGR.split(line)
    yield "", pieces[0]
    for codes, text in zip(pieces[1::2], pieces[2::2], strict=True):
        _apply(style, codes)
        yield ";".join(f"{key}:{value}" for key, value in style.items()), text


def _apply(style: dict[str, str], codes: str) -> None:
    numbers = iter([n for part in codes[:200].split(";") for n in _numbers(part)])
    for n in numbers:
        if n == 0:
            style.clear()
        elif n in _ON:
            key, value = _ON[n]
            style[key] = value
        elif n in _OFF:
            for key in _OFF[n]:
                style.pop(key, None)
        elif n in (38, 48):
            colour = _extended(numbers)
            if colour:
                style["color" if n == 38 else "background"] = colour


def _numbers(part: str) -> list[int]:
    """Return the numbers of one code as if it had no colons: a color's color space and the style of
    an underline are left out."""
    first, *more = (int(n[-4:] or 0) for n in part.split(":"))
    if more and first in (38, 48):
        return [first, more[0], *more[-3 if more[0] == 2 else -1 :]]
    return [24 if first == 4 and more[:1] == [0] else first]


def _extended(numbers: Iterator[int]) -> str:
    how = next(numbers, 0)
    if how == 5:
        n = next(numbers, 0)
        if n < 16:
            return _COLOURS[n]
        if n < 232:
            levels = (0, 95, 135, 175, 215, 255)
            n -= 16
            return _hex(levels[n // 36], levels[n // 6 % 6], levels[n % 6])
        grey = min(8 + 10 * (n - 232), 238)
        return _hex(grey, grey, grey)
    if how == 2:
        return _hex(*(min(next(numbers, 0), 255) for _ in range(3)))
    return ""


def _hex(red: int, green: int, blue: int) -> str:
    return f"#{red:02x}{green:02x}{blue:02x}"


def _retyped(text: str) -> str:
    """Return `text` as overwritten after its backspaces, which remove nothing by themselves."""
    cells: list[str] = []
    column, colour = 0, ""
    for token in _TOKEN.findall(text):
        if token == "\b":
            column = max(0, column - 1)
        elif token[0] == "\x1b":
            colour += token
        else:
            cells[column : column + 1] = [colour + token]
            column, colour = column + 1, ""
    return "".join(cells) + colour


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\ufffd"


# The 16 colors in shades that are readable on white and on black.
_COLOURS = (
    *("#6e7781", "#cf3a3a", "#2f9e44", "#b7791f", "#2b7de9", "#a855c7", "#1296a8", "#8a939c"),
    *("#8a939c", "#e5534b", "#46b35a", "#c98a2b", "#539bf5", "#b97fd6", "#2fb3c4", "#a4acb4"),
)
_ON = {
    1: ("font-weight", "bold"),
    2: ("opacity", ".7"),
    3: ("font-style", "italic"),
    4: ("text-decoration", "underline"),
    9: ("text-decoration", "line-through"),
    **{30 + i: ("color", _COLOURS[i]) for i in range(8)},
    **{90 + i: ("color", _COLOURS[8 + i]) for i in range(8)},
    **{40 + i: ("background", _COLOURS[i]) for i in range(8)},
    **{100 + i: ("background", _COLOURS[8 + i]) for i in range(8)},
}
_OFF = {
    22: ("font-weight", "opacity"),
    23: ("font-style",),
    24: ("text-decoration",),
    29: ("text-decoration",),
    39: ("color",),
    49: ("background",),
}
