"""Traces with arguments of wrong types, parser processes that die, and the report of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_importers import EXPECTED, SOUND, Bench, plain, x

from rankroom.analysis.importers import parallel_parser, trace_repair


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("args", ["text", [1, 2], 7])
def test_arguments_that_are_no_object_are_left_out(bench: Bench, args: Any):
    _, spans = bench.read(bench.file([x("a", at, 1, args=args) for at in range(3)]))
    assert plain(spans) == [("a", at, 1) for at in range(3)]


@pytest.mark.parametrize("zero", ["abc", [], None])
def test_a_time_zero_that_is_not_a_number_is_ignored(bench: Bench, zero: Any):
    about = {"rankroom": {"start": 5, "zero": zero}}
    made, spans = bench.read(bench.file({"otherData": about, "traceEvents": [x("a", 0, 1)]}))
    assert made.run.start == 5 and len(spans) == 1


def die(text: str) -> None:
    os._exit(1)


def no_process(*_: Any) -> Any:
    raise BlockingIOError("no more processes")


@pytest.mark.parametrize(("what", "how"), [("part", die), ("ProcessPoolExecutor", no_process)])
def test_a_trace_is_parsed_in_one_process_if_parallel_parsing_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str, how: Any
):
    monkeypatch.setattr(parallel_parser, "is_worth", lambda path: True)
    monkeypatch.setattr(trace_repair, "BLOCK_CHARS", 1000)
    monkeypatch.setattr(parallel_parser, what, how)
    _, spans = bench.read(bench.file(SOUND))
    assert plain(spans) == sorted(EXPECTED)


def test_the_report_of_a_file_counts_its_spans_and_names_its_ranks(bench: Bench):
    made, _ = bench.read(bench.file([x("a", 0, 1)]))
    assert str(made.files[0]) == "t.json: 1 span of rank 0 (Chrome)"
    made, _ = bench.read(bench.file([x("a", 0, 1, pid=rank) for rank in range(3)]))
    assert str(made.files[0]) == "t.json: 3 spans of ranks 0–2 (Chrome)"
