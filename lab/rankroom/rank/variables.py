"""Describe the user's variables on a rank so that ranks can be compared: for `%ranks who`.

No user code is called: no `__repr__`, no property. Frameworks are looked up, never imported.
"""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

MAX_HASHED_BYTES = (
    64 << 20
)  # bytes of an array that its mark is computed from; a larger one is sampled
MAX_SAMPLED_VALUES = 1 << 20  # of a large tensor whose values are not in their order in memory
MAX_ITEMS, MAX_DEPTH = 10_000, 20  # of nested containers for which a mark is computed, at most
MAX_SHOWN_CHARS = 40  # characters that are shown of a value
PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, set, frozenset, dict)
OMITTED_TYPES = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


class Variable(NamedTuple):
    """The description of a value. `mark` is a checksum, equal for equal values, "" if it cannot be
    computed; `bytes` is set for tensors, arrays and models only."""

    type: str
    shape: str = ""
    dtype: str = ""
    device: str = ""
    bytes: int = 0
    mark: str = ""


def describe(names: Mapping[str, Any], hidden: Iterable[str] = ()) -> dict[str, Variable]:
    """Return a description of each variable among `names`, by name."""
    return {name: describe_value(value) for name, value in listed(names, hidden).items()}


def listed(names: Mapping[str, Any], hidden: Iterable[str] = ()) -> dict[str, Any]:
    """Return the variables among `names`: no modules, functions or classes."""
    left_out = set(hidden)
    return {
        name: value
        for name, value in sorted(names.items())
        if not name.startswith("_")
        and name not in left_out
        # Not isinstance, which asks a proxy for the class of what it stands for.
        and not issubclass(type(value), OMITTED_TYPES)
    }


def describe_value(value: Any) -> Variable:
    """Return the description of one value."""
    for kind, fits in _KINDS:
        try:
            if fits(value):
                return kind(value)
        except Exception as error:  # such as a tensor without data, or a GPU that has failed
            return Variable(_name(value), shape=f"({type(error).__name__})")
    return Variable(_name(value))


def _plain(value: Any) -> Variable:
    text = repr(value[:MAX_SHOWN_CHARS] if _is_long_text(value) else value)
    shown = text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
    return Variable(_name(value), shown, mark=_crc(_mark_of_plain(value).encode()))


def _mark_of_plain(value: Any) -> str:
    if not _is_long_text(value):
        return repr(value)
    sample = value[:: _step(len(value))]
    data = sample if type(value) is bytes else sample.encode(errors="surrogatepass")
    return f"{_name(value)} {len(value)} {_crc(data)}"


def _is_long_text(value: Any) -> bool:
    """Return whether the `repr` of a value, which may be gigabytes, is to be avoided."""
    return type(value) in (str, bytes) and len(value) > MAX_SHOWN_CHARS


def _container(value: Any) -> Variable:
    items = "1 item" if len(value) == 1 else f"{len(value):,} items"
    return Variable(_name(value), items, mark=_mark_of(value, [MAX_ITEMS]))


def _tensor(value: Any) -> Variable:
    dtype = str(value.dtype).removeprefix("torch.")
    held = value.to_local() if hasattr(value, "to_local") else value  # this rank's shard
    size = held.numel() * held.element_size()
    mark = "" if value.is_meta else _crc(_bytes_of_tensor(held))
    return Variable(_name(value), _shape(value.shape), dtype, str(value.device), size, mark)


def _module(value: Any) -> Variable:
    # Not from its state_dict, which needs a collective if parameters are sharded.
    tensors = [_tensor(each) for each in (*value.parameters(), *value.buffers())]
    count = sum(parameter.numel() for parameter in value.parameters())
    mark = "" if any(not each.mark for each in tensors) else _crc(_joined(tensors))
    return Variable(
        _name(value), f"{count:,} parameters", _each(each.dtype for each in tensors),
        _each(each.device for each in tensors), sum(each.bytes for each in tensors), mark,
    )  # fmt: skip


def _array(value: Any) -> Variable:
    # Not `reshape(-1)`, which copies all of an array that is a view of another one.
    sample = sys.modules["numpy"].asarray(value).flat[:: _step(value.nbytes)]
    mark = "" if value.dtype.hasobject else _crc(sample.tobytes())
    return Variable(_name(value), _shape(value.shape), str(value.dtype), "", value.nbytes, mark)


def _tensorflow(value: Any) -> Variable:
    made = _array(sys.modules["numpy"].asarray(value.numpy()))
    device = value.device.rpartition("device:")[2].lower()
    return made._replace(type=_name(value), device=device)


def _keras(value: Any) -> Variable:
    weights = [_array(each) for each in value.get_weights()]
    return Variable(
        _name(value), f"{value.count_params():,} parameters", _each(w.dtype for w in weights),
        bytes=sum(each.bytes for each in weights), mark=_crc(_joined(weights)),
    )  # fmt: skip


def is_tensor(value: Any) -> bool:
    return is_kind(value, "torch", "Tensor")


def is_kind(value: Any, module: str, *names: str) -> bool:
    """Return whether a value is of the class at `names` in a module, if that has been imported."""
    place: Any = sys.modules.get(module)
    for name in names:
        place = getattr(place, name, None)
    return isinstance(place, type) and isinstance(value, place)


_KINDS: tuple[tuple[Callable[[Any], Variable], Callable[[Any], bool]], ...] = (
    (_plain, lambda value: type(value) in PLAIN_TYPES),
    (_container, lambda value: type(value) in CONTAINERS),
    (_tensor, is_tensor),
    (_module, lambda value: is_kind(value, "torch.nn", "Module")),
    (_array, lambda value: is_kind(value, "numpy", "ndarray")),
    (_keras, lambda value: is_kind(value, "keras", "Model") and value.built),
    (
        _tensorflow,
        lambda value: (
            (is_kind(value, "tensorflow", "Tensor") or is_kind(value, "tensorflow", "Variable"))
            and hasattr(value, "numpy")
        ),
    ),
)


def _bytes_of_tensor(value: Any) -> bytes:
    import torch

    value, step = value.detach(), _step(value.numel() * value.element_size())
    if step == 1 or value.is_contiguous():
        sample = value.reshape(-1)[::step]
    else:  # which copies all of it
        step = max(step, value.numel() // MAX_SAMPLED_VALUES)
        places = torch.arange(0, value.numel(), step, device=value.device)
        sample = value[torch.unravel_index(places, value.shape)]
    sample = sample.cpu().contiguous()
    return bytes(sample.view(torch.uint8).numpy())


def _mark_of(value: Any, left: list[int], depth: int = MAX_DEPTH) -> str:
    """Return the mark of nested plain values and arrays; "" for others, too many or too deep."""
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        return ""
    if type(value) in PLAIN_TYPES:
        return _mark_of_plain(value)
    if type(value) not in CONTAINERS:
        return (
            describe_value(value).mark
            if is_tensor(value) or is_kind(value, "numpy", "ndarray")
            else ""
        )
    items = value.items() if type(value) is dict else value
    marks = [_mark_of(each, left, depth - 1) for each in items]
    if not all(marks):
        return ""
    if isinstance(value, (set, frozenset, dict)):  # equal in any order
        marks.sort()
    return _crc(",".join([_name(value), *marks]).encode())


def _joined(parts: Iterable[Variable]) -> bytes:
    return ",".join(f"{part.shape} {part.mark}" for part in parts).encode()


def _each(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _step(size: int) -> int:
    return max(1, -(-size // MAX_HASHED_BYTES))


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _name(value: Any) -> str:
    return type(value).__name__
