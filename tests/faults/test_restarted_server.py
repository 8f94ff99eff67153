"""The Jupyter server goes down during a run, and its kernels with it; the run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client import BlockingKernelClient

from numbered import GATED, assert_numbered, written
from rankroom.cluster.local import Cluster
from rankroom.cluster.lookup import running_clusters
from rankroom.rank.environment import free_ports
from rankroom.record.store import Store
from rankroom.system import process_tree

pytestmark = pytest.mark.cluster

TOKEN = "a-token-for-tests"


@dataclass
class Jupyter:
    """A Jupyter server that can be killed and started again, with its kernels."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    clients: list[BlockingKernelClient] = field(default_factory=list)

    def start(self) -> None:
        [self.port] = free_ports(1)
        env = {
            **os.environ,
            "HOME": str(self.folder),
            "JUPYTER_CONFIG_DIR": str(self.folder / "config"),
            "JUPYTER_RUNTIME_DIR": str(self.folder / "runtime"),
            "JUPYTER_NO_CONFIG": "1",
            "JUPYTER_PLATFORM_DIRS": "1",
            "JUPYTER_TOKEN": TOKEN,
        }
        argv = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
        argv += ["--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0"]
        argv += [f"--ServerApp.root_dir={self.folder}"]
        argv += ["--ServerApp.jpserver_extensions={'rankroom': True}"]
        output = self.folder / "output.txt"
        with output.open("ab") as out:
            self.process = subprocess.Popen(argv, env=env, stdout=out, stderr=out)
        wait_for(lambda: self.answers(), output.read_text)

    def end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def answers(self) -> bool:
        try:
            return self.ask("rankroom/version")[0] == 200
        except OSError:
            return False

    def ask(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        url = f"http://127.0.0.1:{self.port}/{path}"
        body = b"{}" if method == "POST" else None
        request = urllib.request.Request(url, method=method, data=body)
        request.add_header("Authorization", f"token {TOKEN}")
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, dict(reply.headers), reply.read()

    def open_kernel(self) -> BlockingKernelClient:
        """Start a kernel as a notebook does; it ends with the server."""
        made = json.loads(self.ask("api/kernels", "POST")[2])
        file = self.folder / "runtime" / f"kernel-{made['id']}.json"
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        self.clients.append(client)
        client.start_channels()
        wait_for(lambda: is_ready(client))
        run(client, "%load_ext rankroom")
        return client


def is_ready(client: BlockingKernelClient) -> bool:
    """False if it missed a heartbeat, as it may while it starts on a busy machine."""
    try:
        client.wait_for_ready(timeout=60)
    except RuntimeError:
        return False
    return True


def wait_for(condition: Callable[[], bool], why: Callable[[], str] = str) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, why()
        time.sleep(0.02)


def run(client: BlockingKernelClient, code: str) -> str:
    """Run code that must not fail; return what it prints."""
    said: list[str] = []

    def take(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=take, timeout=120, allow_stdin=False)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(said)


@pytest.fixture
def jupyter(home, tmp_path) -> Iterator[Jupyter]:
    made = Jupyter(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end(signal.SIGTERM)
        for client in made.clients:
            # Garbage collection of a client with open sockets would hang a later test.
            client.stop_channels()
        for info in running_clusters():
            Cluster.attach(info.name).stop()


@pytest.mark.fault(
    "the Jupyter server is {how} in mid-run and started again",
    "readers of the record read on, no line missing or twice",
)
@pytest.mark.parametrize(
    ("how", "signal_"),
    [
        ("killed", signal.SIGKILL),
        pytest.param("stopped", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_a_run_continues_while_the_jupyter_server_restarts(jupyter, home, tmp_path, how, signal_):
    kernel = jupyter.open_kernel()
    run(kernel, "%cluster start --ranks 2 --name stays")
    gate = tmp_path / "gate"
    run(kernel, "%%distributed --detach" + GATED.format(gate=str(gate)))
    (run_id,) = Store(home).ids()
    read, after = b"", 0
    while len(read) < 5_000:
        _, headers, piece = jupyter.ask(f"rankroom/runs/{run_id}/events?after={after}&wait=5")
        read, after = read + piece, int(headers["X-Rankroom-Next"])
    mine = psutil.Process(int(run(kernel, "import os; print(os.getpid())")))
    jupyter.end(signal_)
    # Kernels end with their server; if it was killed, they end by themselves.
    wait_for(lambda: not process_tree.running(mine))
    store = Store(home)
    there = len(written(store, run_id, 0))
    wait_for(lambda: len(written(store, run_id, 0)) > there + 100)
    jupyter.start()
    told = json.loads(jupyter.ask(f"rankroom/runs/{run_id}")[2])
    assert told["state"] == "running" and told["notes"] == []
    assert "is still running: `%runs " in run(jupyter.open_kernel(), "%cluster attach")
    wait_for(lambda: all(written(store, run_id, r).count("\n") > 100 for r in (0, 1)))
    gate.touch()
    state, size = "running", after
    while state == "running" or after < size:  # a reply holds only part of the events
        _, headers, piece = jupyter.ask(f"rankroom/runs/{run_id}/events?after={after}&wait=5")
        read, after = read + piece, int(headers["X-Rankroom-Next"])
        state, size = headers["X-Rankroom-State"], int(headers["X-Rankroom-Size"])
    assert state == "done"
    for rank in (0, 1):
        assert assert_numbered(Store(home), run_id, rank) > 100
    assert read == Store(home).paths(run_id).events.read_bytes()


@pytest.mark.fault(
    "the kernel is shut down in mid-run, and no other one comes",
    "the view shows the run go on, and finished with every line when it is",
)
def test_the_server_shows_a_run_without_a_kernel_to_its_end(jupyter, home, tmp_path):
    kernel = jupyter.open_kernel()
    run(kernel, "%cluster start --ranks 2 --name stays")
    gate = tmp_path / "gate"
    run(kernel, "%%distributed --detach" + GATED.format(gate=str(gate)))
    (run_id,) = Store(home).ids()
    mine = psutil.Process(int(run(kernel, "import os; print(os.getpid())")))
    [kernel_of_the_run] = json.loads(jupyter.ask("api/kernels")[2])
    jupyter.ask(f"api/kernels/{kernel_of_the_run['id']}", "DELETE")
    wait_for(lambda: not process_tree.running(mine))
    events = f"rankroom/runs/{run_id}/events"
    _, headers, _ = jupyter.ask(events)
    assert headers["X-Rankroom-State"] == "running"
    after = headers["X-Rankroom-Next"]
    # New events still arrive.
    assert jupyter.ask(f"{events}?after={after}&wait=30")[2]
    gate.touch()
    wait_for(lambda: jupyter.ask(events)[1]["X-Rankroom-State"] == "done")
    finished = Store(home).load(run_id)
    assert (finished.state, finished.notes) == ("done", [])
    for rank in (0, 1):
        assert assert_numbered(Store(home), run_id, rank) > 10
