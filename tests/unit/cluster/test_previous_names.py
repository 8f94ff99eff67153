"""Names of the previous version still work, and a renamed variable is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankroom import config
from rankroom.cluster import launch, liveness
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths


def test_a_renamed_variable_still_works_and_its_new_name_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RANKROOM_GUARD", "0")
    monkeypatch.delenv("RANKROOM_WATCHDOG", raising=False)
    env = launch.own_environment()
    assert env["RANKROOM_WATCHDOG"] == "0" and "RANKROOM_GUARD" not in env
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("RANKROOM_GUARD is now called RANKROOM_WATCHDOG: ")
    monkeypatch.setenv("RANKROOM_WATCHDOG", "1")
    assert launch.own_environment()["RANKROOM_WATCHDOG"] == "1"
    capsys.readouterr()
    monkeypatch.delenv("RANKROOM_GUARD")
    launch.own_environment()
    assert capsys.readouterr().err == ""


def test_a_cluster_of_the_previous_version_is_found_with_its_log(home: Path):
    paths = ClusterPaths("default")
    paths.make(1)
    assert paths.supervisor_log.name == "supervisor.log"
    (paths.logs / "keeper.log").write_text("it began\n")
    assert paths.supervisor_log.read_text() == "it began\n"
    code = "import sys; print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", code, "-m", "rankroom.rank.keeper", str(paths.folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # right after its start a process has no command line yet
        data = {"name": "default", "size": 1, "state": "running", "keeper": process.pid}
        info = ClusterInfo.from_json(data)
        assert info.supervisor == process.pid and liveness.alive(info)
        process.communicate()
    assert not liveness.alive(info)


def test_every_new_name_is_one_that_is_used():
    package = Path(config.__file__).parent
    text = "".join(f.read_text() for f in package.rglob("*.py") if f.name != "config.py")
    for new in set(config.NEW_NAMES.values()):
        assert new in text or (package.parent / f"{new.replace('.', '/')}.py").exists(), new
