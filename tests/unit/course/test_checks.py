"""Checks of exercises, as a rank makes them, and what is said of an answer as a whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from rankroom.course import trial
from rankroom.course.examine import Right, examine
from rankroom.course.exercise import Learner, Wrong, find
from rankroom.course.exercises import ring_exercises
from rankroom.course.verdict import judge
from rankroom.errors import UsageError
from record_makers import make_run

SEED = 7


def ring(name: str, answer: Callable[[list[Any], Any], None], length: int) -> None:
    """Try half a ring on rank 0 of 2, which knows without the other what comes out: `answer` gets
    the chunks, and what they should be."""
    whole = ring_exercises._rows(Learner({}, 0, 2, SEED), 2 * length).sum(0).chunk(2)
    exercise = find(name)
    variables = {exercise.answer: lambda chunks: answer(chunks, whole)}
    exercise.run(Learner(variables, 0, 2, SEED))


@pytest.mark.parametrize(("name", "length", "place"), [("ring.2", 3, 1), ("ring.3", 2, 0)])
def test_chunks_of_a_ring_are_to_be_changed_in_place(name: str, length: int, place: int):
    ring(name, lambda chunks, whole: chunks[place].copy_(whole[place]), length)
    with pytest.raises(Wrong, match=rf"chunks\[{place}\] is another tensor now: .* or copy_"):
        ring(name, lambda chunks, whole: chunks.__setitem__(place, whole[place]), length)


def test_who_a_rank_is_comes_from_its_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_RANK", "1")
    monkeypatch.setenv("RANKROOM_SIZE", "2")
    variables = {"rank": 1, "size": 2, "speaks": lambda rank, size: rank == size - 1}
    assert isinstance(examine("hello.2", variables, SEED), Right)
    with pytest.raises(Wrong, match=r"`rank` is 3, and was 1: .* rank = int\(os\.environ\[\"RANK"):
        examine("hello.2", variables | {"rank": 3}, SEED)
    with pytest.raises(Wrong, match=r"`size` is \[1, 2\], and was 2: .*\"WORLD_SIZE\""):
        examine("hello.2", variables | {"size": [1, 2]}, SEED)
    del variables["rank"]
    with pytest.raises(Wrong, match="`rank` is None, and was 1"):
        examine("hello.2", variables, SEED)


class Called:
    def __call__(self, rank: int, size: int) -> bool:
        return True


@pytest.mark.parametrize(
    "answer", [lambda rank, size: True, functools.partial(max, 1), math.gcd, Called()]
)
def test_what_has_no_source_for_ranks_is_refused(answer: Any):
    with pytest.raises(UsageError, match="write it as a `def`, or use %%check"):
        trial.check("hello.2", answer)


def test_a_function_typed_where_nothing_keeps_the_lines_is_refused():
    typed: dict[str, Any] = {}
    exec("def speaks(rank, size):\n    return True", typed)
    with pytest.raises(UsageError, match="write it as a `def`, or use %%check"):
        trial.check("hello.2", typed["speaks"])


def test_a_cell_that_cannot_be_ended_is_said_to_go_on():
    said = judge("ring.1", make_run(2, state="running"), "", 30.0)
    assert said.state == "stopped" and "the cell still runs" in said.words
    assert "`%cluster restart` ends it" in said.words
    hung = judge("ring.1", make_run(2, state="running"), "rank 1 is silent", 30.0)
    assert hung.state == "hung" and "rank 1 is silent; the cell still runs" in hung.words
    over = judge("ring.1", make_run(2, state="interrupted"), "rank 1 is silent", 30.0)
    assert over.words.endswith("rank 1 is silent")
