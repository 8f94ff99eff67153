"""Sets of ranks as text: parsed, formatted and counted."""

from __future__ import annotations

import numpy as np
import pytest

from rankroom.errors import UsageError
from rankroom.text.rank_ranges import choose_ranks, count_ranks, format_ranks, parse_ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", [0]),
        ("0,2-3", [0, 2, 3]),
        (" 3 , 0 ", [0, 3]),
        ("1-1", [1]),
        ("0–2", [0, 1, 2]),
        ("0-3,1-2", [0, 1, 2, 3]),
        ("all", [0, 1, 2, 3]),
    ],
)
def test_ranks_are_parsed(text: str, ranks: list[int]):
    assert parse_ranks(text, 4) == ranks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4", "no rank 4"),
        ("0-999999999", "no rank 999999999"),
        ("0-9999999999999", "write them like 0,2-3"),
        ("3-1", "write 1-3"),
        ("", "write them like 0,2-3"),
        ("0,,1", "write them like 0,2-3"),
        ("-1", "write them like 0,2-3"),
        ("one", "write them like 0,2-3"),
        ("1.5", "write them like 0,2-3"),
    ],
)
def test_an_invalid_rank_is_refused_with_the_valid_ones(text: str, says: str):
    with pytest.raises(UsageError, match=says) as caught:
        parse_ranks(text, 4)
    if "counts backwards" not in str(caught.value):
        assert "0–3" in str(caught.value)


def test_the_error_in_a_cluster_of_one_rank_names_rank_0():
    for text in ("3", "one"):
        with pytest.raises(UsageError, match="this cluster has only rank 0"):
            parse_ranks(text, 1)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0–1"),
        ([3, 1, 0, 2], "0–3"),
        ([0, 2, 3, 5], "0,2–3,5"),
        ([1, 1, 1], "1"),
        (range(64), "0–63"),
    ],
)
def test_ranks_are_formatted(ranks, text: str):
    assert format_ranks(ranks) == text


def test_formatted_ranks_can_be_parsed():
    for bits in range(1, 64):
        ranks = [n for n in range(6) if bits >> n & 1]
        assert parse_ranks(format_ranks(ranks), 6) == ranks


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        (None, [0, 1, 2]),
        (range(2), [0, 1]),
        ({2, 0}, [0, 2]),
        (np.arange(2), [0, 1]),
        (np.int64(1), [1]),
        (2, [2]),
        ("0,2", [0, 2]),
    ],
)
def test_ranks_given_in_python_become_plain_integers(given, ranks: list[int]):
    chosen = choose_ranks(given, 3)
    assert chosen == ranks and {type(rank) for rank in chosen} == {int}


@pytest.mark.parametrize("given", [1.0, [0.5], ["0"], [None], object()])
def test_an_invalid_rank_given_in_python_is_a_usage_error(given):
    with pytest.raises(UsageError, match="write them like 0,2-3"):
        choose_ranks(given, 3)


def test_ranks_are_counted():
    assert [count_ranks(count) for count in (1, 2)] == ["1 rank", "2 ranks"]
