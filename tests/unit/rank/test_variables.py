"""How `%ranks who` describes the variables on a rank."""

from __future__ import annotations

import collections
import math
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

from rankroom.display.variable_table import table
from rankroom.rank import variables
from rankroom.rank.variables import Variable, describe, describe_value


class Unsayable:
    """A user's class of which no method may be called."""

    def __repr__(self) -> str:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def mark(value: Any) -> str:
    return describe_value(value).mark


def test_a_view_of_an_array_is_not_copied_to_be_described():
    large = np.zeros((2000, 9000))  # 144 MB
    for view in (large.T, large[:, ::2].T, np.broadcast_to(np.arange(9000.0), (2000, 9000))):
        tracemalloc.start()
        assert describe_value(view).mark
        assert tracemalloc.get_traced_memory()[1] < 100e6
        tracemalloc.stop()
    assert mark(large.T) == mark(np.zeros((9000, 2000)))
    assert mark(np.arange(6.0).reshape(2, 3).T) == mark(np.array([[0.0, 3], [1, 4], [2, 5]]))
    import torch

    stacked = torch.arange(9000.0).expand(2000, 9000)
    other = stacked.clone().t().contiguous().t()
    assert mark(stacked) and mark(stacked) == mark(other)
    other[0, 0] = 1
    assert mark(stacked) != mark(other)


def test_a_dead_weakref_proxy_is_described():
    gone = collections.deque()
    names = {"a": 1, "p": weakref.proxy(gone)}
    del gone
    assert list(describe(names)) == ["a", "p"]


def test_modules_functions_and_hidden_names_are_left_out():
    names = {"math": math, "f": len, "g": lambda: 1, "C": Unsayable, "_": 3, "In": [], "x": 1}
    assert list(describe(names, {"In"})) == ["x"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, Variable("int", "3")),
        ("x" * 50, Variable("str", "'" + "x" * 38 + "…")),
        ([1, [2, {"a": None}]], Variable("list", "2 items")),
        ({}, Variable("dict", "0 items")),
        (np.zeros((2, 3), "f4"), Variable("ndarray", "2×3", "float32", "", 24)),
    ],
)
def test_comparable_values_have_a_description_and_a_mark(value: Any, said: Variable):
    found = describe_value(value)
    assert found._replace(mark="") == said
    assert found.mark


def test_tensors_and_networks_have_a_description_and_a_mark():
    import torch

    for value, said in (
        (torch.zeros(5, dtype=torch.bfloat16), Variable("Tensor", "5", "bfloat16", "cpu", 10)),
        (torch.tensor(1), Variable("Tensor", "scalar", "int64", "cpu", 8)),
        (torch.nn.Linear(2, 3), Variable("Linear", "9 parameters", "float32", "cpu", 36)),
        (torch.empty(0), Variable("Tensor", "0", "float32", "cpu", 0)),
    ):
        test_comparable_values_have_a_description_and_a_mark(value, said)
    without_data = torch.empty(2, device="meta")
    assert describe_value(without_data) == Variable("Tensor", "2", "float32", "meta", 8)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Unsayable(), Variable("Unsayable")),
        ([Unsayable()], Variable("list", "1 item")),
        (list(range(20_000)), Variable("list", "20,000 items")),
        (np.array([object()]), Variable("ndarray", "1", "object", "", 8)),
        (collections.Counter("a"), Variable("Counter")),
    ],
    ids=["own", "of own", "long", "of objects", "of another type"],
)
def test_values_that_cannot_be_compared_have_no_mark(value: Any, said: Variable):
    assert describe_value(value) == said


def test_a_list_that_contains_itself_is_described():
    endless: list[Any] = []
    endless.append(endless)
    assert describe_value(endless) == Variable("list", "1 item")


def test_equal_values_have_equal_marks_and_different_values_do_not():
    import torch

    assert mark([1.0, torch.ones(2)]) == mark([1.0, torch.ones(2)])
    assert mark([1.0, torch.ones(2)]) != mark([1.0, torch.zeros(2)])
    assert mark({"b", "a", "c"}) == mark({"c", "b", "a"})
    assert mark([1, 2]) != mark((1, 2))
    wide = torch.arange(12.0).reshape(3, 4)
    assert mark(wide.T) == mark(wide.T.contiguous())
    net = torch.nn.Linear(2, 2)
    before = mark(net)
    with torch.no_grad():
        net.bias += 1
    assert mark(net) != before


def test_large_arrays_that_differ_have_different_marks(monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setattr(variables, "MAX_HASHED_BYTES", 100)
    assert mark(np.arange(1000)) == mark(np.arange(1000))
    assert mark(np.arange(1000)) != mark(np.arange(1000) + 1)
    assert mark(torch.arange(1000)) != mark(torch.arange(1000) + 1)


def tensor(mark: str, device: str = "cpu", shape: str = "2×3") -> Variable:
    return Variable("Tensor", shape, "float32", device, 24, mark)


@pytest.mark.parametrize(
    ("on", "rows"),
    [
        ({0: tensor("a"), 1: tensor("a")}, [["0–1", "Tensor", "2×3", "float32", "cpu", "24 B",
                                             "equal"]]),
        ({0: tensor("a", "cuda:0"), 1: tensor("b", "cuda:1"), 2: tensor("a", "cuda:2")},
         [["0–2", "Tensor", "2×3", "float32", "cuda:0, cuda:1, cuda:2", "24 B",
           "differ: 0,2 | 1"]]),
        ({n: tensor(str(n), f"cuda:{n}") for n in range(8)},
         [["0–7", "Tensor", "2×3", "float32", "8 devices", "24 B", "differ on all"]]),
        ({0: tensor("a"), 1: tensor("a", shape="2×2"), 2: tensor("a")},
         [["0,2", "Tensor", "2×3", "float32", "cpu", "24 B", "equal"],
          ["1", "Tensor", "2×2", "float32", "cpu", "24 B", ""]]),
        ({0: describe_value(0.5), 1: describe_value(0.25)},
         [["0–1", "float", "0.5, 0.25", "", "", "–", "differ: 0 | 1"]]),
        ({0: describe_value(Unsayable()), 1: describe_value(Unsayable())},
         [["0–1", "Unsayable", "", "", "", "–", "–"]]),
    ],
    ids=["equal", "devices", "all differ", "shapes", "numbers", "own"],
)  # fmt: skip
def test_the_table_compares_variables_across_ranks(on: dict[int, Variable], rows: list[list[str]]):
    made = table({rank: {"x": each} for rank, each in on.items()})
    assert [list(row) for row in made.rows] == [["x", *row] for row in rows]


def test_the_table_shows_only_requested_names_on_ranks_that_have_them():
    made = table(
        {0: {"x": describe_value(1)}, 1: {"x": describe_value(1), "y": describe_value(2)}}, ["y"]
    )
    assert made.rows == [["y", "1", "int", "2", "", "", "–", ""]]
    assert table({0: {}, 1: {}}).rows == []


def test_dictionaries_that_are_equal_have_one_mark():
    one, other = {"a": 1, "b": [2]}, {"b": [2], "a": 1}
    assert one == other and mark(one) == mark(other) != mark({"a": 1, "b": [3]})


@pytest.mark.parametrize("kind", [bytes, bytes.decode], ids=["bytes", "str"])
def test_long_text_is_never_copied_as_a_whole(kind: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(variables, "MAX_HASHED_BYTES", 1 << 16)
    one, other = kind(b"a" * (1 << 24)), kind(b"a" * (1 << 23) + b"b" * (1 << 23))
    cut = one[1:]
    tracemalloc.start()
    try:
        assert mark(one) != mark(other) and mark([one]) != mark([other])
        assert mark(one) != mark(cut)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert describe_value(one).shape == repr(one[:40])[:39] + "…" and peak < 1 << 20
