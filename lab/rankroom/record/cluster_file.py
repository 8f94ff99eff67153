"""A cluster on disk: one class names every path, one small file says what state it is in.

The process that keeps a cluster writes cluster.json; kernels, the server and the CLI read it. That
is how a cluster is found again after its kernel is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rankroom import config
from rankroom.errors import UnreadableError, UsageError, with_remedy
from rankroom.record.model import RankInfo
from rankroom.system.files import write_atomically
from rankroom.system.polling import poll_until

LATE_S = 10.0  # for a network's file system to show a folder that another machine made
SEEN_S = 120.0  # for a network's file system to show a file that another machine wrote
CLOCK_S = 2 * 3600.0  # by which the clock of this machine may be wrong
VERSION = 2  # from 2 on the supervisor owns the runs
ClusterState = Literal["starting", "running", "ending", "failed", "stopped"]
RemoteState = Literal[
    "connecting", "asks", "submitting", "pending", "starting", "running", "lost", "ending",
    "ended", "failed",
]  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A compute node: how many ranks it gets, and what of it was granted to the job."""

    name: str
    ranks: int
    devices: int = 0
    cores: int = 1


@dataclass(frozen=True)
class Allocation:
    """What a scheduler granted; `until` is when it ends (epoch seconds), 0 if it does not."""

    job: str
    nodes: tuple[Node, ...]
    until: float = 0.0
    scheduler: Literal["slurm", "pbs"] = "slurm"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Allocation:
        nodes = tuple(Node(**node) for node in data["nodes"])
        return cls(data["job"], nodes, data["until"], data.get("scheduler", "slurm"))


@dataclass
class Remote:
    """What is known here of a cluster on a site, besides its ranks. Times are epoch seconds.

    `lost` says that the connection to the site is; the ranks go on. `log` is the job's output file
    (the name may be a pattern) and `name` the cluster's name, both there; `until` is 0 while it is
    not known.
    """

    site: str
    login: str = ""
    state: RemoteState = "connecting"
    words: str = ""  # one sentence for people
    job: str = ""
    reason: str = ""
    expected: float = 0.0
    until: float = 0.0
    nodes: int = 0
    gpus_per_node: int = 0
    ranks_per_node: int = 0
    log: str = ""
    name: str = ""
    # While it is not known whether a job that was submitted was accepted: the jobs of that name
    # that there were before.
    others: list[str] | None = None
    asked: float = 0.0  # and when it was submitted
    began: float = 0.0  # when the cluster began, or the time there soon after, if that is earlier

    @property
    def has_job(self) -> bool:
        """Whether it has a job, or may have one."""
        return bool(self.job) or self.others is not None

    @property
    def its_job(self) -> str:
        """The job, within a sentence for people."""
        return f"its job {self.job}" if self.job else "a job that it may have"


@dataclass
class ClusterInfo:
    """cluster.json. `supervisor` is the process that keeps the cluster, and listens at `rpc` for
    who knows `rpc_key`, both empty if it is of a version before; times are epoch seconds.

    The pid of the supervisor counts in `space`, and `began` (ticks since boot) tells it from a
    later process of that number; while it runs it has a lock on a file, where it is `locked`.

    By rank: `exits` says how the process of one that is down ended, `restarts` how often it was
    restarted, and `past` how the one before ended if it was by itself. `starting` are the ranks
    that are being restarted, `ready` those that have said that they are. `silent` are the nodes
    of which nothing has been heard since then: their ranks may be cut off. `lease` is how many
    hours the cluster stays when no client holds it.
    """

    name: str
    size: int
    state: ClusterState = "starting"
    message: str = ""
    supervisor: int = 0
    host: str = ""
    space: str = ""
    began: int = 0
    locked: bool = False
    rpc: str = ""
    rpc_key: str = ""
    created: float = 0.0
    epoch: int = 0
    cwd: str = ""
    python: str = ""
    ranks: list[RankInfo] = field(default_factory=list)
    exits: dict[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    past: dict[str, str] = field(default_factory=dict)
    starting: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    silent: dict[str, float] = field(default_factory=dict)
    auto_restart: bool = False
    preload: str = ""  # modules that were asked for, or `none`; else what cells imported last
    notes: list[str] = field(default_factory=list)  # of the start, for the client that started it
    lease: float = 0.0
    allocation: Allocation | None = None  # the ranks are processes of this machine without one
    reached_from: str = ""  # a machine outside of the job from which its ranks are reached
    remote: Remote | None = None  # set where the ranks are on a site, and their supervisor here
    version: int = VERSION

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClusterInfo:
        data = {config.RENAMED.get(key, key): value for key, value in data.items()}
        known = {f.name for f in dataclasses.fields(cls)}
        kept = {key: value for key, value in data.items() if key in known}
        kept["ranks"] = [RankInfo(**rank) for rank in kept.get("ranks", [])]
        if kept.get("allocation"):
            kept["allocation"] = Allocation.from_json(kept["allocation"])
        if kept.get("remote"):
            fields = {f.name for f in dataclasses.fields(Remote)}
            kept["remote"] = Remote(**{k: v for k, v in kept["remote"].items() if k in fields})
        return cls(**kept)


def silent_words(info: ClusterInfo) -> str:
    """What is said of nodes of which nothing is heard; empty if there are none."""
    parts = [
        SILENT.format(node=node, seconds=max(0.0, time.time() - since))
        for node, since in sorted(info.silent.items())
    ]
    return "; ".join(parts)


def is_past(until: float) -> bool:
    """Whether a time of a scheduler's, if it is one, has passed whatever clock was set."""
    return 0 < until < time.time() - CLOCK_S


SILENT = "node {node} has been silent for {seconds:.0f} s: its ranks may be cut off"
UNLISTED = "runs that cannot be listed"
UNREADABLE = "cannot tell whether there is a cluster {name}, as {path} cannot be read: {error}"
_read_last: dict[Path, str] = {}  # or written, of the clusters this process knows


REMOVED = ".removed"  # ends the name of a cluster's folder that is being deleted
LONGEST_NAME = 63
# What names a folder, and cannot lead to another one.
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")
NAME_HAS = (
    f"has letters, digits, dots, dashes and underscores only, and {LONGEST_NAME} characters at most"
)


def named(name: str | None, kind: str) -> ClusterPaths:
    """Where a cluster is kept that is to be started under this name, or under one that begins
    with `kind`. Raises UsageError for what is no name."""
    if name and not NAME.fullmatch(name):
        raise UsageError(f"the name of a cluster {NAME_HAS}, unlike {name!r}")
    begins = re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-")[:40] or "ranks"
    return ClusterPaths(name or f"{begins}-{secrets.token_hex(2)}")


class ClusterPaths:
    """Every path of one cluster."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self._root = root or clusters_folder()
        self.folder = self._root / name
        self.info = self.folder / "cluster.json"
        self.profile = self.folder / "ipp"
        self.client_file = self.profile / "security" / "ipcontroller-client.json"
        self.engine_file = self.profile / "security" / "ipcontroller-engine.json"
        self.lock = self.folder / "supervisor.lock"
        self.logs = self.folder / "log"
        self.controller_log = self.logs / "controller.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor says; under its old name where the version before began it."""
        logs = [self.logs / name for name in config.names("supervisor.log")]
        return next((log for log in logs if log.exists()), logs[0])

    @property
    def job_log(self) -> Path:
        """The end of what a job on a site has written, once it is over."""
        return self.logs / "job.log"

    def rank_log(self, rank: int) -> Path:
        """What the rank's process said before and beside its runs."""
        return self.logs / f"rank-{rank}.log"

    def agent_log(self, node: str) -> Path:
        """What a node's agent said, and what started it there."""
        return self.logs / f"agent-{node}.log"

    def spool(self, rank: int) -> Path:
        """Where the rank writes its output first."""
        return self.folder / "spool" / str(rank)

    def unfinished(self) -> list[str]:
        """The runs of which ranks still hold what their records may lack; UNLISTED among them where
        a spool cannot be read, as there may be more."""
        spool = self.folder / "spool"
        found: set[str] = set()
        try:
            for rank in _names_in(spool):
                names = map(Path, _names_in(spool / rank))
                found |= {name.stem for name in names if name.suffix == ".jsonl"}
        except OSError:
            found.add(UNLISTED)
        return sorted(found)

    def make(self, size: int) -> None:
        """Create the folders, private to the user."""
        config.private(clusters_folder())
        for left in self._root.glob(f".*{REMOVED}"):
            shutil.rmtree(left, ignore_errors=True)
        for folder in (self.folder, self.logs, self.profile, self.folder / "spool"):
            folder.mkdir(mode=0o700, exist_ok=True)
        for rank in range(size):
            self.spool(rank).mkdir(mode=0o700, exist_ok=True)

    def read(self) -> ClusterInfo | None:
        """The cluster's state, or None when there is none (yet).

        While its file cannot be read, what this process read of it last: a cluster is not gone
        because of that. Raises UnreadableError if it never could.
        """
        try:
            return self.read_now()
        except (OSError, ValueError, TypeError) as error:
            return self._read_before(error)

    def read_now(self) -> ClusterInfo:
        """The same as its file has it now. Raises OSError, and ValueError or TypeError for half a
        file."""
        text = self.info.read_text()
        info = ClusterInfo.from_json(json.loads(text))
        _read_last[self.info] = text
        return info

    def read_patiently(self) -> ClusterInfo | None:
        """The same for a process that is started to keep it: its file may not be seen at once."""
        told = ""

        def read() -> ClusterInfo | None:
            nonlocal told
            try:
                return self.read()
            except UnreadableError as error:
                if str(error) != told:
                    told = str(error)
                    print(told, file=sys.stderr, flush=True)
            return None

        seen = poll_until(lambda: read() is not None, LATE_S)
        if not seen and not self.is_removed():
            poll_until(lambda: read() is not None, SEEN_S)
        return self.read()

    def _read_before(self, error: Exception) -> ClusterInfo | None:
        if isinstance(error, FileNotFoundError) and self.is_removed():
            _read_last.pop(self.info, None)
            return None
        if text := _read_last.get(self.info):
            return ClusterInfo.from_json(json.loads(text))
        if isinstance(error, FileNotFoundError):
            return None
        raise UnreadableError(
            UNREADABLE.format(name=self.name, path=self.info, error=_words(error))
        )

    def is_removed(self) -> bool:
        """Whether its folder is gone, and not with all the others, as when a home is away."""
        try:
            self.folder.stat()
        except FileNotFoundError:
            return self.folder.parent.is_dir()
        except OSError:
            pass
        return False

    def write(self, info: ClusterInfo) -> None:
        """Replace cluster.json in one step; it holds a key, so only the user may read it."""
        text = json.dumps(dataclasses.asdict(info))
        write_atomically(self.info, text)
        _read_last[self.info] = text

    def remove(self) -> None:
        """Delete the cluster's folder; what a file system keeps of it counts as no cluster."""
        if self.folder.resolve().parent != self._root.resolve():
            raise ValueError(f"{self.name!r} is no cluster's folder")  # all below it would be lost
        folder = self._root / f".{self.name}-{secrets.token_hex(4)}{REMOVED}"
        try:
            self.folder.rename(folder)
        except OSError:
            folder = self.folder
        # NFS keeps files that are open somewhere: the others must not stay with them.
        shutil.rmtree(folder, ignore_errors=True)
        # A supervisor that removed it, and was ended in the middle of that.
        with contextlib.suppress(OSError):
            for left in list(self._root.glob(f".{self.name}-????????{REMOVED}")):
                shutil.rmtree(left, ignore_errors=True)


def _names_in(folder: Path) -> list[str]:
    """What is in a folder, if that is there. Raises OSError where it cannot be told."""
    try:
        return [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _words(error: Exception) -> str:
    return with_remedy(error) if isinstance(error, OSError) else str(error)


def clusters_folder() -> Path:
    """Where clusters are kept."""
    return config.home() / "clusters"


def all_paths() -> list[ClusterPaths]:
    """The folders of clusters found on disk, by name."""
    try:
        with os.scandir(clusters_folder()) as entries:
            names = sorted(each.name for each in entries if _may_be_folder(each))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [ClusterPaths(name) for name in names if not name.startswith(".")]


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # that cannot be told
        return True


def all_clusters() -> list[ClusterInfo]:
    """Every cluster found on disk, newest first, whatever its state."""
    found = []
    for paths in all_paths():
        with contextlib.suppress(UnreadableError):
            if (info := paths.read()) is not None:
                found.append(info)
    # What one on a site is made of there is not another one, where both have one home.
    parts = {info.remote.name for info in found if info.remote and info.remote.name != info.name}
    whole = [info for info in found if info.name not in parts]
    return sorted(whole, key=lambda info: info.created, reverse=True)


def tail(path: Path, lines: int = 20) -> str:
    """The end of a log, for an error message; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def with_log(words: str, log: Path) -> str:
    """An error message that ends with the end of the log that tells more."""
    text = tail(log)
    return f"{words}; {log} ends with:\n{text}" if text else f"{words}; {log} is empty"
