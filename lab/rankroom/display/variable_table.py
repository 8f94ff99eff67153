"""Tables of the variables on all ranks, with where ranks differ, and of the ranks' memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rankroom.analysis.profile.tables import Table
from rankroom.rank.own_memory import HOST_DEVICE, OwnMemory
from rankroom.rank.variables import Variable
from rankroom.text.amounts import size
from rankroom.text.rank_ranges import format_ranks

HEAD = ["name", "ranks", "type", "shape or value", "dtype", "device", "bytes", "values"]
MAX_LISTED = 3  # groups of ranks with equal values, shapes, or devices that are listed
EQUAL, UNKNOWN = "equal", "–"

Ranks = Mapping[int, Mapping[str, Variable]]


def table(found: Ranks, names: Collection[str] = ()) -> Table:
    """Return a row for each name, or several where ranks have different things under it."""
    every = sorted({name for each in found.values() for name in each})
    rows = []
    for name in every:
        if not names or name in names:
            rows += _rows(name, {rank: each[name] for rank, each in found.items() if name in each})
    return Table(HEAD, rows)


def memory_table(found: Mapping[int, OwnMemory]) -> Table:
    """Return a row for each rank: its memory, and how much of that its variables take."""
    head = ["memory of rank", "in all", "unshared", "in these names"]
    rows = [
        [str(rank), *map(_size, (each.resident, each.unshared, each.named))]
        for rank, each in sorted(found.items())
    ]
    if any(each.device != HOST_DEVICE for each in found.values()):
        head += ["GPU", "in these names", "torch allocated", "torch reserved", "in use", "of"]
        for row, (_, each) in zip(rows, sorted(found.items()), strict=True):
            sizes = (each.gpu_named, each.allocated, each.reserved, each.used, each.total)
            row += [each.device, *map(_size, sizes)]
    return Table(head, rows)


def _size(count: int | None) -> str:
    return UNKNOWN if count is None else size(count)


def _rows(name: str, on: Mapping[int, Variable]) -> list[list[str]]:
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank, each in on.items():
        # Not the device, as each rank has its own, nor a small value, which is shown as a shape.
        key = (each.type, each.shape if each.dtype or not each.mark else "", each.dtype)
        alike.setdefault(key, []).append(rank)
    return [_row(name, {rank: on[rank] for rank in ranks}) for ranks in alike.values()]


def _row(name: str, on: Mapping[int, Variable]) -> list[str]:
    first = next(iter(on.values()))
    shapes = list(dict.fromkeys(each.shape for each in on.values()))
    shape = ", ".join(shapes[:MAX_LISTED]) + (", …" if len(shapes) > MAX_LISTED else "")
    devices = list(dict.fromkeys(each.device for each in on.values()))
    device = ", ".join(devices) if len(devices) <= MAX_LISTED else f"{len(devices)} devices"
    most = max(each.bytes for each in on.values())
    held = size(most) if most else UNKNOWN
    return [name, format_ranks(on), first.type, shape, first.dtype, device, held, _values(on)]


def _values(on: Mapping[int, Variable]) -> str:
    """Return on which ranks the values are equal: `equal`, or `differ: 0,2–3 | 1`."""
    marks: dict[str, list[int]] = {}
    for rank, each in on.items():
        marks.setdefault(each.mark, []).append(rank)
    if "" in marks:
        return UNKNOWN
    if len(marks) == 1:
        return EQUAL if len(on) > 1 else ""
    if len(marks) == len(on) and len(on) > MAX_LISTED:
        return "differ on all"
    groups = sorted(marks.values(), key=len, reverse=True)
    named = [format_ranks(ranks) for ranks in groups[:MAX_LISTED]]
    return f"differ: {' | '.join(named)}{' | …' if len(groups) > MAX_LISTED else ''}"
