"""Variables sent between a rank and a notebook as bytes: packed by one, unpacked by the other.

What carries them in between need not know their types. Functions and classes of a notebook are
serialized as in ipyparallel, and only between Pythons of the same version: a function's bytecode
crashes a Python of another one. Tensors arrive on the notebook's CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from rankroom.errors import RankroomError
from rankroom.rank import variables
from rankroom.rank.own_memory import own_memory
from rankroom.rank.world import PREDEFINED_NAMES

# A dictionary key by key; anything else as ipyparallel serializes it, or as a pickle.
Packed: TypeAlias = "dict[Any, Packed] | list[bytearray] | bytes"
MAX_PART_BYTES = 1 << 25  # bytes of a part of a message, at most
PICKLE_PROTOCOL = 5  # which stores bytearrays as they are
# Of torch.storage: a pickle names it to load the data of a tensor.
TENSOR_LOADER_NAME = b"_load_from_bytes"
PYTHON_VERSION = tuple(sys.version_info[:2])
_replacing = threading.RLock()  # reentrant: one value may need two replacements


def pack(value: Any) -> list[bytes]:
    """Return a value as bytes, in parts of at most MAX_PART_BYTES."""
    try:
        packed = _pack_one(value, set())
    except _SharedError:
        try:
            packed = pickle.dumps(value, PICKLE_PROTOCOL)
        except Exception:  # only its parts can be packed, each as often as it occurs
            packed = _pack_one(value)
    data = pickle.dumps((PYTHON_VERSION, packed), PICKLE_PROTOCOL)
    return [data[at : at + MAX_PART_BYTES] for at in range(0, len(data), MAX_PART_BYTES)]


class _SharedError(Exception):
    """A dictionary occurs more than once in a value, perhaps within itself."""


def _pack_one(value: Any, known: set[int] | None = None) -> Packed:
    """Pack one value. With `known`, the ids of dictionaries so far, raises _SharedError if one
    occurs again."""
    from ipyparallel.serialize import serialize_object
    from ipyparallel.serialize.serialize import MAX_ITEMS

    # ipyparallel sorts the keys of a small dictionary.
    if type(value) is dict and len(value) < MAX_ITEMS:
        if known is not None and id(value) in known:
            raise _SharedError
        if known is not None:
            known.add(id(value))
        return {key: _pack_one(each, known) for key, each in value.items()}
    is_array = variables.is_kind(value, "numpy", "ndarray")
    if is_array and value.dtype.names and not value.dtype.hasobject:
        # ipyparallel would make fields of the padding between them.
        return pickle.dumps(value, PICKLE_PROTOCOL)
    try:
        # A received array uses the memory of its buffer, which has to be writable. The threshold
        # gives small arrays buffers of their own, too.
        return [bytearray(each) for each in serialize_object(value, buffer_threshold=0)]
    except ValueError:  # an array whose type no buffer supports: of dates, say
        return pickle.dumps(value, PICKLE_PROTOCOL)


def unpack(parts: Sequence[bytes], names: dict[str, Any] | None = None) -> Any:
    """Return the value in these parts; its functions get `names` as their globals.

    Without `names` this is the notebook's side, and tensors are loaded to its CPU. Raises
    RankroomError for a value that cannot be loaded here.
    """
    data = b"".join(parts)
    python, packed = pickle.loads(data)
    with contextlib.ExitStack() as replaced:
        if python != PYTHON_VERSION:
            replaced.enter_context(_without_code(python))
        if names is None and TENSOR_LOADER_NAME in data:
            replaced.enter_context(_on_processor())
        return _unpack_one(packed, names)


def _unpack_one(packed: Packed, names: dict[str, Any] | None) -> Any:
    from ipyparallel.serialize import deserialize_object

    if isinstance(packed, dict):
        return {key: _unpack_one(each, names) for key, each in packed.items()}
    if isinstance(packed, bytes):
        return pickle.loads(packed)
    return deserialize_object(packed, names)[0]


@contextlib.contextmanager
def _without_code(python: tuple[int, int]) -> Iterator[None]:
    """Refuse code compiled by another version of Python, which would crash this one."""

    def refuse(*about: Any) -> Any:
        raise RankroomError(PYTHON_VERSIONS_DIFFER.format(there=python, here=PYTHON_VERSION))

    with _replaced("ipyparallel.serialize.codeutil", "code_ctor", refuse):
        yield


@contextlib.contextmanager
def _on_processor() -> Iterator[None]:
    """Load GPU tensors into host memory: this process may have no GPU, and would otherwise take
    memory on each one that a tensor was on."""
    try:
        import torch
    except ImportError:
        raise RankroomError(NO_TORCH) from None

    def load(data: bytes) -> Any:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)

    with _replaced("torch.storage", "_load_from_bytes", load):
        yield


@contextlib.contextmanager
def _replaced(module: str, name: str, by: Any) -> Iterator[None]:
    """Replace a module's attribute, which pickles refer to by name, in the block, if it exists."""
    owner = importlib.import_module(module)
    with _replacing:
        before = getattr(owner, name, None)
        if before is not None:
            setattr(owner, name, by)
        try:
            yield
        finally:
            if before is not None:
                setattr(owner, name, before)


def python() -> tuple[int, ...]:
    """Return the version of Python that runs this."""
    return PYTHON_VERSION


def handle_request(how: str, name: str, parts: Sequence[bytes]) -> list[bytes]:
    """Handle a request about variables on a rank; return the packed result, if there is one.

    `take` stores variables, `give` returns the value of one (or of an attribute, `a.b`), `who`
    describes all of them, `memory` measures the rank's memory, and any other calls a function
    `module:function` with packed arguments.
    """
    names: dict[str, Any] = _shell().user_ns
    if how in ("who", "memory"):
        hidden = {*_shell().user_ns_hidden, *PREDEFINED_NAMES}
        if how == "who":
            return pack(variables.describe(names, hidden))
        values = variables.listed(names, hidden).values()
        return pack(own_memory(values, _shell().kernel.world.device))
    if how == "take":
        names.update(unpack(parts, names))
        return []
    if how == "give":
        return pack(eval(name, names))
    module, _, function = name.partition(":")
    return pack(getattr(importlib.import_module(module), function)(*unpack(parts, names)))


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


PYTHON_VERSIONS_DIFFER = (
    "a function from Python {there[0]}.{there[1]} cannot run in Python {here[0]}.{here[1]}: define "
    "it where it is called (for ranks, in a `%%distributed` cell)"
)
NO_TORCH = (
    "the value contains PyTorch tensors, but this notebook's Python has no PyTorch: pull a NumPy "
    "array instead, made in a `%%distributed` cell, for example by `value = loss.cpu().numpy()`"
)
