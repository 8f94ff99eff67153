"""Simulated ranks: many of them in a process, each with its own connection and spool.

`python -m simulated_ranks FOLDER FIRST COUNT` simulates COUNT ranks of the cluster in FOLDER. The
source of a cell is a `Script` as JSON: what each rank does in the run. The supervisor treats them
like any other ranks, so its work for hundreds of ranks can be tested and measured.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import zmq

from rankroom.record.cluster_file import ClusterPaths
from rankroom.record.model import event_line, spans_line
from rankroom.reporting.reporter import REPORT_INTERVAL_S, batch_s
from rankroom.rpc.client import connected, packed

NOTICE_S = 1.0  # until a rank that waits or is stuck reports it
BATCH = 4096  # spans in one event
DESCRIPTORS = 6  # per rank, including ZeroMQ's
TENSORS = 8  # reduced in turn
BUSY = {"state": "busy", "what": None, "seconds": 0, "cell_line": 1, "code": "train()"}
ALLREDUCE = {"name": "allreduce", "library": "hvd.torch", "op": "allreduce"}


@dataclasses.dataclass
class Script:
    """What ranks do in a run.

    For `seconds`, each writes `rate` lines a second and reports `spans` collectives in all, one
    every `apart` microseconds. Then the ranks in `waits_for` are stuck in `line` of the cell, and
    all others wait for them in `waits`. The ranks in `raises` raise after `raises_in` seconds.
    """

    seconds: float = 0.0
    rate: int = 0
    spans: int = 0
    apart: int = 1000
    waits: str = ""
    waits_for: list[int] = dataclasses.field(default_factory=list)
    line: int = 9
    raises: list[int] = dataclasses.field(default_factory=list)
    raises_in: float = 0.0

    def __str__(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Timers:
    """Calls to be made at given times, all by the thread that runs `do()`."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, moment: float, call: Callable[[], None]) -> None:
        """Schedule `call()` for `moment`, by time.monotonic()."""
        heapq.heappush(self._due, (moment, next(self._numbers), call))

    def pause_ms(self) -> int:
        """Milliseconds until the next call is due."""
        return max(0, round(1000 * (self._due[0][0] - time.monotonic()))) if self._due else 1000

    def do(self) -> None:
        """Make the calls that are due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()


class SimulatedRank:
    """One rank: the requests that it handles, the events that it sends."""

    def __init__(self, rank: int, paths: ClusterPaths, size: int, timers: Timers) -> None:
        info = paths.read()
        assert info is not None
        self.rank = rank
        self.spool = paths.spool(rank)
        self.socket = connected(info.rpc, info.rpc_key, f"rank {rank} 1 {os.getpid()}".encode())
        self._period = batch_s(size)
        self._timers = timers
        self._run: dict[str, Any] = {}
        self._script = Script()
        self._stands: dict[str, Any] = {"state": "ended"}
        self._tell(do="ready", rank=rank, start=1)

    def interrupt(self) -> None:
        """End the run, as SIGINT does."""
        if self._run:
            self._end("interrupted")

    def take(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        """Handle a message from the supervisor."""
        number = content["number"]
        if content["do"] == "execute":
            self._begin(content | json.loads(buffers[0]))
            return
        answer: dict[str, Any] = {}
        if content["do"] == "clock":
            answer = {"time": time.time_ns() // 1000}
        elif content["do"] == "release":
            answer = {"released": ["Horovod"] if self._stands["state"] == "waits" else []}
            if self._run and self._stands["state"] == "waits":
                self._end("released")
        elif content["do"] == "status":
            answer = {
                "run": self._run.get("run"), "failing": False, "tidying": False,
                "interrupted": False,
                "stands": self._standing(), "computes": self._stands["state"] == "busy",
            }  # fmt: skip
        self._tell(do="answered", number=number, answer=answer)

    # -- a run

    def _begin(self, run: dict[str, Any]) -> None:
        self._run, self._script = run, Script(**json.loads(run["source"]))
        self._seq = self._at = self._to = self._line = self._spanned = 0
        self._file = os.open(
            self.spool / f"{run['run']}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        self._begun = self._reported = time.monotonic()
        self._stands = {**BUSY}
        self._unsent = self._event("status", state="running", spool={"stdout": 0, "stderr": 0})
        script = self._script
        if self.rank in script.raises:
            self._timers.at(self._begun + script.raises_in, self._of(self._raise))
        if script.seconds and script.rate:
            self._timers.at(self._begun + self._period, self._of(self._write))
        else:
            self._timers.at(self._begun + script.seconds, self._of(self._done))

    def _of(self, call: Callable[[], None]) -> Callable[[], None]:
        """`call`, unless the run is over by then."""
        run = self._run
        return lambda: call() if self._run is run else None

    def _write(self) -> None:
        """Write the lines due since the last batch, each with its own time."""
        script, now = self._script, time.monotonic()
        seconds = min(now - self._begun, script.seconds)
        count = round(seconds * script.rate)
        zero = round(self._begun * 1e6) - time.monotonic_ns() // 1000 + self._t()
        every = 1_000_000 // script.rate
        parts = []
        for line in range(self._line, count):
            text = f"rank {self.rank} line {line}"
            self._to += len(text) + 1
            parts.append(
                f'{{"kind":"log","rank":{self.rank},"seq":{self._seq},"t":{zero + line * every},'
                f'"stream":"stdout","text":"{text}\\n","to":{self._to}}}\n'
            )
            self._seq += 1
        self._line = count
        self._unsent += "".join(parts).encode()
        if now >= self._reported + REPORT_INTERVAL_S or seconds == script.seconds:
            self._reported = now
            self._add_spans(round(script.spans * seconds / script.seconds), zero)
        self._flush()
        if seconds == script.seconds:
            self._done()
        else:
            self._timers.at(now + self._period, self._of(self._write))

    def _add_spans(self, until: int, zero: int) -> None:
        """Report spans up to the one numbered `until`."""
        for first in range(self._spanned, until, BATCH):
            numbers = range(first, min(until, first + BATCH))
            fields: dict[str, Any] = {"cat": "collective"}
            if not first:
                tensors = [{**ALLREDUCE, "tensor": f"w{n}"} for n in range(TENSORS)]
                fields |= {"from": 0, "define": tensors}
            late = [self._late(n) for n in numbers]
            each = zip(numbers, late, strict=True)
            starts = [zero + n * self._script.apart + more for n, more in each]
            apart = [b - a for a, b in zip([0, *starts], starts, strict=False)]
            columns = {
                "name": [n % TENSORS for n in numbers],
                "start": apart,
                "dur": [400 - more for more in late],
            }
            self._unsent += spans_line(self.rank, self._seq, self._t(), fields, columns)
            self._seq += 1
        self._spanned = max(until, self._spanned)

    def _late(self, number: int) -> int:
        """How late this rank arrives at a collective, in microseconds; the straggler rotates."""
        if number % 64 == self.rank % 64:
            return 300
        return 20 + (number * 7 + self.rank * 13) % 60

    def _done(self) -> None:
        """After the last line: wait for other ranks, be stuck, or end."""
        script = self._script
        if script.spans and not script.rate:
            self._add_spans(script.spans, 0)
        if not script.waits:
            self._end("ok")
            return
        where = {"cell_line": 7, "code": f"hvd.{script.waits}"}
        if self.rank in script.waits_for:
            where = {"cell_line": script.line, "code": "time.sleep(60)"}
        state = "still" if self.rank in script.waits_for else "waits"
        what = script.waits if state == "waits" else None
        self._stands = {"state": state, "what": what, "seconds": 0.0, **where}
        self._since = time.monotonic()
        self._timers.at(self._since + NOTICE_S, self._of(self._notice))

    def _notice(self) -> None:
        self._unsent += self._event("mark", name="stands", args=self._standing())
        self._flush()

    def _standing(self) -> dict[str, Any]:
        if self._stands["state"] in ("waits", "still"):
            return {**self._stands, "seconds": time.monotonic() - self._since}
        return self._stands

    def _raise(self) -> None:
        self._unsent += self._event("mark", name="raised", args={})
        self._flush()
        self._end("error", "ValueError", "no data")

    def _end(self, state: str, ename: str = "", evalue: str = "") -> None:
        if ename or state != "ok":
            ename, evalue = (ename, evalue) if ename else ("HorovodInternalError", "released")
            about = {"ename": ename, "evalue": evalue, "traceback": [f"{ename}: {evalue}"]}
            self._unsent += self._event("error", **about)
        self._unsent += self._event("status", state=state)
        self._flush(ended=True)
        os.close(self._file)
        number, self._run, self._stands = self._run["number"], {}, {"state": "ended"}
        self._tell(do="answered", number=number, answer={})

    # -- messages to the supervisor

    def _t(self) -> int:
        return time.time_ns() // 1000 - int(self._run["start"])

    def _event(self, kind: str, **fields: Any) -> bytes:
        line = event_line(kind, self.rank, self._seq, self._t(), **fields)
        self._seq += 1
        return line

    def _flush(self, ended: bool = False) -> None:
        lines, self._unsent = self._unsent, b""
        os.write(self._file, lines)
        header = {"run": self._run["run"], "rank": self.rank, "at": self._at, "ended": ended}
        self._at += len(lines)
        self._tell(lines, do="events", **header)

    def _tell(self, *buffers: bytes, **content: Any) -> None:
        self.socket.send_multipart([b"", packed(content), *buffers])


def speak(folder: Path, ranks: Collection[int]) -> None:
    """Simulate these ranks until the process is killed."""
    paths = ClusterPaths(folder.name, folder.parent)
    info = paths.read()
    assert info is not None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1000 + DESCRIPTORS * len(ranks)), hard))
    # All ranks share one ZeroMQ context, which needs room for their sockets.
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 2 * len(ranks) + 100)
    timers = Timers()
    made = {}
    poller = zmq.Poller()
    for rank in ranks:
        each = SimulatedRank(rank, paths, info.size, timers)
        made[each.socket] = each
        poller.register(each.socket, zmq.POLLIN)
    interrupted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupted.append(number))
    while True:
        for socket, _ in poller.poll(min(50, timers.pause_ms())):
            while socket.poll(0):
                _, content, *buffers = socket.recv_multipart()
                made[socket].take(json.loads(content), buffers)
        timers.do()
        if interrupted:
            interrupted.clear()
            for each in made.values():
                each.interrupt()


if __name__ == "__main__":
    speak(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])))
