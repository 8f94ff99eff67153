"""The state of a cluster and its runs, sent to all subscribers as soon as it changes."""

from __future__ import annotations

import dataclasses
from functools import partial

from rankroom.record.cluster_file import ClusterInfo
from rankroom.rpc.server import Question, Server

MAX_REPLY_DELAY_S = 20.0  # between two messages to a subscriber, if nothing changes


class News:
    """Answers the request "news": the state of the cluster, and the states of the runs that have
    changed since the version that is `known`."""

    def __init__(self, info: ClusterInfo, server: Server) -> None:
        self._info = info
        self._server = server
        self._version = 0  # of the state; the requests in `_waiting` wait for another one
        # By run: its state and since which version; the one that changed last comes last.
        self._runs: dict[str, tuple[str, int]] = {}
        self._waiting: list[Question] = []

    def take(self, question: Question) -> bool:
        """Answer a request at once if it knows another version, else with the next version.

        In the server's thread. Returns False if the request is of another kind.
        """
        if question.content["do"] != "news":
            return False
        self._waiting.append(question)
        if question.content["known"] != self._version:
            self._tell()
        else:
            self._server.later(MAX_REPLY_DELAY_S, partial(self._tell_at_last, question))
        return True

    def note(self) -> None:
        """Note that something has changed; from any thread."""
        self._server.call(self._tell_new)

    def note_run(self, run: str, state: str) -> None:
        """Note that a run has begun or ended; in the server's thread."""
        self._runs.pop(run, None)
        self._runs[run] = state, self._version + 1
        self._tell_new()

    def _tell_new(self) -> None:
        self._version += 1
        self._tell()

    def _tell_at_last(self, question: Question) -> None:
        """Answer a request that has waited for a period, unless there was news meanwhile."""
        if question in self._waiting:
            self._tell()

    def _tell(self) -> None:
        if self._waiting:
            told = dataclasses.asdict(self._info) | {"rpc": "", "rpc_key": ""}
            for each in self._waiting:
                runs = self._changed_since(each.content["known"])
                each.answer(version=self._version, cluster=told, runs=runs)
            self._waiting.clear()

    def _changed_since(self, known: int) -> dict[str, str]:
        new = []
        for run, (state, version) in reversed(self._runs.items()):
            if version <= known:
                break  # the rest is older, and may be thousands
            new.append((run, state))
        return dict(reversed(new))
