"""`rankroom lab` typed in a terminal, and requests to the server that it opens."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machines import CHECKOUT, Machines

PYTHON = sys.executable
ON_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
CTRL_C = "\x03"
ADDRESS = re.compile(r"(http://127\.0\.0\.1:(\d+)/lab\?token=(\S+))")

# Runs where the tunnel begins; prints the server's answer to a request with or without a token.
REQUEST = """
import sys, urllib.request, urllib.error
address, token = sys.argv[1:]
headers = {"Host": "localhost"} | ({"Authorization": f"token {token}"} if token else {})
try:
    request = urllib.request.Request(address + "/api/contents", headers=headers)
    print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
except Exception as error:
    print(type(error).__name__)
"""

# Runs cells in a new kernel, over a websocket as a browser does; prints their output.
KERNEL = """
import json, sys, urllib.request, uuid, websocket
address, token, *cells = sys.argv[1:]
headers = {"Authorization": f"token {token}"}
made = urllib.request.Request(address + "/api/kernels", data=b"{}", headers=headers, method="POST")
kernel = json.load(urllib.request.urlopen(made, timeout=60))["id"]
channels = address.replace("http", "ws") + f"/api/kernels/{kernel}/channels"
socket = websocket.create_connection(channels, header=headers, timeout=180)
said = []
for cell in cells:
    head = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s",
            "username": "u", "version": "5.3"}
    socket.send(json.dumps({"header": head, "parent_header": {}, "metadata": {}, "channel": "shell",
                            "content": {"code": cell, "silent": False}}))
    while True:
        message = json.loads(socket.recv())
        if message["parent_header"].get("msg_id") != head["msg_id"]:
            continue
        content = message["content"]
        said.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))
        if message["msg_type"] == "error":
            said.append("\\n".join(content["traceback"]))
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            break
print("".join(said))
"""


class Typed:
    """`rankroom lab ARGUMENTS`, or another Rankroom `command`, in a terminal on a machine; `text`
    is what it has written since the last match."""

    def __init__(
        self, machines: Machines, machine: str, user: str, home: Path, arguments: list[str],
        command: tuple[str, ...] = ("lab", "--no-browser"),
    ) -> None:  # fmt: skip
        self.machines, self.machine, self.user = machines, machine, user
        words = ["env", "COLUMNS=160", *settings(home), PYTHON, "-c", ON_TERMINAL]
        words += [PYTHON, "-m", "rankroom", *command, *arguments]
        self.text = ""
        self._process = subprocess.Popen(
            machines.words(machine, words, user),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def until(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """Wait until `text` matches, and drop everything up to the end of the match."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.text)) is None:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"no {pattern!r} in what it wrote:\n{self.text}")
        self.text = self.text[found.end() :]
        return found

    def opened(self) -> Opened:
        """Wait for the address; return the server at it."""
        found = self.until(ADDRESS.pattern)
        return Opened(self.machines, f"http://127.0.0.1:{found[2]}", found[3])

    def type(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def ended(self, seconds: float = 120) -> int:
        """Wait for its end; return its exit status. `text` then has the rest of its output."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        return self._process.wait(max(1.0, deadline - time.monotonic()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self, seconds: float) -> bool:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], max(0.0, seconds))[0]:
            raise AssertionError(f"nothing more came; it wrote:\n{self.text}")
        more = os.read(descriptor, 1 << 16)
        self.text += more.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(more)

    def __enter__(self) -> Typed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Opened:
    """A JupyterLab server, at the address where a machine reaches it."""

    def __init__(self, machines: Machines, address: str, token: str) -> None:
        self.machines, self.address, self.token = machines, address, token

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def answers(self, token: str | None = None, machine: str = "laptop", user: str = "root") -> str:
        """The status of a request, or the name of the error that it raised."""
        token = self.token if token is None else token
        words = [PYTHON, "-c", REQUEST, self.address, token]
        return self.machines.run(machine, words, user, timeout=120).strip()

    def kernel(self, *cells: str, machine: str = "laptop") -> str:
        """What cells print in a new kernel of the server."""
        words = [PYTHON, "-c", KERNEL, self.address, self.token, *cells]
        return self.machines.run(machine, words, timeout=240)


def end_lines(machines: Machines, home: Path) -> None:
    """End the ssh connections of the laptop's user, which stay open for a while after their use."""
    each = f"for each in {home}/data/ssh/*; do ssh -F none -S $each -O exit x; done"
    machines.run("laptop", ["sh", "-c", each])


def settings(home: Path) -> list[str]:
    """The variables that lead Rankroom to a user's folders, as arguments for `env`."""
    return [
        f"RANKROOM_HOME={home}/data", f"XDG_CONFIG_HOME={home}",
        f"RANKROOM_SSH=ssh -F {home}/ssh_config",
    ]  # fmt: skip


def make_home(machines: Machines, folder: Path, user: str, **sites: str) -> Path:
    """Create a user's folder with an ssh configuration and a profile for each of `sites`."""
    profiles = folder / "rankroom" / "sites"
    profiles.mkdir(parents=True)
    config = (machines.root / "client" / "ssh_config").read_text()
    (folder / "ssh_config").write_text(config)
    for name, text in sites.items():
        (profiles / f"{name}.toml").write_text(text)
    number = 0 if user == "root" else int(machines.id(user))
    for each in (folder, *folder.rglob("*")):
        os.chown(each, number, number)
        each.chmod(0o700 if each.is_dir() else 0o600)
    return folder


def jobs(machines: Machines, user: str = "alice") -> list[str]:
    """The user's jobs that are pending or running."""
    said = machines.queue("ctl", ["squeue", "-h", "-u", user, "-o", "%i", "-t", "PD,R,CF,CG"])
    return said.split()


def until_no_job(machines: Machines, job: str = "", seconds: float = 60) -> None:
    """Wait until alice has no job, or not this one: an ended job is listed a little longer."""
    deadline = time.monotonic() + seconds
    while left := [each for each in jobs(machines) if not job or each == job]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def ports(machines: Machines, node: str, user: str) -> list[tuple[str, int]]:
    """The addresses and ports at which the user's processes listen on a node."""
    found = machines.run(node, ["ss", "-Hltne"]).splitlines()
    places = [line.split()[3] for line in found if f"uid:{machines.id(user)}" in line]
    split = [place.rpartition(":") for place in places]
    return [(address, int(port)) for address, _, port in split]


def listening(machines: Machines, node: str, user: str = "alice") -> set[str]:
    """The addresses on which the user's JupyterLab servers listen."""
    return {where for where, port in ports(machines, node, user) if 20000 <= port < 32200}


def until_nothing_is_left(
    machines: Machines, user: str = "alice", labs: str = ".rankroom/labs", seconds: float = 60
) -> None:
    """Wait until no process, port or file of the user's jobs is left on any node."""
    deadline = time.monotonic() + seconds
    while left := _left(machines, user, labs):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _left(machines: Machines, user: str, labs: str) -> dict[str, Any]:
    found: dict[str, Any] = {"jobs": jobs(machines, user)}
    for node in machines.nodes:
        found[node] = machines.processes(node, user)
        uid = f"uid:{machines.id(user)}"
        ports = machines.run(node, ["ss", "-Hltne"]).splitlines()
        found[f"ports of {node}"] = [line for line in ports if uid in line]
        files = ["find", "/tmp", "/dev/shm", "-xdev", "-user", user]
        found[f"files of {node}"] = machines.run(node, files).split()
    with contextlib.suppress(FileNotFoundError):
        found["files"] = [str(each) for each in (machines.home(user) / labs).iterdir()]
    return {what: each for what, each in found.items() if each}


def profile(**keys: object) -> str:
    """A site's profile for the test cluster."""
    lines = {"login": "login", "scratch": "~/.rankroom", **keys}
    top = [f"{key} = {json.dumps(value)}" for key, value in lines.items() if key in TOP]
    job = [f"{key} = {json.dumps(value)}" for key, value in lines.items() if key not in TOP]
    return "\n".join(
        [*top, "[job]", 'time = "00:10:00"', *job, "[environment]", f'python = "{PYTHON}"', ""]
    )


TOP = ("login", "scratch", "ssh_to_nodes", "interface")
SBATCH = CHECKOUT / "slurm" / "lab.sbatch"
