"""A run as one page of HTML, for people without Rankroom: it needs no server and no network.

The page holds JupyterLab's view of a run (extension/src/page) and the record, and shows logs,
metrics, timeline and profile as the notebook does. Its content security policy lets the browser run
only that script and load nothing, whatever the ranks' outputs contain.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankroom import __version__
from rankroom.analysis.export import compressed
from rankroom.display.bundle import bundle
from rankroom.display.text import clean
from rankroom.errors import RankroomError, RecordError, UsageError
from rankroom.record.download import log_text
from rankroom.record.model import Json, RunInfo
from rankroom.record.store import Store

if TYPE_CHECKING:
    from rankroom.analysis.metrics.metrics_of_run import Metrics

SCRIPT = Path(__file__).parent.parent / "labextension" / "page.js"
_PIECE = 1 << 20  # bytes read at once
_MAX_METRICS = 100  # metrics of which the page holds curves
_MAX_REPLIES = 8  # it holds no more curves than fit into this many of the server's replies
_MAX_LISTED_METRICS = 5  # metrics that are listed of a run with none of those
_AXES: tuple[Literal["step", "time"], ...] = ("step", "time")


def run_page(store: Store, run: RunInfo) -> Iterator[bytes]:
    """Return the page in pieces. Raises UsageError for a run that is still running, RankroomError
    if the extension was not built."""
    if run.state == "running":
        raise UsageError(f"run {run.id} is still running: export its page when it has ended")
    try:
        # Nothing in the script may look like the end of its own element.
        script = SCRIPT.read_text("utf-8").replace("</script", "<\\/script")
    except OSError as error:
        raise RankroomError(NO_SCRIPT.format(path=SCRIPT, error=error.strerror)) from None
    return _pieces(store, run, script, _head(store, run, script))


def _pieces(store: Store, run: RunInfo, script: str, head: str) -> Iterator[bytes]:
    yield head.encode()
    for part, data in _parts(store, run):
        yield f'<script type="text/plain" id="part-{part}">'.encode()
        yield from _base64(compressed(data))
        yield b"</script>\n"
    yield b"<script>" + script.encode() + b"</script>\n</body></html>\n"


def _head(store: Store, run: RunInfo, script: str) -> str:
    name = clean(run.name or run.title or run.id)
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start / 1e6))
    cell = ""
    with contextlib.suppress(RecordError):  # an imported trace has none
        cell = _CELL.format(source=html.escape(clean(store.source(run.id))))
    return _HEAD.format(
        seal=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        id=html.escape(run.id),
        name=html.escape(name),
        about=html.escape(f"{run.id} · {began} · Rankroom {__version__}"),
        cell=cell,
        # For browsers without scripts, and until the view has loaded.
        summary=bundle(run, store)["text/html"],
    )


def _parts(store: Store, run: RunInfo) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield the server's replies about the run, by the names that extension/src/page uses."""
    # These load NumPy.
    from rankroom.analysis.collectives import CATEGORY, Collectives
    from rankroom.analysis.export import chrome_json
    from rankroom.analysis.profile.of_run import profile_of, stored_overview
    from rankroom.analysis.timeline import Timeline

    paths = store.paths(run.id)
    together = Collectives(Timeline.read(run, paths.events, only=CATEGORY))
    yield "run", [_json(run.to_json())]
    yield "events", _contents(paths.events)
    yield "log", log_text(store.events(run.id))
    yield "profile", [_json(profile_of(store, run).to_json())]
    yield "collectives", [_json(together.to_json())]
    yield "overview", [stored_overview(paths)]
    yield "trace", chrome_json(store, run.id)
    yield from _curves(store, run)


def _curves(store: Store, run: RunInfo) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield curves along steps and along time, of as many metrics as the page has room for."""
    from rankroom.analysis.metrics.curve_answer import CurveRequest, curve_reply
    from rankroom.analysis.metrics.metrics_of_run import metrics_of

    curves = metrics_of(store.paths(run.id), run)
    names = _few(curves.metrics, [*curves.metrics.curves][:_MAX_METRICS])
    for axis in _AXES:
        said = curve_reply(curves, CurveRequest(axis, names=names), run.state)
        yield f"metrics_{axis}", [_json(_with_names(said, said["names"][: len(names)]))]
    for number, run_id in enumerate(run.compare if names else (), 1):
        with contextlib.suppress(RecordError):  # it was removed, and the view says so
            other = store.load(run_id)
            curves = metrics_of(store.paths(run_id), other)
            yield f"run_{number}", [_json(other.to_json())]
            shared = _few(curves.metrics, [each for each in names if each in curves.metrics.curves])
            for axis in _AXES:
                said = curve_reply(curves, CurveRequest(axis, names=shared or names), other.state)
                kept = [each for each in said["names"] if each["name"] in shared]
                told = said | {"names": kept or said["names"][:_MAX_LISTED_METRICS]}
                yield f"metrics_{axis}_{number}", [_json(told)]


def _few(metrics: Metrics, names: list[str]) -> tuple[str, ...]:
    """Return as many of these names as fit, with the curves of all ranks; at least the first."""
    from rankroom.analysis.metrics.curve_answer import CURVES_AT_ONCE

    counts = accumulate(len(metrics.curves[name]) for name in names)
    return tuple(names[: max(1, sum(count <= _MAX_REPLIES * CURVES_AT_ONCE for count in counts))])


def _with_names(said: Json, names: list[Json]) -> Json:
    """Return a reply with only these names, and a note on how many there are."""
    count = len(said["names"])
    more = [MORE.format(names=len(names), count=count)] if len(names) < count else []
    return said | {"names": names, "notes": [*more, *said["notes"]]}


def _json(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _contents(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield base64.b64encode(data[:whole])
    yield base64.b64encode(rest)


NO_SCRIPT = "cannot read the page's script {path}: {error}; build it with `make lab`"
MORE = "this page has {names:,} of the run's {count:,} metrics; run.metrics() returns all of them"
_CELL = "<details><summary>the cell</summary><pre>{source}</pre></details>"
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none';
 form-action 'none'; script-src 'sha256-{seal}'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{name}</title></head>
<body data-run="{id}">
<header><h1>{name}</h1><p>{about}</p>{cell}</header>
<main id="run"><div id="summary">{summary}</div></main>
"""
