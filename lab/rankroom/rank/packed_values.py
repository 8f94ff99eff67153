"""Variables of a rank that travel as bytes: packed and unpacked by the two that use them.

What carries them in between need not know the types they are made of. Functions and classes of a
notebook travel as ipyparallel has them travel.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from rankroom.rank import variables
from rankroom.rank.own_memory import own_memory
from rankroom.rank.world import GIVEN

PART = 1 << 25  # bytes of a part of a message, at most
PROTOCOL = 5  # which has bytearrays as they are


def pack(value: Any) -> list[bytes]:
    """A value as bytes, in parts."""
    from ipyparallel.serialize import serialize_object

    # Arrays are made over the memory that they come in, which has to be writable. Small ones, too,
    # travel beside what names them for that.
    buffers = serialize_object(value, buffer_threshold=0)
    data = pickle.dumps([bytearray(each) for each in buffers], PROTOCOL)
    return [data[at : at + PART] for at in range(0, len(data), PART)]


def unpack(parts: Sequence[bytes], names: dict[str, Any] | None = None) -> Any:
    """The value in these parts; its functions see `names` as their globals."""
    from ipyparallel.serialize import deserialize_object

    value, _ = deserialize_object(pickle.loads(b"".join(parts)), names)
    return value


def do(how: str, name: str, parts: Sequence[bytes]) -> list[bytes]:
    """On a rank: `take` variables, `give` the value of one (or of an attribute, `a.b`), say `who`
    they are and how much `memory` there is, or `call` a function with its arguments."""
    names: dict[str, Any] = _shell().user_ns
    if how in ("who", "memory"):
        hidden = {*_shell().user_ns_hidden, *GIVEN}
        if how == "who":
            return pack(variables.describe(names, hidden))
        values = variables.listed(names, hidden).values()
        return pack(own_memory(values, _shell().kernel.world.device))
    if how == "take":
        names.update(unpack(parts, names))
        return []
    if how == "give":
        return pack(eval(name, names))
    function, args = unpack(parts, names)
    return pack(function(*args))


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()
