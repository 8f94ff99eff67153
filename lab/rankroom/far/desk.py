"""The desk of a cluster on its site's login node: does there what its keeper asks from here.

`python -m rankroom.far.desk` is run over ssh, and talks over stdin and stdout. It uses the cluster
as a notebook there would, and sends what is new of its records. It keeps nothing: when the line is
cut it lets the runs go, and the next desk takes them up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import rankroom
from rankroom import config
from rankroom.errors import RankroomError
from rankroom.far import frames
from rankroom.far.acts import Acts
from rankroom.far.followed import Followed, Place
from rankroom.far.frames import Head
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.store import Store
from rankroom.system.polling import poll_until

SILENT_S = 15.0  # a keeper that says nothing for so long is cut off
LOOK_S = 0.1
LIVE_S = 0.02  # between two looks while a run is on
TURN_S = 0.5  # between two looks at whether another desk has taken this one's place
ADOPT_S = 1.0


class Desk:
    """One keeper's hand on the site."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._sending = threading.Lock()
        self._heard = time.monotonic()
        self._leaving = threading.Lock()
        self._soon = threading.Event()
        self._acts: Acts | None = None
        self._followed: dict[str, Followed] = {}
        self._have: dict[str, Any] = {}
        self._told: dict[str, Any] | None = None
        self._pool = ThreadPoolExecutor(8, "rankroom-desk")
        self._turn = Path()

    # -- talking

    def greet(self) -> None:
        """Say who is there, before anything that takes time is loaded."""
        self.say(
            {
                frames.GREETING: rankroom.__version__,
                "python": ".".join(map(str, sys.version_info[:3])),
                "executable": sys.executable,
                "host": socket.gethostname(),
                "home": str(config.home()),
            }
        )

    def say(self, head: Head, body: bytes = b"") -> None:
        data = frames.frame(head, body)
        with self._sending:
            self._out.write(data)
            self._out.flush()

    def listen(self, stream: BinaryIO) -> None:
        """Answer until the line is closed."""
        threading.Thread(target=self._watch_out, daemon=True).start()
        with contextlib.suppress(ValueError, OSError):
            while (message := frames.read(stream)) is not None:
                self._heard = time.monotonic()
                head, body = message
                if head["do"] == "follow":
                    self._follow(head["name"], head["have"])
                elif head["do"] != "alive":
                    self._pool.submit(self._answer, head, body)
        self.leave()

    def _answer(self, head: Head, body: bytes) -> None:
        answer: Head
        data = b""
        try:
            if head["do"] == "shares":
                answer = {"shares": same_file(head["file"], head["text"])}
            elif self._acts is None:
                raise RankroomError("this desk follows no cluster")
            else:
                answer, data = self._acts.do(head, body)
            for run_id in answer.get("runs", ()):
                self._begin(run_id)
        except RankroomError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        except Exception as error:
            answer = {"error": "RankroomError", "text": f"{type(error).__name__}: {error}"}
        if head["do"] == "stop":
            self._finish()
        with contextlib.suppress(OSError):
            self.say({"id": head["id"], **answer}, data)

    def _watch_out(self) -> None:
        """See that this is still the desk, and that somebody is at the other end."""
        while True:
            time.sleep(TURN_S)
            if time.monotonic() - self._heard > SILENT_S or not self._is_ours():
                self.leave()

    def leave(self) -> None:
        """Let go of the cluster, whose runs go on, and end; whatever else is stuck."""
        with self._leaving:
            if self._acts is not None:
                with contextlib.suppress(Exception):
                    self._acts.close()
            os._exit(0)

    # -- the cluster

    def _follow(self, name: str, have: dict[str, Any]) -> None:
        if self._acts is None:
            self._turn = config.home() / "desks" / name
            config.private(self._turn.parent)
            self._turn.write_text(self._token)
            self._acts = Acts(ClusterPaths(name))
            threading.Thread(target=self._look, daemon=True).start()
        self._have = have
        # Where a copy fell behind, the record is sent again from there.
        for run_id in self._followed:
            self._followed[run_id] = self._new(run_id)

    @property
    def _token(self) -> str:
        return f"{socket.gethostname()} {os.getpid()}"

    def _is_ours(self) -> bool:
        try:
            return self._acts is None or self._turn.read_text() == self._token
        except OSError:
            return True

    def _look(self) -> None:
        while True:
            self._soon.wait(LIVE_S if self._followed else LOOK_S)
            self._soon.clear()
            try:
                self._look_once()
            except OSError as error:  # out of descriptors, say: it is tried again
                with contextlib.suppress(OSError):
                    self.say({"say": "trouble", "text": f"cannot look after the cluster: {error}"})
                time.sleep(ADOPT_S)

    def _look_once(self) -> None:
        assert self._acts is not None
        self._tell(self._acts.info())
        if not self._acts.attached and self._acts.may_attach():
            self._attach()
        self._send()

    def _tell(self, info: ClusterInfo | None) -> None:
        said = None if info is None else {**dataclasses.asdict(info), "rpc": "", "rpc_key": ""}
        if said != self._told:
            self._told = said
            self.say({"say": "cluster", "info": said})

    def _attach(self) -> None:
        assert self._acts is not None
        try:
            self._acts.attach()
        except RankroomError as error:
            self.say({"say": "trouble", "text": str(error)})
            time.sleep(ADOPT_S)
            return
        if not self._acts.attached:
            return
        for run_id in self._acts.runs():
            if not self._have.get(run_id, {}).get("done"):
                self._begin(run_id)
        self.say({"say": "ready"})

    # -- its records

    def _begin(self, run_id: str) -> None:
        """Follow a record; its first lines are sent before anybody speaks of it."""
        if run_id not in self._followed:
            followed = self._new(run_id)
            with contextlib.suppress(OSError):
                for head, body in followed.news():
                    self.say(head, body)
            self._followed[run_id] = followed
            self._soon.set()

    def _new(self, run_id: str) -> Followed:
        have = self._have.get(run_id)
        place = Place(have["at"], have["mark"]) if have else None
        return Followed(Store().paths(run_id), place)

    def _send(self) -> None:
        for run_id, followed in list(self._followed.items()):
            try:
                for head, body in followed.news():
                    self.say(head, body)
            except FileNotFoundError:
                self.say({"say": "gone", "run": run_id})
                followed.done = True
            except OSError as error:
                self.say({"say": "trouble", "text": f"cannot read run {run_id}: {error}"})
                continue
            if followed.done and self._followed.get(run_id) is followed:
                del self._followed[run_id]

    def _finish(self, seconds: float = 10.0) -> None:
        """Wait until all records have been sent to their end."""
        poll_until(lambda: not self._followed, seconds, 0.02)


def same_file(file: str, text: str) -> bool:
    """Whether a file that the other side has is seen here as well."""
    try:
        return Path(file).read_text() == text
    except (OSError, ValueError):
        return False


def main() -> None:
    """Be a desk until the line is closed."""
    out = os.fdopen(os.dup(1), "wb")
    # Whatever else prints must not come between messages.
    os.dup2(2, 1)
    desk = Desk(out)
    desk.greet()
    desk.listen(sys.stdin.buffer)


if __name__ == "__main__":
    main()
