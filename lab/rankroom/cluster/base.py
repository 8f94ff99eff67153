"""The interface of every cluster, wherever its ranks run: requests go through its supervisor."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rankroom.cluster import actions, liveness, lookup, repair
from rankroom.cluster.supervisor_client import SupervisorClient
from rankroom.errors import NoClusterError, RankroomError, RecordError, SshError
from rankroom.rank import packed_values, variables
from rankroom.rank.own_memory import OwnMemory
from rankroom.record.cluster_file import VERSION, ClusterInfo, ClusterPaths
from rankroom.record.model import Json, RankInfo, RunInfo
from rankroom.record.owner import this_process
from rankroom.record.store import Store
from rankroom.run.run import Run
from rankroom.supervisor import lease
from rankroom.text.rank_ranges import choose_ranks, count_ranks

LONG_S = 600.0  # timeout for a rank's reply: it may be busy with a cell, or a value be large
# For ranks to initialize again what they had initialized together. If they cannot connect, Horovod
# reports it after 30 s, and they retry.
REJOIN_S = 75.0
RANK_EXIT_TIMEOUT_S = 5.0  # timeout for the supervisor to report how a rank ended
ORPHANED_S = 20.0  # for ranks to end whose supervisor is gone; on other nodes it takes a while
MANY = 16  # runs that are remembered
RUN_END_TIMEOUT_S = 8.0  # for a run in progress to end when its cluster is stopped


class AnyCluster:
    """Ranks that stay until stopped; this object is one process's connection to them."""

    current: ClassVar[AnyCluster | None] = None  # what this process last started or attached to

    def __init__(self, paths: ClusterPaths, info: ClusterInfo) -> None:
        """Raises NoClusterError for a cluster of another version, which cannot be used."""
        self.paths = paths
        self.info = info
        self.store = Store()
        self._read = (0, 0)  # modification time (ns) and inode of cluster.json when last read
        if info.version != VERSION:
            raise NoClusterError(OTHER_VERSION.format(name=info.name))
        self._runs: dict[str, Run] = {}
        self._orphaned: dict[str, float] = {}  # since when runs have had no supervisor
        self._latest: Run | None = None
        self._supervisor = SupervisorClient(paths, self.refresh, self._told)
        self._ask = self._supervisor.ask
        self._restarts = dict(info.restarts)  # of each rank, as far as this process has been told
        self._was_replaced = False  # another client has restarted it, and no cell has noted it yet
        self._lease = lease.hold(paths.folder)
        self._leasing = threading.Lock()  # any thread may find that the cluster was replaced
        self.is_attached = False  # `attach` made this object, and may return it again
        # Called in a thread of its own with a rank and an event of its debugger (Debug Adapter
        # Protocol), or None once the rank's process has ended.
        self.on_debugged: Callable[[int, Json | None], None] = lambda rank, event: None

    def make_current(self) -> None:
        """Make this the cluster on which the cells of this process run. In a thread, complete the
        records of earlier clusters, and remove old ones."""
        AnyCluster.current = self
        repair.begin(self.store, prunes=True)

    def __enter__(self) -> AnyCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def close(self) -> None:
        """Disconnect from the ranks, which stay for other clients or a later `attach`."""
        self._supervisor.close()
        with self._leasing:
            held, self._lease = self._lease, -1
            if held >= 0:
                os.close(held)
        if AnyCluster.current is self:
            AnyCluster.current = None

    def holds(self, info: ClusterInfo) -> bool:
        """Return whether this object is connected to the cluster `info`, and was not closed."""
        is_open = self._lease >= 0 and self.name == info.name
        return is_open and self.refresh().rpc_key == info.rpc_key

    # -- what it is

    @property
    def name(self) -> str:
        """What `%cluster attach` and the sidebar call it."""
        return self.info.name

    @property
    def size(self) -> int:
        """How many ranks it has; another client may have resized it."""
        return self.refresh().size

    @property
    def ranks(self) -> list[RankInfo]:
        """Where each rank runs."""
        return self.refresh().ranks

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {count_ranks(self.size)}>"

    def describe(self) -> str:
        """Return one line: name, ranks, their hosts and devices."""
        ranks, count = self.ranks, count_ranks(self.size)
        if not ranks:
            return f"{self.name}: {count}, starting"
        hosts = sorted({rank.host for rank in ranks})
        devices = "CPU" if ranks[0].device == "cpu" else "one GPU each"
        if self.warning():
            devices = "sharing GPUs"
        return f"{self.name}: {count} on {', '.join(hosts)} ({devices})"

    def warning(self) -> str:
        """Return what is likely a mistake in the placement of ranks; empty if nothing is."""
        places = [(rank.host, rank.device) for rank in self.info.ranks if rank.device != "cpu"]
        shared = [place for place in set(places) if places.count(place) > 1]
        if not shared:
            return ""
        gpus = len(set(places))
        return (
            f"{len(places)} ranks share {gpus} GPU{'s' if gpus > 1 else ''}: one rank per GPU is "
            "what most code expects, and between two on one NCCL is slow, as it uses sockets"
        )

    def refresh(self) -> ClusterInfo:
        """Return what the supervisor last wrote about the cluster."""
        # What cannot be read now is read the next time.
        with contextlib.suppress(OSError, ValueError, TypeError):
            about = self.paths.info.stat()
            written = about.st_mtime_ns, about.st_ino
            if written != self._read:
                before, info = self.info, self.paths.read_now()
                if info.rpc_key != before.rpc_key:
                    self._note_supervisor(info)
                    self._was_replaced |= info.created != before.created
                self.info, self._read = info, written
        return self.info

    def _note_supervisor(self, info: ClusterInfo) -> None:
        """Note that another supervisor manages it. If a client restarted all of it, its folder is a
        new one, and so is the lease file. Raises OSError."""
        known = info.restarts
        self._restarts = {rank: min(n, known.get(rank, 0)) for rank, n in self._restarts.items()}
        with self._leasing:
            if self._lease >= 0:
                held, self._lease = self._lease, lease.hold(self.paths.folder)
                os.close(held)

    @property
    def alive(self) -> list[int]:
        """The ranks that are ready now; none if the cluster is gone."""
        info = self.refresh()
        down = {*map(int, info.exits), *info.starting}
        return [rank for rank in info.ready if rank not in down] if self.running else []

    @property
    def running(self) -> bool:
        """True unless its supervisor is known to be gone, whatever its ranks do."""
        return liveness.alive(self.paths.read())

    @property
    def busy(self) -> bool:
        """True while a run of this process is in progress."""
        return self._latest is not None and self._latest.state == "running"

    @property
    def latest(self) -> Run | None:
        """The run that this process last started, or that was in progress when it attached."""
        return self._latest

    def how_ended(self, rank: int) -> str:
        """Return how a rank's process ended, in words, as its supervisor saw it."""
        # The end of a connection may be noticed before that of the process.
        deadline = time.monotonic() + RANK_EXIT_TIMEOUT_S
        while time.monotonic() < deadline:
            info = self.paths.read()
            if info is None:
                return "ended with its cluster"
            if str(rank) in info.exits:
                return info.exits[str(rank)]
            if not liveness.alive(info):
                return f"ended with its cluster: {lookup.why_gone(info)}"
            if info.remote is not None and info.remote.state != "running":
                return info.remote.words
            time.sleep(0.05)
        return "no longer answers"

    # -- what it does

    def run(
        self,
        source: str,
        ranks: Sequence[int] | None = None,
        name: str | None = None,
        count: int | None = None,
        notes: Sequence[str] = (),
        profile: bool = False,
        own: bool = False,
        interactive: bool = False,
        compare: Sequence[str] = (),
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Run:
        """Run `source` as a cell on all ranks, or on `ranks`; returns while it runs.

        `count` numbers the cell in tracebacks; `notes` go into the record; `profile` adds the
        operators that PyTorch's and TensorFlow's profilers see. With `own`, the ranks, which must
        be 0, 1, …, are the whole world for this cell: its collectives involve only them. With
        `interactive`, breakpoint() and input() wait for `Run.answer`, from any client. The metrics
        of the runs with the ids `compare` are shown beside those of this one. While ranks are
        starting, this waits for them, and starts nothing once `is_cancelled()`. Raises UsageError
        for ranks that do not exist, NoClusterError if ranks have died, RankroomError if another run
        is in progress or this one was canceled.
        """
        chosen, me = choose_ranks(ranks, self.size), this_process()
        if self._was_replaced:
            notes = [ANOTHER.format(name=self.name, count=count_ranks(self.size)), *notes]
        said = self._supervisor.ask_directly(
            is_cancelled, do="run", source=source, ranks=chosen, name=name, count=count,
            notes=list(notes), restarts=self._restarts, profile=profile, own=own,
            interactive=interactive, compare=list(compare), **vars(me),
        )  # fmt: skip
        self._restarts |= said["restarts"]
        self._was_replaced = False
        return self._take(said["run"])

    def rejoin(self, seconds: float = REJOIN_S) -> bool:
        """After a run in a world of its own, initialize again now what all ranks had initialized
        together, instead of with the next cell on all of them. Returns False if that fails."""
        run = self.run("")
        if not run.wait(seconds):
            run.interrupt()
            run.wait(seconds)
            return False
        if run.state != "done":
            return False
        if not run.info.lines:  # there may be output of what earlier cells have started
            self._ask("forget", run=run.id)  # it is not a cell of the user
            shutil.rmtree(run.path, ignore_errors=True)  # the replica, if its record is elsewhere
        return True

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on every rank, whatever it runs and whichever client started it.

        Blocked collectives are released a little later. Returns when all ranks are free, or after
        a few seconds.
        """
        self._ask("interrupt")

    def release(self) -> str:
        """Release blocked collectives on all ranks; return what was released, in words.

        Raises UsageError when no rank runs anything.
        """
        return str(self._ask("release")["text"])

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        """Return the stacks of each rank's threads, as text; also of a rank stuck in C code."""
        said = self._ask("stacks", ranks=choose_ranks(ranks, self.size))["stacks"]
        return {int(rank): str(text) for rank, text in said.items()}

    def debug(self, rank: int, message: Json) -> Json:
        """Return the reply of a rank's debugger to a request in the Debug Adapter Protocol, also
        while a cell runs.

        Raises UsageError if it is in use by another client, NoClusterError if the rank is gone,
        RankroomError with what went wrong there.
        """
        choose_ranks([rank], self.size)
        about = {"rank": rank, "message": message, **vars(this_process())}
        said = self._ask("debug", patience=LONG_S, **about)
        if "refused" in said:
            raise RankroomError(NOT_DEBUGGED.format(rank=rank, why=said["refused"]))
        answer: Json = said["answer"]
        return answer

    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Set variables on ranks."""
        self._apply("take", choose_ranks(ranks, self.size), *packed_values.pack(names))

    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """Return the value of a variable (or attribute, `a.b`) on each rank."""
        return self._apply("give", choose_ranks(ranks, self.size), name=name)

    def variables(
        self, ranks: Sequence[int] | None = None
    ) -> dict[int, dict[str, variables.Variable]]:
        """Describe the user's variables on each rank, by name; their values are not transferred."""
        return self._apply("who", choose_ranks(ranks, self.size))

    def memory(self, ranks: Sequence[int] | None = None) -> dict[int, OwnMemory]:
        """Return how much memory each rank uses, and how much of it for its variables, in bytes."""
        return self._apply("memory", choose_ranks(ranks, self.size))

    def apply(
        self, rank: int, function: Callable[..., Any], *args: Any, patience: float = LONG_S
    ) -> Any:
        """Return the result of `function(*args)` on one rank, whose Python version may differ. The
        function must be importable from its module. Raises StartError after `patience` s."""
        chosen, packed = choose_ranks([rank], self.size), packed_values.pack(args)
        name = f"{function.__module__}:{function.__name__}"
        return self._apply("call", chosen, *packed, name=name, patience=patience)[rank]

    def restart(self, ranks: Sequence[int]) -> None:
        """Restart some ranks, without their variables; the others keep theirs.

        Returns when they are ready. Process groups are set up again by the next cell on all ranks.
        Raises UsageError for ranks that do not exist or are not ready, NoClusterError if the
        cluster is gone, StartError with the end of the log if one of them does not start.
        """
        # The client that asked for the restart needs no note.
        self._restarts |= actions.restart_by(self._ask, self.paths, choose_ranks(ranks, self.size))
        self.refresh()

    def stop(self) -> None:
        """End the ranks and everything that was started with them, and any run in progress.

        Raises NoClusterError for a cluster that is managed on another machine, SshError if its site
        cannot be reached now: the job is canceled later.
        """
        if later := self._end(self.paths.read()):
            raise SshError(later)

    def start_again(self, ranks: int | None = None) -> subprocess.Popen[bytes] | None:
        """Stop it and start it again under its name, with as many ranks or with `ranks`; close this
        object. Returns and raises as `actions.start_again`."""
        asked = {} if ranks is None else {"ranks": str(ranks)}
        info = self.refresh()
        return actions.start_again(self.paths, info, asked, lambda: self._end(info))

    def _end(self, info: ClusterInfo | None) -> str:
        """End the cluster `info` and close this object; return what the user should know, if
        anything."""
        run, later = self._latest, ""
        if info is not None:
            lookup.require_in_reach(info)
            with contextlib.suppress(NoClusterError):  # it has ended already
                later = actions.end(self.paths, info)
        if run is not None and run.state == "running":
            run.wait(RUN_END_TIMEOUT_S)
        self.close()
        return later

    # -- internals

    def follow(self) -> None:
        """Make the run in progress this process's latest run, whichever client started it."""
        if info := self._ask("follow")["run"]:
            self._take(info)

    def _take(self, told: Json) -> Run:
        """Make a run the latest; a thread waits for it, so that its loss is noticed."""
        self._latest = run = self._run_of(told)
        if run.state == "running":
            self._supervisor.tell(do="follow", run=run.id)
            threading.Thread(target=run.wait, name="rankroom-run", daemon=True).start()
        return run

    def _run_of(self, told: Json) -> Run:
        info = RunInfo.from_json(told)
        # A known run is kept: an event may have updated it before this reply was read.
        if len(self._runs) > MANY:
            for each in list(self._runs.values()):
                if each.state != "running":
                    self._runs.pop(each.id, None)
        return self._runs.setdefault(info.id, Run(info, self.store, self._ask, self._is_orphaned))

    def _told(self, said: Json, buffers: list[bytes]) -> None:
        """Handle the state of a run, or an event of a debugger; in the connection's thread."""
        if said["do"] == "debugged":
            self.on_debugged(said["rank"], said["event"])
            return
        self._run_of(said["run"]).told(RunInfo.from_json(said["run"]))

    def _is_orphaned(self, run: Run) -> bool:
        """Return whether a run's supervisor is gone; its record is completed then, from what its
        ranks left.

        False as long as its ranks may still write something: then this is called again.
        """
        now, owner = self.paths.read(), run.info.owner
        if now is not None and liveness.alive(now):
            is_same = owner is None or (now.supervisor, now.began) == (owner.pid, owner.began)
            # At a site, a run's supervisor is not the process that manages the cluster here.
            if is_same or now.remote:
                return False
        since = self._orphaned.setdefault(run.id, time.monotonic())
        with contextlib.suppress(RecordError):
            info = self.store.load(run.id)
            if info.state == "lost" and not repair.complete(self.store, info):
                return time.monotonic() > since + ORPHANED_S
        return True

    def _apply(
        self, how: str, ranks: list[int], *parts: bytes, name: str = "", patience: float = LONG_S
    ) -> dict[int, Any]:
        about = {"how": how, "ranks": ranks, "name": name, **vars(this_process())}
        said = self._ask("apply", *parts, patience=patience, **about)
        found, begin = {}, 0
        for rank, count in zip(ranks, said["counts"], strict=True):
            if count:
                found[rank] = packed_values.unpack(said.buffers[begin : begin + count])
            begin += count
        return found


NOT_DEBUGGED = "the debugger of rank {rank} refused the request: {why}"
ANOTHER = (
    "cluster {name} was restarted since this notebook's last cell: it has {count} now, and earlier "
    "variables are gone"
)
OTHER_VERSION = (
    "cluster {name} was started by another version of Rankroom, which this one cannot use: "
    "`%cluster stop {name}` ends it, or go on with the kernel that started it"
)
