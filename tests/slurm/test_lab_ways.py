"""Other ways to a lab, from the login node and by plain sbatch; and none for strangers."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

from labs import (
    ADDRESS,
    CTRL_C,
    PYTHON,
    SBATCH,
    Opened,
    Typed,
    jobs,
    listening,
    make_home,
    profile,
    settings,
    until_nothing_is_left,
)
from machines import Machines

TUNNEL = re.compile(r"ssh -N -L \S+ .*")
PROJECT = "/home/project"  # a folder to which every user may write
PLANTED = "c.ServerApp.ip = ''\nopen('/home/project/ran', 'w')\n"
# A Python that starts only once a file exists, so that a job pauses at its first use of Python.
WAITS = """#!/bin/sh
[ -e ~/go ] || echo waits
until [ -e ~/go ]; do sleep 0.1; done
exec '{python}' "$@"
"""


@pytest.fixture(autouse=True)
def nothing_left(machines: Machines) -> Iterator[None]:
    yield
    for user in ("alice", "bob"):
        for job in jobs(machines, user):
            machines.run("login", ["scancel", job], user)
        until_nothing_is_left(machines, user)


@pytest.fixture(scope="module")
def own(machines: Machines) -> Path:
    """Alice's settings on the login node, as the machines see them."""
    text = profile(nodes=1, ranks_per_node=1)
    folder = machines.home("alice") / "own"
    shared = profile(nodes=1, ranks_per_node=1, scratch=PROJECT)
    # Shell options that a site's `setup` sets, such as noclobber, must not affect the job script.
    make_home(
        machines,
        folder,
        "alice",
        test=text,
        shared=shared,
        loopback="ssh_to_nodes = true\n" + text + 'setup = ["set -o noclobber"]\n',
    )
    return Path("/home/alice/own")


@contextmanager
def pasted(machines: Machines, line: str) -> Iterator[None]:
    """Run a printed ssh command on the laptop."""
    words = shlex.split(line)
    assert words[0] == "ssh"
    words[1:1] = ["-F", str(machines.root / "client" / "ssh_config")]
    ssh = machines.start("laptop", words, "root", stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        ssh.terminate()
        ssh.wait()


def until(holds, seconds: float = 90):
    """Wait until `holds` returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, holds
        time.sleep(0.1)
    return found


def submitted(machines: Machines, *options: str, **environment: str) -> tuple[str, Path]:
    """Submit slurm/lab.sbatch as alice; return the job and its output file."""
    machines.put("alice", "lab.sbatch", SBATCH.read_text())
    given = [f"{name}={value}" for name, value in {"PYTHON": PYTHON, **environment}.items()]
    words = ["env", *given, "sbatch", "--parsable", *options, "lab.sbatch"]
    job = machines.run("login", words, "alice").strip()
    assert job.isdigit(), job
    return job, machines.home("alice") / f"lab-{job}.out"


def told(machines: Machines, output: Path) -> tuple[str, Opened]:
    """The ssh command and the address that the job prints."""
    text = until(lambda: output.exists() and ADDRESS.search(output.read_text()))
    line = TUNNEL.search(output.read_text())
    assert line is not None
    return line[0], Opened(machines, f"http://127.0.0.1:{text[2]}", text[3])


@pytest.mark.parametrize("site", [pytest.param("test", marks=pytest.mark.thorough), "loopback"])
def test_on_the_login_node_the_ssh_command_for_the_laptop_is_printed(
    machines: Machines, own: Path, site: str
):
    with Typed(machines, "login", "alice", own, ["--site", site]) as typed:
        line = typed.until(TUNNEL.pattern)[0]
        opened = typed.opened()
        assert opened.answers() == "URLError"
        with pasted(machines, line):
            until(lambda: opened.answers() == "200")
            assert opened.answers(token="") == "403"
        typed.type(CTRL_C)
        typed.until(r"leave it running, or cancel it\?")
        typed.type("c\n")
        assert typed.ended() == 0
    assert jobs(machines) == []


@pytest.mark.thorough
def test_a_lab_submitted_with_sbatch_says_how_to_reach_it(machines: Machines):
    _, output = submitted(machines, "--nodes=2", "--ntasks-per-node=1")
    line, opened = told(machines, output)
    assert output.stat().st_mode & 0o777 == 0o600
    assert listening(machines, "c1") == {machines.address("c1")}
    with pasted(machines, line):
        until(lambda: opened.answers() == "200")
        assert opened.answers(token="") == "403"
        said = opened.kernel(
            "import rankroom\ncluster = rankroom.Cluster.local()",
            "run = cluster.run('import socket; socket.gethostname()'); run.wait(); run.results",
            "cluster.stop()",
        )
        assert "c1" in said and "c2" in said, said
        # As the menu item "Shut Down" does.
        code = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1] + '/api/shutdown',"
        code += " b'', {'Authorization': 'token ' + sys.argv[2]}))"
        machines.run("laptop", [PYTHON, "-c", code, opened.address, opened.token])
        until(lambda: jobs(machines) == [])
    assert "ended with status" not in output.read_text()
    until_nothing_is_left(machines)


@pytest.mark.thorough
def test_a_lab_submitted_with_sbatch_listens_on_loopback_with_ssh_to_nodes(machines: Machines):
    job, output = submitted(machines, SSH_TO_NODES="yes")
    line, opened = told(machines, output)
    node = re.search(r"runs on (c\d)", output.read_text())
    assert node is not None
    assert listening(machines, node[1]) == {"127.0.0.1"}
    with pasted(machines, line):
        until(lambda: opened.answers() == "200")
        assert opened.answers(token="") == "403"
    machines.run("login", ["scancel", job], "alice")
    until_nothing_is_left(machines)


def test_insecure_jupyter_settings_of_the_user_are_overridden(machines: Machines):
    # Tutorials recommend these settings for a server on the user's own machine.
    folder = machines.home("alice") / ".jupyter"
    folder.mkdir(exist_ok=True)
    loose = (
        "c.ServerApp.ip = '0.0.0.0'\nc.ServerApp.token = ''\nc.IdentityProvider.token = ''\n"
        "c.ServerApp.password = ''\nc.ServerApp.allow_remote_access = True\n"
    )
    names = ("jupyter_config.py", "jupyter_server_config.py", "jupyter_lab_config.py")
    for name in names:
        (folder / name).write_text(loose)
    machines.run("login", ["chown", "-R", "alice", "/home/alice/.jupyter"])
    try:
        _, output = submitted(machines, JUPYTER_TOKEN="alice")
        line, opened = told(machines, output)
        assert len(opened.token) > 40
        assert listening(machines, "c1") == {machines.address("c1")}
        with pasted(machines, line):
            until(lambda: opened.answers() == "200")
            assert [opened.answers(token=each) for each in ("", "alice")] == ["403", "403"]
    finally:
        for name in names:
            (folder / name).unlink()


def test_a_job_without_jupyterlab_says_what_to_install(machines: Machines):
    _, output = submitted(machines, PYTHON="/usr/bin/no-python")
    until(lambda: output.exists() and "pip install" in output.read_text())
    until_nothing_is_left(machines)


@pytest.mark.thorough
def test_two_labs_on_one_node_have_different_ports_and_tokens(machines: Machines):
    found = [submitted(machines, "--nodelist=c1") for _ in range(2)]
    told_by = [told(machines, output)[1] for _, output in found]
    assert told_by[0].port != told_by[1].port
    assert told_by[0].token != told_by[1].token


@pytest.mark.thorough  # Slurm has no limits below a minute
def test_a_job_whose_time_is_up_leaves_nothing(machines: Machines):
    _, output = submitted(machines, "--time=1", "--nodes=2", "--ntasks-per-node=1")
    line, opened = told(machines, output)
    with pasted(machines, line):
        until(lambda: opened.answers() == "200")
        opened.kernel("import rankroom\ncluster = rankroom.Cluster.local()")
        until(lambda: jobs(machines) == [], 150)
    assert "save your notebooks" in output.read_text()
    until_nothing_is_left(machines)


def test_another_user_cannot_obtain_the_token_or_get_in_without_it(machines: Machines):
    home = machines.home("alice")
    home.chmod(0o755)
    gate = home / "go"
    waits = machines.put("alice", "waits", WAITS.format(python=PYTHON))
    job, output = submitted(machines, PYTHON=str(waits))
    # bob opens the job's output as soon as it exists, while everybody may still read it.
    until(output.exists)
    path = f"/home/alice/{output.name}"
    early = machines.start(
        "c1", ["tail", "-n", "+1", "-f", path], "bob", stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert early.stdout is not None
        assert any(each == "waits\n" for each in early.stdout)
        gate.touch()
        line, opened = told(machines, output)
        with pasted(machines, line):
            until(lambda: opened.answers() == "200")
            said = opened.kernel(
                "import ipykernel, json\n"
                "about = json.load(open(ipykernel.get_connection_file()))\n"
                "print(about['transport'], about['ip'])"
            )
        # Kernels use no TCP ports, at which any user of the node could listen to their messages.
        transport, _, sockets = said.strip().partition(" ")
        assert transport == "ipc"
        for words in (["ls", str(Path(sockets).parent)], ["cat", sockets]):
            assert "Permission denied" in machines.run("c1", words, "bob")
        address = f"http://{machines.address('c1')}:{opened.port}"
        server = Opened(machines, address, opened.token)
        # With the token, bob does get an answer.
        assert server.answers(machine="c2", user="bob") == "200"
        for place in ("c1", "c2", "login"):
            for token in ("", "0" * 43, "alice"):
                assert server.answers(token, place, "bob") == "403"
        # bob cannot read the job's output or any file of the server.
        folder = f"/home/alice/.rankroom/labs/{job}"
        names = [each.name for each in (home / ".rankroom/labs" / job).iterdir()]
        assert "server.json" in names
        for path in (f"/home/alice/lab-{job}.out", folder, *(f"{folder}/{name}" for name in names)):
            said = machines.run("c1", ["sh", "-c", 'cat "$0" || ls "$0"', path], "bob")
            assert "Permission denied" in said, said
        # What bob can see of processes and jobs has no token in it.
        shown = ""
        for place in ("c1", "login"):
            shown += machines.run(place, ["ps", "axeww", "-o", "pid,args"], "bob")
        for words in (["show", "job", "--details", job], ["write", "batch_script", job, "-"]):
            shown += machines.run("login", ["scontrol", *words], "bob")
        assert f"JobId={job}" in shown and "jupyterlab" in shown
        assert opened.token not in shown
        pid = re.search(r"^ *(\d+) .*'jupyterlab'\)", shown, re.MULTILINE)
        assert pid is not None
        for name in ("environ", "fd/1", "cwd"):
            said = machines.run("c1", ["cat", f"/proc/{pid[1]}/{name}"], "bob")
            assert "denied" in said or "No such" in said, said
        # The token is in no command line or environment, not even in those that only root can read.
        whole = machines.run("c1", ["ps", "axeww", "-o", "args"], "root")
        assert f"SLURM_JOB_ID={job}" in whole
        assert opened.token not in whole
        assert opened.token not in machines.run("login", ["scontrol", "show", "job", job], "root")
        # Through the output that he opened early, bob reads no token.
        assert early.poll() is None
        early.kill()
        assert opened.token not in early.stdout.read()
    finally:
        early.kill()
        early.wait()
        gate.unlink(missing_ok=True)
        home.chmod(0o700)


@pytest.fixture
def project(machines: Machines) -> Iterator[str]:
    """A folder to which all users may write, and in which they may move each other's files."""
    machines.run("login", ["mkdir", "-m", "777", PROJECT])
    yield PROJECT
    machines.run("login", ["rm", "-rf", PROJECT])


def plant(machines: Machines, folder: str, *jobs: str) -> None:
    """Create a folder of bob's in place of alice's, with code that JupyterLab would run."""
    for job in jobs:
        words = ["sh", "-c", 'mkdir -p -m 777 "$0" && cat >"$0/config.py"', f"{folder}/{job}"]
        subprocess.run(machines.words("login", words, "bob"), input=PLANTED, text=True, check=True)
    machines.run("login", ["chmod", "777", folder], "bob")


def test_a_folder_planted_by_another_user_is_refused(machines: Machines, own: Path, project: str):
    plant(machines, f"{project}/labs", "1")
    with Typed(machines, "login", "alice", own, ["--site", "shared"]) as typed:
        assert typed.ended() == 1
    assert f"{project}/labs on this machine belongs to another user" in typed.text
    assert jobs(machines) == []
    plant(machines, f"{project}/batch", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    machines.put("alice", "one.ipynb", nbformat.writes(notebook))
    words = ["env", *settings(own), PYTHON, "-m", "rankroom", "batch", "one.ipynb"]
    said = machines.run("login", [*words, "--site", "shared"], "alice")
    assert f"{project}/batch on this machine belongs to another user" in said
    assert jobs(machines) == []


def test_code_that_another_user_swapped_in_is_not_run(machines: Machines, own: Path, project: str):
    """The folder belongs to alice when the job is submitted, and to bob when it starts."""
    with Typed(
        machines, "login", "alice", own, ["--site", "shared", "--time", "00:20:00"]
    ) as typed:
        job = typed.until(r"job (\d+) was submitted at shared")[1]
        machines.run("login", ["scancel", job], "alice")
    script = machines.run("login", ["scontrol", "write", "batch_script", job, "-"], "alice")
    assert f"labs={project}/labs" in script, script
    until(lambda: jobs(machines) == [])
    machines.put("alice", "again.sh", script)
    machines.run("login", ["mv", f"{project}/labs", f"{project}/away"], "bob")
    number = int(job) + 1
    plant(machines, f"{project}/labs", *(str(each) for each in range(number, number + 5)))
    words = ["sbatch", "--parsable", "--output=again.out", "again.sh"]
    again = machines.run("login", words, "alice").strip()
    assert number <= int(again) < number + 5
    output = machines.home("alice") / "again.out"
    until(lambda: output.exists() and "belongs to another user" in output.read_text())
    until(lambda: jobs(machines) == [])
    assert "ran" not in machines.run("login", ["ls", project])
