"""Commands that run on a site's login node, and the class that runs them from here.

`python -m rankroom.remote.login_node COMMAND …` is run over ssh and replies with one line of JSON.
It never contacts ranks, but reads their files: where the supervisor listens, and after its end the
rest of its records.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import secrets
import shlex
import socket
import sys
import time
from pathlib import Path

import rankroom
from rankroom.errors import RankroomError, RecordError, StartError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, tail
from rankroom.record.model import Json
from rankroom.record.store import Store
from rankroom.scheduler import jobs
from rankroom.scheduler.site import Site
from rankroom.ssh.host import Host
from rankroom.system import python_command
from rankroom.system.commands import Completed
from rankroom.system.polling import poll_until

MODULE = "rankroom.remote.login_node"
VERSION_KEY = "rankroom"  # a key of the reply, and of no other line that a login shell may print
COMMAND_TIMEOUT_S = 60.0  # a login node's file system may be slow
FIND_TIMEOUT_S = 20.0  # for one command that looks up where the supervisor listens
# A temporary file in the cluster's folder, to test whether it is seen there.
SHARED_HOME_TEST_FILE = "shared"
LOG_LINES = 200
CHUNK_BYTES = 1 << 20


class LoginNode:
    """The login node of `site`, where `host` runs commands."""

    def __init__(self, site: Site, host: Host) -> None:
        self._site = site
        self._host = host
        self._where = host.name or "this machine"
        wheel = f"rankroom-{rankroom.__version__}-py3-none-any.whl"
        # The command, for error messages, that installs the same Rankroom there.
        self._install = shlex.join([site.environment.python, "-m", "pip", "install", wheel])

    async def ask(self, command: str, *words: str, seconds: float = 0.0) -> Json:
        """Run `command` and return its reply; it may take `seconds` longer than COMMAND_TIMEOUT_S.

        Raises SshError where the node cannot be reached, StartError with the remedy where Rankroom
        is missing or has another version, and RankroomError if the command itself reports an error.
        """
        python = [self._site.environment.python]
        argv = python_command.command(MODULE, command, *words, python=python)
        done = await self._host.run(
            jobs.in_environment(self._site, argv), timeout=COMMAND_TIMEOUT_S + seconds
        )
        answer = next(filter(None, map(_answer_in, reversed(done.output.splitlines()))), None)
        if answer is None:
            raise self._no_answer(done)
        if (other := str(answer[VERSION_KEY])) != rankroom.__version__:
            about = {"here": rankroom.__version__, "there": other, "where": self._where}
            raise StartError(VERSIONS.format(**about, install=self._install))
        if "error" in answer:
            raise RankroomError(answer["error"])
        return answer

    def _no_answer(self, done: Completed) -> StartError:
        said = done.tail()
        if "No module named" in said and "rankroom" in said:
            remedy = NONE_THERE.format(where=self._where, install=self._install)
        elif done.returncode == 127:
            remedy = NO_PYTHON.format(site=self._site.name, python=self._site.environment.python)
        else:
            remedy = OTHER.format(site=self._site.name)
        command = f"{self._site.environment.python} -m {MODULE}"
        return StartError(f"{done.failure(command, self._host.name)}\n{remedy}")

    async def meet(self, folder: Path) -> tuple[str, bool, float]:
        """Return the node's own host name, whether Rankroom's home there is the one that holds a
        cluster's `folder` here, and the time there (epoch seconds)."""
        file, text = folder / SHARED_HOME_TEST_FILE, secrets.token_urlsafe(24)
        try:
            file.write_text(text)
            file.chmod(0o600)
            there = await self.ask("hello", folder.name)
        finally:
            file.unlink(missing_ok=True)
        return str(there["host"]), there["text"] == text, float(there["now"])

    async def find(self, name: str, job: str) -> Json | None:
        """Return cluster.json of the cluster in `job` once its supervisor listens, or None if it
        does not within FIND_TIMEOUT_S."""
        words = (name, job, str(FIND_TIMEOUT_S))
        found: Json | None = (await self.ask("find", *words, seconds=FIND_TIMEOUT_S))["cluster"]
        return found

    async def log(self, path: str) -> str:
        """Return the end of a job's output. Raises the same errors as `ask`."""
        return str((await self.ask("log", path))["text"]) if path else ""

    async def clear(self, name: str, job: str, path: str, since: str) -> list[Json]:
        """Remove all but the records of a cluster that is over, if that is possible now; return its
        runs in the form of `finish`."""
        with contextlib.suppress(RankroomError, asyncio.TimeoutError):
            return list((await self.ask("clear", name, job, path, since))["runs"])
        return []


def _answer_in(line: str) -> Json | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and VERSION_KEY in found else None


# -- on the login node


def hello(name: str) -> Json:
    """Return this node's host name, its time, and the text of the file SHARED_HOME_TEST_FILE in
    the folder of the cluster `name`: the caller's text if both machines share Rankroom's home,
    wherever mounted."""
    text = tail(ClusterPaths(name).folder / SHARED_HOME_TEST_FILE)
    return {"host": socket.gethostname(), "text": text, "now": time.time()}


def find(name: str, job: str, seconds: str) -> Json:
    """Return the cluster.json written by the supervisor in `job` once it listens or has failed."""
    paths = ClusterPaths(name)

    def is_there() -> bool:
        info = paths.read()
        # An earlier job may have left the file of a cluster with the same name.
        ours = _is_in(info, job)
        return info is not None and ours and bool(info.rpc or info.state == "failed")

    found = poll_until(is_there, float(seconds), 0.1)
    info = paths.read()
    return {"cluster": dataclasses.asdict(info) if found and info else None}


def finish(name: str, since: str) -> Json:
    """Complete the records of a cluster that is over. Return its runs whose ids are not before
    `since`, each with its number of bytes of events.

    No more than that, as the output of a command is truncated if it is too long. `trouble` is set
    while a record cannot be completed; the others are completed nevertheless.
    """
    from rankroom.cluster import repair

    store, trouble = Store(), ""
    try:
        repair.complete_all(store)
    except (RankroomError, OSError) as error:
        trouble = str(error) or type(error).__name__
    return {"runs": _runs(store, name, since), "trouble": trouble}


def _runs(store: Store, name: str, since: str) -> list[Json]:
    runs = []
    for run_id in store.ids():
        if run_id < since:  # the newest come first
            break
        # A damaged record must not affect the others.
        with contextlib.suppress(RecordError, OSError):
            if (run := store.load(run_id)).cluster == name:
                runs.append({"id": run.id, "size": store.paths(run.id).events.stat().st_size})
    return runs


def events(run: str, after: str) -> Json:
    """Return some of a record's events from byte `after` on (in base64, and not whole lines, as
    lines may be long), its run.json and its source."""
    store = Store()
    # Read this first: if the run has ended, all that it wrote is in the file by now.
    told = store.load(run).to_json()
    data, is_all = _piece(store.paths(run).events, int(after))
    if not is_all:
        told["state"] = "running"  # its end is reported together with its last event
    text = base64.b64encode(data).decode()
    return {"run": told, "source": store.source(run), "events": text}


def _piece(file: Path, after: int) -> tuple[bytes, bool]:
    """Return some of a file's bytes from `after` on, and whether they reach its present end."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        opened.seek(after)
        return opened.read(CHUNK_BYTES), not opened.read(1)
    return b"", True


def log(path: str) -> Json:
    """Return the end of a job's output."""
    return {"text": "\n".join(tail(file, LOG_LINES) for file in _output(path))}


def clear(name: str, job: str, log: str, since: str) -> Json:
    """Remove all but the records of the cluster in `job`, which is over; return its runs in the
    form of `finish`."""
    from rankroom.cluster import liveness

    paths = ClusterPaths(name)
    for file in _output(log):
        file.unlink(missing_ok=True)
    info = paths.read()
    # A cluster of this name may have been started from another machine, too.
    is_ours = _is_in(info, job) if info and info.allocation else not liveness.alive(info)
    if is_ours and not paths.unfinished():
        paths.remove()
    return {"runs": _runs(Store(), name, since)}


def _is_in(info: ClusterInfo | None, job: str) -> bool:
    # PBS appends the server's name to a job's id, and not always the same one.
    granted = info.allocation.job if info and info.allocation else ""
    return granted.partition(".")[0] == job.partition(".")[0]


def _output(log: str) -> list[Path]:
    """Return the files that hold a job's output; the name `log` may be a pattern."""
    path = Path(log)
    return sorted(path.parent.glob(path.name)) if log else []


COMMANDS = {each.__name__: each for each in (hello, find, finish, events, log, clear)}


def main(argv: list[str]) -> None:
    """Run the command that `argv` names, and print its reply."""
    answer: Json = {VERSION_KEY: rankroom.__version__}
    try:
        answer |= COMMANDS[argv[0]](*argv[1:])
    except (RankroomError, OSError) as error:
        answer["error"] = str(error)
    # On a line of its own, whatever a login shell has printed before.
    print(f"\n{json.dumps(answer)}", flush=True)


NONE_THERE = (
    "Rankroom is not installed on {where}, in the environment that the site's profile names: copy "
    "the wheel that `make dist` made here, and there run `{install}`"
)
VERSIONS = (
    "Rankroom is {there} on {where}, and {here} here: both sides need the same version. Copy the "
    "wheel that `make dist` made here, and there, in the environment of the site's profile, run "
    "`{install}`"
)
NO_PYTHON = (
    "There is no `{python}` in the environment of the site's profile: set `python`, `venv`, "
    "`conda` or `modules` in its [environment]; `rankroom site check {site}` checks it step by step"
)
OTHER = "`rankroom site check {site}` checks each step of the connection and says which one fails"

if __name__ == "__main__":
    main(sys.argv[1:])
