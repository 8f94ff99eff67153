"""The routes, over HTTP, on a real Jupyter server."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from made_up_clusters import NAMES
from rankroom.analysis import overview
from rankroom.analysis.metrics.metrics_of_run import write_metrics
from rankroom.analysis.profile.of_run import write_profile
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import Hang, event_line
from rankroom.record.owner import this_process
from rankroom.record.store import Store
from record_makers import finished_record, gone_process, log, make_run, snapshot, start_record
from served import BASE, TOKEN, Reply, Server, serve

AT_ONCE_S = 5.0  # for a reader that may wait ten times as long; enough on a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("server"), "made_up_clusters.py") as started:
        yield started


def test_the_version_route_returns_the_record_version(server: Server):
    reply = server.get("rankroom/version")
    assert reply.status == 200
    assert reply.json["record"] == 1


def test_every_route_refuses_requests_without_a_valid_token(server: Server):
    from rankroom.server import ROUTES

    _, run, writer = start_record(server.home, cluster="fine")
    writer.append(log(0, "hi\n"))
    asked = 0
    for pattern, handler in ROUTES:
        path = pattern.replace("([^/]+)", "local" if "/sites/" in pattern else run.id)
        path += "?rank=1" if "runs" in path and path.endswith("restart") else ""
        for method in (m for m in (server.get, server.post) if m.__name__ in vars(handler)):
            # No cluster can be started with this body, and none has the run's id as its name.
            body = b'{"ranks": "none", "text": "c", "prompts": "0:1"}'
            more = {"data": body} if method == server.post else {}
            # Nor is there a workshop; only the learner's own view is answered, and says so.
            absent = re.search("clusters/|questions/|workshop(?!/own)", path) or (
                method == server.post and path.endswith("clusters")
            )
            assert method(path, **more).status in ((400, 410) if absent else (200,)), path
            acted = server.acted
            for token in (None, "wrong"):
                reply = method(path, token=token, **more)
                assert reply.status in (401, 403), path
                assert set(json.loads(reply.body)) == {"message"}
                assert b"hi" not in reply.body
                assert server.acted == acted
                asked += 1
    assert asked > 2 * len(ROUTES)  # some have two methods
    assert {each.name for each in (server.home / "clusters").iterdir()} == {*NAMES}
    writer.close()


def test_a_collaborator_who_may_only_read_changes_nothing(tmp_path: Path):
    """Every route asks the server's authorizer: only requests that read are answered."""
    from rankroom.server import ROUTES
    from rankroom.server.question_routes import Questions

    with serve(tmp_path, "read_only_server.py") as server:
        _, run, writer = start_record(server.home)
        asked = server.home.with_name("asked")
        for pattern, handler in ROUTES:
            path = pattern.replace("([^/]+)", "local" if "/sites/" in pattern else run.id)
            before = asked.read_text().splitlines()
            if "get" in vars(handler):
                assert server.get(path).status in (200, 400, 410), path
            acted = server.acted
            if "post" in vars(handler):
                reply = server.post(path, {"ranks": "1"})
                assert (reply.status, server.acted) == (403, acted), path
                assert "not authorized to write" in reply.json["message"]
            verbs = [("get", "read"), ("post", "write")]
            expected = [f"{action} rankroom" for verb, action in verbs if verb in vars(handler)]
            if handler is Questions:  # shown only to users who may answer
                expected.append("write rankroom")
            assert asked.read_text().splitlines()[len(before) :] == expected
        assert sorted(each.name for each in (server.home / "clusters").iterdir()) == sorted(NAMES)
        writer.close()


def test_runs_come_newest_first(server: Server):
    made = [finished_record(server.home)[1].id for _ in range(3)]
    found = [run["id"] for run in server.get("rankroom/runs?limit=3").json["runs"]]
    assert found == made[::-1]


def test_a_profile_is_computed_while_live_and_read_from_file_once_stored(server: Server):
    store, run, writer = start_record(server.home)
    path = f"rankroom/runs/{run.id}/profile"
    assert server.get(path).json["kinds"] == []
    writer.append(collectives(0, 0, 3))
    assert server.get(path).json["kinds"][0]["calls"] == 3
    writer.append(collectives(0, 3, 2))
    assert server.get(path).json["kinds"][0]["calls"] == 5
    # A partial line does not count until the rest arrives.
    line = collectives(0, 5, 1)
    with store.paths(run.id).events.open("ab") as events:
        events.write(line[:40])
    assert server.get(path).json["kinds"][0]["calls"] == 5
    with store.paths(run.id).events.open("ab") as events:
        events.write(line[40:])
    assert server.get(path).json["kinds"][0]["calls"] == 6
    run.state, run.end = "done", run.start + 1_000_000
    writer.finish(run)
    assert server.get(path).json["kinds"][0]["calls"] == 6
    # Reading does not write the profile; once written, the stored one is returned.
    file = store.paths(run.id).profile
    assert not file.exists()
    write_profile(store, run)
    kept = json.loads(file.read_text())
    kept["diagnosis"] = "kept"
    file.write_text(json.dumps(kept))
    assert server.get(path).json["diagnosis"] == "kept"


def test_a_long_run_has_an_overview_once_it_is_over(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    store, run, writer = start_record(server.home)
    path = f"rankroom/runs/{run.id}/overview"
    writer.append(collectives(0, 0, 3) + collectives(1, 0, 3))
    assert server.get(path).body == b""
    run.state, run.end = "done", run.start + 1_000_000
    writer.finish(run)
    assert server.get(path).body == b""
    monkeypatch.setattr(overview, "MIN_SPANS", 6)
    write_profile(store, run)
    head, *lanes = map(json.loads, server.get(path).body.splitlines())
    assert head["spans"] == 6
    assert [(lane["rank"], lane["cat"]) for lane in lanes] == [(0, "collective"), (1, "collective")]
    assert server.get("rankroom/runs/none/overview").status == 404


def metrics(rank: int, first: int, count: int) -> bytes:
    """Return `count` points of a loss, as a line of a record."""
    more = {"from": 0, "define": ["loss"]} if not first else {}
    columns = {
        "name": [0] * count,
        "step": list(range(first, first + count)),
        "at": [1_000 * first] + [1_000] * (count - 1),
        "value": [1 / (1 + step) for step in range(first, first + count)],
    }
    return event_line("metrics", rank, first, 0, **more, **columns)


def test_metrics_grow_with_a_live_run_and_report_its_end(server: Server):
    store, run, writer = start_record(server.home)
    path = f"rankroom/runs/{run.id}/metrics"
    said = server.get(path).json
    assert (said["state"], said["names"], said["curves"]) == ("running", [], [])
    writer.append(metrics(0, 0, 3) + metrics(1, 0, 3))
    assert [len(each["x"]) for each in server.get(path).json["curves"]] == [3, 3]
    writer.append(metrics(0, 3, 5_000))
    said = server.get(f"{path}?points=100&axis=time&from=0&to=2e6").json
    assert said["exact"] and [len(each["x"]) for each in said["curves"]] == [100, 3]
    assert said["curves"][0]["x"][0] >= 0 and said["curves"][0]["x"][-1] <= 2e6
    run.state, run.end = "done", run.start + 6_000_000
    writer.finish(run)
    write_metrics(store, run)
    assert server.get(path).json["state"] == "done"


def test_a_part_of_a_long_curve_is_read_from_the_events(server: Server):
    _, run = finished_record(server.home, metrics(0, 0, 50_000))
    write_metrics(Store(server.home), run)
    path = f"rankroom/runs/{run.id}/metrics"
    whole = server.get(path).json
    assert whole["exact"] is False and sum(whole["curves"][0]["count"]) == 50_000
    part = server.get(f"{path}?from=1000&to=1009").json
    assert part["exact"] and part["curves"][0]["x"] == list(range(1000, 1010))
    assert part["curves"][0]["mean"][0] == 1 / 1001


def test_the_metrics_filter_lists_only_runs_with_metrics(server: Server):
    store, run = finished_record(server.home, metrics(0, 0, 3))
    write_metrics(store, run)
    _, other = finished_record(server.home)
    listed = {each["id"] for each in server.get("rankroom/runs").json["runs"]}
    assert {run.id, other.id} <= listed
    listed = {each["id"] for each in server.get("rankroom/runs?metrics=1").json["runs"]}
    assert run.id in listed and other.id not in listed


def test_metrics_allow_unusual_names_and_refuse_invalid_queries(server: Server):
    fields = {"define": ["a,b", "ü/€", "c"], "name": [0, 1, 2], "step": [0, 0, 0]}
    line = event_line("metrics", 0, 1, 1, **fields, at=[1, 1, 1], value=[1, 2, "NaN"])
    _, run = finished_record(server.home, line)
    path = f"rankroom/runs/{run.id}/metrics"
    said = server.get(f"{path}?name=a%2Cb&name=%C3%BC%2F%E2%82%AC&name=none").json
    assert [each["name"] for each in said["curves"]] == ["a,b", "ü/€"]
    assert [each["name"] for each in said["names"]] == ["a,b", "ü/€", "c"]
    assert said["notes"] == ["c is NaN on rank 0 since step 0"]
    assert server.get(f"{path}?from=5&to=1&points=1e9").json["curves"][0]["x"] == []
    for wrong in ("axis=mood", "from=x", "to=nan", "points=-1", "from=inf"):
        reply = server.get(f"{path}?{wrong}")
        assert reply.status == 400 and set(reply.json) == {"message"}, wrong
    assert server.get("rankroom/runs/none/metrics").status == 404


def test_collectives_are_served_during_a_run_and_after_its_end(server: Server):
    _, run, writer = start_record(server.home)
    path = f"rankroom/runs/{run.id}/collectives"
    assert server.get(path).json["key"] == []
    writer.append(collectives(0, 0, 3) + collectives(1, 0, 2))
    found = server.get(path).json
    assert found["keys"] == [{"library": "own", "group": "", "op": "allreduce", "tensor": "x"}]
    assert [(each["rank"], each["of"]) for each in found["calls"]] == [(0, [0, 1, 1]), (1, [0, 1])]
    assert found["calls"][0]["check"] == 1_000 ^ 2_000 ^ 3_000
    writer.append(collectives(1, 2, 1))
    run.state, run.end = "done", run.start + 1_000_000
    writer.finish(run)
    assert [len(each["of"]) for each in server.get(path).json["calls"]] == [3, 3]


def collectives(rank: int, first: int, count: int) -> bytes:
    """Return `count` calls of one allreduce, as a line of a record."""
    name = {"name": "allreduce x", "op": "allreduce", "tensor": "x", "library": "own"}
    more = {"from": 0, "define": [name]} if not first else {}
    starts = [1_000 * (first + 1)] + [1_000] * (count - 1)
    columns = {"name": [0] * count, "start": starts, "dur": [500] * count}
    return event_line("spans", rank, first, 0, cat="collective", **more, **columns)


def test_a_timeline_is_downloaded_as_a_gzipped_trace(server: Server):
    fields = {"cat": "cell", "define": [{"name": "x = 1"}], "name": [0], "start": [5], "dur": [7]}
    _, run = finished_record(server.home, event_line("spans", 0, 0, 20, **fields))
    reply = server.get(f"rankroom/runs/{run.id}/trace")
    assert reply.headers["Content-Type"] == "application/gzip"
    named = f'attachment; filename="{run.id}.trace.json.gz"'
    assert reply.headers["Content-Disposition"] == named
    events = json.loads(gzip.decompress(reply.body))["traceEvents"]
    spans = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("x = 1", 5, 7)]


def test_exporting_a_long_timeline_does_not_block_other_requests(server: Server):
    column = list(range(4096))
    fields = {"cat": "op", "define": [{"name": "n"}], "name": [0] * 4096, "dur": [1] * 4096}
    lines = [event_line("spans", 0, i, i, start=column, **fields) for i in range(60)]
    _, run = finished_record(server.home, *lines)
    done: list[Reply] = []
    path = f"rankroom/runs/{run.id}/trace"
    thread = threading.Thread(target=lambda: done.append(server.get(path)))
    thread.start()
    answered = 0
    while thread.is_alive():
        server.get("rankroom/version")
        answered += not done
    thread.join()
    assert answered > 3
    trace = json.loads(gzip.decompress(done[0].body))
    assert sum(e["ph"] == "X" for e in trace["traceEvents"]) == 60 * 4096


def test_a_run_and_its_source_are_served(server: Server):
    _, run = finished_record(server.home, source="print('ü')\n", title="print('ü')")
    assert server.get(f"rankroom/runs/{run.id}").json["title"] == "print('ü')"
    reply = server.get(f"rankroom/runs/{run.id}/source")
    assert reply.body.decode() == "print('ü')\n"
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_events_are_served_in_chunks_of_whole_lines(server: Server):
    lines = [log(0, f"{i}\n", seq=i) for i in range(100)]
    _, run = finished_record(server.home, *lines)
    got, after = b"", 0
    while True:
        reply = server.get(f"rankroom/runs/{run.id}/events?after={after}&limit=500")
        if not reply.body:
            break
        assert reply.body.endswith(b"\n") and len(reply.body) <= 500
        got, after = got + reply.body, int(reply.headers["X-Rankroom-Next"])
    assert got == b"".join(lines)
    assert int(reply.headers["X-Rankroom-Size"]) == len(got) == after
    assert reply.headers["X-Rankroom-State"] == "done"


def test_a_waiting_reader_gets_a_line_at_once_and_then_the_end(server: Server):
    _, run, writer = start_record(server.home)
    line = log(0, "now\n")
    written = []

    def write() -> None:
        time.sleep(0.3)
        written.append(time.monotonic())
        writer.append(line)

    thread = threading.Thread(target=write)
    thread.start()
    reply = server.get(f"rankroom/runs/{run.id}/events?wait=50")
    took = time.monotonic() - written[0]
    thread.join()
    assert reply.body == line
    assert took < AT_ONCE_S
    assert reply.headers["X-Rankroom-State"] == "running"
    run.state = "failed"
    threading.Timer(0.2, writer.finish, [run]).start()
    began = time.monotonic()
    reply = server.get(f"rankroom/runs/{run.id}/events?after={len(line)}&wait=50")
    assert (reply.body, reply.headers["X-Rankroom-State"]) == (b"", "failed")
    assert time.monotonic() - began < AT_ONCE_S


def test_a_waiting_reader_is_told_that_the_run_changed(server: Server):
    """A reader of events learns at once that the run itself has to be fetched again."""
    _, run, writer = start_record(server.home)
    events = f"rankroom/runs/{run.id}/events"
    before = server.get(events).headers["X-Rankroom-Changed"]
    assert server.get(events).headers["X-Rankroom-Changed"] == before
    run.hang = Hang(0, "rank 0 waits in allreduce x; rank 1 is at cell line 2")
    told = threading.Event()

    def change() -> None:
        # Repeatedly: a change before the reader has begun to wait would go unnoticed.
        while not told.wait(0.3):
            writer.update(run)

    changes = threading.Thread(target=change, daemon=True)
    changes.start()
    began = time.monotonic()
    reply = server.get(f"{events}?wait=50")
    took = time.monotonic() - began
    told.set()
    changes.join()
    assert took < AT_ONCE_S
    assert (reply.body, reply.headers["X-Rankroom-State"]) == (b"", "running")
    assert reply.headers["X-Rankroom-Changed"] != before
    after = server.get(events).headers["X-Rankroom-Changed"]
    # A reader that was not waiting, and so missed the change, gets a reply at once.
    began = time.monotonic()
    reply = server.get(f"{events}?wait=50&changed={before}")
    assert time.monotonic() - began < AT_ONCE_S
    assert reply.headers["X-Rankroom-Changed"] == after
    assert server.get(f"rankroom/runs/{run.id}").json["hang"]["text"] == run.hang.text
    writer.close()


def test_a_wait_for_events_ends_when_its_time_is_up(server: Server):
    _, run, writer = start_record(server.home)
    began = time.monotonic()
    reply = server.get(f"rankroom/runs/{run.id}/events?wait=0.3")
    assert reply.status == 200 and reply.body == b""
    assert time.monotonic() - began > 0.25
    writer.close()


def test_waiting_readers_do_not_hold_up_others(server: Server):
    _, run, writer = start_record(server.home)
    waiting = [
        threading.Thread(target=server.get, args=[f"rankroom/runs/{run.id}/events?wait=50"])
        for _ in range(40)
    ]
    for thread in waiting:
        thread.start()
    time.sleep(0.3)
    for _ in range(5):
        assert server.get("rankroom/version").status == 200
    assert all(thread.is_alive() for thread in waiting)
    run.state = "done"
    writer.finish(run)
    for thread in waiting:
        thread.join()


def test_a_run_without_its_owner_is_lost(server: Server):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run = make_run()
    assert run.owner is not None
    run.owner.pid = gone.pid
    _, run, writer = start_record(server.home, owner=run.owner)
    writer.close()
    assert server.get(f"rankroom/runs/{run.id}").json["state"] == "lost"
    reply = server.get(f"rankroom/runs/{run.id}/events?wait=50")
    assert reply.headers["X-Rankroom-State"] == "lost"


def test_get_requests_write_nothing(server: Server):
    """Not even to a record without a writer: `rankroom runs repair` completes such a record."""
    _, lost, writer = start_record(server.home, owner=gone_process())
    writer.append(log(0, "one\n"))
    writer.close()
    paths = ClusterPaths("lost", server.home / "clusters")
    paths.folder.mkdir(parents=True, exist_ok=True)
    spool = paths.spool(0) / f"{lost.id}.jsonl"
    spool.parent.mkdir(parents=True)
    spool.write_bytes(log(0, "one\n") + log(0, "two\n", 2))
    paths.write(ClusterInfo("lost", 2, "running", ranks=lost.ranks))
    _, done = finished_record(server.home, collectives(0, 0, 3))
    before = snapshot(server.home)
    for run in (lost, done):
        for what in ("", "/events", "/source", "/log", "/profile", "/collectives", "/trace"):
            assert server.get(f"rankroom/runs/{run.id}{what}").status == 200
    assert lost.id in [run["id"] for run in server.get("rankroom/runs").json["runs"]]
    assert snapshot(server.home) == before


def test_a_log_is_downloaded_for_the_given_ranks(server: Server):
    _, run = finished_record(
        server.home, log(0, "a\nb"), log(1, "x\n"), log(0, "c\n", 2), log(3, "no\n"), size=4
    )
    reply = server.get(f"rankroom/runs/{run.id}/log?rank=0-1")
    assert reply.body.decode() == "0 │ a\n1 │ x\n0 │ bc\n"
    assert "attachment" in reply.headers["Content-Disposition"]
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("runs/20200101-000000-abcdef", 404, "rankroom runs list"),
        ("runs/20200101-000000-abcdef/events?wait=5", 404, "no record"),
        ("runs/20200101-000000-abcdef/log", 404, "no record"),
        ("runs/20200101-000000-abcdef/trace", 404, "no record"),
        ("runs/20200101-000000-abcdef/source", 404, "no record"),
        ("runs/..%2f..%2fetc", 404, "not a run id"),
        ("runs/%2e%2e", 404, "not a run id"),
        ("runs?limit=many", 400, "limit='many'"),
        ("runs?limit=-1", 400, "limit='-1'"),
        ("runs/{id}/events?after=nan", 400, "after='nan'"),
        ("runs/{id}/events?wait=inf", 400, "wait='inf'"),
        ("runs/{id}/log?rank=7", 400, "no rank 7"),
    ],
)
def test_bad_requests_get_a_one_line_message(server: Server, path: str, status: int, says: str):
    _, run = finished_record(server.home)
    reply = server.get("rankroom/" + path.format(id=run.id))
    assert reply.status == status
    assert says in reply.json["message"]
    assert "\n" not in reply.json["message"]


@pytest.mark.parametrize("step", ["interrupt", "release", "restart?rank=0-1", "stacks"])
@pytest.mark.parametrize(
    ("cluster", "status", "says"),
    [
        ("gone", 410, "there is no cluster named gone"),
        ("deaf", 410, "the supervisor of cluster deaf does not accept connections"),
        ("idle", 400, "no rank of idle runs a cell; its log ends with"),
        ("broken", 400, "a broken pipe"),
        ("over", 409, "is over (done)"),
        ("lost", 409, "the supervisor of its cluster is gone"),
    ],
)
def test_an_impossible_step_gets_a_one_line_message(server: Server, step, cluster, status, says):
    owner = gone_process() if cluster == "lost" else this_process()
    _, run, writer = start_record(server.home, cluster=cluster, owner=owner)
    if cluster == "over":
        run.state = "done"
        writer.finish(run)
    act = server.get if step == "stacks" else server.post
    reply = act(f"rankroom/runs/{run.id}/{step}")
    assert reply.status == status
    assert says in reply.json["message"]
    assert "\n" not in reply.json["message"]
    assert "of its log" not in reply.json["message"]
    writer.close()


@pytest.mark.parametrize("step", ["interrupt", "release"])
def test_a_recovery_step_does_not_affect_a_run_that_began_since(server: Server, step: str):
    """The run's record still says running, as it did when the button was pressed."""
    _, run, writer = start_record(server.home, cluster="next")
    reply = server.post(f"rankroom/runs/{run.id}/{step}")
    assert (reply.status, reply.json["message"]) == (409, f"run {run.id} is over: nothing is left")
    writer.close()


def test_interrupt_release_restart_and_stacks_reach_the_cluster(server: Server):
    _, run, writer = start_record(server.home, cluster="fine", size=4)
    path = f"rankroom/runs/{run.id}"
    acted = len(server.acted)
    assert "interrupt" in server.post(f"{path}/interrupt").json["message"]
    assert server.post(f"{path}/release").json["message"] == "released torch on the ranks of fine"
    said = server.post(f"{path}/restart?rank=0,2-3").json["message"]
    assert said == "ranks 0,2–3 were restarted, without variables"
    assert server.get(f"{path}/stacks").json == {"stacks": {"0": "main:\n  x", "1": "<b>"}}
    done = ["interrupt", "release", "restart 0,2,3", "stacks"]
    assert server.acted[acted:] == [f"fine {what}" for what in done]
    assert "no rank 4" in server.post(f"{path}/restart?rank=4").json["message"]
    assert "restart?rank=2" in server.post(f"{path}/restart").json["message"]
    assert server.get(f"{path}/interrupt").status == 405
    writer.close()


def test_an_answer_is_sent_to_the_ranks_that_prompted_for_it(server: Server):
    _, run, writer = start_record(server.home, cluster="fine", size=4)
    path = f"rankroom/runs/{run.id}/answer"
    acted = len(server.acted)
    said = server.post(path, {"text": "p loss", "prompts": "0:4,2:9"})
    assert (said.status, said.json["message"]) == (200, "ranks 0,2 took the answer")
    assert server.acted[acted:] == ["fine answer"]
    for prompts in ("", "2", "2:", "2:x", "2:1,", "2:1;3:1", "9999999999:1"):
        assert server.post(path, {"text": "c", "prompts": prompts}).status == 400, prompts
    assert server.post(path, {"prompts": "2:1"}).status == 400
    assert server.acted[acted:] == ["fine answer"]
    run.state = "done"
    writer.finish(run)
    assert server.post(path, {"text": "c", "prompts": "2:1"}).status == 409


def test_completions_are_served_for_a_debugger_prompt(server: Server):
    _, run, writer = start_record(server.home, cluster="fine", size=4)
    path = f"rankroom/runs/{run.id}/complete"
    said = server.post(path, {"text": "p lo", "prompts": "2:9"})
    assert (said.status, said.json) == (200, {"begin": 2, "matches": ["loss 2:9"]})
    assert server.post(path, {"text": "p lo"}).status == 400
    run.state = "done"
    writer.finish(run)
    assert server.post(path, {"text": "p lo", "prompts": "2:9"}).status == 409


def test_a_cross_site_request_cannot_interrupt_a_run(server: Server):
    """A logged-in browser sends its cookies with every request that any page triggers."""
    _, run, writer = start_record(server.home, cluster="fine")
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    base = f"http://127.0.0.1:{server.port}{BASE}"
    opener.open(f"{base}rankroom/version?token={TOKEN}").close()
    assert opener.open(f"{base}rankroom/runs").status == 200  # by cookie alone
    url = f"{base}rankroom/runs/{run.id}/interrupt"
    acted = server.acted
    with pytest.raises(urllib.error.HTTPError, match="403"):
        opener.open(urllib.request.Request(url, data=b"", method="POST"))
    assert server.acted == acted
    opener.open(f"{base}login").close()  # sets the cookie that scripts must repeat
    mine = {"X-XSRFToken": next(c.value or "" for c in jar if c.name == "_xsrf")}
    assert (
        opener.open(urllib.request.Request(url, data=b"", method="POST", headers=mine)).status
        == 200
    )
    assert server.acted[len(acted) :] == ["fine interrupt"]
    writer.close()


def test_recovery_steps_on_slow_clusters_do_not_block_other_requests(server: Server):
    """There are more steps than threads for them; all are answered in the end."""
    _, run, writer = start_record(server.home, cluster="slow")
    begun = len(server.acted)
    replies: list[Reply] = []
    path = f"rankroom/runs/{run.id}/release"
    steps = [threading.Thread(target=lambda: replies.append(server.post(path))) for _ in range(9)]
    for step in steps:
        step.start()
    until = time.monotonic() + 60
    while len(server.acted) == begun:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert server.get("rankroom/version").status == 200
    assert server.get(f"rankroom/runs/{run.id}/source").status == 200
    assert not replies
    (server.home / "go").touch()
    for step in steps:
        step.join()
    assert [reply.status for reply in replies] == [200] * 9
    writer.close()


def test_a_newer_record_is_listed_and_refused(server: Server):
    _, run = finished_record(server.home, version=99)
    reply = server.get(f"rankroom/runs/{run.id}")
    assert reply.status == 404
    assert "pip install -U rankroom" in reply.json["message"]
    assert run.id in [r["id"] for r in server.get("rankroom/runs").json["runs"]]


def test_the_event_loop_is_not_blocked_by_a_slow_disk(tmp_path: Path, monkeypatch):
    """A stalled network file system stalls its reader, not the server."""
    from rankroom.record.store import Store

    store, run, writer = start_record(tmp_path)
    load = Store.load
    loading, enough = threading.Event(), threading.Event()

    def slow(self, run_id):
        loading.set()
        enough.wait(20)
        loading.clear()
        return load(self, run_id)

    monkeypatch.setattr(Store, "load", slow)

    async def turns_meanwhile() -> int:
        task = asyncio.create_task(store.tail(run.id).next(wait=0.1))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.01)
            turns += loading.is_set()
            # Until then the disk is slow, however long an iteration takes.
            if turns > 5:
                enough.set()
        return turns

    assert asyncio.run(turns_meanwhile()) > 5
    writer.close()
