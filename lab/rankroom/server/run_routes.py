"""The records of runs over HTTP, and the actions on a live run that is stuck."""

from __future__ import annotations

import asyncio
import functools
import math
import re
from typing import TYPE_CHECKING

from tornado.web import HTTPError

from rankroom import __version__
from rankroom.cluster import actions
from rankroom.errors import UsageError
from rankroom.record import model
from rankroom.record.compared import with_metrics
from rankroom.record.download import log_text
from rankroom.record.model import RunInfo
from rankroom.record.tail import READ_LIMIT_BYTES
from rankroom.server.handler import PLAIN_TEXT, Handler, allowed
from rankroom.text.rank_ranges import name_ranks, parse_ranks

if TYPE_CHECKING:  # importing it loads NumPy, which most servers never need
    from rankroom.analysis.metrics.curve_answer import CurveRequest

# A proxy in front may cut off idle requests after a minute; a browser asks again anyway.
MAX_WAIT_S = 50.0
MAX_CHUNK_BYTES = 16 * READ_LIMIT_BYTES
GZIP = "application/gzip"
MAX_METRIC_NAMES = 1000  # of metrics in one request


class Version(Handler):
    @allowed
    async def get(self) -> None:
        self.finish({"version": __version__, "record": model.VERSION})


class Runs(Handler):
    """The newest runs; with `metrics=1`, only those of them that have metrics."""

    @allowed
    async def get(self) -> None:
        limit = int(self.number("limit", 100, 10_000))
        if self.get_query_argument("metrics", ""):
            runs = await asyncio.to_thread(with_metrics, self.store, limit)
        else:
            runs = await asyncio.to_thread(self.store.newest, limit)
        self.finish({"runs": [run.to_json() for run in runs]})


class OneRun(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        self.finish(run.to_json())


class Events(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        after = int(self.number("after", 0, 2**53))
        limit = int(self.number("limit", READ_LIMIT_BYTES, MAX_CHUNK_BYTES))
        wait = self.number("wait", 0, MAX_WAIT_S)
        tail = await asyncio.to_thread(self.store.tail, run_id, after)
        known = self.get_query_argument("changed", "") or None
        chunk = await tail.next(max(limit, 1), wait, lambda: self.gone, known)
        self.set_header("X-Rankroom-Next", str(chunk.next))
        self.set_header("X-Rankroom-State", chunk.state)
        self.set_header("X-Rankroom-Size", str(chunk.size))
        self.set_header("X-Rankroom-Changed", chunk.changed)
        self.finish(chunk.data, set_content_type="application/x-ndjson")


class Log(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        asked = self.get_query_argument("rank", "")
        ranks = set(parse_ranks(asked, run.size)) if asked else None
        events = await asyncio.to_thread(self.store.events, run_id)
        await self.download(f"{run.id}.log", PLAIN_TEXT, log_text(events, ranks))


class Trace(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        from rankroom.analysis.export import chrome_json, compressed

        run = await asyncio.to_thread(self.store.load, run_id)
        pieces = compressed(chrome_json(self.store, run_id))
        await self.download(f"{run.id}.trace.json.gz", GZIP, pieces)


class Profile(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        # With the state, as what was computed before the end must not be taken for the whole.
        what = f"profile {run_id} {run.state}"
        found = await self.threads.look(what, lambda: self.profiles.of(run))
        self.finish(found.to_json())


class Overview(Handler):
    """A coarse timeline of a long run; empty for a run that is short or live."""

    @allowed
    async def get(self, run_id: str) -> None:
        from rankroom.analysis.profile.of_run import stored_overview

        def read() -> bytes:
            self.store.load(run_id)
            return stored_overview(self.store.paths(run_id))

        lines = await asyncio.to_thread(read)
        self.finish(lines, set_content_type="application/x-ndjson")


class Metrics(Handler):
    """Curves of metrics, by the arguments `axis`, `from`, `to`, `points`, `name` (repeated)."""

    @allowed
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        asked = await asyncio.to_thread(self._asked)
        what = f"metrics {run_id} {run.state} {asked}"
        found = await self.threads.look(what, lambda: self.curves.of(run, asked))
        self.finish(found, set_content_type="application/json")

    def _asked(self) -> CurveRequest:
        from rankroom.analysis.metrics import curve_answer

        axis = self.get_query_argument("axis", "step")
        if axis != "step" and axis != "time":
            raise HTTPError(400, f"axis={axis!r}: give step or time")
        names = tuple(self.get_query_arguments("name", strip=False)[:MAX_METRIC_NAMES])
        points = int(self.number("points", curve_answer.DEFAULT_POINTS, curve_answer.MAX_POINTS))
        begin, end = self._place("from"), self._place("to")
        return curve_answer.CurveRequest(axis, begin, end, max(points, 2), names)

    def _place(self, name: str) -> float | None:
        """Return a position on the axis, or None if not given. A bad one is answered with 400."""
        text = self.get_query_argument(name, "")
        try:
            value = float(text) if text else None
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            raise HTTPError(400, f"{name}={text!r}: give a number")
        return value


class Collectives(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        look = functools.partial(self.profiles.collectives, run)
        # With its state: as a run ends, what is computed from the live one must not be shared.
        found = await self.threads.look(f"collectives {run_id} {run.state}", look)
        self.finish(found, set_content_type="application/json")


class Source(Handler):
    @allowed
    async def get(self, run_id: str) -> None:
        source = await asyncio.to_thread(self.store.source, run_id)
        self.finish(source, set_content_type=PLAIN_TEXT)


class LiveRunHandler(Handler):
    """An action on a live run, from an interrupt to a restart of its ranks."""

    def live(self, run_id: str) -> RunInfo:
        """Return the run, if it is in progress; reads files. Raises RunOverError."""
        return actions.running_run(self.store, run_id)


class Interrupt(LiveRunHandler):
    @allowed
    async def post(self, run_id: str) -> None:
        await self.threads.run(lambda: actions.interrupt(self.live(run_id).cluster, run_id))
        self.finish({"message": "every rank was sent an interrupt"})


class Release(LiveRunHandler):
    @allowed
    async def post(self, run_id: str) -> None:
        said = await self.threads.run(lambda: actions.release(self.live(run_id).cluster, run_id))
        self.finish({"message": said})


class Prompted(LiveRunHandler):
    """A request about prompts of ranks, which `prompts` of its body names as rank:number,…"""

    def line(self) -> tuple[str, dict[int, int]]:
        """Return what was typed, and the numbers of the prompts that it is for, by rank. A bad body
        is answered with 400."""
        said = self.words()
        if "text" not in said or not _PROMPTS.fullmatch(said.get("prompts", "")):
            raise HTTPError(400, 'the body must be {"text": …, "prompts": "2:7,3:9"}')
        return said["text"], {int(r): int(n) for r, n in _PROMPT.findall(said["prompts"])}


class Answer(Prompted):
    @allowed
    async def post(self, run_id: str) -> None:
        text, prompts = self.line()
        taken = await self.threads.run(lambda: actions.answer(self.live(run_id), text, prompts))
        self.finish({"message": f"{name_ranks(taken)} took the answer"})


class Complete(Prompted):
    """Completions of a line for a debugger, by the rank of the first of the prompts."""

    @allowed
    async def post(self, run_id: str) -> None:
        text, prompts = self.line()
        rank, prompt = next(iter(prompts.items()))
        begin, matches = await self.threads.run(
            lambda: actions.complete(self.live(run_id), text, rank, prompt)
        )
        self.finish({"begin": begin, "matches": matches})


class Restart(LiveRunHandler):
    @allowed
    async def post(self, run_id: str) -> None:
        text = self.get_query_argument("rank", "")
        self.finish({"message": await self.threads.run(lambda: self._restart(run_id, text))})

    def _restart(self, run_id: str, text: str) -> str:
        run = self.live(run_id)
        if not text:
            raise UsageError("name the rank to restart: restart?rank=2")
        ranks = parse_ranks(text, run.size)
        actions.restart_and_wait(run.cluster, ranks, run.id)
        were = "were" if len(ranks) > 1 else "was"
        return f"{name_ranks(ranks)} {were} restarted, without variables"


class Stacks(LiveRunHandler):
    @allowed
    async def get(self, run_id: str) -> None:
        stacks = await self.threads.run(lambda: actions.stacks(self.live(run_id).cluster))
        self.finish({"stacks": {str(rank): text for rank, text in stacks.items()}})


_PROMPT = re.compile(r"(\d{1,9}):(\d{1,9})")
_PROMPTS = re.compile(rf"{_PROMPT.pattern}(?:,{_PROMPT.pattern})*")
_RUN = r"rankroom/runs/([^/]+)"
# Read-only routes: they serve any store, also that of the runs that a teacher shows.
READ_ONLY_ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/runs", Runs),
    (_RUN, OneRun),
    (_RUN + "/events", Events),
    (_RUN + "/log", Log),
    (_RUN + "/trace", Trace),
    (_RUN + "/profile", Profile),
    (_RUN + "/overview", Overview),
    (_RUN + "/metrics", Metrics),
    (_RUN + "/collectives", Collectives),
    (_RUN + "/source", Source),
]
ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/version", Version),
    *READ_ONLY_ROUTES,
    (_RUN + "/stacks", Stacks),
    (_RUN + "/interrupt", Interrupt),
    (_RUN + "/release", Release),
    (_RUN + "/answer", Answer),
    (_RUN + "/complete", Complete),
    (_RUN + "/restart", Restart),
]
