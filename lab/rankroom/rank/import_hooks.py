"""Run hooks when the user's code imports a framework, without ever importing one ourselves."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from rankroom.reporting.spans import recorder

Hook = Callable[[ModuleType], None]
# Modules that are slow to import; a rank's timeline shows their imports.
SLOW_IMPORTS = (
    "numpy", "torch", "torchvision", "horovod.torch", "horovod.tensorflow", "tensorflow", "keras",
    "deepspeed", "transformers", "jax", "pandas", "sklearn",
)  # fmt: skip


class _Loader(importlib.abc.Loader):
    """Loads a module with its own loader, and calls the hooks once the module's code has run.

    With `own_symbols`, a C module prefers its own symbols to those of libraries loaded before it.
    """

    def __init__(self, loader: importlib.abc.Loader, hooks: list[Hook], own_symbols: bool) -> None:
        self._loader = loader
        self._hooks = hooks
        self._own_symbols = own_symbols
        self._begun = time.time_ns() // 1000

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if not self._own_symbols:
            return self._loader.create_module(spec)
        flags = sys.getdlopenflags()
        sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
        try:
            return self._loader.create_module(spec)
        finally:
            sys.setdlopenflags(flags)

    def exec_module(self, module: ModuleType) -> None:
        # Leave the module as if we had never been there: pickling and inspection read these.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if module.__name__ in SLOW_IMPORTS:
            name = f"import {module.__name__}"
            number = recorder.number(("import", name), lambda: {"name": name})
            recorder.add("import", number, self._begun, time.time_ns() // 1000 - self._begun)
        for hook in self._hooks:
            try:
                hook(module)
            except AttributeError as error:  # this version lacks something that we build on
                recorder.note(NOT_ADAPTED.format(name=module.__name__, error=error))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = {}
        self.own_symbols: set[str] = set()
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.hooks or name in self._finding:
            return None
        self._finding.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        own_symbols = name in self.own_symbols
                        spec.loader = _Loader(spec.loader, self.hooks[name], own_symbols)
                    return spec
            return None
        finally:
            self._finding.discard(name)


_finder = _Finder()


def when_imported(name: str, hook: Hook) -> None:
    """Call `hook(module)` right after module `name` is imported, or now if it already is."""
    module = sys.modules.get(name)
    if module is not None:
        hook(module)
        return
    _find(name).append(hook)


def show_imports() -> None:
    """Record imports of slow modules as spans in the timeline of the run that imports them."""
    for name in SLOW_IMPORTS:
        if name not in sys.modules:
            _find(name)


def with_own_symbols(name: str) -> None:
    """Make the C module `name` use its own symbols when it is imported.

    Otherwise it would use symbols of the same names that another library exports, and crash.
    """
    _find(name)
    _finder.own_symbols.add(name)


def _find(name: str) -> list[Hook]:
    """Make our finder handle the module `name`; return its list of hooks."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return _finder.hooks.setdefault(name, [])


NOT_ADAPTED = (
    "{name} lacks something that Rankroom builds on ({error}): some of what it shows or does with "
    "this library is missing"
)
