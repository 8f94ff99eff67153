"""Lines that differ only in their numbers: what they have in common, and all of them in one text.

Digits at the end of a word are numbers (`GPU0`, `layer_3`), those inside a word are not. In a line
with several numbers, the first must be the same if it is whole, so that `step 5` is not joined with
`step 6`; the number of a rank, as in `[GPU1]`, is skipped there. The view has the same rules
(`extension/src/log/numbers.ts`), and tests/support/collapse.json tests both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankroom.display.text import clean

# Up to this many ranks' numbers are shown side by side; of more, the lowest and the highest.
MAX_SIDE_BY_SIDE = 4
_NUMBER = re.compile(
    r"(?<![0-9A-Za-z_])0x[0-9a-fA-F]+"
    r"|(?<![0-9A-Za-z_.])[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|(?<=[A-Za-z_])[0-9]+(?:\.[0-9]+)?(?!\.?[0-9A-Za-z_])"
)
_WHOLE = re.compile(r"[-+]?[0-9]+\Z")
_RANK_BEFORE = re.compile(
    r"(?:rank|gpu|cuda|device|worker|process|proc|replica|task)[ :=#_-]{0,3}\Z", re.IGNORECASE
)
_SPACES = re.compile(" +")
# Characters before a number in which a word such as `rank` is searched for.
_PREFIX_CHARS = 10


def common_text(text: str, rank: int) -> str:
    """Return a text that is equal for lines that differ only in numbers; `rank` wrote this one."""
    shown = clean(text)
    counted = []
    for match in _NUMBER.finditer(shown):
        if not _is_of_rank(shown, match, rank):
            counted.append(match[0])
    common, numbers = _NUMBER.subn("\0", shown)
    if not numbers:
        return text.replace("\0", "␀")  # which stands for a number below
    first = counted[0] if len(counted) > 1 and _WHOLE.match(counted[0]) else ""
    # Numbers may be padded to columns.
    return f"{_SPACES.sub(' ', common).rstrip(' ')}\0{first}"


def side_by_side(texts: Sequence[str]) -> str:
    """Return such lines as one: `loss 0.41|0.43` in the order given; of many, `loss 0.39…0.45`."""
    shown = [clean(text) for text in texts]
    columns = zip(*(_NUMBER.findall(text) for text in shown), strict=True)
    words = _NUMBER.split(shown[0])
    joined = [words[0]]
    for numbers, word in zip(columns, words[1:], strict=True):
        joined += [_joined(numbers), word]
    return "".join(joined)


def _joined(numbers: Sequence[str]) -> str:
    if len(set(numbers)) == 1:
        return numbers[0]
    if len(numbers) <= MAX_SIDE_BY_SIDE:
        return "|".join(numbers)
    return f"{min(numbers, key=_value)}…{max(numbers, key=_value)}"


def _value(number: str) -> float:
    # Not as a float: a key may have hundreds of digits.
    return int(number, 16) if number.startswith("0x") else float(number)


def _is_of_rank(text: str, match: re.Match[str], rank: int) -> bool:
    """Whether it is a rank's: `rank 1`, `cuda:1`, or its own at the line's start, `[1]`, `1:`."""
    before = text[max(match.start() - _PREFIX_CHARS, 0) : match.start()]
    if _RANK_BEFORE.search(before):
        return True
    is_first = match.start() == len(before) and before in ("", "[", "(")
    after = text[match.end() : match.end() + 1]
    return is_first and match[0] == str(rank) and after in ("]", ")", ":", "|")
