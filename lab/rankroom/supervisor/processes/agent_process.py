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

GIVEN_UP = "was given up"  # prefix: how a rank ended on a lost node, where it may still be alive
# The same where a client restarts a rank though the scheduler has not said that the node is gone.
FOR_RESTART = f"{GIVEN_UP} for a restart"
NOT_STARTED = "could not be started: {error}"  # how a rank ended whose fork was refused
END_TIMEOUT_S = 5.0  # of an agent, its ranks and its launcher once its output has ended


class RankProcess:
    """A rank's process. Its pid is 0 until its agent has reported it."""

    def __init__(self, rank: int, start: int) -> None:
        self.rank = rank
        self.start = start
        self.pid = 0
        self.returncode: int | None = None
        self.failed = ""  # why there is no process
        self.words = ""  # what its agent says about how it ended
        self.ended_with_agent = False

    @property
    def ended(self) -> bool:
        return self.returncode is not None


class AgentProcess:
    """The agent of `node`, started by `command`.

    `hear()` is called when the agent has reported something or is over, mostly in the thread that
    reads its output.
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
        self.is_silent = False  # not heard from for a while: it is sent only what it needs
        self.is_over = False
        self.ranks: dict[int, RankProcess] = {}
        self._hear = hear
        self._looks: list[Future[dict[int, Load]]] = []
        self._signals: dict[int, Future[None]] = {}  # those not sent yet, by number
        self._numbers = itertools.count(1)
        self._news = threading.Condition()
        self._writing = threading.Lock()
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=file, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, name=f"rankroom-agent-{node}", daemon=True).start()

    # -- orders to the agent

    def start_rank(self, rank: int, start: int) -> RankProcess:
        """Order the start of a rank; the returned process gets its pid later."""
        with self._news:
            made = self.ranks[rank] = RankProcess(rank, start)
            if self.is_over:
                made.ended_with_agent, made.returncode = True, -signal.SIGKILL
        self.tell(do="start", rank=rank, start=start)
        return made

    def end_ranks(self, ranks: Collection[int], seconds: float) -> bool:
        """End ranks with all they started, and wait up to `seconds` for that; False if the agent
        has not even tried: then it was given up, with all its ranks."""
        self.tell(do="end", ranks=sorted(ranks))
        tried = self.signal((), "SIGCONT")  # a no-op, done after the order before it was handled
        with self._news:
            # Ranks of an agent before this one have ended with it.
            own = [self.ranks[each] for each in ranks if each in self.ranks]
            if self._news.wait_for(lambda: all(each.ended for each in own), seconds):
                return True
        if not tried.done():
            self.give_up()
            return False
        return True

    def look(self) -> Future[dict[int, Load]]:
        """Ask for the load of its ranks. If the agent is silent or over, the result is empty at
        once, so that nothing waits for it."""
        asked: Future[dict[int, Load]] = Future()
        with self._news:
            if self.is_silent or self.is_over:
                asked.set_result({})
                return asked
            self._looks.append(asked)
        self.tell(do="look")
        return asked

    def signal(self, ranks: Collection[int], name: str) -> Future[None]:
        """Send a signal to the processes of ranks; done once it was sent, or the agent is over."""
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
        """Send the agent an order; does nothing if the agent is gone."""
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def hang_up(self) -> None:
        """Close the agent's input, so that it ends with all its ranks."""
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(OSError):
            self.process.stdin.close()

    def give_up(self) -> None:
        """Kill the agent and count its ranks as lost; any that are alive end by themselves."""
        self.hang_up()
        self.process.kill()
        self._note_over()

    def wait(self, seconds: float) -> None:
        """Wait until its process has ended; kill it after `seconds`."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    # -- reports of the agent

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            with contextlib.suppress(OSError, ValueError), self.process.stdout as lines:
                for line in lines:
                    self._read_line(line)
            self.wait(END_TIMEOUT_S)
        finally:
            self._note_over()

    def _read_line(self, line: bytes) -> None:
        self.heard = time.monotonic()
        try:
            said = json.loads(line)
            with self._news:
                self._take(said)
                self._news.notify_all()
        except Exception:  # output of the launcher, or of something that it runs first
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
        """Note that the agent is over, and that its ranks have ended with it."""
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
