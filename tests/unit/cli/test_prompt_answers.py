"""Answering the prompts of ranks in a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cli import answers
from rankroom.cli.answers import Answers, can_ask
from rankroom.cli.terminal import Terminal
from rankroom.display.words import prompt_words
from rankroom.errors import UsageError
from rankroom.record.model import Prompt, RunInfo
from record_makers import make_run

Type = Callable[..., list[str]]


def run_with(*prompts: Prompt) -> RunInfo:
    return make_run(4, prompts=list(prompts), state="running")


def command(rank: int, number: int = 1, line: int = 5) -> Prompt:
    return Prompt(rank, number, "debugger", "ipdb> ", 0, f"cell line {line}")


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Return a function that types these lines, and returns the list of prompts shown."""

    def begin(*lines: str) -> list[str]:
        shown: list[str] = []
        waiting = list(lines)

        def read(prompt: str, asked: Prompt, complete: answers.CompleteCallback | None) -> str:
            shown.append(prompt)
            return waiting.pop(0)

        monkeypatch.setattr(answers, "_read", read)
        return shown

    return begin


@pytest.fixture
def given() -> list[Any]:
    return []


def test_an_answer_goes_once_to_all_ranks_with_the_same_prompt(type_in: Type, given: list[Any]):
    shown = type_in("n", "Ada")
    terminal = Answers(lambda text, prompts: given.append((text, dict(prompts))))
    other = Prompt(2, 1, "input", "name? ", 0, "cell line 1")
    run = run_with(command(0), command(1, 7), other)
    assert terminal.ask(run) and terminal.ask(run) and not terminal.ask(run)
    assert given == [("n", {0: 1, 1: 7}), ("Ada", {2: 1})]
    assert shown == ["ranks 0–1 ipdb> ", "rank 2 name? "]


def test_an_at_sign_selects_the_ranks_that_are_asked(type_in: Type, given: list[Any]):
    type_in("@1", "n", "@", "c", "@9", "w")
    terminal = Answers(lambda text, prompts: given.append((text, dict(prompts))))
    first, second = run_with(command(0), command(1)), run_with(command(0), command(1, 2))
    assert terminal.ask(first) and terminal.ask(first) and not terminal.ask(first)
    assert terminal.ask(second), "rank 1 asks again, and is the chosen one"
    assert terminal.ask(second)
    third = run_with(command(0, 2))
    assert terminal.ask(third) and terminal.ask(third)
    assert given == [("n", {1: 1}), ("c", {0: 1, 1: 2}), ("w", {0: 2})]


def test_others_are_asked_when_the_chosen_rank_asks_no_more(
    type_in: Type, given: list[Any], monkeypatch: pytest.MonkeyPatch
):
    type_in("@1", "c", "c")
    terminal = Answers(lambda text, prompts: given.append(dict(prompts)))
    run, left = run_with(command(0), command(1)), run_with(command(0))
    assert terminal.ask(run) and terminal.ask(run)
    assert not terminal.ask(left)
    monkeypatch.setattr(answers, "OTHER_RANKS_DELAY_S", 0.0)
    time.sleep(0.001)
    assert terminal.ask(left) and given == [{1: 1}, {0: 1}]


def test_an_answer_that_comes_too_late_is_reported(
    type_in: Type, capsys: pytest.CaptureFixture[str]
):
    def refuse(text: str, prompts: Any) -> None:
        raise UsageError("this prompt was already answered")

    type_in("n")
    assert Answers(refuse).ask(run_with(command(0)))
    said = capsys.readouterr().err
    assert "! rank 0 is in the debugger at cell line 5" in said and "already answered" in said


def test_only_chosen_ranks_are_asked(type_in: Type, given: list[Any]):
    type_in("n")
    terminal = Answers(lambda text, prompts: given.append(dict(prompts)), [1])
    assert not terminal.ask(run_with(command(0)))
    assert terminal.ask(run_with(command(0), command(1))) and given == [{1: 1}]


def test_prompts_are_described_in_words():
    run = run_with(command(0), command(1), command(3, line=9))
    assert prompt_words(run) == (
        "ranks 0–1 are in the debugger at cell line 5; rank 3 is in the debugger at cell line 9"
    )
    assert prompt_words(run_with(Prompt(2, 1, "input", "? ", 0))) == "rank 2 waits for input"
    run.state = "done"
    assert prompt_words(run) == ""


def test_nobody_is_asked_where_standard_input_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not can_ask()
    assert asyncio.run(Terminal().ask("leave it? ", {"l"})) == ""


def test_tab_is_bound_as_libedit_has_it(monkeypatch: pytest.MonkeyPatch):
    bound: list[str] = []
    libedit = SimpleNamespace(
        __doc__="Importing this module enables command line editing using libedit readline.",
        parse_and_bind=bound.append,
        set_completer_delims=lambda letters: None,
        set_completer=lambda function: None,
    )
    monkeypatch.setitem(sys.modules, "readline", libedit)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    answers._read("> ", Prompt(0, 1, "debugger", "ipdb> ", 0), lambda *asked: (0, []))
    answers._read("> ", Prompt(0, 2, "input", "? ", 0), None)
    assert bound == ["bind ^I rl_complete", "bind ^I ed-insert"]


def test_tab_asks_the_rank_what_can_follow():
    """In a pseudo-terminal, through readline."""
    source = """
from rankroom.cli.answers import _read
from rankroom.record.model import Prompt
asked = Prompt(3, 7, "debugger", "ipdb> ", 0, "cell line 5")
def complete(line, rank, number):
    assert (rank, number) == (3, 7)
    return {"p net.we": (2, ["net.weight"]), "p x[to": (4, ["total"])}[line]
print("read", _read("> ", asked, complete), _read("> ", asked, complete))
"""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "dumb", "INPUTRC": os.devnull},
    ) as reader:  # fmt: skip
        os.close(theirs)
        os.write(ours, b"p net.we\t[0]\np x[to\t]\n")
        text = b""
        try:
            while chunk := os.read(ours, 4096):
                text += chunk
        except OSError:  # the other side is closed
            pass
        assert reader.wait(30) == 0, text
    os.close(ours)
    assert b"read p net.weight[0] p x[total]\r\n" in text
