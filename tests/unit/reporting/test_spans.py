"""A rank's spans: in columns with a table of names, and bounded in runs that last for days."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from rankroom.reporting import spans as module
from rankroom.reporting.spans import SpanRecorder, span


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    """A recorder with limits that a test can reach."""
    monkeypatch.setattr(module, "UNSAMPLED_SPANS", 100)
    monkeypatch.setattr(module, "SAMPLED_STRETCH_SPANS", 10)
    monkeypatch.setattr(module, "MAX_SPANS_PER_EVENT", 64)
    monkeypatch.setattr(module, "MAX_NAMES", 5)
    made = SpanRecorder()
    made.begin()
    return made


def starts(events: list[dict[str, Any]], zero: int = 0) -> list[int]:
    """The absolute start times of the events' spans, without spans that mark what is left out."""
    found = []
    for event in (each for each in events if each["cat"] != module.UNRECORDED):
        now = zero
        for apart in event["start"]:
            now += apart
            found.append(now)
    return found


def test_spans_are_columns_and_names_are_defined_once(small: SpanRecorder) -> None:
    number = small.number("a", lambda: {"name": "a"})
    small.add("user", number, 1_000_500, 7)
    small.add("user", small.number("b", lambda: {"name": "b"}), 1_000_400, 0)
    assert list(small.take(1_000_000)) == [
        {
            "cat": "user",
            "from": 0,
            "define": [{"name": "a"}, {"name": "b"}],
            "name": (0, 1),
            "start": [500, -100],
            "dur": (7, 0),
        }
    ]
    small.add("user", small.number("b", lambda: {"name": "never asked"}), 1_000_900, 1)
    assert list(small.take(1_000_000)) == [
        {"cat": "user", "name": (1,), "start": [900], "dur": (1,)}
    ]
    assert list(small.take(0)) == []


def test_names_beyond_the_limit_share_one_number(small: SpanRecorder) -> None:
    numbers = [small.number(each, lambda: {"name": "x"}) for each in range(9)]
    assert numbers == [0, 1, 2, 3, 4, 5, 5, 5, 5]
    small.add("user", 5, 0, 0)
    assert len(next(small.take(0))["define"]) == 6


def test_nothing_is_kept_outside_a_run() -> None:
    made = SpanRecorder()
    made.add("user", 0, 0, 0)
    made.extend("user", [(0, 0, 0)])
    assert list(made.take(0)) == []
    with span("outside"):
        pass


@pytest.mark.parametrize("piece", [1, 7, 100, 5000])
def test_a_long_run_is_sampled_in_the_same_stretches_however_it_is_read(
    small: SpanRecorder, piece: int
) -> None:
    kept = []
    for begin in range(0, 5000, piece):
        part = [(0, at, 1) for at in range(begin, min(5000, begin + piece))]
        small.extend("collective", part, "torch 0")
        kept += starts(list(small.take(0)))
    first = list(range(100))
    tenth = [at for at in range(100, 1000) if at // 10 % 10 == 0]
    hundredth = [at for at in range(1000, 5000) if at // 10 % 100 == 0]
    assert kept == first + tenth + hundredth
    assert len(small.new_notes()) == 1 and small.new_notes() == []


def test_streams_are_counted_apart(small: SpanRecorder) -> None:
    for stream in ("hvd.torch 0", "hvd.torch 1"):
        small.extend("collective", [(0, at, 1) for at in range(115)], stream)
    assert starts(list(small.take(0))) == [*range(110)] * 2


def test_phase_spans_are_kept_only_at_the_beginning(small: SpanRecorder) -> None:
    small.extend("phase", [(0, at, 1) for at in range(1100)])
    assert starts(list(small.take(0))) == list(range(100))
    assert "more than 100 phase spans" in small.new_notes()[0]


def test_a_new_run_starts_with_an_empty_recorder(small: SpanRecorder) -> None:
    small.extend("phase", [(small.number("a", lambda: {"name": "a"}), 0, 1)] * 101)
    list(small.take(0))
    small.begin()
    assert small.new_notes() == [] and list(small.take(0)) == []
    small.add("phase", small.number("b", lambda: {"name": "b"}), 5, 1)
    (event,) = small.take(0)
    assert (event["from"], event["define"]) == (0, [{"name": "b"}])


def test_a_span_takes_at_most_14_bytes_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankroom.record.model import event_line

    made = SpanRecorder()
    made.begin()
    for at in range(20_000):
        name = at % 8
        number = made.number(name, lambda name=name: {"name": f"allreduce layer{name}.weight"})
        made.add("collective", number, 10**15 + at * 210, 137 + at % 50)
    lines = [event_line("spans", 0, i, 0, **each) for i, each in enumerate(made.take(10**15))]
    assert sum(map(len, lines)) / 20_000 <= 14


@pytest.mark.parametrize("piece", [1, 7, 64, 5000])
def test_extend_columns_keeps_the_same_spans_as_extend(small: SpanRecorder, piece: int) -> None:
    other = SpanRecorder()
    other.begin()
    kept: list[list[int]] = [[], []]
    for begin in range(0, 3000, piece):
        places = list(range(begin, min(3000, begin + piece)))
        ones = [1] * len(places)
        small.extend_columns("collective", (ones, places, ones), "torch 0")
        other.extend("collective", zip(ones, places, ones, strict=True), "torch 0")
        for which, made in enumerate((small, other)):
            events = list(made.take(0))
            assert all(len(each["name"]) == len(each["dur"]) <= 64 for each in events)
            kept[which] += starts(events)
    assert kept[0] == kept[1] and len(kept[0]) < 3000
    made = SpanRecorder()
    made.extend_columns("collective", ([1], [1], [1]), "")
    assert list(made.take(0)) == []


def test_ranks_keep_the_same_collectives_whenever_they_report(
    small: SpanRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSAMPLED_SPANS_PER_NAME", 100)

    def kept(every: int) -> set[tuple[int, int]]:
        """Return the spans, by name and start, of a rank that reports after `every` steps."""
        small.begin()
        loss, bucket = (small.number(each, lambda: {"name": "x"}) for each in ("loss", "bucket"))
        found = set()
        for step in range(3000):
            small.late((small.add, "collective", bucket, step, 1))
            small.add("collective", loss, step, 1)
            if step % every == every - 1 or step == 2999:
                for event in small.take(0):
                    found |= set(zip(event["name"], starts([event]), strict=True))
        return found

    assert len(kept(49)) > 200
    assert kept(49) == kept(50) == kept(51)


def test_changing_span_arguments_do_not_use_up_the_names_of_others(
    small: SpanRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ARGUMENT_VARIANTS", 2)
    numbers = [small.number_of_users("load", {"i": i}) for i in range(1000)]
    assert len(set(numbers)) == 3 and len(small._numbers) == 3
    assert small.number_of_users("load", {"i": 1}) == numbers[1]
    small.add("collective", small.number("new", lambda: {"name": "new"}), 0, 1)
    [event] = small.take(0)
    assert [each["name"] for each in event["define"]] == ["load", "load", "load", "new"]


def test_arguments_that_are_equal_and_of_other_types_are_told_apart(small: SpanRecorder) -> None:
    numbers = {small.number_of_users("load", {"flag": each}) for each in (1, True, 1.0)}
    assert len(numbers) == 3


def test_numbers_of_numpy_stay_numbers_in_arguments() -> None:
    found = [module._plain(each) for each in (np.int64(32), np.float32(0.5), np.array(3), np.nan)]
    assert found == [32, 0.5, 3, "nan"] and type(found[0]) is int
    assert module._plain(np.arange(2)) == "[0 1]"
    assert module._plain(np.longdouble(0.5)) == "0.5"  # which Python has no number for


@pytest.mark.parametrize("stream", ["", "nccl"])
def test_regrouped_ranks_keep_the_same_collectives(small: SpanRecorder, monkeypatch, stream: str):
    """In an elastic run, one rank has just begun to count, another has left out many by then."""
    monkeypatch.setattr(module, "UNSAMPLED_SPANS_PER_NAME", 100)
    joins = SpanRecorder()
    joins.begin(1)
    now = time.time_ns() // 1000

    def add(made: SpanRecorder, first: int, count: int) -> list[int]:
        number = made.number("allreduce", lambda: {"name": "allreduce"})
        made.extend("collective", [(number, now + first + i, 1) for i in range(count)], stream)
        return starts(list(made.take(now)))

    assert len(add(small, -1000, 500)) < 200
    small.extend("collective", [(0, now - 1 - each, 1) for each in range(5)], stream)
    monkeypatch.setattr(module.time, "time_ns", lambda: now * 1000)
    for each in (small, joins):
        each.regroup()
    for first in (0, 150, 300):
        together = [[at for at in add(each, first, 150) if at >= 0] for each in (small, joins)]
        assert together[0] == together[1] and together[0]
