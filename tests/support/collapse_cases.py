"""What ranks printed, and the groups it must collapse to, for Python and for the view alike.

`python tests/support/collapse_cases.py` writes collapse.json beside it. The first cases are few
enough to be read; the others are dice. What must hold for any of them is in test_lines.py and in
collapse.test.ts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from rankroom.display.lines import Line, collapse
from rankroom.text.rank_ranges import format_ranks

FILE = Path(__file__).with_name("collapse.json")
# What ranks print, one rank after the other.
IN_TURN = {
    "one after the other": [["hello", f"I am rank {rank}", "done"] for rank in range(4)],
    "one alone": [["a", "b", "a"]],
    "a moved line is joined": [
        ["begin", "main", "end"],
        ["begin", "worker", "end"],
        ["begin", "worker", "own", "end"],
    ],
    "crossed": [["a", "b"], ["b", "a"]],
    "repeated": [["x", "x"], ["x", "x", "x"]],
    "epochs with a loss of one's own": [
        [line for epoch in range(3) for line in (f"epoch {epoch}", f"loss {rank}.{epoch}")]
        + ["done"]
        for rank in range(3)
    ],
    "too many to move": [["a", "b"], ["a", *(f"own {i}" for i in range(20)), "b"]],
    "as many as move": [["a", "b"], ["a", *(f"own {i}" for i in range(16)), "b"]],
    "in front of one that was moved": [
        ["a", "z"],
        ["a", "m", "z"],
        ["a", "l", "m", "z"],
        ["a", "k", "l", "m", "z"],
    ],
}
Said = list[tuple[int, str]]


def cases() -> Iterator[tuple[str, Said]]:
    """Each case: its name, and the lines in the order they came in."""
    for name, texts in IN_TURN.items():
        yield name, [(rank, text) for rank, own in enumerate(texts) for text in own]
    dice = random.Random(15)
    for number in range(60):
        ranks, letters = dice.randint(1, 5), "abcdef"[: dice.randint(2, 6)]
        said: Said = []
        for _ in range(dice.randint(1, 12)):
            rank = dice.randrange(ranks)
            said += [(rank, dice.choice(letters)) for _ in range(dice.randrange(8))]
        yield f"dice {number}", said


def groups(said: Said) -> list[str]:
    """As `0–1 done`, in order."""
    found = collapse(Line(rank, "stdout", text) for rank, text in said)
    return [f"{format_ranks(group.ranks)} {group.text}" for group in found]


def text() -> str:
    """collapse.json."""
    made = [{"name": name, "said": said, "groups": groups(said)} for name, said in cases()]
    return "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in made) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
