"""How errors in a cell are reported, and whether they end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANK = """
import json, signal, sys, types
from rankroom.rank.shell import RankShell

events = []
def emit(kind, **fields):
    events.append([kind, fields])
def emit_now(kind, **fields):
    events.append([kind, fields])

shell = RankShell.instance()
shell.attach(types.SimpleNamespace(run="a run", emit=emit, emit_now=emit_now))
shell.run_cell(sys.argv[1])
print("found:", json.dumps({
    "errors": [fields for kind, fields in events if kind == "error"],
    "raised": sum(fields.get("name") == "raised" for kind, fields in events),
    "failing": shell.failing,
    "names": {name: value for name, value in shell.user_ns.items() if name.startswith("my_")},
}))
"""


def told(cell: str, folder: Path) -> dict[str, Any]:
    """Run a cell on a rank in `folder`; return what it reported, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", RANK, cell],
        capture_output=True, text=True, check=True, timeout=60, cwd=folder,
        env={**os.environ, "IPYTHONDIR": str(folder)},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.rpartition("found:")[2])
    return {**found, "stderr": done.stderr}


CYCLES = {
    "its own cause": "try:\n    1 / 0\nexcept Exception as error:\n    raise error from error",
    "a cause of its cause": """
try:
    {}["x"]
except KeyError as first:
    try:
        raise ZeroDivisionError from first
    except ZeroDivisionError as second:
        first.__cause__ = second
        raise
""",
}


@pytest.mark.parametrize("cell", CYCLES.values(), ids=CYCLES)
def test_errors_that_cause_one_another_are_reported(cell: str, tmp_path: Path):
    assert [each["ename"] for each in told(cell, tmp_path)["errors"]] == ["ZeroDivisionError"]


GROUP = """
class Error(Exception):
    pass
try:
    raise ExceptionGroup("several", [ValueError("one")])
except ExceptionGroup:
    raise Error from KeyError("x")
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has groups of errors from 3.11 on")
def test_an_error_with_a_cause_and_a_group_as_context_is_reported(tmp_path: Path):
    (error,) = told(GROUP, tmp_path)["errors"]
    assert error["ename"] == "Error" and "KeyError" in "".join(error["traceback"])


def test_a_cell_that_continues_after_a_failed_run_magic_can_be_interrupted(tmp_path: Path):
    (tmp_path / "bad.py").write_text("1 / 0\n")
    cell = "import signal\n%run bad.py\nmy_handler = signal.getsignal(signal.SIGINT).__name__"
    found = told(cell, tmp_path)
    assert found["names"]["my_handler"] == "default_int_handler"
    assert (found["raised"], found["failing"]) == (0, False)
    assert [each["ename"] for each in found["errors"]] == ["ZeroDivisionError"]
    # Raised by the cell itself, the same error ends the cell.
    found = told("1 / 0", tmp_path)
    assert (found["raised"], found["failing"]) == (1, True)


def test_the_tb_magic_shows_the_last_traceback_and_reports_no_error(tmp_path: Path):
    (tmp_path / "bad.py").write_text("1 / 0\n")
    found = told("import sys\nsys.last_value = ValueError('old')\n"
                 "sys.last_type, sys.last_traceback = ValueError, None\n%tb", tmp_path)  # fmt: skip
    assert found["errors"] == [] and "ValueError: old" in found["stderr"]


def test_a_syntax_error_is_located_at_the_cell_line_that_led_to_it(tmp_path: Path):
    (tmp_path / "bad.py").write_text("\n" * 119 + "x = = 1\n")
    lines = {
        "import sys\nsys.path.insert(0, '')\n\nimport bad\n": 4,
        "x = 1\n\nx = eval('1 +')": 3,
        "x = 1\ny = = 2": 2,
    }
    found = [told(cell, tmp_path)["errors"][0]["cell_line"] for cell in lines]
    assert found == list(lines.values())


def test_a_return_outside_a_function_is_reported_once(tmp_path: Path):
    found = told("x = 1\nreturn x", tmp_path)
    assert [each["ename"] for each in found["errors"]] == ["SyntaxError"]
    assert "interactiveshell.py" not in found["stderr"]


def test_long_error_messages_are_truncated(tmp_path: Path):
    (error,) = told("raise ValueError('x' * 10 ** 6)", tmp_path)["errors"]
    assert error["evalue"].endswith("more characters)") and len(error["evalue"]) < 30_000
    assert sum(map(len, error["traceback"])) < 100_000


DEEP = """
import inspect
my_looks = 0
def counted(item, real=inspect.ismodule):
    global my_looks
    my_looks += 1
    return real(item)
inspect.ismodule = counted
def deep(n):
    return deep(n - 1) if n else 1 / 0
deep(100)
"""


def test_a_deep_traceback_is_made_without_searching_all_modules_for_each_frame(tmp_path: Path):
    found = told(DEEP, tmp_path)
    assert [each["ename"] for each in found["errors"]] == ["ZeroDivisionError"]
    assert 0 < found["names"]["my_looks"] < 2000  # over 100,000 otherwise


def test_what_a_forked_process_raises_is_on_its_stderr(tmp_path: Path):
    cell = "import os\nmy_pid = os.fork()\nif not my_pid:\n    1 / 0\nos.waitpid(my_pid, 0)"
    assert "ZeroDivisionError" in told(cell, tmp_path)["stderr"]


def test_a_failed_command_fails_no_cell_if_ipython_lacks_raise_on_error(tmp_path: Path):
    cell = (
        "from rankroom.rank.shell import RankShell\n"
        "RankShell.system_raise_on_error = property(lambda self: self.missing)\n"
        "!exit 3\nmy_code = _exit_code"
    )
    found = told(cell, tmp_path)
    assert found["errors"] == [] and found["names"]["my_code"] == 3


def test_the_line_of_an_error_is_the_present_cells(tmp_path: Path):
    """The error itself may be raised in a function of an earlier cell."""
    cell = """
import json
shell = get_ipython()
shell.run_cell("\\n\\n\\ndef train(n):\\n    return 1 / n\\n\\ndef twice(f):\\n    return f()")
shell.run_cell("train(1)\\ntrain(0)")
shell.run_cell("def own():\\n    train(0)\\n\\ntwice(own)")
"""
    found = told(cell, tmp_path)["errors"]
    assert [each["cell_line"] for each in found] == [2, 2]
