"""The sidebar's routes on a real Jupyter server: real ranks, ssh prompts, slow schedulers."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankroom.cluster import launch, liveness
from rankroom.record.cluster_file import ClusterPaths
from rankroom.ssh import questions
from served import Server, serve

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("server"), "noting_server.py") as started:
        yield started


def until(what, seconds: float = PATIENCE_S):
    """Wait until `what()` is truthy, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def status_of(server: Server, name: str) -> dict | None:
    found = server.get("rankroom/clusters").json["clusters"]
    return next((each for each in found if each["name"] == name), None)


def when(server: Server, name: str, wanted) -> dict:
    """Wait until `wanted` accepts the status of a cluster, and return that status."""

    def look():
        found = status_of(server, name)
        return found if found and wanted(found) else None

    return until(look)


def ready(count: int):
    return lambda card: [rank["state"] for rank in card["ranks"]] == ["ready"] * count


@pytest.mark.cluster
def test_a_cluster_is_started_restarted_resized_and_stopped_over_http(server: Server):
    reply = server.post("rankroom/clusters", {"site": "local", "ranks": "2", "name": "mine"})
    assert (reply.status, reply.json) == (200, {"name": "mine"})
    # It is listed while it starts.
    assert status_of(server, "mine")
    made = when(server, "mine", ready(2))
    assert (made["state"], made["words"], made["size"]) == ("running", "2 ranks ready", 2)
    taken = server.post("rankroom/clusters", {"site": "local", "name": "mine"})
    assert taken.status == 400 and set(taken.json["errors"]) == {"name"}

    look = server.get("rankroom/clusters/mine/look").json
    assert set(look["ranks"]) == {"0", "1"}
    assert look["ranks"]["0"]["memory"] > 1e6
    log = server.get("rankroom/clusters/mine/log")
    assert "controller.log" in log.body.decode() and "rank-1.log" in log.body.decode()
    assert log.headers["Content-Type"] == "text/plain; charset=utf-8"

    pids = [rank["pid"] for rank in made["ranks"]]
    said = server.post("rankroom/clusters/mine/restart", {"ranks": "1"}).json["message"]
    assert said == "rank 1 of mine is being restarted"
    again = when(server, "mine", lambda c: ready(2)(c) and c["ranks"][1]["pid"] != pids[1])
    assert again["ranks"][0]["pid"] == pids[0]
    bad = server.post("rankroom/clusters/mine/restart", {"ranks": "7"})
    assert bad.status == 400 and "no rank 7" in bad.json["message"]

    # An interrupt does not end an idle rank.
    assert server.post("rankroom/clusters/mine/interrupt").status == 200
    assert ready(2)(status_of(server, "mine"))

    bad = server.post("rankroom/clusters/mine/resize", {"ranks": "0"})
    assert set(bad.json["errors"]) == {"ranks"}
    assert ready(2)(status_of(server, "mine"))  # nothing was stopped
    assert server.post("rankroom/clusters/mine/resize", {"ranks": "1"}).status == 200
    small = when(server, "mine", ready(1))
    assert small["words"] == "1 rank ready"

    assert server.post("rankroom/clusters/mine/stop").status == 200
    assert status_of(server, "mine") is None
    gone = server.post("rankroom/clusters/mine/stop")
    assert gone.status == 410 and "no cluster named mine" in gone.json["message"]


@pytest.mark.cluster
def test_a_failed_cluster_can_be_restarted_or_removed(server: Server, monkeypatch):
    monkeypatch.setenv("RANKROOM_HOME", str(server.home))
    server.post("rankroom/clusters", {"site": "local", "ranks": "1", "name": "falls"})
    when(server, "falls", ready(1))
    info = ClusterPaths("falls").read()
    assert info is not None
    os.kill(info.supervisor, 9)
    fallen = when(server, "falls", lambda c: c["state"] == "failed")
    assert "was killed" in fallen["words"] and "Restart" in fallen["remedy"]
    assert server.get("rankroom/clusters/falls/look").json == {}  # the cluster's status says why
    said = server.post("rankroom/clusters/falls/restart").json["message"]
    assert said == "falls was restarted"
    when(server, "falls", ready(1))
    info = ClusterPaths("falls").read()
    assert info is not None
    os.kill(info.supervisor, 9)
    when(server, "falls", lambda c: c["state"] == "failed")
    assert server.post("rankroom/clusters/falls/stop").status == 200
    assert status_of(server, "falls") is None
    assert launch.own_processes(ClusterPaths("falls")) == []


def test_invalid_requests_are_refused_with_a_message(server: Server):
    for body in (b"[]", b'{"ranks": 2}', b"{"):
        reply = server.post("rankroom/clusters", body)
        assert reply.status == 400 and reply.json["message"]
    reply = server.post("rankroom/clusters", {"site": "nowhere"})
    assert reply.status == 400 and "there is no site 'nowhere'" in reply.json["message"]
    for name in ("..%2fruns", "%2e%2e", "none"):
        assert server.post(f"rankroom/clusters/{name}/stop").status == 410
        assert server.get(f"rankroom/clusters/{name}/log").status == 410


def test_sites_are_listed_and_a_dry_run_returns_the_script(server: Server):
    sites = {site["name"]: site for site in server.get("rankroom/sites").json["sites"]}
    assert {"local", "perlmutter", "polaris"} <= sites.keys()
    assert sites["perlmutter"]["defaults"]["qos"] == "interactive"
    run = server.post("rankroom/sites/perlmutter/script", {"nodes": "2"}).json
    assert "--nodes=2" in run["script"] and run["errors"] == {}
    run = server.post("rankroom/sites/perlmutter/script", {"nodes": "none"}).json
    assert run["script"] == "" and set(run["errors"]) == {"nodes"}
    assert server.post("rankroom/sites/nowhere/script").status == 400


def test_what_ssh_asks_is_answered_over_http(server: Server, monkeypatch):
    monkeypatch.setenv("RANKROOM_HOME", str(server.home))
    said: list[str | None] = []

    def ask(text: str) -> threading.Thread:
        asking = threading.Thread(
            target=lambda: said.append(questions.ask("login", text, True, PATIENCE_S))
        )
        asking.start()
        return asking

    for body, heard in (({"answer": "123 456"}, "123 456"), ({"answer": ""}, ""), ({}, None)):
        asking = ask("One-time code:")
        found = until(lambda: server.get("rankroom/questions").json["questions"])
        assert [(q["host"], q["text"], q["secret"]) for q in found] == [
            ("login", "One-time code:", True)
        ]
        assert "machine" not in found[0]
        assert server.post(f"rankroom/questions/{found[0]['id']}", body).status == 200
        asking.join(PATIENCE_S)
        assert said.pop() == heard
    late = server.post(f"rankroom/questions/{found[0]['id']}", {"answer": "x"})
    assert late.status == 400 and "\n" not in late.json["message"]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server on which ssh, sbatch and squeue take 30 s, and the file that lists their calls."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    for name in ("ssh", "sbatch", "squeue", "scontrol", "sinfo"):
        tool = tools / name
        tool.write_text(f"#!/bin/sh\necho {name} >> {calls}\nexec sleep 30\n")
        tool.chmod(0o755)
    sites = tmp_path / "settings" / "rankroom" / "sites"
    sites.mkdir(parents=True)
    environment = f'[environment]\npython = "{sys.executable}"\n'
    (sites / "away.toml").write_text(f'login = "away"\n{environment}')
    (sites / "beside.toml").write_text(environment)
    path = f"{tools}:{os.environ['PATH']}"
    settings = str(tmp_path / "settings")
    with serve(tmp_path, "noting_server.py", PATH=path, XDG_CONFIG_HOME=settings) as started:
        yield started, calls


def test_slow_ssh_and_sbatch_do_not_block_the_event_loop(slow: tuple[Server, Path], monkeypatch):
    """The event loop's median lag is at most 50 ms while ssh and the scheduler hang for 30 s.

    Unlike response times, the lag of the loop depends little on the machine's load.
    """
    server, calls = slow
    monkeypatch.setenv("RANKROOM_HOME", str(server.home))
    names = []
    try:
        for site in ("away", "beside"):
            reply = server.post("rankroom/clusters", {"site": site, "nodes": "1"})
            assert reply.status == 200, reply.body
            names.append(reply.json["name"])
        until(lambda: calls.exists() and {"ssh", "sbatch"} <= set(calls.read_text().split()))
        late = server.home / "late"
        before = len(late.read_text().splitlines())
        found = server.get("rankroom/clusters").json["clusters"]
        assert {each["state"] for each in found} <= {"connecting", "submitting", "asks"}
        times: list[float] = []
        while len(times) < 300:
            assert server.get("rankroom/clusters").status == 200
            assert server.get("rankroom/runs").status == 200
            assert server.get("rankroom/version").status == 200
            for name in names:
                server.get(f"rankroom/clusters/{name}/log", timeout=PATIENCE_S)
            times = [float(line) for line in late.read_text().splitlines()[before:-1]]
        assert statistics.median(times) <= 0.050
        # A call that waits for ssh or the scheduler would have blocked the event loop for 30 s.
        assert max(times) < 10
        assert {each["name"] for each in server.get("rankroom/clusters").json["clusters"]} == set(
            names
        )
    finally:
        for name in names:
            paths = ClusterPaths(name)
            if (info := paths.read()) is not None and liveness.alive(info):
                os.kill(info.supervisor, 9)
            launch.wait_end(paths)
