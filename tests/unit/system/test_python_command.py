"""Programs that are started in a folder where others have planted files named like modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankroom
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.ssh import login
from rankroom.system import python_command

PACKAGE = Path(rankroom.__file__).parent
# Modules of the standard library, of installed packages, and our own.
PLANTED = [*sys.stdlib_module_names, "psutil", "zmq", "click", "ipyparallel", "IPython", "rankroom"]


@pytest.fixture
def planted(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill the current directory with modules that record when they are imported."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')"
        )
    monkeypatch.chdir(tmp_path)
    # The package itself must be found without that folder.
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    monkeypatch.setenv("RANKROOM_ASK_SECONDS", "0")
    return tmp_path


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120
    )


@pytest.mark.parametrize(
    "module",
    [
        "rankroom.supervisor.supervisor", "rankroom.supervisor.processes.controller",
        "rankroom.rank.engine", "rankroom.agent.node_agent", "rankroom.batch.runner",
        "rankroom.remote.login_node", "rankroom.remote.job", "rankroom.remote.agent",
        "rankroom.ssh.askpass",
    ],
)  # fmt: skip
def test_no_program_imports_modules_from_its_working_directory(planted: Path, module: str):
    paths = ClusterPaths("--help", planted)  # which some of them wait for
    paths.make(1)
    paths.write(ClusterInfo(paths.name, 1))
    run(python_command.command(module, paths.name))
    assert not (planted / "ran").exists(), (planted / "ran").read_text()


@pytest.mark.parametrize(
    "path", [":{}", *(pytest.param(path, marks=pytest.mark.thorough) for path in ("{}:", "{}::{}"))]
)
def test_empty_pythonpath_entries_do_not_add_the_working_directory(planted: Path, path: str):
    """`PYTHONPATH=$PYTHONPATH:/my/lib`, for example, adds one if the variable was not set."""
    own = {**os.environ, "PYTHONPATH": path.format(*2 * [PACKAGE.parent])}
    argv = python_command.command("rankroom.batch.runner", "--help")
    line = ["sh", "-c", f'{python_command.SHELL_ASSIGNMENTS} exec "$@"', "sh"]
    subprocess.run(argv, env=python_command.environment(own), capture_output=True, timeout=120)
    subprocess.run([*line, *argv], env=own, capture_output=True, timeout=120)
    assert not (planted / "ran").exists(), (planted / "ran").read_text()
    shown = [sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"]
    said = subprocess.run([*line, *shown], env=own, capture_output=True, text=True)
    assert said.stdout.split() == [":".join([str(PACKAGE.parent)] * path.count("{}"))]


def test_a_pythonpath_of_empty_entries_only_is_unset():
    assert "PYTHONPATH" not in python_command.environment({"PYTHONPATH": ":"})
    line = rf'{python_command.SHELL_ASSIGNMENTS} sh -c "echo [\$PYTHONPATH]"'
    assert run(["env", "PYTHONPATH=:", "sh", "-c", line]).stdout == "[]\n"
    assert python_command.environment({"PYTHONPATH": "a::b"})["PYTHONPATH"] == "a:b"


def test_a_python_of_unknown_version_is_protected_by_pythonsafepath(planted: Path):
    """Such a Python gets PYTHONSAFEPATH, which the program then removes."""
    words = python_command.command("rankroom.batch.runner", "--help", python=["python"])
    assert "-P" not in words
    line = f'{python_command.SHELL_ASSIGNMENTS} exec "$@"'
    run(["sh", "-c", line, "sh", sys.executable, *words[1:]])
    assert not (planted / "ran").exists(), (planted / "ran").read_text()
    shown = f"{python_command.SAFE_PATH}; print(os.environ.get('PYTHONSAFEPATH'))"
    told = ["sh", "-c", line, "sh", sys.executable, "-c", shown]
    assert run(told).stdout == "None\n"
    assert run(["env", "PYTHONSAFEPATH=1", *told]).stdout == "1\n"


@pytest.mark.parametrize("version", [(3, 12, 1), (3, 13, 0)])
def test_arguments_are_found_with_and_without_p(monkeypatch: pytest.MonkeyPatch, version: tuple):
    monkeypatch.setattr(sys, "version_info", version)
    words = python_command.command("rankroom", "run", "-c")
    assert ("-P" in words) == (version >= (3, 13))
    assert python_command.arguments(words) == ["rankroom", "run", "-c"]


def test_without_protection_the_planted_modules_run(planted: Path):
    run([sys.executable, "-m", "rankroom.batch.runner", "--help"])
    assert (planted / "ran").exists()


def test_a_module_runs_as_with_python_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "import json, sys; print(json.dumps([__name__, __spec__.name, sys.argv, sys.path]))"
    (tmp_path / "shown.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir("/")
    name, spec, argv, path = json.loads(run(python_command.command("shown", "a b", "-c")).stdout)
    assert (name, spec) == ("__main__", "shown")
    assert argv == [str(tmp_path / "shown.py"), "a b", "-c"]
    assert path[0] == str(tmp_path) and "" not in path


def test_a_module_that_is_not_there_is_named():
    done = run(python_command.command("no.such"))
    assert done.returncode == 1 and "No module named 'no'" in done.stderr


def test_the_ssh_askpass_program_does_not_import_planted_modules(planted: Path):
    done = run([login._asking("login")["SSH_ASKPASS"], "code?"])
    assert "no answer: code?" in done.stderr
    assert not (planted / "ran").exists()


def test_module_and_arguments_are_found_in_a_command_line():
    for words in (python_command.command("a.b", "c", "d"), ["python", "-m", "a.b", "c", "d"]):
        assert python_command.arguments(words) == ["a.b", "c", "d"]
    assert python_command.arguments(["python", "-c", "1", "a.b"]) == []
    assert python_command.arguments(["python", "-c"]) == []
    assert python_command.arguments([]) == []


def test_a_process_of_an_earlier_version_is_recognized():
    earlier = (
        "import sys; sys.path = [each for each in sys.path if each]; "
        "import runpy; runpy._run_module_as_main(sys.argv.pop(1))"
    )
    assert python_command.arguments(["python", "-c", earlier, "a.b", "c"]) == ["a.b", "c"]
    assert python_command.arguments(["python", "-P", "-c", earlier, "a.b"]) == ["a.b"]


def test_no_source_file_starts_our_modules_with_python_m():
    """The command lines of all programs are made in one place."""
    assert [
        f"{file.relative_to(PACKAGE)}: {line.strip()}"
        for file in PACKAGE.rglob("*.py")
        for line in file.read_text("utf-8").splitlines()
        if '"-m",' in line and not any(word in line for word in ('"mkdir"', '"pip"', '"--module"'))
    ] == []
