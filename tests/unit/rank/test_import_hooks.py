"""Import hooks: called after the import of a module, in which they leave no trace."""

import importlib
import inspect
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import time

import pytest

from rankroom.rank import import_hooks
from rankroom.rank.import_hooks import when_imported
from rankroom.reporting.spans import SpanRecorder

NUMBERS = itertools.count()  # hooks are never removed, so each test has its own module


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


def test_the_first_import_of_a_listed_slow_module_adds_a_span(module, monkeypatch):
    made = SpanRecorder()
    monkeypatch.setattr(import_hooks, "recorder", made)
    monkeypatch.setattr(import_hooks, "SLOW_IMPORTS", (module,))
    import_hooks.show_imports()
    made.begin()
    begun = time.time_ns() // 1000
    importlib.import_module(module)
    took = time.time_ns() // 1000 - begun
    [event] = made.take(begun)
    assert (event["cat"], event["define"]) == ("import", [{"name": f"import {module}"}])
    assert 0 <= event["start"][0] <= event["start"][0] + event["dur"][0] <= took
    # A module that is already imported adds no span.
    importlib.import_module(module)
    import_hooks.show_imports()
    assert list(made.take(begun)) == []


OTHER = "int answer(void) { return 1; }"
MODULE = """
#include <Python.h>
int answer(void) { return 2; }
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "own_answer", 0, -1, 0};
PyMODINIT_FUNC PyInit_own_answer(void) {
  PyObject* module = PyModule_Create(&def);
  PyModule_AddIntConstant(module, "value", answer());
  return module;
}
"""
IMPORT = """
import ctypes, sys
from rankroom.rank.import_hooks import with_own_symbols
ctypes.CDLL("./other.so", ctypes.RTLD_GLOBAL)
if sys.argv[1] == "own":
    with_own_symbols("own_answer")
before = sys.getdlopenflags()
import own_answer
assert sys.getdlopenflags() == before
print(own_answer.value)
"""


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="this system's loader has no such way")
def test_a_c_module_may_have_its_own_symbols(tmp_path):
    """Such as triton, which crashed when it used symbols that TensorFlow had exported."""
    compiler = shutil.which("cc") or shutil.which("g++")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for source, library in ((OTHER, "other.so"), (MODULE, f"own_answer{suffix}")):
        include = f"-I{sysconfig.get_path('include')}"
        command = [compiler, "-x", "c", "-shared", "-fPIC", include, "-", "-o", library]
        subprocess.run(command, cwd=tmp_path, input=source, text=True, check=True)
    for how, value in (("own", "2"), ("as usual", "1")):
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run(
            [sys.executable, "-c", IMPORT, how],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == value
