"""The test cluster that one file of tests after another uses, if each leaves it as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machines import Machines, space_of

SETTLE_S = 5.0  # for what a file has ended to be gone
# What runs on machines that nobody uses. Slurm's and ssh's daemons have a process for each client.
DAEMONS = {"bash", "sleep", "munged", "slurmctld", "slurmscriptd", "slurmd", "sshd"}


class SharedMachines:
    """The machines of a worker. A file's own are those of the file before, unless that has changed
    something that is not put right here."""

    def __init__(self) -> None:
        self._machines: Machines | None = None
        self._before: dict[str, Any] = {}

    @contextlib.contextmanager
    def used(self) -> Iterator[Machines]:
        """The machines, as they are after their start."""
        if self._machines is None:
            self._start()
        machines = self._machines
        assert machines is not None
        try:
            yield machines
        finally:
            if not self._is_tidied(machines):
                self.close()

    def close(self) -> None:
        """End them."""
        machines, self._machines = self._machines, None
        if machines is not None:
            machines.down()

    def _start(self) -> None:
        made = Machines()
        try:
            made.up()
            self._before = _found(made)
        except BaseException:
            made.down()
            raise
        self._machines = made

    def _is_tidied(self, machines: Machines) -> bool:
        """Remove what users have left; whether all else is as it was."""
        try:
            _end_processes(machines)
            _remove_files(machines)
            until = time.monotonic() + SETTLE_S
            while (found := _found(machines)) != self._before:
                if time.monotonic() > until:
                    changed = [key for key in found if found[key] != self._before.get(key)]
                    print(f"the machines are started again: {', '.join(changed)} changed")
                    return False
                time.sleep(0.1)
        except Exception as error:  # a machine is gone, or does not answer
            print(f"the machines are started again: {error!r}")
            return False
        return True


def _found(machines: Machines) -> dict[str, Any]:
    """What must not change for the next file's sake."""
    found: dict[str, Any] = {}
    for name, processes in _processes(machines).items():
        inside = Path(f"/proc/{machines.first(name)}")
        found[f"processes of {name}"] = Counter(comm for _, comm, _ in processes)
        # Without the numbers of mounts, which are others after a machine has crashed.
        lines = (inside / "mountinfo").read_text().splitlines()
        found[f"mounts of {name}"] = [line.split()[3:6] for line in lines]
        found[f"/run of {name}"] = sorted(each.name for each in (inside / "root/run").iterdir())
    found["cables"] = machines.unplugged()
    for what in (["nodes"], ["partitions"], ["reservations"]):
        found[what[0]] = _told(machines, what[0])
    found["jobs"] = machines.queue("ctl", ["squeue", "-h", "-o", "%i"])
    for folder in ("etc", "ssh", "client"):
        found[folder] = {
            (file, file.stat().st_mode, file.read_bytes())
            for file in sorted((machines.root / folder).rglob("*"))
            if file.is_file()
        }
    return found


def _told(machines: Machines, what: str) -> str:
    if what == "nodes":
        return machines.run("ctl", ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T %E"])
    if what == "partitions":
        return machines.run("ctl", ["sinfo", "-h", "-s", "-o", "%P %a %l"])
    return machines.run("ctl", ["scontrol", "show", "reservation"])


def _processes(machines: Machines) -> dict[str, list[tuple[int, str, int]]]:
    """What runs on each machine: process id, name and user."""
    found: dict[str, list[tuple[int, str, int]]] = {name: [] for name in machines.names}
    names = {space_of(Path(f"/proc/{machines.first(name)}")): name for name in machines.names}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if name := names.get(space_of(process)):
                comm = (process / "comm").read_text().strip()
                found[name].append((int(process.name), comm, process.stat().st_uid))
    return found


def _end_processes(machines: Machines) -> None:
    users = {int(machines.id(user)) for user in machines.users}
    for processes in _processes(machines).values():
        for pid, comm, user in processes:
            if comm not in DAEMONS or user in users:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _remove_files(machines: Machines) -> None:
    """Remove what users have put into homes and temporary folders, and empty the logs."""
    for name in machines.names:
        for folder in ("tmp", "dev/shm"):
            _empty(Path(f"/proc/{machines.first(name)}/root/{folder}"), set())
    _empty(machines.root, machines.folders)
    _empty(machines.root / "home", set())
    machines.make_homes()
    for log in (machines.root / "log").iterdir():
        os.truncate(log, 0)


def _empty(folder: Path, kept: set[str]) -> None:
    for each in folder.iterdir():
        if each.name in kept:
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
