"""Variables that travel between notebook and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
