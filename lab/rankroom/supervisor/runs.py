"""The runs of a cluster: one at a time, whichever client asks, and reported to all its followers.

Clients are kernels, the Jupyter server and commands. A run depends on none of them: clients may
end and others connect while it is in progress.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rankroom.errors import (
    NOT_ASKED,
    NoClusterError,
    RankroomError,
    RunOverError,
    UsageError,
)
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import Client, Owner, RankInfo, RunInfo, title_of
from rankroom.record.owner import is_gone, this_process
from rankroom.record.store import Store, new_id
from rankroom.rpc.server import Question, Server
from rankroom.supervisor import elastic_ranks
from rankroom.supervisor.clock import Clocks
from rankroom.supervisor.late_output import LateOutput
from rankroom.supervisor.processes import start_limit
from rankroom.supervisor.rank_connections import RankConnections
from rankroom.supervisor.recorder import Recorder
from rankroom.supervisor.time_limit import TimeLimit
from rankroom.system.polling import poll_until
from rankroom.text.rank_ranges import format_ranks, name_ranks

POLL_INTERVAL_S = 0.02  # poll interval, for ranks that are starting and for replies of ranks
CONNECT_TIMEOUT_S = 2.0  # timeout for the connection of a rank that is neither down nor starting
CLOCK_COMPARISON_TIMEOUT_S = 0.5  # longest delay of a run by a comparison of clocks in progress
PREPARE_RECORD_DELAY_S = 0.01  # after a run, before the files of the next record are made
# For ranks to end their cell after an interrupt, released collectives included.
INTERRUPT_TIMEOUT_S = 3.5
SIGNAL_TIMEOUT_S = 3.0  # timeout for agents to send a signal
RELEASE_TIMEOUT_S = 3.0  # timeout for ranks to report what they released
PROMPT_ANSWER_TIMEOUT_S = 3.0  # timeout for ranks to report that they took an answer
COMPLETION_TIMEOUT_S = 1.5  # timeout for a rank's completions of a line
RUN_REPLY_DELAY_S = 0.02  # a run that is over within this time is reported to its client only once
CLOSE_RECORD_TIMEOUT_S = 10.0  # timeout for a record to be closed when its cluster ends


class Runs:
    """The runs of one cluster, as its supervisor owns them.

    `places()` returns where each rank runs now; `changed(run, state)` is called when a run begins
    or ends.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        info: ClusterInfo,
        server: Server,
        connections: RankConnections,
        places: Callable[[], list[RankInfo]],
        changed: Callable[[str, str], None],
    ) -> None:
        self._paths = paths
        self._info = info
        self._server = server
        self._connections = connections
        self._places = places
        self._changed = changed
        self._store = Store()
        self._clocks = Clocks(connections.request, lambda: connections.ranks)
        self._limit = TimeLimit()
        self._current: Recorder | None = None
        self._unanswered: tuple[Recorder, Question] | None = None  # a run, and its pending request
        self._waiting: list[Question] = []  # requests for runs whose ranks are not ready
        self._by = Owner("", 0)  # the client that asked for the latest run
        self._mark = ""  # of that request
        self._followers: dict[str, set[bytes]] = {}
        self._unclosed: set[str] = set()  # runs that are over, but a full disk keeps their records
        self._late = LateOutput(self._store, paths.spool)
        self._count = 0
        # Whether all ranks agree on what they have initialized together; if they may not, the next
        # cell on all of them makes them compare. They start in step, in epoch 0.
        self._in_step = True
        self._out_of_step = False
        self._settled = 0
        self.is_ending = False  # the cluster is ending: ranks that end now were not interrupted
        self._rejoined: dict[int, int] = {}  # by rank: its restart count when it last rejoined
        self._actions = {
            "run": self._run, "follow": self._follow, "interrupt": self._interrupt,
            "release": self._release, "answer": self._answer_ranks, "forget": self._forget,
            "complete": self._complete, "withdraw": self._withdraw,
            "elastic": self._elastic,
        }  # fmt: skip

    @property
    def current(self) -> Recorder | None:
        """The run in progress, if any."""
        return self._current if self._current and not self._current.is_over else None

    def take(self, question: Question) -> bool:
        """Handle a request about runs, in the server's thread; return False if it is not one."""
        act = self._actions.get(question.content["do"])
        if act is None:
            return False
        act(question)
        return True

    def note_out_of_step(self) -> None:
        """Note that ranks may be out of step, because of something that happened between runs."""
        self._out_of_step = True

    def ready(self) -> None:
        """Prepare for the first run, as all ranks are connected."""
        self._clocks.compare(self._places())
        self._store.prepare()

    def lose(self, ranks: dict[int, str]) -> None:
        """Note that the processes of these ranks have ended, and how."""
        self.take_late(ranks)
        if recorder := self.current:
            recorder.lose(ranks)

    def take_late(self, ranks: Iterable[int]) -> None:
        """Record what was printed on these ranks, which end, since their last cell. Where they are
        ended on purpose, call it before: what they print about that is not part of the cell."""
        self._late.take(ranks, self._current)

    def wait_for(self, rank: int, how: str, seconds: float, comes: bool) -> bool:
        """Return whether the run in progress waits for `rank`, whose process has ended, for up to
        `seconds`; `comes` if the rank is being restarted."""
        recorder = None if self.is_ending else self.current
        words = elastic_ranks.wait_words(self._info.name, rank, how, seconds, comes)
        return recorder is not None and recorder.wait_for(rank, how, seconds, words)

    def came(self, rank: int) -> None:
        """Let a rank that has connected rejoin the run in progress, if that waits for it."""
        if self.current and self.current.resume(self._places()[rank]):
            self._rejoined[rank] = self._info.restarts.get(str(rank), 0)

    def look(self) -> None:
        """Do what is due from time to time, in the supervisor's main thread."""
        if recorder := self.current:
            for warning in self._limit.news(self._info.allocation):
                recorder.remark(warning)
            if not self._clocks.comparing:  # a host that does not answer delays it for long
                self._clocks.compare(recorder.info.ranks, recorder.set_clocks)
        self._late.look()

    def close(self, why: dict[int, str]) -> None:
        """Finish the run in progress and its record, as all ranks have ended."""
        if recorder := self.current:
            recorder.lose(why)
        last = self._current
        if last is not None:
            # The run is not over before ranks have confirmed a release.
            last.wait(RELEASE_TIMEOUT_S)
            poll_until(lambda: last.is_closed, CLOSE_RECORD_TIMEOUT_S, 0.01)
        self._late.add()
        self._store.forget()

    # -- requests of clients, in the server's thread

    def _run(self, question: Question, since: float | None = None) -> None:
        asked = question.content
        if self.is_ending or self._info.state in ("ending", "failed"):
            why = self._info.message or "it is being stopped"
            raise NoClusterError(CLUSTER_ENDING.format(name=self._info.name, why=why))
        if self.current is not None:
            raise RankroomError(CLUSTER_BUSY.format(name=self._info.name, whose=self._whose(asked)))
        ranks = asked["ranks"] if asked["ranks"] is not None else list(range(self._info.size))
        if asked["own"] and ranks != list(range(len(ranks))):
            raise UsageError("a run in a world of its own needs the ranks 0, 1, … without gaps")
        since = time.monotonic() if since is None else since
        waited = time.monotonic() - since
        if not self.are_ready(ranks, waited) or (
            self._clocks.comparing and waited < CLOCK_COMPARISON_TIMEOUT_S
        ):
            # Do not block: ranks connect in this same thread.
            self._waiting.append(question)
            self._server.later(POLL_INTERVAL_S, partial(self._run_later, question, since))
            return
        info = self._info_of(ranks, asked)
        epoch = self._info.epoch
        own = asked["own"] and len(ranks) < self._info.size
        settle = self._out_of_step or not self._in_step or self._settled != epoch
        self._count += 1
        recorder = Recorder(
            asked["source"], info, self._connections, self._store, self._paths.spool,
            partial(self._told, settle=settle or own, epoch=epoch),
        )  # fmt: skip
        count = self._count if asked["count"] is None else asked["count"]
        unclosed = {run: self._followers.get(run, set()) for run in self._unclosed}
        self._followers = {**unclosed, info.id: set()}
        before, self._current = self._current, recorder
        try:
            recorder.start(
                epoch=epoch, count=count, settle=settle, profile=asked["profile"], own=own,
                interactive=asked.get("interactive", False),
            )  # fmt: skip
        except BaseException:  # nothing was sent
            self._current = before
            raise
        self._in_step = self._out_of_step = False
        self._by, self._mark = _client(asked), asked.get("mark", "")
        # The reply waits a moment: a short run is over by then, and its client need not follow it.
        self._unanswered = recorder, question
        self._server.later(RUN_REPLY_DELAY_S, partial(self._answer, recorder))
        self._changed(info.id, "running")
        self._clocks.compare(info.ranks, recorder.set_clocks)

    def _answer(self, recorder: Recorder) -> None:
        """Reply to the request for this run with its id and state, unless that was done before."""
        if self._unanswered is None or self._unanswered[0] is not recorder:
            return
        _, question = self._unanswered
        self._unanswered = None
        ranks = {rank.rank for rank in recorder.info.ranks}
        restarts = {k: n for k, n in self._info.restarts.items() if int(k) in ranks}
        question.answer(run=recorder.info.to_json(), restarts=restarts)

    def _run_later(self, question: Question, since: float) -> None:
        if question not in self._waiting:
            return  # refused, or withdrawn
        self._waiting.remove(question)
        if is_gone(_client(question.content)):
            return  # no client would follow it
        try:
            self._run(question, since)
        except Exception as error:
            question.refuse(error)
            if not isinstance(error, RankroomError):
                raise

    def _withdraw(self, question: Question) -> None:
        """Cancel a run that has not begun, as its client no longer waits for it; interrupt one that
        has begun, if its client has `abandoned` it before it knew that."""
        asked = question.content
        if asked.get("abandoned") and self.current is not None and self._mark == asked["mark"]:
            self.current.interrupt()
        for each in list(self._waiting):
            if each.content.get("mark") == question.content["mark"]:
                self._waiting.remove(each)
                each.refuse(
                    RankroomError(INTERRUPTED_BEFORE_START)
                )  # the client may still wait for a reply
        question.answer()

    def _follow(self, question: Question) -> None:
        """Reply with the run in progress, or the one that is named, and send the client its
        changes until its record is closed."""
        wanted = question.content.get("run")
        # A run that is named may have just ended.
        recorder = self._current if wanted else self.current
        if recorder is None or wanted not in (None, recorder.id):
            question.answer(run=None)
            return
        if not recorder.is_closed:
            self._followers.setdefault(recorder.id, set()).add(question.peer)
        if wanted:
            self._server.tell(question.peer, do="run", run=recorder.info.to_json())
        question.answer(run=recorder.info.to_json())

    def current_or_raise(self, named: str | None, words: str = "") -> Recorder | None:
        """Return the run in progress. Raises RunOverError, with `words`, if the client names
        another one: that has ended since, and the present run is not what the client means."""
        recorder = self.current
        if named is not None and (recorder is None or recorder.id != named):
            raise RunOverError((words or RUN_OVER).format(run=named))
        return recorder

    def _interrupt(self, question: Question) -> None:
        recorder = self.current_or_raise(question.content.get("run"))
        # Cells that still wait for their ranks are not part of a run that is named.
        if question.content.get("run") is None:
            for waiting in self._waiting:
                waiting.refuse(RankroomError(INTERRUPTED_BEFORE_START))
            self._waiting.clear()
        if self.is_ending:
            question.answer()
            return
        if recorder is None:
            # Ranks may run code of other clients of ipyparallel's controller. A rank that is
            # starting gets no signal: that would end it.
            sent = self._connections.signal(self._connections.ranks, "SIGINT")
            # Reply once it is sent: it must not hit the next cell.
            self._call_when(
                lambda: all(each.done() for each in sent), SIGNAL_TIMEOUT_S, question.answer
            )
            return
        recorder.interrupt()
        self._call_when(lambda: recorder.wait(0), INTERRUPT_TIMEOUT_S, question.answer)

    def _release(self, question: Question) -> None:
        recorder = self.current_or_raise(question.content.get("run"))
        if recorder is None:
            raise UsageError("no rank is running a cell: there is nothing to release")
        asked = recorder.release()

        def answer() -> None:
            names = {
                name
                for future in asked
                if future.done() and not future.exception()
                for name in future.result().get("released", ())
            }
            words = RELEASED if names else NOTHING_WAITS
            text = words.format(names=", ".join(sorted(names)), cluster=self._info.name)
            question.answer(text=text)

        self._call_when(lambda: all(future.done() for future in asked), RELEASE_TIMEOUT_S, answer)

    def _elastic(self, question: Question) -> None:
        """Note that a rank has the state of an elastic run, or has left `hvd.elastic.run`."""
        asked = question.content
        if self.current is not None and self.current.id == asked["run"]:
            self.current.note_elastic(asked["rank"], asked["inside"])
        question.answer()

    def _answer_ranks(self, question: Question) -> None:
        """Send a user's answer to the ranks that prompt for it; reply with those that took it."""
        content = question.content
        recorder = self.current_or_raise(content.get("run"), RUN_OVER_NO_PROMPTS)
        if recorder is None:
            raise UsageError(NOT_ASKED)
        prompts = {int(rank): number for rank, number in content["prompts"].items()}
        asked = recorder.answer(content["text"], prompts)

        def answer() -> None:
            said = {r: each for r, each in asked.items() if each.done() and not each.exception()}
            question.answer(ranks=[r for r, each in said.items() if each.result()["taken"]])

        self._call_when(
            lambda: all(each.done() for each in asked.values()), PROMPT_ANSWER_TIMEOUT_S, answer
        )

    def _complete(self, question: Question) -> None:
        """Ask a rank in the debugger for completions of a line that is still being typed."""
        content = question.content
        about = {"prompt": content["prompt"], "text": content["text"]}
        asked = self._connections.request([content["rank"]], do="complete", **about)

        def answer() -> None:
            known = [each.result() for each in asked if each.done() and not each.exception()]
            found = known[0] if known else {}
            question.answer(begin=found.get("begin", 0), matches=found.get("matches", []))

        self._call_when(lambda: all(each.done() for each in asked), COMPLETION_TIMEOUT_S, answer)

    def _forget(self, question: Question) -> None:
        """Remove the record of a run that does not come from a cell of the user."""
        run = question.content["run"]
        if self.current is None or self.current.id != run:
            if self._current is not None and self._current.id == run:
                self._current = None
            self._late.forget(run)
            self._unclosed.discard(run)
            shutil.rmtree(self._store.paths(run).folder, ignore_errors=True)
        question.answer()

    # -- internals

    def _call_when(
        self, holds: Callable[[], bool], seconds: float, call: Callable[[], None]
    ) -> None:
        """Call `call()` as soon as `holds()`, or after `seconds`. Starts no thread: when it
        matters, none may be available."""
        until = time.monotonic() + seconds

        def look() -> None:
            if holds() or time.monotonic() >= until:
                call()
            else:
                self._server.later(POLL_INTERVAL_S, look)

        look()

    def are_ready(self, ranks: list[int], waited: float = 0.0) -> bool:
        """Return whether all of these ranks can run a cell; False while some are starting.

        Raises NoClusterError for ranks that are down, or still absent after `waited` seconds when
        that exceeds their timeout.
        """
        absent = sorted(set(ranks) - set(self._connections.ranks))
        new = {*absent} - self._connections.known - {*map(int, self._info.exits)}
        starting = new | ({*absent} & {*self._info.starting})
        down = [r for r in absent if str(r) in self._info.exits and r not in starting]
        if not absent:
            # A rank that is about to be restarted is still connected.
            return not {*ranks} & {*self._info.starting}
        if not down and waited < (
            start_limit.seconds(self._info) if starting else CONNECT_TIMEOUT_S
        ):
            return False
        down = down or absent
        how = f"rank {down[0]} {self._info.exits.get(str(down[0]), 'no longer answers')}"
        if many := len(down) > 1:
            how = f"{name_ranks(down)} are down ({how})"
        remedy = REMEDY_OF_MANY if many else REMEDY
        raise NoClusterError(f"{how}: {remedy.format(ranks=format_ranks(down))}")

    def starting(self, ranks: list[int]) -> list[int]:
        """Return which of these ranks are starting. Raises NoClusterError if ranks are down."""
        if self.are_ready(ranks):
            return []
        there = {*self._connections.ranks} - {*self._info.starting}
        return sorted({*ranks} - there)

    def demand_idle(self, ranks: list[int], asked: dict[str, Any]) -> None:
        """Raise RankroomError if the run in progress has not ended on one of these ranks: until
        then, its main thread can do nothing else."""
        recorder = self.current
        if recorder is not None and {*ranks} & {*recorder.running}:
            raise RankroomError(CLUSTER_BUSY.format(name=self._info.name, whose=self._whose(asked)))

    def _whose(self, asked: dict[str, Any]) -> str:
        by, other = self._by, _client(asked)
        if by == other:
            return "this notebook"
        if by.host != other.host:
            return f"another process (pid {by.pid} on {by.host})"
        return "a process that has ended" if is_gone(by) else f"another process (pid {by.pid})"

    def _info_of(self, ranks: list[int], asked: dict[str, Any]) -> RunInfo:
        start = time.time_ns() // 1000
        places = self._places()
        told = [places[rank] for rank in ranks]
        clocks = self._clocks.of(told)
        for place in told:
            place.state, place.clock = "running", clocks.get(place.rank)
        return RunInfo(
            id=new_id(start),
            cluster=self._info.name,
            size=self._info.size,
            start=start,
            ranks=told,
            title=title_of(asked["source"]),
            name=asked["name"],
            notes=[
                *asked["notes"],
                *self._restarted(ranks, asked["restarts"]),
                *self._limit.news(self._info.allocation),
            ],
            compare=asked.get("compare", []),
            owner=this_process(),
            client=Client(asked["host"], asked["pid"]),
        )

    def _restarted(self, ranks: list[int], told: dict[str, int]) -> list[str]:
        """Return notes on ranks that were restarted more often than the client was `told`."""
        alike: dict[str, list[int]] = {}  # ranks by cause
        for rank in ranks:
            known = max(told.get(str(rank), 0), self._rejoined.get(rank, 0))
            if self._info.restarts.get(str(rank), 0) > known:
                alike.setdefault(self._info.past.get(str(rank), ""), []).append(rank)
        return [restarted_words(those, why) for why, those in alike.items()]

    def _told(self, recorder: Recorder, settle: bool, epoch: int) -> None:
        """Send a changed run.json to the run's followers, and note its end if it is over, once."""
        info = recorder.info
        if recorder.is_over and info.id not in self._unclosed:
            self._answer(recorder)  # the client may still wait for the reply
            self._note_end(recorder, settle, epoch)
        for peer in list(self._followers.get(info.id, ())):
            self._server.tell(peer, do="run", run=info.to_json())
        if recorder.is_closed:
            self._followers.pop(info.id, None)
            self._unclosed.discard(info.id)
        elif recorder.is_over:
            self._unclosed.add(info.id)
        if recorder.is_over:
            self._changed(info.id, info.state)

    def _note_end(self, recorder: Recorder, settle: bool, epoch: int) -> None:
        whole = len(recorder.info.ranks) == recorder.info.size
        well = recorder.info.state == "done" and (not settle or whole)
        self._in_step = well and not recorder.was_released
        if self._in_step and settle:
            self._settled = epoch
        self._late.follow(recorder)
        if not self.is_ending:
            self._server.later(PREPARE_RECORD_DELAY_S, self._store.prepare)


def restarted_words(ranks: list[int], why: str = "") -> str:
    """Return the note on ranks that were restarted; `why` is how each of them ended before."""
    many = len(ranks) > 1
    after = f" after {'each' if many else 'it'} {why}" if why else ""
    return (
        f"{name_ranks(ranks)} {'were' if many else 'was'} restarted{after}: {VARIABLES_GONE[many]}"
    )


def _client(asked: dict[str, Any]) -> Owner:
    """Return the process that sent a request."""
    return Owner(asked["host"], asked["pid"], asked.get("space", ""), asked.get("began", 0))


CLUSTER_BUSY = "cluster {name} is busy with a run of {whose}: wait for it or interrupt it"
VARIABLES_GONE = {False: "its variables are gone", True: "their variables are gone"}
INTERRUPTED_BEFORE_START = "the cell was interrupted before its ranks were ready: it has not run"
RUN_OVER = "run {run} is over: there is nothing left to act on"
RUN_OVER_NO_PROMPTS = "run {run} is over: none of its ranks is waiting for an answer"
CLUSTER_ENDING = "cluster {name} is ending: {why}; `%cluster start` starts a new one"
REMEDY = "`%cluster restart --ranks {ranks}` restarts it, without its variables"
REMEDY_OF_MANY = "`%cluster restart --ranks {ranks}` restarts them, without their variables"
RELEASED = "released {names} on the ranks of {cluster}"
NOTHING_WAITS = (
    "no rank of {cluster} is waiting in a collective or for an answer: there is nothing to release"
)
