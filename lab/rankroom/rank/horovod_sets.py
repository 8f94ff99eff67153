"""Horovod's process sets on a rank: bound to their library, and made again when it starts anew."""

from __future__ import annotations

import functools
import sys
from typing import Any

_made: dict[str, list[Any]] = {}  # by library, in the order they were made


def wrap(module: Any) -> None:
    """Mend horovod.common.process_sets, which knows one library only: the one imported last."""
    setup = module._setup

    @functools.wraps(setup)
    def setup_usable(basics: Any) -> None:
        # Importing TensorFlow's Horovod must not make torch's process sets ask a library that has
        # not been initialised.
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


def bind(mpi_ops: Any, name: str) -> None:
    """Have add_process_set and remove_process_set of one library talk to that library."""
    module = _process_sets()
    for function in ("add_process_set", "remove_process_set"):
        original = getattr(mpi_ops, function, None)
        if original is None:
            continue

        def bound(process_set: Any, original: Any = original, function: str = function) -> Any:
            module._setup(mpi_ops._basics)
            result = original(process_set)
            if function == "add_process_set":
                register(name, mpi_ops._basics, [result])
            return result

        setattr(mpi_ops, function, functools.wraps(original)(bound))


def focus(basics: Any) -> None:
    """The library that initialises now is the one whose sets get their numbers."""
    _process_sets()._basics = basics


def _process_sets() -> Any:
    return sys.modules["horovod.common.process_sets"]


def listed(process_sets: Any) -> list[Any]:
    """hvd.init(process_sets=…) as a list; "dynamic" and None ask for none."""
    return [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)


def with_remembered(library: str, wanted: list[Any]) -> list[Any]:
    """The sets to start `library` with: those it had, and `wanted`, each set of ranks once."""
    by_ranks = {tuple(each.ranks): each for each in [*_made.get(library, ()), *wanted]
                if each.ranks is not None}  # fmt: skip
    return list(by_ranks.values())


def register(library: str, basics: Any, process_sets: list[Any]) -> None:
    """Give the objects their numbers in `library`, and remember them for its next start."""
    mine = _made.setdefault(library, [])
    for each in process_sets:
        if each not in mine:
            mine.append(each)
    if not mine or not basics.is_initialized():
        return
    for each in mine:
        if each.ranks is None:
            continue
        known = find(basics, each.ranks)
        each.process_set_id = basics._add_process_set_impl(each.ranks) if known is None else known
        each._own_basics = basics


def forget(library: str, process_set_id: int) -> None:
    """The set was removed by the user."""
    mine = _made.get(library, [])
    mine[:] = [each for each in mine if each.process_set_id not in (None, process_set_id)]


def find(basics: Any, ranks: Any) -> int | None:
    """The number of the set of these ranks, if `basics` has one besides the set of all ranks."""
    sets = basics._get_process_set_ids_and_ranks()
    return next((i for i, has in sets.items() if i and has == sorted(ranks)), None)


def members(basics: Any, number: int) -> list[int]:
    """The ranks of a process set."""
    sets: dict[int, list[int]] = basics._get_process_set_ids_and_ranks()
    return sets.get(number, [])
