"""Horovod's process sets on a rank: bound to their library, and restored when it starts again.

Horovod can add sets while it is running only in a mode that costs an exchange between all ranks
every millisecond, even without sets. Instead, a library is started again with its previous sets and
the new one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

from rankroom.rank.world import World

_order: dict[str, list[tuple[int, ...]]] = {}  # by library: all ever made, as numbers stay
_objects: dict[str, list[Any]] = {}  # by library: the user's ProcessSets, numbered at each start


def set_aside() -> Any:
    """Start without sets, for a world of other ranks. Returns the previous sets."""
    kept = {name: list(sets) for name, sets in _order.items()}, dict(_objects)
    _order.clear()
    _objects.clear()
    return kept


def put_back(kept: Any) -> None:
    """Restore the sets that were set aside, and drop those made since."""
    order, objects = kept
    _order.clear()
    _order.update(order)
    _objects.clear()
    _objects.update(objects)


def wrap(module: Any) -> None:
    """Fix horovod.common.process_sets, which knows only one library: the one imported last."""
    setup = module._setup

    @functools.wraps(setup)
    def setup_usable(basics: Any) -> None:
        # Importing TensorFlow's Horovod must not make torch's process sets query a library that is
        # not initialized.
        present = module._basics
        if present is None or basics.is_initialized() or not present.is_initialized():
            setup(basics)

    def asking_own(method: Any) -> Any:
        @functools.wraps(method)
        def ask(self: Any) -> Any:
            own = getattr(self, "_own_basics", None)
            if own is None or own is module._basics:
                return method(self)
            others, module._basics = module._basics, own
            try:
                return method(self)
            finally:
                module._basics = others

        return ask

    module._setup = setup_usable
    for name in ("size", "rank", "included"):
        setattr(module.ProcessSet, name, asking_own(getattr(module.ProcessSet, name)))


def bind(mpi_ops: Any, library: str, world: World) -> None:
    """Make add_process_set and remove_process_set of a library use that library."""
    for name in ("add_process_set", "remove_process_set"):
        original = getattr(mpi_ops, name, None)
        if original is None:
            continue

        def bound(process_set: Any, original: Any = original, name: str = name) -> Any:
            focus(mpi_ops._basics)
            result = original(process_set)
            if name == "add_process_set":
                register(library, mpi_ops._basics, [result], world.size)
            return result

        setattr(mpi_ops, name, functools.wraps(original)(bound))


def focus(basics: Any) -> None:
    """Make `basics` the library from which process sets get their numbers."""
    _process_sets()._basics = basics


def _process_sets() -> Any:
    return sys.modules["horovod.common.process_sets"]


def listed(process_sets: Any) -> list[Any]:
    """Return the `process_sets` of hvd.init() as a list; "dynamic" and None mean no sets."""
    return [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)


def known(library: str) -> list[tuple[int, ...]]:
    """Return all sets that `library` has had in this process, in order."""
    return list(_order.get(library, []))


def agree(library: str, ranks: Iterable[Iterable[Iterable[int]]]) -> None:
    """Merge the sets known to each rank, `ranks`, in the same order on all: Horovod needs the same
    sets everywhere, and the process of a restarted rank has seen none."""
    sets = [tuple(each) for known in ranks for each in known]
    _order[library] = list(dict.fromkeys(sets))


def to_start_with(library: str, wanted: list[list[int]], size: int) -> list[Any]:
    """Return the sets to start `library` with: all it has had, in the same order, and `wanted`.

    The set of all `size` ranks always exists, and is not among them.
    """
    order = _order.setdefault(library, [])
    for ranks in wanted:
        if len(ranks) < size and tuple(sorted(ranks)) not in order:
            order.append(tuple(sorted(ranks)))
    return [_process_sets().ProcessSet(list(ranks)) for ranks in order]


def register(library: str, basics: Any, process_sets: list[Any], size: int) -> None:
    """Number the user's ProcessSet objects in `library`, now and whenever it starts again."""
    mine = _objects.setdefault(library, [])
    mine.extend(each for each in process_sets if each.ranks and each not in mine)
    for each in mine:
        each.process_set_id = find(library, each.ranks, size)
        each._own_basics = basics


def forget(library: str, number: int) -> None:
    """Stop numbering the objects of a set that the user has removed."""
    mine = _objects.get(library, [])
    mine[:] = [each for each in mine if each.process_set_id not in (None, number)]


def find(library: str, ranks: Any, size: int) -> int | None:
    """Return the number of the set of these ranks, or None if `library` has no such set.

    Horovod numbers sets in the order it starts with. Querying Horovod would fail while another
    rank, which is ahead, shuts it down.
    """
    if len(ranks) == size:
        return 0
    order = _order.get(library, [])
    wanted = tuple(sorted(ranks))
    return order.index(wanted) + 1 if wanted in order else None


def members(library: str, number: int, size: int) -> tuple[int, ...]:
    """Return the ranks of a process set."""
    order = _order.get(library, [])
    return order[number - 1] if 0 < number <= len(order) else tuple(range(size))
