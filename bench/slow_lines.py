"""400 lines on each rank, one every 10 ms, as a training loop prints them."""

from __future__ import annotations

from flood import MOST
from kernel import Answer
from sides import RANKS, Px, Rankroom, alternate, both
from table import NotMeasured, Row

LINES = 400
PAUSE_S = 0.01


def measure(quick: bool) -> list[Row]:
    """Measure IOPub bytes, and check that the lines arrived."""
    lines = LINES // 4 if quick else LINES
    with both() as (px, rankroom):
        peers, ours = alternate(
            1 if quick else 3, lambda: _px(px, lines), lambda: _rankroom(rankroom, lines)
        )
    return [
        Row(
            f"{lines} slow lines on each of {RANKS} ranks: IOPub", "KiB",
            [a.size for a in ours], [a.size for a in peers], at_most=MOST,
            detail={"seconds": [a.seconds for a in ours]},
        )
    ]  # fmt: skip


def _source(lines: int) -> str:
    return (
        "import time\n"
        f"for i in range({lines}):\n"
        f'    print(f"rank {{rank}} step {{i}} loss {{1 / (1 + i):.4f}}", flush=True)\n'
        f"    time.sleep({PAUSE_S})"
    )


def _last(rank: int, lines: int) -> str:
    return f"rank {rank} step {lines - 1} loss {1 / lines:.4f}"


def _rankroom(side: Rankroom, lines: int) -> Answer:
    answer = side.cell(_source(lines))
    found = side.lines(side.latest())
    for rank in range(RANKS):
        if len(found[rank]) != lines or found[rank][-1] != _last(rank, lines):
            raise NotMeasured(f"rank {rank}: {len(found[rank])} lines in the record")
    return answer


def _px(side: Px, lines: int) -> Answer:
    answer = side.cell(_source(lines))
    for rank in range(RANKS):
        if not any(_last(rank, lines) in m.text for m in answer.messages):
            raise NotMeasured(f"%%px did not show the last line of rank {rank}")
    return answer
