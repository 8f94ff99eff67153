"""The set-up of a checkout: a step is due when its inputs have changed, and is announced."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import machine
import setup
from checkout import TOOLS


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with nothing in it but an empty .venv."""
    for name, path in {"ROOT": ".", "VENV": ".venv", "PYTHON": ".venv/bin/python"}.items():
        monkeypatch.setattr(setup, name, tmp_path / path)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def a_step(checkout, times):
    source, made = checkout / "source", checkout / "made"
    source.write_text("one")

    def make():
        times.append(source.read_text())
        made.touch()

    return setup.Step("a step", lambda: setup.text_of(source), make, made)


def test_a_step_is_repeated_only_if_the_content_of_its_inputs_changes(checkout, capsys):
    times = []
    step = a_step(checkout, times)
    assert step.due()
    setup.take(step)
    assert not step.due()
    os.utime(checkout / "source", (1, 1))
    assert not step.due()
    (checkout / "source").write_text("two")
    assert step.due()
    setup.take(step)
    assert times == ["one", "two"]
    assert "set-up: a step …" in capsys.readouterr().out


def test_a_step_is_due_when_what_it_made_is_gone(checkout):
    step = a_step(checkout, [])
    setup.take(step)
    (checkout / "made").unlink()
    assert step.due()


def test_a_step_that_failed_stays_due(checkout):
    step = a_step(checkout, [])

    def fail():
        raise SystemExit("no")

    broken = setup.Step(step.name, step.depends, fail, checkout)
    with pytest.raises(SystemExit):
        setup.take(broken)
    assert broken.due()


def side_by_side(checkout, *steps):
    """Return steps from (name, work, steps to wait for); each creates a file of its name."""

    def do(name, work):
        work()
        (checkout / name).touch()

    return [
        setup.Step(
            name, lambda: "", functools.partial(do, name, work), checkout / name, after=after
        )
        for name, work, after in steps
    ]


def test_steps_wait_for_what_they_need_and_for_nothing_else(checkout):
    met = threading.Barrier(2, timeout=30)
    order = []
    steps = side_by_side(
        checkout,
        ("first", lambda: order.append("first"), ()),
        ("one", lambda: (met.wait(), order.append("beside")), ("first",)),
        ("other", lambda: (met.wait(), order.append("beside")), ("first",)),
        ("last", lambda: order.append("last"), ("one", "other")),
    )
    setup.take_all(steps)
    assert order == ["first", "beside", "beside", "last"]
    setup.take_all(steps)
    assert len(order) == 4, "none of them was due"


def test_a_failed_step_ends_steps_that_run_in_parallel(checkout, tmp_path):
    started = tmp_path / "started"
    sleep = f"touch {started}; sleep 600"

    def fail():
        while not started.exists():
            time.sleep(0.01)
        raise SystemExit("no disk")

    steps = side_by_side(
        checkout,
        ("long", lambda: machine.run(["bash", "-c", sleep]), ()),
        ("fails", fail, ()),
        ("after it", lambda: None, ("fails",)),
    )
    begun = time.monotonic()
    with pytest.raises(SystemExit, match="no disk"):
        setup.take_all(steps)
    assert time.monotonic() - begun < 60
    assert [step.due() for step in steps] == [True] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_the_setup_also_ends_its_commands(tmp_path, number):
    pid = tmp_path / "pid"
    source = f"""
import pathlib, signal, machine, setup
signal.signal(signal.SIGINT, signal.default_int_handler)
setup.VENV = pathlib.Path({str(tmp_path)!r})
command = ["bash", "-c", "echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600"]
setup.end_by_signal()
setup.take_all([setup.Step("long", lambda: "", lambda: machine.run(command), setup.VENV)])
"""
    started = subprocess.Popen([sys.executable, "-c", source], cwd=TOOLS)
    while not pid.exists():
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(number)
    assert started.wait(60) != 0
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid.read_text().strip()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_command_that_exits_with_143_on_sigterm_is_reported_as_ended():
    with pytest.raises(SystemExit, match="was ended"):
        machine.run(["sh", "-c", "trap 'exit 143' TERM; kill $$"])


def test_every_step_depends_only_on_earlier_steps():
    known = []
    for step in setup.STEPS:
        assert set(step.after) <= set(known), step.name
        known.append(step.name)


def test_sources_exclude_generated_files(tmp_path):
    for name in ("src/a.ts", "src/lib/b.ts", "node_modules/c.js", "tsconfig.tsbuildinfo", "z.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in setup.sources(tmp_path)]
    assert sorted(found) == ["src/a.ts", "z.json"]


def test_a_moved_environment_is_recognized(checkout, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    pip = tmp_path / ".venv" / "bin" / "pip"
    assert not setup.here()
    pip.write_text(f"#!{tmp_path}/.venv/bin/python\n")
    assert setup.here()
    pip.write_text("#!/somewhere/else/.venv/bin/python\n")
    assert not setup.here()
    # An environment without pip is of no use either.
    assert not setup.works()


def test_version_ranges_are_read_from_pyproject(monkeypatch):
    monkeypatch.chdir(TOOLS.parent)
    monkeypatch.setattr(setup, "PYTHON", sys.executable)
    ranges = setup.ranges(setup.EXTRAS)
    assert {"torch>=2.1", "tensorflow-cpu>=2.16"} <= set(ranges)
    assert not [each for each in setup.ranges(["torch", "lab"]) if "tensorflow" in each]
    assert any(each.startswith("jupyter_server>=") for each in ranges)


def test_the_lock_has_no_paths_or_local_versions():
    lines = setup.LOCK.read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 50
    assert all(pin.count("==") == 1 and "/" not in pin and "+" not in pin for pin in pins)
    assert not [pin for pin in pins if pin.startswith(("horovod", "rankroom"))]


def test_missing_tools_are_reported_with_the_apt_command(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"needs g\+\+, npm: .*`sudo apt install g\+\+ npm`"):
        machine.provide(["g++", "npm", "g++"])


def test_debian_packages_match_the_version_of_the_running_python():
    """It need not be the distribution's own Python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    wanted = ["Python's venv", "Python's headers"]
    assert machine.from_debian(wanted) == [f"{version}-venv", f"{version}-dev"]


def test_apt_is_not_suggested_for_an_outdated_nodejs(tmp_path, monkeypatch):
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho v12.22.9\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"node is v12\.22\.9 here\n.*nodejs\.org") as error:
        machine.provide([machine.NODE])
    assert "apt install" not in str(error.value)
    monkeypatch.delenv("RANKROOM_CHROMIUM", raising=False)
    monkeypatch.setattr(machine, "has", lambda need: need != "Chromium")
    with pytest.raises(SystemExit, match=r"`sudo apt install chromium`\)\n.*RANKROOM_CHROMIUM"):
        machine.provide([machine.NODE, "Chromium"])


def test_locked_npm_packages_support_the_oldest_supported_nodejs():
    """npm only warns about a Node.js that is older than a package requires."""
    lock = json.loads((TOOLS.parent / "extension" / "package-lock.json").read_text())
    wants = {
        name: (package.get("engines") or {}).get("node") or "" if name else ""
        for name, package in lock["packages"].items()
    }
    assert len(wants) > 100
    for name, want in wants.items():
        majors = [int(found[0]) for each in want.split("||") if (found := re.search(r"\d+", each))]
        assert min(majors, default=0) <= machine.OLDEST_NODE, (name, want)


def test_node_is_given_test_files_rather_than_their_folder():
    """From Node.js 21 on, `node --test` does not search a folder."""
    scripts = json.loads((TOOLS.parent / "extension" / "package.json").read_text())["scripts"]
    assert scripts["test"].endswith("node --test lib-test/test/*.test.js")


@pytest.mark.parametrize(("version", "ok"), [((3, 9), 2), ((3, 10), 0), ((3, 14), 0), ((3, 15), 2)])
def test_a_python_that_is_too_old_or_too_new_is_refused(tmp_path, version, ok):
    python = tmp_path / "python"
    code = f"import sys; sys.version_info = (*{version}, 0); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
    python.chmod(0o755)
    words = ["make", "-C", TOOLS.parent, "--silent", "python", f"PYTHON={python}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == ok
    assert ("needs Python 3.10 to 3.14" in done.stdout) == bool(ok)


def test_make_does_not_use_an_environment_whose_python_is_gone(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    show = "show: ; @echo $(PYTHON)"
    words = ["make", "-C", tmp_path, "-f", TOOLS.parent / "Makefile", "--silent"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")}
    for target, taken in ((sys.executable, ".venv/bin/python"), ("/nowhere/python3", "python3")):
        python.symlink_to(target)
        done = subprocess.run([*words, f"--eval={show}", "show"], capture_output=True, env=env)
        assert done.stdout.decode().split() == [taken]
        python.unlink()


def test_messages_are_escaped_where_the_terminal_lacks_a_character():
    code = """
import setup
setup.only_one = setup.contextlib.nullcontext
setup.provide = lambda needs: setup.say("set-up: waiting …")
setup.take_all = lambda steps: None
setup.main()
"""
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], cwd=TOOLS, env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split() == [b"set-up:", b"waiting", b"\\u2026"]


LOCKED = f"tensorflow-cpu=={setup.locked('tensorflow-cpu')}"


@pytest.mark.parametrize(
    ("is_locked", "offered", "as_locked", "has_tensorflow"),
    [
        (True, {LOCKED, "tensorflow-cpu>=2.16", "setuptools"}, True, True),
        (True, {"tensorflow-cpu>=2.16", "setuptools"}, False, True),  # a mirror that lags behind
        (True, {"setuptools"}, False, False),
        (False, {"tensorflow-cpu>=2.16", "setuptools"}, False, True),
        (False, {"setuptools"}, False, False),
    ],
)
def test_pytorch_alone_is_installed_if_pip_offers_no_tensorflow(
    monkeypatch, capsys, is_locked, offered, as_locked, has_tensorflow
):
    installed = packages_installed(monkeypatch, is_locked, offered)
    if as_locked:
        assert installed == ["--requirement", setup.LOCK]
    else:
        assert "torch>=2.1" in installed
        assert ("tensorflow-cpu>=2.16" in installed) == has_tensorflow
    said = " ".join(capsys.readouterr().out.split())
    assert ("ranks have PyTorch only" in said) != has_tensorflow


def test_setup_fails_if_pip_finds_no_package_at_all(monkeypatch):
    with pytest.raises(SystemExit, match="pip finds no package at all"):
        packages_installed(monkeypatch, True, set())


def packages_installed(monkeypatch, is_locked, offered):
    """Return what the set-up installs if only `offered` is available to pip."""
    installed = []
    monkeypatch.chdir(TOOLS.parent)
    monkeypatch.setattr(setup, "PYTHON", sys.executable)
    monkeypatch.setattr(setup, "IS_LOCKED", is_locked)
    monkeypatch.setattr(setup.packages, "offers", lambda python, what: what in offered)
    monkeypatch.setattr(
        setup.packages, "install", lambda python, words, torch: installed.extend(words)
    )
    setup.install_packages()
    return installed


def test_make_dist_removes_only_old_wheels():
    recipe = (TOOLS.parent / "Makefile").read_text().partition("\ndist: ")[2].partition("\n\n")[0]
    assert re.findall(r"^\trm (.+)$", recipe, re.M) == ["-f dist/*.whl"]


def test_missing_packages_are_installed_if_setup_runs_as_root(monkeypatch):
    ran = []
    here = iter([False, True])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine.shutil, "which", lambda command: f"/bin/{command}")
    monkeypatch.setattr(machine, "has", lambda need: next(here))
    monkeypatch.setattr(machine, "run", ran.append)
    machine.provide(["Chromium"])
    assert ran[-1] == ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]


def test_a_command_that_fails_shows_its_last_lines(capsys):
    code = "import sys; [print('line', n) for n in range(100)]; sys.exit(3)"
    with pytest.raises(SystemExit, match=r"failed \(exit 3\)"):
        machine.run([sys.executable, "-c", code])
    shown = capsys.readouterr().out.split("\n")
    assert "  line 99" in shown
    assert "  line 1" not in shown


def test_installing_packages_starts_no_services(tmp_path, monkeypatch):
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(machine, "POLICY", policy)
    with machine.no_services():
        assert subprocess.run([policy]).returncode == 101
    assert not policy.exists()
    policy.write_text("the machine's own")
    with machine.no_services():
        assert policy.read_text() == "the machine's own"
    assert policy.exists()


def test_the_test_cluster_needs_slurm_munge_and_sshd_but_no_browser():
    assert set(machine.CLUSTER) >= {"slurmctld", "slurmd", "munged", "sshd"}
    assert not set(machine.CLUSTER) & {"Chromium", "npm"}


def test_locked_packages_support_every_release_of_python_3_11():
    """A package that requires a later patch release excludes Debian 12, whose Python is 3.11.2."""
    lines = (TOOLS.parent / "requirements.lock").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if "==" in line and line[0] != "#"]
    wants = {name: metadata.metadata(name).get("Requires-Python") or "" for name in names}
    assert len(wants) > 50
    refused = {n: want for n, want in wants.items() if not SpecifierSet(want).contains("3.11.0")}
    assert not refused


def test_files_for_other_pythons_do_not_stop_the_compilation_of_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    package = tmp_path / "lib" / version / "site-packages" / "package"
    package.mkdir(parents=True)
    (package / "older.py").write_text("print 'hello'")
    (package / "works.py").write_text("x = 1")
    setup.compile_packages()
    assert [each.name.split(".")[0] for each in package.rglob("*.pyc")] == ["works"]
