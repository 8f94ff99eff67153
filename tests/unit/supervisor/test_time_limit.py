"""Warnings about a cluster's time limit: once each, and again after the limit was extended."""

from __future__ import annotations

import time

import pytest

from rankroom.record.cluster_file import Allocation
from rankroom.supervisor.time_limit import TimeLimit


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch):
    """Return a function that returns the warnings due so many `seconds` before 14:00."""
    limit = TimeLimit()
    end = time.mktime((2026, 11, 22, 14, 0, 0, 0, 0, -1))

    def news(seconds: float, until: float = end) -> list[str]:
        monkeypatch.setattr("rankroom.supervisor.time_limit.time.time", lambda: until - seconds)
        return limit.news(Allocation("12", (), until))

    return news


def test_each_warning_comes_once(left):
    assert [len(left(each)) for each in (3600, 601, 599, 400, 119, 60, 0)] == [0, 0, 1, 0, 1, 0, 0]


def test_a_warning_names_the_end_and_the_time_left(left):
    assert left(540) == [
        "the time limit of job 12 is reached at 14:00, in 9 min 00 s: the ranks end then, and "
        "their variables are lost"
    ]


def test_a_limit_first_seen_late_is_warned_of_once(left):
    assert [len(left(each)) for each in (100, 90)] == [1, 0]


def test_an_extended_limit_is_warned_of_again(left):
    assert [len(left(each)) for each in (100, 3000, 500, 100)] == [1, 0, 1, 1]


def test_without_a_time_limit_there_is_no_warning():
    assert TimeLimit().news(None) == []
    assert TimeLimit().news(Allocation("12", (), 0.0)) == []
