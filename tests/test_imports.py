"""Hooks on imports: called once the module is there, which then looks untouched."""

import importlib
import inspect
import itertools
import pickle
import sys

import pytest

from rankroom.rank.imports import when_imported

NUMBERS = itertools.count()  # hooks stay: each test has a module of its own


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that has not been imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"hooked_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text("class Thing:\n    pass\n\nvalue = 1\n")
    yield name
    sys.modules.pop(name, None)


def test_the_hook_runs_after_the_import_and_may_change_the_module(module):
    seen = []
    when_imported(module, lambda found: seen.append(found.value))
    when_imported(module, lambda found: setattr(found, "value", 2))
    assert seen == [] and module not in sys.modules
    assert importlib.import_module(module).value == 2
    assert seen == [1]


def test_a_module_that_is_there_is_hooked_at_once(module):
    found = importlib.import_module(module)
    seen = []
    when_imported(module, seen.append)
    assert seen == [found]


def test_a_hooked_module_looks_untouched(module):
    when_imported(module, lambda found: None)
    found = importlib.import_module(module)
    assert type(found.__loader__).__name__ == "SourceFileLoader"
    assert found.__spec__.loader is found.__loader__
    assert "class Thing" in inspect.getsource(found)
    assert isinstance(pickle.loads(pickle.dumps(found.Thing())), found.Thing)
    assert importlib.reload(found).value == 1


def test_a_module_that_does_not_exist_is_still_missing():
    when_imported("no_such_module_anywhere", lambda found: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
