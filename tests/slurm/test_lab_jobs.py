"""`rankroom lab` from a laptop through a login node to a compute node: start, leave, attach."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from labs import (
    CTRL_C,
    PYTHON,
    Typed,
    end_lines,
    jobs,
    listening,
    make_home,
    profile,
    until_no_job,
    until_nothing_is_left,
)
from machines import Machines


@pytest.fixture(scope="module")
def home(machines: Machines) -> Iterator[Path]:
    """The laptop user's folder, with profiles of the test cluster."""
    folder = make_home(
        machines, machines.root / "laptop-home", "root",
        test=profile(nodes=2, ranks_per_node=1),
        loopback=profile(ssh_to_nodes=True),
        broken=profile().replace(PYTHON, "/usr/bin/no-python"),
        down=profile(login="nowhere.invalid"),
    )  # fmt: skip
    yield folder
    end_lines(machines, folder)


@pytest.fixture
def lab(machines: Machines, home: Path) -> Iterator[object]:
    """A function that types `rankroom lab …` on the laptop; its jobs are cancelled at the end."""
    with ExitStack() as stack:
        yield lambda *words: stack.enter_context(
            Typed(machines, "laptop", "root", home, list(words))
        )
    for job in jobs(machines):
        machines.run("login", ["scancel", job], "alice")
    until_nothing_is_left(machines)


def test_a_lab_is_started_left_running_attached_again_and_cancelled(machines: Machines, lab):
    typed = lab("--site", "test")
    job = typed.until(r"job (\d+) was submitted at test")[1]
    typed.until(rf"job {job} runs on c\[1-2\]")
    opened = typed.opened()
    assert opened.answers() == "200"
    assert opened.answers(token="") == "403"
    assert opened.answers(token="0" * 43) == "403"
    assert listening(machines, "c1") == {machines.address("c1")}
    said = opened.kernel(
        "%load_ext rankroom",
        "%cluster start",
        "%%distributed\nimport socket\nprint('rank', rank, 'of', size, 'on', socket.gethostname())",
        "%cluster stop",
    )
    assert "rank 0 of 2 on c1" in said and "rank 1 of 2 on c2" in said, said

    # Leaving closes the tunnel, and the job continues.
    typed.type(CTRL_C)
    typed.until(r"leave it running, or cancel it\?")
    typed.type("l\n")
    assert typed.ended() == 0
    assert f"--attach {job}" in typed.text
    assert opened.answers() == "URLError"
    assert jobs(machines) == [job]

    # Attaching again opens the same address.
    again = lab("--attach")
    found = again.opened()
    assert (found.address, found.token) == (opened.address, opened.token)
    assert found.answers() == "200"
    again.type(CTRL_C)
    again.until(r"leave it running, or cancel it\?")
    again.type("c\n")
    again.until(f"job {job} was cancelled, and nothing is left of it")
    assert again.ended() == 0
    assert jobs(machines) == []
    until_nothing_is_left(machines)


@pytest.mark.thorough
def test_no_secret_is_kept_on_the_laptop(machines: Machines, home: Path, lab):
    opened = lab("--site", "test").opened()
    holding = machines.run("laptop", ["grep", "-rl", opened.token, home])
    assert holding == ""
    assert opened.token not in machines.run("laptop", ["ps", "axeww", "-o", "args"])


@pytest.mark.thorough
def test_a_cut_connection_is_reported_and_reopened_with_its_tunnel(machines: Machines, lab):
    typed = lab("--site", "test")
    opened = typed.opened()
    machines.unplug("laptop", "campus")
    try:
        typed.until("the connection to login is lost")
    finally:
        machines.plug("laptop", "campus")
    typed.until("the connection to login is open again, and the tunnel with it")
    assert opened.answers() == "200"


@pytest.mark.thorough
def test_a_second_client_without_local_state_attaches_to_a_lab(machines: Machines, home: Path, lab):
    typed = lab("--site", "test")
    opened = typed.opened()
    other = make_home(machines, machines.root / "other-home", "root", test=profile())
    try:
        with Typed(machines, "laptop", "root", other, ["--site", "test", "--attach"]) as attached:
            found = attached.opened()
            assert found.token == opened.token
            # The first tunnel occupies that port of the laptop, so this one has another.
            assert found.port != opened.port
            assert found.answers() == "200"
            attached.type(CTRL_C)
            attached.until(r"leave it running, or cancel it\?")
            attached.type(CTRL_C)  # a second Ctrl-C leaves the job running
            assert attached.ended() == 0
        assert opened.answers() == "200"
    finally:
        end_lines(machines, other)


@pytest.mark.thorough
def test_a_lab_ends_and_says_so_if_its_job_is_cancelled(machines: Machines, home: Path, lab):
    typed = lab("--site", "test")
    opened = typed.opened()
    [job] = jobs(machines)
    assert (home / "data" / "labs" / f"test-{job}.json").exists()
    machines.run("login", ["scancel", job], "alice")
    typed.until(r"job \d+ is over: it was cancelled, or JupyterLab was shut down")
    assert typed.ended() == 0
    assert opened.answers() == "URLError"
    until_nothing_is_left(machines)
    assert not (home / "data" / "labs" / f"test-{job}.json").exists()


@pytest.mark.thorough
def test_a_port_that_another_user_of_the_node_occupies_is_skipped(machines: Machines, lab):
    last = int(machines.run("login", ["sbatch", "--parsable", "--wrap=true"], "alice"))
    machines.until_idle()
    taken = 20000 + (last + 1) % 12000
    words = [PYTHON, "-m", "http.server", str(taken), "--bind", machines.address("c1")]
    squatter = machines.start("c1", words, "bob", **SILENT)
    try:
        wait_for(lambda: str(taken) in machines.run("c1", ["ss", "-Hltn"]))
        typed = lab("--site", "test")
        typed.until(rf"job {last + 1} runs on c\[1-2\]")
        opened = typed.opened()
        assert opened.port != taken
        assert opened.answers() == "200"
        assert opened.answers(token="") == "403"
    finally:
        end(squatter)


def test_with_ssh_to_nodes_a_lab_listens_on_loopback_only(machines: Machines, lab):
    typed = lab("--site", "loopback", "--nodes", "1")
    node = typed.until(r"runs on (c\d)")[1]
    opened = typed.opened()
    assert listening(machines, node) == {"127.0.0.1"}
    assert opened.answers() == "200"
    assert opened.answers(token="") == "403"
    machines.unplug("laptop", "campus")
    try:
        typed.until("the connection to login is lost")
    finally:
        machines.plug("laptop", "campus")
    typed.until(f"the connection to {node} is open again")
    assert opened.answers() == "200"


@pytest.mark.thorough
def test_a_job_that_would_never_start_is_reported_and_cancelled(machines: Machines, lab):
    typed = lab("--site", "test", "--time", "05:00:00")
    assert typed.ended() == 1
    assert re.search(r"Error: job \d+ is waiting .*: as submitted, it will never start", typed.text)
    assert "was cancelled" in typed.text
    assert jobs(machines) == []


def test_a_job_that_fails_shows_its_log(machines: Machines, lab):
    typed = lab("--site", "broken")
    assert typed.ended() == 1
    assert "/usr/bin/no-python has no JupyterLab in this job" in typed.text
    assert "pip install" in typed.text
    until_no_job(machines)
    assert "was cancelled" not in typed.text
    # The log of a failed job is kept.
    [log] = (machines.home("alice") / ".rankroom/labs").iterdir()
    assert "no-python" in log.read_text()
    log.unlink()


def test_a_waiting_job_says_why_and_can_be_cancelled(machines: Machines, lab):
    held = machines.run("login", ["sbatch", "--parsable", "-N4", "--exclusive", "--wrap=sleep 300"],
                        "bob").strip()  # fmt: skip
    try:
        typed = lab("--site", "test")
        typed.until(
            r"job \d+ is waiting in the queue \((Resources|Priority): .*expected to start at"
        )
        typed.type(CTRL_C)
        typed.until(r"leave it running, or cancel it\?")
        typed.type("x\n")
        typed.until(r"leave it running, or cancel it\?")
        typed.type("c\n")
        assert typed.ended() == 0
        assert jobs(machines) == []
    finally:
        machines.run("login", ["scancel", held], "bob")
        machines.until_idle()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--site", "tset"], "there is no site 'tset' (did you mean test?)"),
        ([], "choose a site with --site NAME, one of "),
        (["--site", "local"], "local has no scheduler"),
        (["--site", "test", "--partition", "gpuu"], "invalid partition"),
        (["--site", "test", "--time", "long"], "time 'long' is not a time"),
        (["--site", "test", "--attach", "99999"], "you have no job 99999 at test"),
        (["--site", "test", "--attach"], "no lab of yours runs at test"),
        (["--site", "down"], "nowhere.invalid"),
    ],
)
def test_invalid_options_are_reported(machines: Machines, lab, words: list[str], said: str):
    typed = lab(*words)
    assert typed.ended() == 1
    assert said in typed.text, typed.text
    assert jobs(machines) == []


@pytest.mark.thorough
def test_a_local_port_in_use_is_refused_before_submission(machines: Machines, lab):
    words = [PYTHON, "-m", "http.server", "18080", "--bind", "127.0.0.1"]
    server = machines.start("laptop", words, "root", **SILENT)
    try:
        wait_for(lambda: "18080" in machines.run("laptop", ["ss", "-Hltn"]))
        typed = lab("--site", "test", "--port", "18080")
        assert typed.ended() == 1
        assert "port 18080 of this machine is taken" in typed.text
        assert "was submitted" not in typed.text
        assert jobs(machines) == []
    finally:
        end(server)


def wait_for(holds, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
