"""Variables of a rank that travel as bytes: packed and unpacked by the two that use them.

Whoever carries them in between needs nothing of what they are made of. Functions and classes of a
notebook travel as ipyparallel has them travel.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(value: Any) -> bytes:
    """A value as bytes."""
    from ipyparallel.serialize import serialize_object

    return pickle.dumps([bytes(each) for each in serialize_object(value)])


def unpack(data: bytes, names: dict[str, Any] | None = None) -> Any:
    """The value in `data`; its functions see `names` as their globals."""
    from ipyparallel.serialize import deserialize_object

    value, _ = deserialize_object(pickle.loads(data), names)
    return value


def take(data: bytes) -> None:
    """On a rank: set the variables in `data`."""
    names = _names()
    names.update(unpack(data, names))


def give(name: str) -> bytes:
    """On a rank: the value of a variable, or of an attribute of one (`a.b`)."""
    return pack(eval(name, _names()))


def call(data: bytes) -> bytes:
    """On a rank: what a function and its arguments, as bytes, come to."""
    function, args = unpack(data, _names())
    return pack(function(*args))


def _names() -> dict[str, Any]:
    from IPython import get_ipython

    names: dict[str, Any] = get_ipython().user_ns
    return names
