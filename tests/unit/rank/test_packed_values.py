"""Variables sent between the notebook and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankroom.errors import RankroomError
from rankroom.rank import packed_values
from rankroom.rank.packed_values import pack, unpack


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize(
    ("wrap", "find"),
    [
        (lambda x: x, lambda value: value),
        (lambda x: {"x": x, "y": 1}, lambda value: value["x"]),
        (lambda x: [1, x], lambda value: value[1]),
        (lambda x: {"x": {"deep": [x]}}, lambda value: value["x"]["deep"][0]),
    ],
    ids=["bare", "named", "listed", "deep"],
)
def test_arrays_can_be_written_to(wrap: Any, find: Any, size: int):
    sent = np.arange(size, dtype="f4")
    x = find(unpack(pack(wrap(sent))))
    assert x.dtype == "f4" and (x == sent).all()
    x[0] = 7
    assert x[0] == 7 and sent[0] == 0


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}])
def test_records_keep_the_gaps_between_their_fields(wrap: Any):
    kind = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    sent = np.array([(1, 2.0)], kind)
    found = unpack(pack(wrap(sent)))
    found = found["x"] if isinstance(found, dict) else found
    assert found.dtype == kind and found.tolist() == [(1, 2.0)]
    found["b"] = 3.0


def test_dictionaries_may_refer_to_one_another():
    one: dict[str, Any] = {"number": 1}
    one["me"], one["other"] = one, {"back": one}
    found = unpack(pack(one))
    assert found["me"] is found and found["other"]["back"] is found and found["number"] == 1
    deep: dict[str, Any] = {"x": np.arange(3)}
    for _ in range(60):  # each contains the previous one twice
        deep = {"a": deep, "b": deep}
    found = unpack(pack(deep))
    assert found["a"] is found["b"]
    part = {"double": lambda x: 2 * x}  # cannot be pickled
    found = unpack(pack({"a": part, "b": part}), {})
    assert found["a"]["double"](2) == found["b"]["double"](2) == 4


def test_other_values_stay_what_they_are():
    names = {
        "bytes": b"ab", "none": b"", "array": bytearray(b"ab"), "text": "ä", "pair": (1, [2]),
        "number": np.float64(2), "empty": np.zeros((0, 3)), "objects": np.array([1, None], object),
    }  # fmt: skip
    found = unpack(pack(names))
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in names.items()
    }
    assert found["bytes"] == b"ab" and found["array"] == b"ab" and found["pair"] == (1, [2])
    assert found["empty"].shape == (0, 3) and found["objects"].tolist() == [1, None]
    assert unpack(pack((len, ([1, 2],))))[0] is len


def test_dictionaries_keep_their_order_and_any_keys():
    for value in ({"loss": 1, "acc": 2}, {0: 1, "total": 2}, {None: 3, "a": [4]}, {}):
        for sent in (value, {"cfg": value}, {"all": {"cfg": value}}, [value], (1, {"cfg": value})):
            assert repr(unpack(pack(sent))) == repr(sent)
    many = {f"{number}": number for number in range(200, 0, -1)}
    assert list(unpack(pack({"many": many}))["many"]) == list(many)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [1, x], lambda x: {"x": x, "f": len}])
def test_arrays_of_types_without_a_buffer_travel_too(wrap: Any):
    sent = np.array(["2026-11-29", "2026-11-30"], "M8[D]")
    found = unpack(pack(wrap(sent)))
    got = {dict: lambda: found["x"], list: lambda: found[1]}.get(type(found), lambda: found)()
    assert got.dtype == sent.dtype and (got == sent).all()


def test_a_function_of_another_python_is_refused_and_values_are_not(
    monkeypatch: pytest.MonkeyPatch,
):
    """Bytecode of another Python version would crash the process that runs it."""
    with monkeypatch.context() as there:
        there.setattr(packed_values, "PYTHON_VERSION", (3, 99))
        function, values = pack({"f": lambda x: x + 1}), pack({"x": np.ones(3), "y": "text"})
    with pytest.raises(
        RankroomError, match=r"a function from Python 3\.99 cannot run in Python 3\."
    ):
        unpack(function)
    assert unpack(values)["y"] == "text" and unpack(values)["x"].sum() == 3
    assert unpack(pack({"f": lambda x: x + 1}))["f"](1) == 2


def test_tensors_are_loaded_onto_the_cpu_in_the_notebook(monkeypatch: pytest.MonkeyPatch):
    import torch

    asked: list[object] = []

    def load(*args: Any, **named: Any) -> Any:
        asked.append(named.get("map_location"))
        return original(*args, **named)

    original = torch.load
    monkeypatch.setattr(torch, "load", load)
    packed = pack({"loss": torch.ones(3), "deep": [torch.zeros(1)]})
    assert unpack(packed)["loss"].sum() == 3 and asked == ["cpu", "cpu"]
    asked.clear()
    assert unpack(packed, {})["loss"].sum() == 3 and set(asked) <= {None}


def test_tensors_of_another_python_come_as_well(monkeypatch: pytest.MonkeyPatch):
    """Two replacements are active at a time: for functions and for tensors."""
    import torch

    parts = pack({"loss": torch.ones(2), "function": None})
    monkeypatch.setattr(packed_values, "PYTHON_VERSION", (3, 99))
    assert unpack(parts)["loss"].tolist() == [1, 1]
