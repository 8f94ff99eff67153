"""A cluster on disk: one class names every path, and one small file, cluster.json, has its state.

The process that owns a cluster writes cluster.json; kernels, the server and the CLI read it. So a
cluster can be found again after its kernel is gone.
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

# Within which a network file system shows a folder made on another machine.
FOLDER_VISIBLE_TIMEOUT_S = 10.0
# Within which a network file system shows a file written on another machine.
FILE_VISIBLE_TIMEOUT_S = 120.0
MAX_CLOCK_ERROR_S = 2 * 3600.0  # the largest clock error of this machine that is allowed for
VERSION = 2  # since 2, the supervisor owns the runs
ClusterState = Literal["starting", "running", "ending", "failed", "stopped"]
RemoteState = Literal[
    "connecting", "asks", "submitting", "pending", "starting", "running", "lost", "ending",
    "ended", "failed",
]  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A compute node: how many ranks run on it, and its GPUs and cores that the job was granted."""

    name: str
    ranks: int
    devices: int = 0
    cores: int = 1


@dataclass(frozen=True)
class Allocation:
    """What a scheduler granted; `until` is when it ends (epoch seconds), 0 if it has no end."""

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
    """What is known on this machine of a cluster on a site, besides its ranks. Times are epoch
    seconds.

    State `lost` means that the connection to the site is lost; the ranks go on. `log` is the job's
    output file (the name may be a pattern) and `name` the cluster's name, both at the site; `until`
    is when the job ends, 0 while that is not known.
    """

    site: str
    login: str = ""
    state: RemoteState = "connecting"
    words: str = ""  # the state in one sentence for users
    job: str = ""
    reason: str = ""
    expected: float = 0.0
    until: float = 0.0
    nodes: int = 0
    gpus_per_node: int = 0
    ranks_per_node: int = 0
    log: str = ""
    name: str = ""
    # While it is not known whether a submitted job was accepted: the jobs of the same name that
    # were in the queue before, and when it was submitted.
    others: list[str] | None = None
    asked: float = 0.0
    began: float = 0.0  # when the cluster began: by the clock here or there, whichever is earlier

    @property
    def has_job(self) -> bool:
        """Whether the cluster has a job, or may have one."""
        return bool(self.job) or self.others is not None

    @property
    def its_job(self) -> str:
        """The job as a phrase within a message for users."""
        return f"its job {self.job}" if self.job else "a job that it may have"


@dataclass
class ClusterInfo:
    """cluster.json. Times are epoch seconds.

    `supervisor` is the pid of the process that owns the cluster. It listens at `rpc` for clients
    that know `rpc_key`; both are empty if an earlier version started it. The pid is valid in the
    PID space `space`, and `began` (ticks since boot) distinguishes the process from a later one
    with the same pid. If `locked`, it holds a lock on the cluster's lock file as long as it runs.

    By rank: `exits` says how the process of a rank that is down ended, `restarts` how often the
    rank was restarted, and `past` how its previous process ended if that ended by itself.
    `starting` are the ranks that are being restarted, `ready` those that have reported that they
    are ready. `silent` has, by node, the time since which it has not been heard from: its ranks may
    be cut off. `lease` is how many hours the cluster stays up when no client holds it.
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
    preload: str = ""  # the modules requested, or `none`; if empty, what cells imported last
    notes: list[str] = field(default_factory=list)  # about the start, for its client
    lease: float = 0.0
    allocation: Allocation | None = None  # without one, the ranks are processes of this machine
    reached_from: str = ""  # a machine outside the job from which its ranks are reached
    remote: Remote | None = None  # set where the ranks are on a site, and `supervisor` is here
    version: int = VERSION

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClusterInfo:
        data = {config.NEW_NAMES.get(key, key): value for key, value in data.items()}
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
    """Return the warning about silent nodes; empty if there are none."""
    parts = [
        SILENT_NODE_MESSAGE.format(node=node, seconds=max(0.0, time.time() - since))
        for node, since in sorted(info.silent.items())
    ]
    return "; ".join(parts)


def is_past(until: float) -> bool:
    """Whether a scheduler's time (epoch seconds, 0 if unknown) has passed, even if a clock is wrong
    by up to MAX_CLOCK_ERROR_S."""
    return 0 < until < time.time() - MAX_CLOCK_ERROR_S


SILENT_NODE_MESSAGE = "node {node} has been silent for {seconds:.0f} s: its ranks may be cut off"
UNLISTED = "runs that cannot be listed"
UNREADABLE = "cannot tell whether cluster {name} exists, as {path} cannot be read: {error}"
_read_last: dict[Path, str] = {}  # the text of each cluster.json as last read or written here


REMOVED_SUFFIX = ".removed"  # suffix of a cluster's folder that is being deleted
LONGEST_NAME = 63
# Valid as a folder's name, and cannot lead out of the parent folder.
NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")
NAME_RULE = (
    "must start with a letter or digit, and have only letters, digits, dots, dashes and "
    f"underscores, at most {LONGEST_NAME} characters"
)


def named(name: str | None, kind: str) -> ClusterPaths:
    """Return the paths of a new cluster called `name`, or else by a random name that begins with
    `kind`. Raises UsageError for an invalid name."""
    if name and not NAME_PATTERN.fullmatch(name):
        raise UsageError(f"invalid cluster name {name!r}: it {NAME_RULE}")
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
        """The supervisor's log; under its old name if an earlier version created it."""
        logs = [self.logs / name for name in config.names("supervisor.log")]
        return next((log for log in logs if log.exists()), logs[0])

    @property
    def job_log(self) -> Path:
        """The end of a site's job's output, copied here once the job is over."""
        return self.logs / "job.log"

    def rank_log(self, rank: int) -> Path:
        """What the rank's process printed before and between its runs."""
        return self.logs / f"rank-{rank}.log"

    def agent_log(self, node: str) -> Path:
        """The output of a node's agent and of the command that started it there."""
        return self.logs / f"agent-{node}.log"

    def spool(self, rank: int) -> Path:
        """The folder of the rank's spool, to which it writes its output first."""
        return self.folder / "spool" / str(rank)

    def unfinished(self) -> list[str]:
        """Return the runs whose spools may hold events that their records lack; UNLISTED is among
        them where a spool cannot be read, as there may be more."""
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
        config.make_private(clusters_folder())
        for left in self._root.glob(f".*{REMOVED_SUFFIX}"):
            shutil.rmtree(left, ignore_errors=True)
        for folder in (self.folder, self.logs, self.profile, self.folder / "spool"):
            folder.mkdir(mode=0o700, exist_ok=True)
        for rank in range(size):
            self.spool(rank).mkdir(mode=0o700, exist_ok=True)

    def read(self) -> ClusterInfo | None:
        """Return the cluster's state, or None when there is no such cluster (yet).

        While its file cannot be read, returns what this process read or wrote last: an unreadable
        file does not mean that the cluster is gone. Raises UnreadableError if there is no such
        text.
        """
        try:
            return self.read_now()
        except (OSError, ValueError, TypeError) as error:
            return self._read_before(error)

    def read_now(self) -> ClusterInfo:
        """Return the state that the file has now. Raises OSError, and ValueError or TypeError for
        an incomplete file."""
        text = self.info.read_text()
        info = ClusterInfo.from_json(json.loads(text))
        _read_last[self.info] = text
        return info

    def read_patiently(self) -> ClusterInfo | None:
        """Like `read`, for a process started for this cluster: wait until its file is visible."""
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

        seen = poll_until(lambda: read() is not None, FOLDER_VISIBLE_TIMEOUT_S)
        if not seen and not self.is_removed():
            poll_until(lambda: read() is not None, FILE_VISIBLE_TIMEOUT_S)
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
        """Whether its folder is gone, but not the parent folder, as when a home is not mounted."""
        try:
            self.folder.stat()
        except FileNotFoundError:
            return self.folder.parent.is_dir()
        except OSError:
            pass
        return False

    def write(self, info: ClusterInfo) -> None:
        """Replace cluster.json in one step; only the user may read it, as it holds a key."""
        text = json.dumps(dataclasses.asdict(info))
        write_atomically(self.info, text)
        _read_last[self.info] = text

    def remove(self) -> None:
        """Delete the cluster's folder; anything a file system keeps no longer counts as a
        cluster."""
        if self.folder.resolve().parent != self._root.resolve():
            # All below it would be lost.
            raise ValueError(f"{self.name!r} is not a cluster's folder")
        folder = self._root / f".{self.name}-{secrets.token_hex(4)}{REMOVED_SUFFIX}"
        try:
            self.folder.rename(folder)
        except OSError:
            folder = self.folder
        # NFS keeps files that a process has open: remove all others nevertheless.
        shutil.rmtree(folder, ignore_errors=True)
        # Left by a supervisor that was killed while it removed this cluster.
        with contextlib.suppress(OSError):
            for left in list(self._root.glob(f".{self.name}-????????{REMOVED_SUFFIX}")):
                shutil.rmtree(left, ignore_errors=True)


def _names_in(folder: Path) -> list[str]:
    """Return the names in a folder, if it exists. Raises OSError where it cannot be read."""
    try:
        return [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _words(error: Exception) -> str:
    return with_remedy(error) if isinstance(error, OSError) else str(error)


def clusters_folder() -> Path:
    """Return the folder that holds the clusters' folders."""
    return config.home() / "clusters"


def all_paths() -> list[ClusterPaths]:
    """Return the paths of all clusters found on disk, sorted by name."""
    try:
        with os.scandir(clusters_folder()) as entries:
            names = sorted(each.name for each in entries if _may_be_folder(each))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [ClusterPaths(name) for name in names if not name.startswith(".")]


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # it is not known
        return True


def all_clusters() -> list[ClusterInfo]:
    """Return every cluster found on disk, whatever its state, newest first."""
    found = []
    for paths in all_paths():
        with contextlib.suppress(UnreadableError):
            if (info := paths.read()) is not None:
                found.append(info)
    # Where a site shares this home, its part of a cluster there is found here, too: skip that.
    parts = {info.remote.name for info in found if info.remote and info.remote.name != info.name}
    whole = [info for info in found if info.name not in parts]
    return sorted(whole, key=lambda info: info.created, reverse=True)


def tail(path: Path, lines: int = 20) -> str:
    """Return the end of a log, for an error message; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def with_log(words: str, log: Path) -> str:
    """Return an error message: `words`, followed by the end of the log that tells more."""
    text = tail(log)
    return f"{words}; {log} ends with:\n{text}" if text else f"{words}; {log} is empty"
