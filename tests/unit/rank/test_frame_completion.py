"""Tab completion in a command line for the debugger of a rank."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
from IPython.core.debugger import Pdb

from rankroom.rank.debugging import frame_completion
from rankroom.rank.debugging.frame_completion import FrameCompletion

total = 3  # a global, as a cell's variables are


class Slow:
    """A user's class whose attribute lookups are slow, and then fail."""

    until = threading.Event()

    def __getattr__(self, name: str) -> Any:
        self.until.wait(30)
        raise ValueError(name)


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A debugger that has stopped in a function with some variables."""
    made = Pdb()
    losses = {"train": 0.5}
    slow = Slow()
    made.curframe = sys._getframe()
    made.curframe_locals = {"losses": losses, "slow": slow, "_hidden": 1, "loop": 2}
    return made


def of(debugger: Any, line: str) -> tuple[int, list[str]]:
    found = FrameCompletion().of(debugger, line)
    return found["begin"], found["matches"]


def test_the_first_word_is_completed_to_commands_and_names(debugger: Any):
    begin, found = of(debugger, "lo")
    assert begin == 0 and {"locals", "longlist", "loop", "losses"} == set(found)
    assert "until" in of(debugger, "unt")[1] and "until" not in of(debugger, "p unt")[1]
    assert of(debugger, "  los") == (2, ["losses"])


def test_names_attributes_and_builtins_are_completed_after_a_command(debugger: Any):
    assert of(debugger, "p los") == (2, ["losses"])
    assert of(debugger, "p tot") == (2, ["total"])
    assert of(debugger, "p losses.ke") == (2, ["losses.keys"])
    assert of(debugger, "p len(losses.it") == (6, ["losses.items"])
    assert of(debugger, "!x = isinst") == (5, ["isinstance"])
    assert of(debugger, "p ") == (2, ["loop", "losses", "slow"])
    assert of(debugger, "") == (0, [])


@pytest.mark.parametrize("line", ["p nothing.at.all", "p losses..", "p 'é", "p f().x", "x" * 5000])
def test_a_line_without_possible_completions_has_no_matches(debugger: Any, line: str):
    assert of(debugger, line)[1] == []


def test_a_slow_attribute_does_not_block_completion(debugger: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frame_completion, "SEARCH_TIMEOUT_S", 0.05)
    completion = FrameCompletion()
    begun = time.monotonic()
    assert completion.of(debugger, "p slow.x.y")["matches"] == []
    assert completion.of(debugger, "p los")["matches"] == []  # one search at a time
    assert time.monotonic() - begun < 5
    Slow.until.set()
    completion._search.join(30)
    assert completion.of(debugger, "p los")["matches"] == ["losses"]
