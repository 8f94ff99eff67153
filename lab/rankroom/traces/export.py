"""A record as Chrome JSON, which Perfetto opens: one process per rank, one thread per category.

Spans go through one event after the other, so a million of them need no memory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from rankroom.record import RankInfo
from rankroom.store import Store
from rankroom.traces.known import OURS

Json = dict[str, Any]

MOST_ROWS = 16  # of spans that overlap, in one category; more share the last
_PIECE = 1 << 18


def chrome_json(store: Store, run_id: str) -> Iterator[bytes]:
    """The record in pieces of some 256 KiB. Raises RecordError when there is none."""
    run = store.load(run_id)
    about = {
        "run": run.id,
        "start": run.start,
        "title": run.title,
        "ranks": [{"rank": r.rank, "host": r.host, "device": r.device} for r in run.ranks],
    }
    export = _Export()
    head = {"rankroom": about}
    yield f'{{"otherData":{_text(head)},"displayTimeUnit":"ms","traceEvents":[\n'.encode()
    for rank in run.ranks:
        export.process(rank)
    offsets = {rank.rank: rank.clock.offset for rank in run.ranks if rank.clock}
    for event in store.events(run_id):
        if event["kind"] == "spans":
            export.spans(event, offsets.get(event["rank"], 0))
        elif event["kind"] == "sample":
            export.sample(event, offsets.get(event["rank"], 0))
        if export.held > _PIECE:
            yield export.taken()
    yield export.taken()
    yield b"\n]}\n"


def compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same, as a gzip file."""
    pack = zlib.compressobj(6, wbits=31)
    for piece in pieces:
        if data := pack.compress(piece):
            yield data
    yield pack.flush()


class _Export:
    def __init__(self) -> None:
        self.held = 0
        self._out: list[str] = []
        self._begun = False
        self._names: dict[int, dict[int, str]] = {}
        self._threads: dict[int, dict[str, _Rows]] = {}
        self._next: dict[int, int] = {}

    def process(self, rank: RankInfo) -> None:
        pid = rank.rank
        where = f" on {rank.host}" if rank.host else ""
        self._say("process_name", pid, 0, name=f"rank {pid}")
        self._say("process_sort_index", pid, 0, sort_index=pid)
        self._say("process_labels", pid, 0, labels=f"{rank.device}{where}".strip())

    def spans(self, event: Json, offset: int) -> None:
        """One event of a record; spans that are not sound are left out."""
        rank, category = event["rank"], str(event["cat"])
        names = self._names.setdefault(rank, {})
        try:
            first = event.get("from", 0)
            for number, define in enumerate(event.get("define", ()), first):
                args = {key: value for key, value in define.items() if key != "name"}
                tail = f',"args":{_text(args)}' if args else ""
                names[number] = f'"name":{_text(str(define.get("name", "?")))}{tail}'
        except (AttributeError, TypeError):
            pass
        columns = event["name"], event["start"], event["dur"]
        if len({len(column) for column in columns}) != 1:
            return
        rows = self._rows(rank, category)
        head = f'{{"ph":"X","cat":{_text(category)},"pid":{rank},'
        at = -offset
        out = self._out
        begin = len(out)
        for number, apart, dur in zip(*columns, strict=True):
            if type(apart) is not int:
                break  # where the following ones are is lost with it
            at += apart
            if type(dur) is not int or dur < 0:
                continue
            tid, fresh = rows.place(at, at + dur)
            if fresh:
                self._name_row(rank, category, tid, rows)
            name = names.get(number) if type(number) is int else None
            out.append(f'{head}"tid":{tid},"ts":{at},"dur":{dur},{name or _UNKNOWN}}}')
        self.held += sum(map(len, out[begin:]))

    def sample(self, event: Json, offset: int) -> None:
        for key in ("cpu", "memory", "gpu", "gpu_memory"):
            if isinstance(event.get(key), (int, float)):
                self._add({"ph": "C", "name": key, "pid": event["rank"],
                           "ts": event["t"] - offset, "args": {key: event[key]}})  # fmt: skip

    def taken(self) -> bytes:
        """What has come together, to be written."""
        if not self._out:
            return b""
        text = ",\n".join(self._out)
        text = ",\n" + text if self._begun else text
        self._begun = True
        self._out.clear()
        self.held = 0
        return text.encode("utf-8", "backslashreplace")

    def _rows(self, rank: int, category: str) -> _Rows:
        mine = self._threads.setdefault(rank, {})
        if category not in mine:
            mine[category] = _Rows(lambda: self._new_tid(rank))
        return mine[category]

    def _new_tid(self, rank: int) -> int:
        self._next[rank] = self._next.get(rank, 0) + 1
        return self._next[rank]

    def _name_row(self, rank: int, category: str, tid: int, rows: _Rows) -> None:
        number = len(rows)
        self._say(
            "thread_name", rank, tid, name=category if number == 1 else f"{category} {number}"
        )
        place = OURS.index(category) if category in OURS else len(OURS)
        self._say("thread_sort_index", rank, tid, sort_index=place * 1000 + tid)

    def _say(self, what: str, pid: int, tid: int, **args: Any) -> None:
        self._add({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    def _add(self, event: Json) -> None:
        text = _text(event)
        self.held += len(text)
        self._out.append(text)


class _Rows:
    """The rows of one category: in each, spans follow or contain one another, never overlap."""

    def __init__(self, new_tid: Any) -> None:
        self._new_tid = new_tid
        self._tids: list[int] = []
        self._ends: list[list[int]] = []
        self._last: list[int] = []

    def __len__(self) -> int:
        return len(self._tids)

    def place(self, start: int, end: int) -> tuple[int, bool]:
        """The thread for a span, and whether it is a new one."""
        for row, ends in enumerate(self._ends):
            if start < self._last[row]:
                continue  # out of order: what it may lie in is not known any more
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                self._last[row] = start
                return self._tids[row], False
        if len(self._tids) >= MOST_ROWS:
            return self._tids[-1], False
        tid: int = self._new_tid()
        self._tids.append(tid)
        self._ends.append([end])
        self._last.append(start)
        return tid, True


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_UNKNOWN = '"name":"?"'
