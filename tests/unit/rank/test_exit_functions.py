"""Functions that a script registers with atexit, on a rank whose process continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
import atexit
atexit.register(print, "the library is shut down")
@atexit.register
def shutdown(): print("and tidied up")
"""
HELPER = """
import atexit
def tidy(name): print("tidied", name)
class Store:
    def close(self): print("closed")
atexit.register(Store().close)
"""
SCRIPT = """
import atexit, functools, logging, os, sys
from atexit import register
import helper, library
@register
def last(): print("last")
atexit.register(helper.tidy, name="a")
register(functools.partial(helper.tidy, "b"))
def never(): print("never")
atexit.register(never)
atexit.unregister(never)
atexit.register(logging.shutdown)
def broken(): raise ValueError("in the end")
atexit.register(broken)
child = os.fork()
if child: os.waitpid(child, 0)
else: sys.exit()
print("works")
"""
RANK = """
import atexit, sys
from rankroom.rank.script import run
before = atexit.register, atexit.unregister
try:
    run(sys.argv[1], [])
except Exception as error:
    print(type(error).__name__)
assert (atexit.register, atexit.unregister) == before
print("the next run")
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [("", []), ("sys.exit(3)", ["ScriptExit"]), ("1 / 0", ["ZeroDivisionError"])],
    ids=["well", "with a status", "with an error"],
)
def test_a_scripts_exit_functions_run_at_its_end_and_libraries_at_process_exit(
    tmp_path: Path, end: str, said: list[str]
):
    packages = tmp_path / "venv" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "library.py").write_text(LIBRARY)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(SCRIPT + end)
    program = f"import sys; sys.path.append({str(packages)!r})\n{RANK}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "train.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    own = ["works", "tidied b", "tidied a", "last", "closed"]
    rest = ["the next run", "and tidied up", "the library is shut down"]
    assert done.stdout.splitlines() == [*own, *said, *rest]
    assert "Exception ignored in atexit callback: <function broken at" in done.stderr
    assert done.stderr.count("ValueError: in the end") == 1


TRACKER = """
import atexit
run = None
def init():
    global run
    run = object()
def finish(exit_code):
    global run
    run = None
    print("sent, status", exit_code)
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [("", "0"), ("sys.exit(3)", "3"), ("1 / 0", "1"), ("wandb.finish(exit_code=0)", "0")],
)
def test_a_wandb_run_is_finished_with_the_scripts_status(tmp_path: Path, end: str, said: str):
    (tmp_path / "wandb.py").write_text(TRACKER)
    (tmp_path / "train.py").write_text(f"import sys, wandb\nwandb.init()\n{end}")
    done = subprocess.run(
        [sys.executable, "-c", RANK, str(tmp_path / "train.py")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines.count(f"sent, status {said}") == 1 and lines[-1] == "the next run"


@pytest.mark.parametrize("made", ["None", "os.fdopen(os.pipe()[1], 'w'); sys.stdout.close()"])
def test_a_forked_process_exits_even_if_its_stdout_is_unusable(made: str):
    code = (
        "import os, sys\nfrom rankroom.rank.script import end_fork\n"
        f"sys.stdout = {made}\ntry:\n    end_fork(3)\nfinally:\n    os._exit(99)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 3
