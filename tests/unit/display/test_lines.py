"""Lines assembled from pieces, and equal lines of several ranks shown once."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import pytest

import collapse_cases
from checkout import SUPPORT
from rankroom.display.differing_numbers import common_text
from rankroom.display.lines import Line, collapse, lines_of
from rankroom.display.startup_messages import is_startup_message
from rankroom.display.text import clean
from rankroom.record.download import log_text
from rankroom.record.model import parse_event
from record_makers import log

# One number, or one per rank.
NUMBERS = re.compile(r"[0-9]+(\.5)?(\|[0-9]+(\.5)?)*")
BARS = json.loads((SUPPORT / "bars.json").read_text("utf-8"))
FLAGS_BEGIN = "To enable the following instructions: "


def texts(*lines: bytes) -> list[tuple[int, str, str]]:
    return [tuple(line) for line in lines_of(filter(None, map(parse_event, lines)))]


def shown(*lines: tuple[int, str]) -> list[tuple[list[int], str]]:
    return [(g.ranks, g.text) for g in collapse(Line(rank, "stdout", t) for rank, t in lines)]


def test_a_long_running_progress_bar_is_one_line():
    passes = [f"\r{step:6}/30000 |{'#' * 80}| {step / 300:5.1f} %" for step in range(30_001)]
    pieces = [log(0, "".join(passes[at : at + 100])) for at in range(0, len(passes), 100)]
    [(_, _, text)] = texts(*pieces, log(0, "\n"))
    assert text == passes[-1][1:]


def test_pieces_of_a_line_are_joined_per_rank_and_stream():
    assert texts(
        log(0, "ab"), log(1, "x\n"), log(0, "c\nd"), log(0, "err", stream="stderr"), log(0, "e\n")
    ) == [(1, "stdout", "x"), (0, "stdout", "abc"), (0, "stdout", "de"), (0, "stderr", "err")]


def test_empty_lines_stay_and_the_last_line_needs_no_newline():
    assert [t for _, _, t in texts(log(0, "\n\na\n"), log(0, "end"))] == ["", "", "a", "end"]


def test_progress_bars_leave_their_last_state():
    assert texts(log(0, " 1%\r"), log(0, " 50%\r"), log(0, "100%\ndone\n")) == [
        (0, "stdout", "100%"),
        (0, "stdout", "done"),
    ]


@pytest.mark.parametrize("case", BARS, ids=[case["name"] for case in BARS])
def test_stacked_progress_bars_are_shown_once(case: dict[str, Any]):
    """The view's tests use the same file."""
    found = texts(*[log(0, text, seq=n) for n, text in enumerate(case["said"])])
    assert [clean(text).rstrip() for _, _, text in found] == case["lines"]


def test_endless_progress_bars_yield_few_lines_quickly():
    said = ["\router", *["\n\rinner\x1b[A" * 5_000] * 40]
    began = time.process_time()
    found = texts(*[log(0, text, seq=n) for n, text in enumerate(said)])
    assert {text for _, _, text in found} <= {"outer", "inner", ""} and len(found) < 30
    assert time.process_time() - began < 5


def test_a_line_without_a_newline_is_split_quickly():
    began = time.process_time()
    found = texts(*[log(0, "x" * 50_000, seq=n) for n in range(100)])
    assert sum(len(t) for _, _, t in found) == 5_000_000
    assert max(len(t) for _, _, t in found) < 1_200_000
    assert time.process_time() - began < 2


def test_equal_lines_are_shown_once():
    assert shown((0, "a"), (1, "a"), (0, "b"), (1, "c")) == [([0, 1], "a"), ([0], "b"), ([1], "c")]


def test_equal_lines_of_a_late_rank_join_the_earlier_ones():
    assert shown((0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "c")) == [
        ([0, 1], "a"),
        ([0], "b"),
        ([0, 1], "c"),
    ]


def test_no_line_joins_one_before_the_last_line_of_its_rank():
    assert shown((0, "a"), (0, "b"), (1, "b"), (1, "a")) == [([0], "a"), ([0, 1], "b"), ([1], "a")]


def test_the_same_line_twice_on_a_rank_stays_twice():
    assert shown((0, "a"), (0, "a"), (1, "a"), (1, "a"), (1, "a")) == [
        ([0, 1], "a"),
        ([0, 1], "a"),
        ([1], "a"),
    ]


def test_streams_are_not_mixed():
    groups = list(collapse([Line(0, "stdout", "a"), Line(1, "stderr", "a")]))
    assert [(g.ranks, g.stream) for g in groups] == [([0], "stdout"), ([1], "stderr")]


def test_lines_of_one_rank_move_before_the_common_line_that_follows():
    in_turn = [(rank, text) for rank in (0, 1) for text in ("hello", f"I am rank {rank}", "done")]
    assert shown(*in_turn) == [
        ([0, 1], "hello"),
        ([0], "I am rank 0"),
        ([1], "I am rank 1"),
        ([0, 1], "done"),
    ]


def test_the_golden_file_of_collapsed_lines_is_up_to_date():
    """The view's tests use the same file."""
    assert collapse_cases.FILE.read_text("utf-8") == collapse_cases.text(), (
        "run tests/support/collapse_cases.py"
    )


def test_collapsing_a_long_log_is_quick():
    began = time.process_time()
    lines = (Line(n % 4, "stdout", f"step {n // 4}") for n in range(200_000))
    assert sum(group.ranks == [0, 1, 2, 3] for group in collapse(lines)) == 50_000
    assert time.process_time() - began < 5


def test_collapsing_is_quick_where_many_equal_lines_move():
    began = time.process_time()
    lines = []
    for n in range(4_000):
        lines += [(0, f"step {n}"), *[(1, "warning")] * 10, (1, f"step {n}")]
    assert len(shown(*lines)) == 44_000
    assert time.process_time() - began < 5


def test_collapsing_keeps_every_line_of_every_rank_in_order():
    rng = random.Random(3)
    for window in (1, 3, 10, 20_000):
        for _ in range(100):
            lines = [(rng.randrange(4), rng.choice("abc")) for _ in range(rng.randrange(60))]
            groups = list(collapse([Line(r, "stdout", t) for r, t in lines], window))
            for rank in range(4):
                assert [g.text for g in groups if rank in g.ranks] == [
                    t for r, t in lines if r == rank
                ]
            assert all(len(set(g.ranks)) == len(g.ranks) for g in groups)


def test_start_up_messages_are_folded_and_each_is_counted():
    rng = random.Random(4)
    texts = ["a", "an error", collapse_cases.ABSL, collapse_cases.FLAGS]
    for _ in range(100):
        lines = [Line(rng.randrange(4), "stderr", rng.choice(texts)) for _ in range(60)]
        groups = list(collapse(lines))
        assert sum(group.lines for group in groups) == len(lines)
        for rank in range(4):
            own = [line.text for line in lines if line.rank == rank]
            said = [text for text in own if not is_startup_message(text)]
            shown = [g.text for g in groups if rank in g.ranks]
            assert [text for text in shown if "start-up messages: " not in text] == said


def test_only_what_tensorflow_writes_on_stderr_is_folded():
    said = [Line(rank, "stdout", collapse_cases.ABSL) for rank in (0, 1)]
    assert [group.text for group in collapse(said)] == [collapse_cases.ABSL]
    assert not is_startup_message(f"  {collapse_cases.FLAGS}")
    assert not is_startup_message("E0000 00:00:1.2 3 cuda_dnn.cc:4] Could not create cudnn")


def test_hostile_lines_are_classified_and_compared_quickly():
    begun = "2024-08-15 02:53:40.34: E "
    began = time.process_time()
    for text in (begun + "x/" * 400_000, FLAGS_BEGIN + "rebuild TensorFlow with " * 40_000):
        assert not is_startup_message(text)
        assert common_text("a1" * 400_000 + " 1.5" * 100_000, 0)
    assert time.process_time() - began < 5


def test_nul_bytes_and_long_keys_survive_grouping_by_numbers():
    lines = [Line(0, "stdout", "x\0\0"), Line(1, "stdout", "x5")]
    assert [group.text for group in collapse(lines, by_numbers=True)] == ["x\0\0", "x5"]
    lines = [Line(rank, "stdout", f"key 0x{rank + 1}{'f' * 300}") for rank in range(6)]
    [group] = collapse(lines, by_numbers=True)
    assert group.text == f"key 0x1{'f' * 300}…0x6{'f' * 300}"


def test_lines_with_different_words_are_never_joined_by_numbers():
    rng = random.Random(5)
    words = ["loss", "acc", "GPU{}", "{}", "{}.5", "{}ms", "node-{}", "step"]
    for _ in range(200):
        made = [rng.choices(words, k=3) for _ in range(3)]
        lines = [
            Line(rng.randrange(3), "stdout", " ".join(rng.choice(made)).replace("{}", str(n)))
            for n in rng.choices(range(3), k=30)
        ]
        groups = list(collapse(lines, by_numbers=True))
        assert sum(group.lines for group in groups) == len(lines)
        for rank in range(3):
            shown = [NUMBERS.sub("#", g.text) for g in groups if rank in g.ranks]
            said = [NUMBERS.sub("#", line.text) for line in lines if line.rank == rank]
            assert shown == said


def test_download_splits_only_overlong_lines_and_marks_the_split():
    events = [
        {"kind": "log", "rank": 0, "seq": n, "t": 0, "stream": "stdout", "text": "y" * 300_000}
        for n in range(8)
    ]
    text = b"".join(log_text(events)).decode()
    first, second, rest = text.split("\n", 2)
    assert first == "0 │ " + "y" * 1_200_000 and second.startswith("0 ┆ yyy") and rest == ""
    assert text.count("y") == 2_400_000


def test_download_yields_text_even_if_no_line_ends_for_long():
    bars = [
        {
            "kind": "log",
            "rank": rank,
            "seq": n,
            "t": 0,
            "stream": "stdout",
            "text": "\r" + "#" * 999,
        }
        for n in range(400)
        for rank in (0, 1)
    ]
    end = {"kind": "log", "rank": 0, "seq": 400, "t": 0, "stream": "stdout", "text": "\ndone\n"}
    pieces = list(log_text([*bars, end]))
    assert all(pieces), "an empty piece tells nothing"
    text = b"".join(pieces).decode()
    assert text.count("#") == 800 * 999 and "0 │ done\n" in text


def test_download_keeps_colors_carriage_returns_and_order():
    lines = [log(1, "\x1b[31ma\x1b[0m\r"), log(0, "b\n\nc"), log(1, "d\n"), log(2, "no\n")]
    events = [event for event in map(parse_event, lines) if event]
    text = b"".join(log_text(events, {0, 1})).decode()
    assert text == "0 │ b\n0 │ \n1 │ \x1b[31ma\x1b[0m\rd\n0 │ c\n"
