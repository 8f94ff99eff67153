"""`make test` runs every test once, in two parts, and ends with a summary of both."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from checkout import SUPPORT, TOOLS
from rankroom.system.polling import poll_until

TOOL = TOOLS / "test.py"
ONE = [sys.executable, TOOL, "-n", "1"]  # one worker, as each takes half a second to start
spec = importlib.util.spec_from_file_location("two_parts", TOOL)
two_parts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(two_parts)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("1 failed, 240 passed in 107.45s (0:01:47)", {"failed": 1, "passed": 240}),
        ("=== 3 passed, 2 skipped, 1 error in 0.10s ===", {"passed": 3, "skipped": 2, "error": 1}),
        ("no tests ran in 0.01s", {}),
        ("", {}),
    ],
)
def test_the_closing_line_of_pytest_is_parsed(line: str, counts: dict[str, int]):
    assert two_parts.counted(line) == counts


def test_the_summary_has_counts_and_the_duration():
    counts = Counter({"passed": 3539, "failed": 2, "skipped": 2})
    assert two_parts.summary(counts, 1023.9) == "3539 passed, 2 failed, 2 skipped in 0:17:04"
    assert two_parts.summary(Counter(), 0.1) == "0 passed, 0 failed in 0:00:00"


@pytest.mark.parametrize(
    ("passing", "last"),
    [
        pytest.param("12", "2 passed, 0 failed", marks=pytest.mark.thorough),
        ("2", "1 passed, 1 failed"),
    ],
)
def test_the_second_part_runs_even_if_the_first_fails(tmp_path: Path, passing: str, last: str):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\naddopts = -q\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.alone\n"
        f"def test_first(): assert '1' in {passing!r}\n"
        f"def test_second(): assert '2' in {passing!r}\n"
    )
    done = subprocess.run(
        [*ONE, f"--rootdir={tmp_path}", "-c", tmp_path / "pytest.ini", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith(last), done.stdout
    assert done.returncode == (0 if "0 failed" in last else 1)


def test_collecting_no_tests_is_a_failure(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    argv = [*ONE, "-c", tmp_path / "pytest.ini", f"--rootdir={tmp_path}", tmp_path]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == two_parts.NOTHING


def test_failed_and_long_running_tests_are_reported_before_the_summary(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -n 2\n")
    (tmp_path / "conftest.py").write_text(
        "import running_tests\nrunning_tests.LOOK_EVERY = 0.1\nrunning_tests.LONG = 0.3\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import os, time\ndef test_wrong(): assert False\ndef test_slow(): time.sleep(2)\n"
        "def test_dies(): os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "running_tests", "--dist", "loadfile", tmp_path],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    before, _, _ = done.stdout.partition("FAILURES")
    assert "call failed: test_it.py::test_wrong: assert False" in before
    assert re.search(r"running for \d+ s: test_it.py::test_slow", before)
    assert "failed: test_it.py::test_dies" in before


def test_a_terminated_session_names_the_test_in_progress(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    (tmp_path / "test_it.py").write_text(
        "import time, pathlib\ndef test_slow():\n"
        "    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
    )
    argv = [sys.executable, "-m", "pytest", "-p", "running_tests", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen(
        argv, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as run:
        assert poll_until((tmp_path / "begun").exists, 60)
        run.terminate()
        said, _ = run.communicate(timeout=60)
    assert re.search(r"running for \d+ s: test_it.py::test_slow", said)
    assert run.returncode == pytest.ExitCode.INTERRUPTED


def test_a_worker_that_died_is_a_failure_even_if_its_test_passes_again(tmp_path: Path):
    """Its other tests were not run, so it is not enough that the failed one passes when rerun."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\naddopts = -q\n")
    (tmp_path / "test_it.py").write_text(
        f"import os, pathlib\nbefore = pathlib.Path({str(tmp_path / 'before')!r})\n"
        "def test_dies_once():\n    if not before.exists(): before.touch(); os._exit(1)\n"
        "def test_after(): pass\n"
    )
    argv = [*ONE, f"--rootdir={tmp_path}", "-c", tmp_path / "pytest.ini", tmp_path]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ", 1 failed" in done.stdout.splitlines()[-1], done.stdout
