"""A flood: 200,000 printed lines on each of two ranks, every one of them checked afterwards."""

from __future__ import annotations

from kernel import Answer
from sides import RANKS, Px, Rankroom, alternate, both
from table import NotMeasured, Row

LINES = 200_000
MOST = 64 << 10  # bytes of IOPub a cell may cost


def source(lines: int) -> str:
    """Return the cell that prints the flood."""
    return f'for i in range({lines}):\n    print(f"rank {{rank}} line {{i}}")'


def expected(rank: int, lines: int) -> list[str]:
    """Return the lines that it prints on `rank`."""
    return [f"rank {rank} line {i}" for i in range(lines)]


def measure(quick: bool) -> list[Row]:
    """Measure time and IOPub bytes, and check that the lines are complete."""
    lines = LINES // 10 if quick else LINES
    with both() as (px, rankroom):
        for side in (px, rankroom):
            side.cell(source(lines // 20))
        peers, ours = alternate(
            2 if quick else 5,
            lambda: _px(px, lines),
            lambda: _rankroom(rankroom, lines),
        )
    what = f"{lines:,} lines on each of {RANKS} ranks"
    return [
        Row(
            f"{what}, all in the record: time", "s",
            [a.seconds for a in ours], [a.seconds for a in peers], ratio_at_most=0.35,
        ),
        Row(
            f"{what}: IOPub", "KiB",
            [a.size for a in ours], [a.size for a in peers], at_most=MOST,
        ),
    ]  # fmt: skip


def check(side: Rankroom, lines: int) -> None:
    """Raise NotMeasured unless the record holds every line once and in order."""
    run = side.latest()
    if run.state != "done" or run.lines != RANKS * lines:
        raise NotMeasured(f"the record is {run.state} and counts {run.lines:,} lines")
    for rank, found in enumerate(side.lines(run)):
        if found != expected(rank, lines):
            raise NotMeasured(f"rank {rank}: {len(found):,} lines in the record are not those")


def _rankroom(side: Rankroom, lines: int) -> Answer:
    answer = side.cell(source(lines))
    check(side, lines)
    return answer


def _px(side: Px, lines: int) -> Answer:
    answer = side.cell(source(lines))
    # %%px sends the accumulated text repeatedly; the last message of each rank has all of it.
    for rank in range(RANKS):
        mark = f"[stdout:{rank}] "
        whole = [m for m in answer.messages if mark.encode() in m.raw[:200]][-1:]
        if not whole or whole[0].text.removeprefix(mark).splitlines() != expected(rank, lines):
            raise NotMeasured(f"%%px did not show every line of rank {rank}")
    return answer
