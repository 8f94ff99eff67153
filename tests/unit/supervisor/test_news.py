"""The state of a cluster is sent to its followers when it changes, and from time to time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.record.cluster_file import ClusterInfo
from rankroom.supervisor.news import News


class Asked:
    """A request of a follower, which records its replies."""

    def __init__(self, known: int) -> None:
        self.content = {"do": "news", "known": known}
        self.answers: list[dict[str, Any]] = []

    def answer(self, **content: Any) -> None:
        self.answers.append(content)


@pytest.fixture
def timers() -> list[Callable[[], None]]:
    """Return the list of scheduled calls."""
    return []


@pytest.fixture
def news(timers: list[Callable[[], None]]) -> News:
    server = SimpleNamespace(
        later=lambda seconds, call: timers.append(call), call=lambda call: call()
    )
    return News(ClusterInfo("one", 2), server)  # type: ignore[arg-type]


def test_an_up_to_date_follower_is_answered_at_the_next_change(news: News):
    news.note_run("a", "running")
    first, second = Asked(-1), Asked(1)
    assert news.take(first) and news.take(second)  # type: ignore[arg-type]
    assert first.answers[0]["runs"] == {"a": "running"} and first.answers[0]["version"] == 1
    news.note()
    assert [each["version"] for each in second.answers] == [2]


def test_each_request_is_answered_once_and_only_by_its_own_timer(news: News, timers):
    """The timer of a request that was already answered must not answer the next request."""
    for version in range(5):
        question = Asked(version)
        news.take(question)  # type: ignore[arg-type]
        news.note()
        assert len(question.answers) == 1
    waits = Asked(5)
    news.take(waits)  # type: ignore[arg-type]
    *past, own = timers
    for each in past:
        each()
    assert waits.answers == []
    own()
    assert [each["version"] for each in waits.answers] == [5]


def test_a_follower_is_sent_only_the_runs_that_have_changed(news: News):
    for number in range(1000):
        news.note_run(f"{number}", "running")
        news.note_run(f"{number}", "done")
    news.note_run("last", "running")
    news.note_run("7", "lost")
    every, late = Asked(-1), Asked(2000)
    news.take(every)  # type: ignore[arg-type]
    news.take(late)  # type: ignore[arg-type]
    assert len(every.answers[0]["runs"]) == 1001
    assert list(late.answers[0]["runs"].items()) == [("last", "running"), ("7", "lost")]
