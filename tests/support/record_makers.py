"""Records made for tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import Owner, RankInfo, RunInfo, event_line
from rankroom.record.owner import this_process
from rankroom.record.store import Store, Writer, new_id
from rankroom.system import pid_space


def make_run(size: int = 2, **fields: Any) -> RunInfo:
    """A run of `size` CPU ranks that began just now, owned by this process."""
    start = fields.pop("start", time.time_ns() // 1000)
    run_id = fields.pop("id", None) or new_id(start)
    ranks = [RankInfo(rank, "here", 1000 + rank, "cpu", rank) for rank in range(size)]
    usual = {"cluster": "local", "ranks": ranks, "owner": this_process(), "title": "x = 1"}
    return RunInfo(run_id, size=size, start=start, **{**usual, **fields})


def start_record(
    root: Path, source: str = "x = 1\n", **fields: Any
) -> tuple[Store, RunInfo, Writer]:
    """A live record under `root`."""
    store = Store(root)
    run = make_run(**fields)
    return store, run, store.create(run, source)


def finished_record(root: Path, *lines: bytes, **fields: Any) -> tuple[Store, RunInfo]:
    """A record that ended as `done` with these lines in events.jsonl."""
    store, run, writer = start_record(root, **fields)
    writer.append(b"".join(lines))
    run.state, run.end = "done", run.start + 1_500_000
    writer.finish(run)
    return store, run


def lost_record(root: Path, *lines: bytes, pid: int, name: str = "local") -> RunInfo:
    """A record of one rank whose writer is gone; the spool has all lines, the record the first.

    `pid` is the rank's process, `name` the folder of its cluster.
    """
    _, run, writer = start_record(
        root, size=1, owner=gone_process(), ranks=[RankInfo(0, "here", pid, "cpu")]
    )
    writer.append(lines[0])
    writer.close()
    paths = ClusterPaths(name, root / "clusters")
    paths.make(1)
    paths.write(ClusterInfo("local", 1, "running", ranks=run.ranks, created=time.time()))
    (paths.spool(0) / f"{run.id}.jsonl").write_bytes(b"".join(lines))
    return run


def log(rank: int, text: str, seq: int = 1, t: int = 1000, stream: str = "stdout") -> bytes:
    """A log event's line."""
    return event_line("log", rank, seq, t, stream=stream, text=text)


def gone_process() -> Owner:
    """An owner whose process has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Owner(socket.gethostname(), process.pid, str(pid_space.here()), 1)


def names(folder: Path) -> list[str]:
    """The names of a folder's entries, sorted."""
    return sorted(path.name for path in folder.iterdir())


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and modification time of every file and folder under `root`."""
    found = {}
    for path in [root, *root.rglob("*")]:
        about = path.stat()
        found[str(path)] = about.st_ino, about.st_size, about.st_mtime_ns
    return found
