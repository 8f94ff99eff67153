"""A quick look at a cell's text: most need no other, and every cell waits for this one.

It may see more than there is, never less: whether ranks part is found out by walking through.
"""

from __future__ import annotations

import re

# A part of the words that regular expressions are too slow to look for in a whole cell.
_RANKS = ("rank", "main", "master", "root", "chief", "primary", "coord", "leader", "procid", "zero")
_MEETS = re.compile(
    r"all_?(?:reduce|gather|to_?all)|reduce|gather|scatter|broadcast|barrier|\bjoin\b|process_set"
    r"|new_(?:sub)?group|\b(?:init|shutdown)\(|init_process_group|[dD]istributed|DDP\b"
)
_HERE = re.compile(rf"{_MEETS.pattern}|\.step\(|\.backward\(|\.synchronize\(")
_LEAVES = re.compile(r"\b(?:return|continue|break|raise|exit|_exit|quit|abort)\b")
_PARTS = re.compile(r"\b(?:if|elif|while|and|or|match|case)\b|\brange\(")
_COMPARES = re.compile(r"[=!<>]=|[<>]|\b(?:in|not|is)\b")
_BINDS = re.compile(r"\s*(?:self\.)?(\w+)(?:\s*,\s*\w+)*\s*(?::[^=]*)?=(?!=)")
_RENAMES = re.compile(r"\bfrom\s+(?:horovod|torch)\b[^\n]*\bas\s+(\w+)")
_AS = re.compile(r"\bas\s+(\w+)")
_DEFINES = re.compile(r"(?:^|\n)\s*(?:async\s+)?(?:def|class)\s+(\w+)|(\w+)\s*=\s*lambda\b")
# Through other calls than these, what differs is not followed, unless it is compared first.
_CALLS_OTHER = re.compile(r"\b(?!(?:int|bool|str|abs|(?:\w*_)?rank|get|getenv|range)\()\w+(?=\()")
_DECIDES = re.compile(rf"{_COMPARES.pattern}|\b(?:and|or|if|lambda)\b")
_NAMES = re.compile(r"\w+")
NEAR = 3  # lines before and after, for a condition inside an expression of several lines


def worth_a_look(source: str, some: bool) -> bool:
    """Whether ranks may part in this cell before a collective; `some`: it runs on some ranks."""
    if _MEETS.search(source) is None:
        return False
    low = source.lower()
    if some or not any(word in low for word in _RANKS):
        return some
    lines = source.split("\n")
    own = {name for pair in _DEFINES.findall(source) for name in pair if name}
    own.update(_RENAMES.findall(source))
    parting: set[str] = set()  # names that may hold something else on each rank
    seen = -1
    while len(parting) != seen:
        seen = len(parting)
        for number, line in enumerate(lines):
            if not _speaks_of_ranks(line, parting):
                continue
            if line.lstrip().startswith("from "):
                parting.update(_AS.findall(line))
            elif _PARTS.search(line):
                block = _block(lines, number)
                if any(_matters(each, own) for each in block):
                    return True
                parting |= {found[1] for each in block if (found := _BINDS.match(each))}
            elif own and "return" in line:
                parting |= own
            elif own and "(" in line and _COMPARES.search(line) and own & set(_NAMES.findall(line)):
                return True  # given to a function of the cell
            elif (found := _BINDS.match(line)) and _carries(line[found.end() :], own):
                parting.add(found[1])
    return False


def _speaks_of_ranks(line: str, parting: set[str]) -> bool:
    low = line.lower()
    if any(word in low for word in _RANKS):
        return True
    return bool(parting) and not parting.isdisjoint(_NAMES.findall(line))


def _carries(line: str, own: set[str]) -> bool:
    return bool(_DECIDES.search(line)) or own.issuperset(_CALLS_OTHER.findall(line))


def _block(lines: list[str], number: int) -> list[str]:
    """What depends on the condition in a line."""
    line = lines[number]
    if not line.split("#")[0].rstrip().endswith(":"):
        return lines[max(0, number - NEAR) : number + NEAR + 1]
    indent = len(line) - len(line.lstrip())
    end = number + 1
    while end < len(lines):
        text = lines[end].strip()
        deeper = len(lines[end]) - len(lines[end].lstrip()) > indent
        if text and not deeper and not text.startswith(("else", "elif", "case", ")", "#")):
            break
        end += 1
    return lines[number:end]


def _matters(line: str, own: set[str]) -> bool:
    if _HERE.search(line) or _LEAVES.search(line):
        return True
    return bool(own) and "(" in line and not own.isdisjoint(_NAMES.findall(line))
