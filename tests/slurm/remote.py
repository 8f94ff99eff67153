"""A laptop whose notebook's ranks run on the test cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labs import end_lines, jobs, make_home, settings
from machines import Machines
from numbered import GATED
from remote_python import LISTENER, RemotePython

NOT_THEIRS = ("sshd", LISTENER.name, "<defunct>")
NUMBERED = GATED.format(gate="gate")
IMPORTS = """
import time, os, json
from pathlib import Path
from rankroom.scheduler import site
from rankroom.cluster.local import Cluster
from rankroom.record.cluster_file import ClusterPaths, all_clusters
from rankroom.errors import RankroomError
from rankroom.remote import start
from rankroom.remote.cluster import RemoteCluster
from rankroom.record.store import Store

def states(run):
    return {rank.rank: rank.state for rank in run.info.ranks}

def refused(call):
    try:
        call()
    except RankroomError as error:
        return type(error).__name__ + ": " + str(error)
    return "it was not refused"
"""


class Laptop:
    """Python on the laptop (or another `machine`), with profiles of `sites`; `do` runs code."""

    def __init__(
        self,
        machines: Machines,
        sites: Mapping[str, str],
        machine: str = "laptop",
        user: str = "root",
        **environment: str,
    ) -> None:
        self.machines, self.machine, self.user = machines, machine, user
        self.there = "alice" if user == "root" else user  # the user's account on the site
        folder = machines.root / f"home-{time.monotonic_ns()}"
        self.home = make_home(machines, folder, user, **sites)
        given = dict(each.split("=", 1) for each in settings(self.home))
        self._python = RemotePython(machines, machine, user, {**given, **environment})
        self.do = self._python.do
        self.until = self._python.until
        self.do(IMPORTS)

    @property
    def clusters(self) -> Path:
        return self.home / "data" / "clusters"

    def agents(self) -> list[str]:
        """The local agents of clusters, each as a process id and a command line."""
        found = self.machines.run(self.machine, ["ps", "axo", "pid=,args="]).splitlines()
        return [line for line in found if "rankroom.remote.agent" in line]

    def until_unkept(self, seconds: float = 60) -> None:
        """Wait until no local agent is left."""
        deadline = time.monotonic() + seconds
        while left := self.agents():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def close(self) -> None:
        """End what this laptop's test left, and print the agents' logs, shown if the test fails."""
        for log in self.clusters.glob("*/log/supervisor.log"):
            with contextlib.suppress(FileNotFoundError):  # an agent that ends removes it
                print(f"{log}:\n{log.read_text()}")
        for line in self.agents():
            if str(self.home) in line:
                self.machines.run(self.machine, ["kill", "-KILL", line.split()[0]])
        self._python.close()
        end_lines(self.machines, self.home)
        for job in jobs(self.machines, self.there):
            self.machines.run("login", ["scancel", job], self.there)
        until_nothing_runs(self.machines, user=self.there)

    def __enter__(self) -> Laptop:
        return self

    def __exit__(self, *about: Any) -> None:
        self.close()


def begin(laptop: Laptop) -> None:
    """Start a run that prints numbered lines, and wait for the first ones."""
    laptop.do(f"run = cluster.run({NUMBERED!r})")
    laptop.until("len(written(store, run.id, 1)) > 1000")


def until(laptop: Laptop, wanted: str) -> None:
    laptop.until(f"cluster.refresh().remote.state == {wanted!r}")


def assert_whole(laptop: Laptop) -> None:
    """The run succeeded, and its record has each line once and equals the one on the site."""
    assert laptop.do("run.wait(90) and run.state", 120) == "done"
    counts = laptop.do(
        """
ends = {rank: int(text.split()[0].strip("'")) for rank, text in run.results.items()}
[assert_numbered(store, run.id, rank, ends[rank]) for rank in (0, 1)]
"""
    )
    assert min(counts) >= 50
    run, here = laptop.do("[run.id, store.paths(run.id).events.read_text()]")
    assert here == (on_site(laptop, run) / "events.jsonl").read_text()


def on_site(laptop: Laptop, run: str) -> Path:
    """Return the folder of a run's record on the site."""
    return laptop.machines.home("alice") / ".local/share/rankroom/runs" / run


def running(machines: Machines, user: str = "alice") -> dict[str, Any]:
    """A user's jobs on the site, and processes on its login and compute nodes.

    Without sshd, the listener of a `Laptop` on the login node, and processes that have ended but
    are not reaped.
    """
    found: dict[str, Any] = {}
    if left := jobs(machines, user):
        found["jobs"] = left
    for machine in ("login", *machines.nodes):
        words = machines.processes(machine, user)
        if kept := [each for each in words if not any(other in each for other in NOT_THEIRS)]:
            found[machine] = kept
    return found


def until_nothing_runs(machines: Machines, seconds: float = 90, user: str = "alice") -> None:
    """Wait until no process and no job of the user is left."""
    deadline = time.monotonic() + seconds
    while left := running(machines, user):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def files(machines: Machines) -> list[str]:
    """The files that Rankroom left in alice's home on the site, other than records and caches."""
    home = machines.home("alice")
    found = []
    for folder in (home / ".rankroom", home / ".local/share/rankroom"):
        found += [each for each in folder.rglob("*") if each.is_file()]
    data = home / ".local/share/rankroom"
    kept = tuple(data / each for each in ("runs", "asked", "native", "preload"))
    return [str(f.relative_to(home)) for f in found if not any(k in f.parents for k in kept)]
