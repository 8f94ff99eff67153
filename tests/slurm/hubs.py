"""A real JupyterHub on the test cluster's login node, and learners who use it through its proxy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from hub_packages import HubPackages
from labs import PYTHON, Opened, make_home, profile
from machines import CHECKOUT, FILES, Machines
from remote_python import RemotePython

BASE = "http://127.0.0.1:8000"  # the proxy, to which a site's TLS server forwards
EXAMPLE = CHECKOUT / "slurm" / "workshop" / "jupyterhub_config.py"
PASSWORD = "open sesame, for tests"
TEACHER = "teach"
FOLDER = Path("/home/shared/workshop")
PLAN = """\
name = "Test workshop"
folder = "{folder}"
way = "hub"
hub = "https://hub.example.org"
site = "test"
reservation = "workshop"
learners = {learners}
ranks = 2
time = "00:20:00"
lessons = [[1, 15]]
"""
OPEN = """
import sys
from pathlib import Path
from rankroom.workshop import workshop_folder, workshop_plan
workshop_folder.open_folder(workshop_plan.read(Path(sys.argv[1])))
"""
CLIENT = """
import requests

def ask(method, url, token="", body=None):
    headers = {"Authorization": f"token {token}"} if token else {}
    try:
        done = requests.request(method, url, headers=headers, json=body, timeout=60,
                                allow_redirects=False)
    except requests.RequestException as error:
        return [0, type(error).__name__]
    is_json = "json" in done.headers.get("Content-Type", "")
    return [done.status_code, done.json() if is_json else done.text[:2000]]
"""


class Hub:
    """The hub, run by root on the login node with the example configuration."""

    def __init__(self, machines: Machines, learners: list[str]) -> None:
        self.machines, self.learners = machines, learners
        self.tools = HubPackages()
        self.home = make_home(machines, machines.root / "hub", "root", test=self._profile())
        self.state = self.home / "state"
        self.state.mkdir(mode=0o700)
        self.plan = self._open_workshop()
        self.log = self.home / "hub.log"
        with self.log.open("wb") as log:
            self._process = machines.start(
                "login", self.words(), "root", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._outside = RemotePython(machines, "login", "root", {})
        self._outside.do(CLIENT)
        deadline = time.monotonic() + 120
        while self.ask("GET", "/hub/api/")[0] != 200:
            assert self._process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def words(self, **other: str) -> list[str]:
        """The command that starts the hub, as systemd would; `other` variables override its own."""
        given = {
            "PYTHONPATH": self.tools.python_path,
            "PATH": self.tools.path,
            "XDG_CONFIG_HOME": self.home,
            "STATE_DIRECTORY": self.state,
            "WORKSHOP_PLAN": self.plan,
            "HUB_ADDRESS": self.machines.address("login"),
            "HUB_EXAMPLE": EXAMPLE,
            "HUB_PASSWORD": PASSWORD,
            **other,
        }
        variables = [f"{name}={value}" for name, value in given.items()]
        return ["env", *variables, PYTHON, "-m", "jupyterhub", "-f", str(FILES / "hub_config.py")]

    def _profile(self) -> str:
        setup = [f"export PYTHONPATH={self.tools.python_path}", f"export PATH={self.tools.path}"]
        # The profile ends with the [environment] table, so `setup` becomes a part of it.
        return profile(login="", nodes=1) + f"setup = {json.dumps(setup)}\n"

    def _open_workshop(self) -> Path:
        """Open the workshop as its teacher; return the sysadmin's copy of the plan."""
        machines = self.machines
        shared = machines.root / "home" / FOLDER.parent.name
        shared.mkdir()
        shared.chmod(0o755)
        os.chown(shared, int(machines.id(TEACHER)), int(machines.id(TEACHER)))
        self._reserve()
        text = PLAN.format(folder=FOLDER, learners=json.dumps(self.learners))
        mine = machines.put(TEACHER, "plan.toml", text)
        said = machines.run("login", [PYTHON, "-c", OPEN, mine], TEACHER)
        assert not said, said
        copy = self.home / "workshop.toml"
        copy.write_text(text)
        return copy

    def _reserve(self) -> None:
        """Create the reservation with the command in docs/workshop-centre.md, but starting now."""
        page = (CHECKOUT / "docs" / "workshop-centre.md").read_text("utf-8")
        [line] = re.findall(r"^scontrol create reservation .+$", page, re.MULTILINE)
        other = {"StartTime": "now", "Nodes": "ALL", "Users": ",".join(self.learners)}
        words = [
            f"{key}={other.get(key, value)}" if value else key
            for key, _, value in (word.partition("=") for word in line.split())
        ]
        said = self.machines.run("ctl", words)
        assert "Reservation created: workshop" in said, said

    def ask(self, method: str, path: str, token: str = "", body: Any = None) -> Any:
        """The status and answer of a request through the proxy."""
        url = path if "://" in path else BASE + path
        return self._outside.do(f"ask({method!r}, {url!r}, {token!r}, {body!r})")

    def learner(self, user: str) -> Learner:
        """Log a learner in, by requesting a token."""
        who = {"auth": {"username": user, "password": PASSWORD}}
        status, answer = self.ask("POST", f"/hub/api/users/{user}/tokens", body=who)
        assert status == 201, (status, answer, self.said())
        return Learner(self, user, answer["token"])

    def said(self) -> str:
        """The end of the hub's log."""
        return self.log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        self._outside.close()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Learner:
    """A learner with a token of the hub, whose server runs in a job."""

    def __init__(self, hub: Hub, user: str, token: str) -> None:
        self.hub, self.user, self.token = hub, user, token
        self.opened = Opened(hub.machines, f"{BASE}/user/{user}", token)

    def kernel(self, *cells: str) -> str:
        """What cells print in a new kernel of the server, reached through the proxy."""
        return self.opened.kernel(*cells, machine="login")

    def start(self) -> None:
        """Request the server, without waiting for it."""
        status, answer = self.hub.ask("POST", f"/hub/api/users/{self.user}/server", self.token)
        assert status in (201, 202), (status, answer, self.hub.said())

    def server(self) -> Any:
        """The hub's description of the server; None if there is no server."""
        _, about = self.hub.ask("GET", f"/hub/api/users/{self.user}", self.token)
        return about["servers"].get("")

    def until_ready(self, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not (server := self.server()) or not server["ready"]:
            assert server and time.monotonic() < deadline, (self.hub.said(), self.logs())
            time.sleep(0.5)

    def logs(self) -> str:
        """The output of the learner's jobs that run or have failed."""
        home = self.hub.machines.home(self.user)
        return "\n".join(each.read_text(errors="replace") for each in home.glob("workshop-*.log"))

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        self.hub.ask("DELETE", f"/hub/api/users/{self.user}/server", self.token)
        deadline = time.monotonic() + 90
        while self.server():
            assert time.monotonic() < deadline, self.hub.said()
            time.sleep(0.5)
