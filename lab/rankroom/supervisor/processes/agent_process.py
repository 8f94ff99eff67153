"""A node's agent and its ranks, as the supervisor that started it sees them."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rankroom.supervisor.processes.load import Load

GIVEN_UP = "was given up"  # begins how a rank ended whose node is gone for us; it may live on there
# The same where its scheduler has not said that the node is gone: somebody had a rank restarted.
FOR_RESTART = f"{GIVEN_UP} for a restart"
NOT_STARTED = "could not be started: {error}"  # how a rank ended whose process was refused
ENDS_S = 5.0  # for an agent to end with its ranks, and for its launcher to follow


class RankProcess:
    """A rank's process. Its number is 0 until its agent has said it."""

    def __init__(self, rank: int, start: int) -> None:
        self.rank = rank
        self.start = start
        self.pid = 0
        self.returncode: int | None = None
        self.failed = ""  # why there is no process
        self.words = ""  # of its agent, about how it ended
        self.ended_with_agent = False

    @property
    def ended(self) -> bool:
        return self.returncode is not None


class AgentProcess:
    """The agent of `node`, started by `command`.

    `hear()` is called, in a thread of its own, when there is something new to look at.
    """

    def __init__(
        self,
        node: str,
        command: Sequence[str],
        env: dict[str, str],
        cwd: str,
        log: Path,
        hear: Callable[[], None],
    ) -> None:
        self.node = node
        self.log = log
        self.doing = "starts"
        self.place: dict[str, Any] = {}  # once it is ready: its host, address and free ports
        self.notes: list[str] = []
        self.imported: set[str] = set()
        self.refused = ""
        self.heard = time.monotonic()
        self.is_silent = False  # nothing was heard of it for a while: it is told only what it must
        self.is_over = False
        self.ranks: dict[int, RankProcess] = {}
        self._hear = hear
        self._looks: list[Future[dict[int, Load]]] = []
        self._signals: dict[int, Future[None]] = {}  # those that are on their way, by number
        self._numbers = itertools.count(1)
        self._news = threading.Condition()
        self._writing = threading.Lock()
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=file, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, name=f"rankroom-agent-{node}", daemon=True).start()

    # -- what it is told

    def start_rank(self, rank: int, start: int) -> RankProcess:
        """Have a rank started; it is known at once, and its number later."""
        with self._news:
            made = self.ranks[rank] = RankProcess(rank, start)
            if self.is_over:
                made.ended_with_agent, made.returncode = True, -signal.SIGKILL
        self.tell(do="start", rank=rank, start=start)
        return made

    def end_ranks(self, ranks: Collection[int], seconds: float) -> bool:
        """End ranks with all they started, and wait for it; False if the agent has not even tried,
        and was given up, with all its ranks."""
        self.tell(do="end", ranks=sorted(ranks))
        tried = self.signal((), "SIGCONT")  # it takes one order after the other
        with self._news:
            # Those of an agent before this one have ended with it.
            own = [self.ranks[each] for each in ranks if each in self.ranks]
            if self._news.wait_for(lambda: all(each.ended for each in own), seconds):
                return True
        if not tried.done():
            self.give_up()
            return False
        return True

    def look(self) -> Future[dict[int, Load]]:
        """How busy its ranks are; nothing of one that is silent or over, whose answer others would
        wait for."""
        asked: Future[dict[int, Load]] = Future()
        with self._news:
            if self.is_silent or self.is_over:
                asked.set_result({})
                return asked
            self._looks.append(asked)
        self.tell(do="look")
        return asked

    def signal(self, ranks: Collection[int], name: str) -> Future[None]:
        """Have a signal sent to the processes of ranks; done once it was, or they have ended."""
        sent: Future[None] = Future()
        number = next(self._numbers)
        with self._news:
            if self.is_over:
                sent.set_result(None)
                return sent
            self._signals[number] = sent
        self.tell(do="signal", ranks=sorted(ranks), signal=name, number=number)
        return sent

    def tell(self, **order: Any) -> None:
        """Tell it something; nothing happens if it is gone."""
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def hang_up(self) -> None:
        """Have it end with all its ranks."""
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(OSError):
            self.process.stdin.close()

    def give_up(self) -> None:
        """Its ranks are lost; should they live, they end by themselves."""
        self.hang_up()
        self.process.kill()
        self._note_over()

    def wait(self, seconds: float) -> None:
        """Wait for its end; it is killed after so long."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    # -- what it says

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            with contextlib.suppress(OSError, ValueError), self.process.stdout as lines:
                for line in lines:
                    self._read_line(line)
            self.wait(ENDS_S)
        finally:
            self._note_over()

    def _read_line(self, line: bytes) -> None:
        self.heard = time.monotonic()
        try:
            said = json.loads(line)
            with self._news:
                self._take(said)
                self._news.notify_all()
        except Exception:  # a launcher's own, or of something that it runs before
            with contextlib.suppress(OSError), self.log.open("ab") as log:
                log.write(line)
            return
        if said.keys() != {"beat"}:
            self._hear()

    def _take(self, said: dict[str, Any]) -> None:
        if "rank" in said:
            known = self.ranks.get(said["rank"])
            if known is not None and known.start == said["start"]:
                self._note_rank(known, said)
        elif "ready" in said:
            self.doing, self.place = "", said
        elif "loads" in said:
            loads = {int(rank): load for rank, load in said["loads"].items()}
            for each in self._looks:
                each.set_result(loads)
            self._looks.clear()
        elif "signalled" in said:
            if sent := self._signals.pop(said["signalled"], None):
                sent.set_result(None)
        elif "imported" in said:
            self.imported.add(said["imported"])
        elif "note" in said:
            self.notes.append(said["note"])
        else:
            self.doing = said.get("doing", self.doing)
            self.refused = said.get("refused", self.refused)

    def _note_rank(self, known: RankProcess, said: dict[str, Any]) -> None:
        if "pid" in said:
            known.pid = said["pid"]
        elif "failed" in said:
            known.failed, known.returncode = said["failed"], 1
        else:
            known.words, known.returncode = said["words"], said["ended"]

    def _note_over(self) -> None:
        """Its ranks have ended with it."""
        with self._news:
            self.is_over = True
            for rank in self.ranks.values():
                if rank.returncode is None:
                    rank.ended_with_agent, rank.returncode = True, -signal.SIGKILL
            for each in self._looks:
                each.set_result({})
            self._looks.clear()
            for sent in self._signals.values():
                sent.set_result(None)
            self._signals.clear()
            self._news.notify_all()
        self._hear()
