"""A real Jupyter server with this extension, and requests to it over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankroom.rank.environment import free_ports

TOKEN = "a-token-for-tests"
BASE = "/some/base/"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Server:
    port: int
    home: Path

    def get(self, path: str, token: str | None = TOKEN, timeout: float = 60, **more) -> Reply:
        url = f"http://127.0.0.1:{self.port}{BASE}{path}"
        request = urllib.request.Request(url, **more)
        if token:
            request.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read())

    def post(self, path: str, data: bytes | Mapping[str, str] = b"", **more) -> Reply:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        return self.get(path, method="POST", data=body, **more)

    @property
    def acted(self) -> list[str]:
        """What made-up clusters were asked to do."""
        file = self.home / "acted"
        return file.read_text().splitlines() if file.exists() else []


@contextlib.contextmanager
def serve(folder: Path, script: str, **more: str) -> Iterator[Server]:
    """Run `script` of this folder as a server whose home is in `folder`, until the end."""
    [port] = free_ports(1)
    # Without the user's own configuration, and with no other extension.
    env = {
        **os.environ,
        "HOME": str(folder),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        "RANKROOM_HOME": str(folder / "home"),
        "JUPYTER_TOKEN": TOKEN,
        **more,
    }
    argv = [sys.executable, str(Path(__file__).with_name(script))]
    argv += ["--no-browser", "--allow-root"]
    argv += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    argv += [f"--ServerApp.base_url={BASE}", f"--ServerApp.root_dir={folder}"]
    argv += ["--ServerApp.jpserver_extensions={'rankroom': True}"]
    output = folder / "output.txt"
    with output.open("wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out)
    started = Server(port, folder / "home")
    try:
        until = time.monotonic() + 120
        while True:
            try:
                started.get("rankroom/version")
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, output.read_text()
                time.sleep(0.05)
        yield started
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
