"""Ranks and their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.text.rank_ranges import count_ranks


@exercise("hello.1", answer="share", ranks=1)
def shares(learner: Learner) -> None:
    """Check the shards of a list: complete, disjoint, and differing in length by one at most."""
    share = learner.function("share")
    for size in (learner.size, learner.chance.randrange(3, 9)):
        # One value short of an even split, and one too many; one per rank; fewer than ranks.
        uneven = size * learner.chance.randrange(6, 20) - 1
        for length in (uneven, uneven + 2, size, learner.chance.randrange(size)):
            _try_share(share, [learner.chance.randrange(1000) for _ in range(length)], size)


def _try_share(share: Callable[..., Any], values: list[int], size: int) -> None:
    parts = []
    for rank in range(size):
        part = share(list(values), rank, size)
        if part is None:
            raise Wrong("`share` returns None: does it end with a `return`?")
        parts.append(list(part))
    together = [value for part in parts for value in part]
    if sorted(together) != sorted(values):
        raise Wrong(
            f"of {len(values)} values for {size} ranks, the shares hold {len(together)} "
            f"together: {_lost(values, together)}"
        )
    counts = [len(part) for part in parts]
    if max(counts) - min(counts) > 1:
        raise Wrong(
            f"{len(values)} values are shared out as {counts}: no rank should have two more than "
            "another"
        )


def _lost(values: list[int], together: list[int]) -> str:
    if len(together) < len(values):
        return f"{len(values) - len(together)} are lost"
    if len(together) > len(values):
        return "some are given out more than once"
    return "they are not the values that were passed in"


@exercise("hello.2", answer="speaks", ranks=2)
def last_rank_speaks(learner: Learner) -> None:
    """Check that `speaks` is true on the last rank only, for any number of ranks."""
    speaks = learner.function("speaks")
    for size in (1, learner.size, learner.chance.randrange(3, 50)):
        said = [rank for rank in range(size) if speaks(rank, size)]
        if said != [size - 1]:
            who = ", ".join(map(str, said)) or "none"
            raise Wrong(
                f"of {count_ranks(size)}, {who} would speak: it should be rank {size - 1} alone"
            )


@exercise("hello.3", answer="careful", ranks=2)
def a_careful_division(learner: Learner) -> None:
    """Check that a division by zero gives infinity instead of an error that stops all ranks."""
    careful = learner.function("careful")
    number, times = learner.own.randrange(2, 100), learner.own.randrange(4, 100)
    whole = number * times
    try:
        quotients = [(a, careful(a, number)) for a in (whole, whole + 1)]
        odd = careful(number, 0)
    except ZeroDivisionError:
        raise Wrong("dividing by 0 still raises: catch ZeroDivisionError") from None
    for a, found in quotients:
        if found != a / number:
            raise Wrong(f"careful({a}, {number}) gives {found!r}, and should give {a / number}")
    if odd != float("inf"):
        raise Wrong(f'careful({number}, 0) gives {odd!r}, and should give float("inf")')


@exercise("hello.0", answer="hello", ranks=1)
def greeting(learner: Learner) -> None:
    """Check the first answer of the course: a greeting with rank and size."""
    say = learner.function("hello")
    for size in (learner.size, learner.chance.randrange(3, 90)):
        for rank in range(size):
            found, wanted = say(rank, size), f"hello from {rank} of {size}"
            if found != wanted:
                raise Wrong(f"on rank {rank} of {size} it should be {wanted!r}, and is {found!r}")
