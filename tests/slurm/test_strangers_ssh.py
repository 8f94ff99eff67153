"""Another user of the login node tries to use alice's ssh connections, forwards and questions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Machines
from remote_python import RemotePython
from test_ssh_connection import ASKED, LINE, SERVER

PYTHON = sys.executable
SSH_CONFIG = (
    "Host c*\n  IdentityFile ~/.ssh/{key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
    "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
)
CONNECT = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    family = socket.AF_INET if port.isdigit() else socket.AF_UNIX
    with socket.socket(family) as it:
        it.settimeout(5)
        try:
            it.connect((host, int(port)) if port.isdigit() else place)
            print("in")
        except OSError as error:
            print(type(error).__name__)
"""


def open_home(machines: Machines) -> Iterator[None]:
    machines.home("alice").chmod(0o755)
    yield
    machines.home("alice").chmod(0o700)


opened = pytest.fixture(open_home)


def alice(machines: Machines, key: str = "id_ed25519", home: str = "/home/alice/r") -> RemotePython:
    """A process of alice's on the login node that can open an ssh connection to c1."""
    config = machines.put("alice", f"ssh_config_{key}", SSH_CONFIG.format(key=key))
    own = {"RANKROOM_SSH": f"ssh -F {config}", "RANKROOM_HOME": home}
    python = RemotePython(machines, "login", "alice", own)
    python.do(LINE)
    return python


def tries(machines: Machines, *places: str, machine: str = "login") -> list[str]:
    """The result of bob's attempt to connect to each place."""
    script = machines.put("bob", "connect.py", CONNECT)
    return machines.run(machine, [PYTHON, script, *places], "bob").split()


def test_another_user_cannot_use_an_open_connection(machines: Machines, opened: None):
    with alice(machines) as python:
        socket = python.do("line = SshConnection('c1')\nwait(line.open())\nstr(line.socket)")
        assert tries(machines, socket) == ["PermissionError"]
        for words in (["-O", "check", "c1"], ["-o", "ProxyCommand=false", "c1", "id"]):
            said = machines.run("login", ["ssh", "-F", "none", "-S", socket, *words], "bob")
            assert "denied" in said and "uid=" not in said and "running" not in said
        listed = machines.run("login", ["ls", str(Path(socket).parent)], "bob")
        assert "Permission denied" in listed
        # The same socket lets its own user in.
        said = machines.run("login", ["ssh", "-F", "none", "-S", socket, "c1", "id"], "alice")
        assert "uid=" in said and "(alice)" in said
        python.do("wait(line.end())")


@pytest.mark.parametrize("how", ["mkdir -m 777 $0", "ln -s /home/bob $0", "touch $0"])
def test_a_folder_that_somebody_else_made_first_is_not_used(machines: Machines, how: str):
    folder = f"/tmp/rankroom-{machines.id('alice')}"
    machines.run("login", ["rm", "-rf", folder])
    machines.run("login", ["sh", "-c", how, folder], "bob")
    try:
        with alice(machines, home="/home/alice/" + 20 * "long/") as python:
            error = python.do(
                "try: wait(SshConnection('c1').open())\n"
                "except SshError as error: said = str(error)\nsaid"
            )
            assert f"{folder} belongs to another user" in error or "File exists" in error
            assert "RANKROOM_HOME" in error
    finally:
        machines.run("login", ["rm", "-rf", folder])


def test_another_user_can_neither_read_nor_answer_a_question(machines: Machines, opened: None):
    ssh = machines.home("alice") / ".ssh"
    (ssh / "locked").unlink(missing_ok=True)
    machines.run("login", ["cp", "/home/alice/.ssh/id_ed25519", "/home/alice/.ssh/locked"], "alice")
    words = ["-q", "-p", "-P", "", "-N", "open sesame", "-f", "/home/alice/.ssh/locked"]
    machines.run("login", ["ssh-keygen", *words], "alice")
    with alice(machines, "locked") as python:
        python.do(ASKED + "line = SshConnection('c1')\nopening = go(line.open())")
        id = python.until("asked('passphrase') and asked('passphrase')[0].id")
        folder = "/home/alice/r/questions"
        for words in (["ls", folder], ["cat", f"{folder}/{id}.json"]):
            assert "Permission denied" in machines.run("login", words, "bob")
        put = ["sh", "-c", f'echo \'{{"answer": "wrong"}}\' > {folder}/{id}.pipe']
        assert "Permission denied" in machines.run("login", put, "bob")
        python.do(f"questions.answer({id!r}, 'open sesame')")
        shown = machines.run("login", ["ps", "axeww", "-o", "args"], "bob")
        assert "ssh -F" in shown and "open sesame" not in shown
        python.do("opening.result(90)\nwait(line.end())")


def test_a_forwarded_port_is_on_loopback_and_a_forwarded_socket_is_private(
    machines: Machines, opened: None
):
    words = [PYTHON, "-c", SERVER, machines.address("c1")]
    server = machines.start("c1", words, "alice", stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        there = int(server.stdout.readline())
        with alice(machines) as python:
            python.do(
                "import socket\nfrom pathlib import Path\n"
                "with socket.socket() as it:\n"
                "    it.bind(('127.0.0.1', 0))\n    port = it.getsockname()[1]\n"
                "line = SshConnection('c1')\nwait(line.open())\n"
                f"wait(line.forward(port, 'c1', {there}))\n"
                f"wait(line.forward(Path('/home/alice/door'), 'c1', {there}))\n"
            )
            port = python.do("port")
            assert tries(machines, "/home/alice/door") == ["PermissionError"]
            # Other machines cannot reach the port. On this one every user can, so the server
            # behind it must authenticate its clients, as JupyterLab does with its token.
            outside = f"{machines.address('login')}:{port}"
            assert tries(machines, outside, machine="c2") == ["ConnectionRefusedError"]
            assert tries(machines, f"127.0.0.1:{port}") == ["in"]
            python.do("wait(line.close())\nwait(line.end())")
            assert tries(machines, f"127.0.0.1:{port}") == ["ConnectionRefusedError"]
    finally:
        server.kill()
        server.wait()
