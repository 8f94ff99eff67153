"""Questions that a cell asks the user, and their answers."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

from rankroom.rank.debugging.prompts import Prompts
from rankroom.rank.world import ReleasedError


class Events:
    """Records reported events; for each question, calls `then(args)` in another thread."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, dict[str, Any]]] = []
        self.then: Any = lambda args: None

    def emit(self, kind: str, name: str, args: dict[str, Any]) -> None:
        self.marks.append((name, args))
        if name == "asks":
            threading.Thread(target=self.then, args=(args,)).start()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def prompts(events: Events) -> Prompts:
    made = Prompts(events.emit, lambda: {__file__})
    made.begin(interactive=True)
    return made


def ask(prompts: Prompts, kind: str = "input", text: str = "name? ") -> str:
    return prompts.ask(kind, text, sys._getframe())


def test_an_answer_ends_the_question_and_is_in_the_log(
    prompts: Prompts, events: Events, capsys: pytest.CaptureFixture[str]
):
    taken = []
    events.then = lambda args: taken.append(prompts.answer(args["number"], "Ada"))
    assert ask(prompts) == "Ada"
    assert taken == [True] and capsys.readouterr().out == "name? Ada\n"
    (asked, about), (answered, over) = events.marks
    assert (asked, answered, about["number"]) == ("asks", "answered", over["number"])
    assert about["text"] == "name? " and about["place"].startswith("cell line ")
    assert prompts.current is None


def test_an_answer_to_an_earlier_question_is_not_taken(prompts: Prompts, events: Events):
    taken = []

    def answer(args: dict[str, Any]) -> None:
        number = args["number"]
        taken.extend(prompts.answer(each, str(each)) for each in (number - 1, number, number))

    events.then = answer
    assert [ask(prompts), ask(prompts)] == ["1", "2"]
    assert taken[:2] == [False, True] and not prompts.answer(2, "too late")
    assert not taken[2] or not taken[5], "two clients were both told that theirs was taken"


def test_a_password_is_not_shown(
    prompts: Prompts, events: Events, capsys: pytest.CaptureFixture[str]
):
    events.then = lambda args: prompts.answer(args["number"], "secret")
    assert ask(prompts, "password", "Password: ") == "secret"
    assert "secret" not in capsys.readouterr().out and "secret" not in str(events.marks)


def test_a_release_ends_the_question_and_those_that_follow(prompts: Prompts, events: Events):
    released = []
    events.then = lambda args: released.append(prompts.release())
    with pytest.raises(ReleasedError, match="the debugger was released with its run"):
        ask(prompts, "debugger", "ipdb> ")
    events.then = lambda args: None
    with pytest.raises(ReleasedError):
        ask(prompts)
    assert released == [["the debugger"]]
    assert [name for name, _ in events.marks] == ["asks", "answered"] * 2
    prompts.begin(interactive=True)
    events.then = lambda args: prompts.answer(args["number"], "on we go")
    assert ask(prompts) == "on we go"


def test_prompts_are_refused_where_no_one_can_answer(prompts: Prompts):
    assert prompts.refusal() == ""
    there: list[str] = []
    thread = threading.Thread(target=lambda: there.append(prompts.refusal()))
    thread.start()
    thread.join()
    prompts.end()
    assert (
        "main thread" in there[0]
        and prompts.refusal() == "the run is not interactive, so no one can answer"
    )
    child = os.fork()
    if not child:
        os._exit(0 if "child process of the rank" in prompts.refusal() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_prompt_skipped_repeatedly_at_one_place_is_reported_once(
    prompts: Prompts, capsys: pytest.CaptureFixture[str]
):
    for _ in range(3):
        prompts.pass_over(
            "breakpoint()", "cell line 5", "the run is not interactive, so no one can answer"
        )
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("breakpoint() at cell line 5 ")
    assert line.endswith(" skipped: the run is not interactive, so no one can answer")


def test_the_watchdog_sees_an_open_prompt(prompts: Prompts, events: Events):
    stands = []

    def answer(args: dict[str, Any]) -> None:
        stands.append(prompts.standing())
        prompts.answer(args["number"], "c")

    events.then = answer
    ask(prompts, "debugger", "ipdb> ")
    assert stands[0]["state"] == "asks" and "the debugger at cell line" in stands[0]["what"]
    assert prompts.standing() is None
