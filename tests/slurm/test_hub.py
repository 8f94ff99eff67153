"""JupyterHub with batchspawner, configured as in slurm/workshop: a real hub, proxy and Slurm, and
two learners, neither of whom can reach the other's server."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, PLAYWRIGHT, UI, what_failed
from hubs import BASE, FOLDER, PASSWORD, TEACHER, Hub, Learner
from labs import PYTHON, jobs, ports, until_nothing_is_left
from machines import Machines

LEARNERS = ["alice", "bob"]
RANKS = "%load_ext rankroom\n%cluster start"
CELL = "%%distributed\nimport os\nprint(f'rank {rank} of {size}, uid {os.getuid()}')"
ASK = """
import json, sys, urllib.error, urllib.request
answers = []
for url, token in json.loads(sys.argv[1]):
    headers = {"Authorization": f"token {token}"} if token else {}
    try:
        asked = urllib.request.Request(url, headers=headers)
        answers.append(urllib.request.urlopen(asked, timeout=5).status)
    except urllib.error.HTTPError as error:
        answers.append(error.code)
    except OSError as error:
        answers.append(type(error).__name__)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    made = Machines(nodes=2, users=[*LEARNERS, TEACHER])
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def hub(machines: Machines) -> Iterator[Hub]:
    started = Hub(machines, LEARNERS)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def learners(hub: Hub) -> dict[str, Learner]:
    """Both learners, logged in, with servers that were started at the same time."""
    found = {user: hub.learner(user) for user in LEARNERS}
    for each in found.values():
        each.start()
    for each in found.values():
        each.until_ready()
    return found


@pytest.mark.timeout(900)
def test_each_learner_has_a_notebook_on_ranks_of_their_own(machines: Machines, learners):
    for user, learner in learners.items():
        said = learner.kernel(RANKS, CELL, "import os; print(dict(os.environ))")
        for rank in (0, 1):
            assert f"rank {rank} of 2, uid {machines.id(user)}" in said, said
        assert f"'RANKROOM_WORKSHOP': '{FOLDER}'" in said
        assert "HUB_PASSWORD" not in said and "CONFIGPROXY_AUTH_TOKEN" not in said
        assert len(jobs(machines, user)) == 1
        status, _ = learner.hub.ask("GET", f"/user/{user}/rankroom/version", learner.token)
        assert status == 200, "the server has no Rankroom"
        lesson = f"/user/{user}/api/contents/Test-workshop/01_hello_ranks.ipynb?content=0"
        assert learner.hub.ask("GET", lesson, learner.token)[0] == 200, learner.logs()


def test_the_teacher_sees_both_learners_and_they_use_the_reservation(machines: Machines, learners):
    watch = [PYTHON, "-m", "rankroom", "workshop", "watch", "--once", "--json", FOLDER]
    deadline = time.monotonic() + 60
    while True:
        said = machines.run("login", watch, TEACHER)
        tiles = {each["user"]: each["status"] for each in json.loads(said)["tiles"]}
        if all(tiles[user] and tiles[user]["ranks"].get("alive") == 2 for user in learners):
            break
        assert time.monotonic() < deadline, said
        time.sleep(1)
    for user in learners:
        assert tiles[user]["host"] in machines.nodes
    held = machines.queue("ctl", ["squeue", "-h", "--name=workshop", "-t", "R", "-o", "%u %v"])
    assert sorted(held.split("\n")[:-1]) == [f"{user} workshop" for user in sorted(learners)]


def test_another_learners_server_cannot_be_reached(machines: Machines, hub: Hub, learners):
    alice, bob = learners["alice"], learners["bob"]
    for method, path in (
        ("GET", "/user/bob/api/contents"),
        ("GET", "/user/bob/rankroom/clusters"),
        ("POST", "/user/bob/api/kernels"),
        ("GET", "/user/bob/lab"),
        ("GET", "/hub/api/users/bob"),
        ("GET", "/hub/api/users/bob/tokens"),
        ("DELETE", "/hub/api/users/bob/server"),
        ("GET", "/hub/api/proxy"),
    ):
        status, answer = hub.ask(method, path, alice.token)
        # A page redirects to the login.
        assert status in (302, 403, 404), (method, path, status, answer)
    assert "bob" not in json.dumps(hub.ask("GET", "/hub/api/users", alice.token))
    assert bob.server()["ready"]
    # Directly on the nodes, with and without a token.
    asked = [
        [f"http://{address}:{port}/user/bob/api/contents", token]
        for node in machines.nodes
        for address, port in ports(machines, node, "bob")
        if not address.startswith("127.")  # loopback ports are tested in test_strangers.py
        for token in ("", alice.token)
    ]
    assert asked
    said = machines.run(machines.nodes[0], [PYTHON, "-c", ASK, json.dumps(asked)], "alice")
    assert 200 not in json.loads(said), list(zip(asked, json.loads(said), strict=True))
    assert {403} <= {*json.loads(said)}, said


def test_the_hub_runs_no_command_sent_by_a_learner(machines: Machines, hub: Hub, learners):
    """Batchspawner's route uses only the port in a job's report, and runs no command from it."""
    alice = learners["alice"]
    own = alice.kernel("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    mark = machines.root / "home" / "planted"
    evil = f"touch /home/{mark.name};"
    body = {"port": 1, "exec_prefix": evil, "batch_query_cmd": evil, "batch_cancel_cmd": evil}
    status, _ = hub.ask("POST", "/hub/api/batchspawner", own, body)
    assert status == 200
    bad = hub.ask("POST", "/hub/api/batchspawner", own, {"exec_prefix": evil})
    assert bad[0] == 400, bad
    options = {"username": "root", "cmd": evil, "prologue": evil}
    alice.stop()  # with commands that the report tried to replace
    status, _ = hub.ask("POST", "/hub/api/users/alice/server", alice.token, options)
    assert status in (201, 202)
    alice.until_ready()
    assert not mark.exists(), hub.said()


def test_no_wildcard_address_is_bound_and_no_secret_is_shown(machines: Machines, hub, learners):
    uids = [f"uid:{machines.id(user)}" for user in LEARNERS]
    places = {}
    for node in machines.nodes:
        lines = machines.run(node, ["ss", "-Hltnpe"]).splitlines()
        # Slurm's own `srun` listens on all addresses, and authenticates its peers with munge.
        mine = [line for line in lines if any(uid in line for uid in uids) and "srun" not in line]
        places[node] = {line.split()[3].rpartition(":")[0] for line in mine}
    assert any(machines.address(node) in found for node, found in places.items())
    for node, found in places.items():
        assert found <= {"127.0.0.1", machines.address(node)}, places
    here = machines.run("login", ["ss", "-Hltn"])
    listening = {line.split()[3] for line in here.splitlines()}
    assert {"127.0.0.1:8000", "127.0.0.1:8001", f"{machines.address('login')}:8081"} <= listening
    secrets = [each.token for each in learners.values()]
    secrets += [
        each.kernel("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
        for each in learners.values()
    ]
    shown = machines.run("ctl", ["scontrol", "show", "job", "--details"])
    for machine in ("login", *machines.nodes):
        shown += machines.run(machine, ["ps", "axww", "-o", "args="])
    assert not [each for each in secrets if len(each) < 16 or each in shown]
    files = machines.run("login", ["find", hub.state, "-type", "f"], "bob")
    assert "Permission denied" in files, files


def test_users_outside_the_plan_and_wrong_passwords_are_refused(hub: Hub):
    for user, password in (("root", PASSWORD), ("nobody", PASSWORD), ("alice", "wrong, and long")):
        who = {"auth": {"username": user, "password": password}}
        assert hub.ask("POST", f"/hub/api/users/{user}/tokens", body=who)[0] == 403


def test_a_spawn_that_slurm_refuses_is_explained(machines: Machines, hub: Hub, learners):
    alice = learners["alice"]
    alice.stop()
    change = ["scontrol", "update", "ReservationName=workshop"]
    machines.run("ctl", [*change, "Users=bob"])
    try:
        said = hub.ask("POST", "/hub/api/users/alice/server", alice.token)
        assert said[0] == 409 and "reservation" in said[1]["message"], said
    finally:
        machines.run("ctl", [*change, "Users=alice,bob"])
    alice.start()
    alice.until_ready()


@pytest.mark.thorough
@pytest.mark.ui
@pytest.mark.timeout(900)
def test_a_learner_runs_a_cell_in_a_browser(machines: Machines, hub: Hub, learners, tmp_path: Path):
    """From the login page to the lesson, and a cell of it on two ranks."""
    assert PLAYWRIGHT.exists() and CHROMIUM.exists(), "`make test` sets up Playwright and Chromium"
    learners["bob"].stop()
    results = machines.root / "results"
    own = [
        f"RANKROOM_UI_HUB={BASE}", f"RANKROOM_UI_PASSWORD={PASSWORD}", "RANKROOM_UI_USER=bob",
        f"RANKROOM_UI_HOME={machines.root}", f"RANKROOM_PYTHON={sys.executable}",
    ]  # fmt: skip
    argv = [PLAYWRIGHT, "test", "hub.spec.ts", "--config", UI / "playwright.config.ts"]
    said = machines.run("login", ["env", *own, *argv, "--output", results], timeout=600)
    if "1 passed" not in said:
        shutil.copytree(results, tmp_path / "results")
        why = what_failed(said, results)
        pytest.fail(f"{why}\npictures are in {tmp_path}\n{hub.said()}\n{learners['bob'].logs()}")


def test_a_folder_that_others_may_enter_is_refused(machines: Machines, hub: Hub):
    open_state = hub.home / "open"
    open_state.mkdir(mode=0o755)
    open_state.chmod(0o755)
    said = machines.run("login", hub.words(STATE_DIRECTORY=str(open_state)), timeout=240)
    assert f"{open_state} is not a folder that this account alone may enter" in said
    assert not [*open_state.iterdir()]


def test_stopped_servers_leave_nothing(machines: Machines, learners):
    for each in learners.values():
        each.stop()
    for user in LEARNERS:
        until_nothing_is_left(machines, user)
        assert not [*machines.home(user).glob("workshop-*.log")]
