"""A rank's debugger, in a separate process: in runs without prompts, and after a cell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RANK = """
import json, sys, types
from rankroom.rank.debugging import debugger_hooks, prompts
from rankroom.rank.debugging.debugger import RankDebugger
from rankroom.rank.shell import RankShell

shell = RankShell.instance()
asking = prompts.Prompts(lambda kind, **fields: None, shell.cells)
debugger_hooks.install(asking, types.SimpleNamespace(is_on=False))
commands = []
def read(prompt=""):
    print(f"asks for {len(commands)}")
    return commands.pop()
__builtins__.input = read
"""


def said(code: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RANK + code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "IPYTHONDIR": str(folder), "HOME": str(folder)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_librarys_debugger_is_skipped_in_a_non_interactive_run(tmp_path: Path):
    """Such as ipdb's, which is an instance of the shell's debugger class."""
    code = """
asking.begin(interactive=False)
def work():
    RankDebugger().set_trace()
    for n in range(3):
        json.dumps({"n": n})
work()
print(sys.gettrace())
"""
    line, traced = said(code, tmp_path)
    assert line.startswith("the debugger at ")
    assert line.endswith("skipped: the run is not interactive, so no one can answer")
    assert traced == "None"


def test_after_a_cell_debuggers_stop_tracing_but_user_tracers_stay(tmp_path: Path):
    code = """
asking.begin(interactive=True)
sys.settrace(mine := lambda *about: None)
debugger_hooks.stop_tracing()
print(sys.gettrace() is mine)
sys.settrace(None)
commands += ["n"] * 9
debugger = RankDebugger()
debugger.set_trace()
debugger_hooks.stop_tracing()
print(sys.gettrace(), hasattr(debugger, "initial_frame"))
"""
    lines = said(code, tmp_path)
    assert lines[0] == "True" and "asks for 9" in lines and lines[-1] == "None False"


def test_commands_passed_to_set_trace_run_without_a_prompt(tmp_path: Path):
    code = """
asking.begin(interactive=True)
debugger_hooks.set_trace(commands=["p 6 * 7", "c"])
print(sys.gettrace())
"""
    lines = said(code, tmp_path)
    assert "42" in lines and lines[-1] == "None"
    assert not [line for line in lines if line.startswith("asks")]


def test_after_a_stop_the_debugger_holds_no_variables_of_a_function(tmp_path: Path):
    """They may include a model and its graph on a GPU."""
    code = """
import gc, weakref
class Model: pass
seen = {}
def train():
    model = Model()
    seen["breakpoint"] = weakref.ref(model)
    debugger_hooks.set_trace(commands=["c"])
def fail():
    model = Model()
    seen["post_mortem"] = weakref.ref(model)
    1 / 0
asking.begin(interactive=True)
train()
debugger_hooks.stop_tracing()
commands += ["q"]
try:
    fail()
except ZeroDivisionError as error:
    debugger_hooks.post_mortem(error)
debugger_hooks.stop_tracing()
gc.collect()
print({name: model() is None for name, model in seen.items()})
"""
    assert said(code, tmp_path)[-1] == "{'breakpoint': True, 'post_mortem': True}"
