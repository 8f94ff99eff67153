"""What a desk does with its cluster: the words of a keeper's questions, one method each."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankroom import config
from rankroom.errors import NoClusterError, RecordError, UnreadableError, UsageError
from rankroom.far.frames import Head
from rankroom.rank import values
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, tail
from rankroom.record.store import Store
from rankroom.rpc.client import ask
from rankroom.system.polling import poll_until

if TYPE_CHECKING:
    from rankroom.cluster.local import Cluster

ALL_S = 30.0  # for all ranks to be known here once the cluster runs
LOG_LINES = 200


class Acts:
    """The cluster called `paths.name`, once it is there."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths
        self._cluster: Cluster | None = None
        self._attaching = threading.Lock()
        self._read = 0
        self._info: ClusterInfo | None = None
        self.attached = False

    def info(self) -> ClusterInfo | None:
        """What the cluster's keeper there last wrote; None once its folder is gone."""
        try:
            written = self._paths.info.stat().st_mtime_ns
        except OSError:
            written = 0
        if not written or written != self._read:
            with contextlib.suppress(UnreadableError):
                self._read, self._info = written, self._paths.read()
        return self._info

    def may_attach(self) -> bool:
        """Whether there are ranks that run."""
        info = self._info
        known = info is not None and info.state == "running" and all(r.pid for r in info.ranks)
        return known and len(info.ready) == info.size if info else False

    def attach(self) -> None:
        """Connect to the ranks."""
        from rankroom.cluster.local import Cluster

        with self._attaching:
            made = Cluster.attach(self._paths.name)
            assert isinstance(made, Cluster)
            # Unless some never come.
            poll_until(
                lambda: len(made.alive) == made.size or bool(made.refresh().exits), ALL_S, 0.01
            )
            self._cluster, self.attached = made, True

    def runs(self) -> list[str]:
        """The ids of all runs of this cluster, the oldest first."""
        cluster, store = self._the_cluster(), Store()
        since = time.strftime("%Y%m%d-%H%M%S", time.gmtime(cluster.info.created))
        found = []
        for run_id in store.ids():
            if run_id < since:
                break
            with contextlib.suppress(RecordError):
                if store.load(run_id).cluster == cluster.name:
                    found.append(run_id)
        return found[::-1]

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    # -- what is asked

    def do(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        """The answer to a question. Raises RankroomError as the cluster itself does."""
        act = getattr(self, f"_do_{head['do']}", None)
        if act is None:
            raise UsageError(f"this desk does not know {head['do']!r}")
        answer: Head | tuple[Head, bytes] = act(head, body)
        return answer if isinstance(answer, tuple) else (answer, b"")

    def _do_run(self, head: Head, body: bytes) -> Head:
        run = self._the_cluster().run(
            head["source"], head["ranks"], head["name"], head["count"], head["notes"],
            head["profile"], head["own"],
        )  # fmt: skip
        return {"runs": [run.id]}

    def _do_rejoin(self, head: Head, body: bytes) -> Head:
        return {"well": self._the_cluster().rejoin()}

    def _do_interrupt(self, head: Head, body: bytes) -> Head:
        self._the_cluster().interrupt()
        return {}

    def _do_release(self, head: Head, body: bytes) -> Head:
        return {"text": self._the_cluster().release()}

    def _do_stacks(self, head: Head, body: bytes) -> Head:
        return {"stacks": self._the_cluster().stacks(head["ranks"])}

    def _do_restart(self, head: Head, body: bytes) -> Head:
        self._the_cluster().restart(head["ranks"])
        return {}

    def _do_look(self, head: Head, body: bytes) -> Head:
        info = self._the_cluster().info
        return ask(info.rpc, info.rpc_key, do="look")

    def _do_push(self, head: Head, body: bytes) -> Head:
        self._view(head["ranks"]).apply_sync(values.take, body)
        return {}

    def _do_pull(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        found = self._view(head["ranks"]).apply_sync(values.give, head["name"])
        return {}, values.pack(found)

    def _do_apply(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        return {}, self._view([head["rank"]]).apply_sync(values.call, body)[0]

    def _do_log(self, head: Head, body: bytes) -> Head:
        return {"text": tail(Path(head["path"]), LOG_LINES)}

    def _do_stop(self, head: Head, body: bytes) -> Head:
        from rankroom.cluster import lookup

        if self._cluster is not None:
            self._cluster.stop()
        elif self._paths.read() is not None:
            lookup.end(self._paths)
        return {}

    def _do_clear(self, head: Head, body: bytes) -> Head:
        """Leave nothing but records of a cluster that is over."""
        (config.home() / "desks" / self._paths.name).unlink(missing_ok=True)
        if head["log"]:
            Path(head["log"]).unlink(missing_ok=True)
        if not self._paths.unfinished():
            shutil.rmtree(self._paths.folder, ignore_errors=True)
        return {}

    def _the_cluster(self) -> Cluster:
        if self._cluster is None:
            raise NoClusterError(f"the ranks of {self._paths.name} are not there yet")
        return self._cluster

    def _view(self, ranks: Sequence[int]) -> Any:
        return self._the_cluster().view(ranks)
