"""The table at the end of a run of tests/faults shows the outcome of each fault."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fault_table

FAULTS = """
import pytest

@pytest.mark.fault("{how} goes wrong", "all is well", racy=True)
@pytest.mark.parametrize("how", ["this", "that"])
def test_racy(how, record_property):
    record_property("ms", 20.0 if how == "this" else 30.0)

@pytest.mark.fault("a broken promise", "it is kept", racy=True)
def test_broken(request):
    assert not request.node.name.endswith("[1]")

@pytest.mark.fault("not here", "whatever")
def test_skipped():
    pytest.skip("needs a moon")

def test_without_a_marker():
    pass

@pytest.fixture
def broken():
    raise OSError("no ranks")

@pytest.mark.fault("no ranks start", "whatever")
def test_error(broken):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(fault_table.__file__, tmp_path)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["fault_table"]\n')
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "test_some.py").write_text(FAULTS)
    return tmp_path


def run_pytest(project: Path, *args: str) -> list[str]:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def row(lines: list[str], fault: str) -> list[str]:
    line = next(line for line in lines if line.startswith(fault))
    return [part.strip() for part in line.split("  ") if part.strip()]


def test_each_fault_has_its_row_and_racy_ones_are_repeated(project: Path):
    lines = run_pytest(project, "--repeat", "3")
    table = lines[next(i for i, line in enumerate(lines) if " faults " in line) :]
    assert row(table, "fault")[1:] == ["promised", "outcome", "times"]
    assert row(table, "this goes")[1:] == ["all is well", "held, 20 ms, at most 20 ms", "3×"]
    assert row(table, "that goes")[1:] == ["all is well", "held, 30 ms, at most 30 ms", "3×"]
    assert row(table, "a broken")[1:] == ["it is kept", "NOT HELD, 1 of 3", "3×"]
    assert row(table, "not here")[1:] == ["whatever", "not tried: needs a moon", "1×"]
    assert row(table, "without a")[1:] == ["held", "1×"]
    assert row(table, "no ranks")[1:] == ["whatever", "NOT HELD, 1 of 1", "1×"]
    assert lines[-1].startswith("1 failed, 10 passed, 1 skipped, 1 error")


def test_by_default_faults_run_once_and_only_broken_promises_are_listed(project: Path):
    lines = run_pytest(project)
    assert "4 of 6 held" in lines
    assert row(lines, "no ranks")[1:] == ["whatever", "NOT HELD, 1 of 1", "1×"]
    assert row(lines, "not here")[1:] == ["whatever", "not tried: needs a moon", "1×"]
    assert not any(line.startswith(("this goes", "a broken")) for line in lines)
    lines = run_pytest(project, "-k", "racy or broken")
    assert "3 of 3 held" in lines and not any(line.startswith("fault ") for line in lines)
    assert not any(" faults " in line for line in run_pytest(project, "test_other.py"))
