"""The timeline aligns a rank whose clock is wrong with the others."""

from __future__ import annotations

import os
import time

import pytest

from rankroom.analysis.collectives import Collectives
from rankroom.cluster.local import Cluster

AHEAD = 3_600_000_000  # an hour
# Rank 1's clock is ahead, and the supervisor believes that rank 1 is on another host: it compares
# the clocks of other hosts only.
ELSEWHERE = """
import dataclasses, os, sys, time
if "rankroom.rank.engine" in sys.orig_argv and os.environ["RANK"] == "1":
    time.time_ns = lambda true=time.time_ns: true() + {ahead} * 1000
if "rankroom.supervisor.supervisor" in sys.orig_argv:
    from rankroom.supervisor.processes.cluster_processes import Processes

    def places(self, usual=Processes.places):
        return [dataclasses.replace(p, host="node1") if p.rank else p for p in usual(self)]

    Processes.places = places
"""
WORK = """
import os, time
from rankroom.reporting.spans import recorder
named = dict(name="allreduce g", op="allreduce", tensor="g", library="dist")
number = recorder.number("g", lambda: named)
for _ in range(3):
    begin = time.time_ns() // 1000
    time.sleep(0.05)
    recorder.add("collective", number, begin, time.time_ns() // 1000 - begin)
time.sleep(0.3)
while not os.path.exists({compared!r}):
    time.sleep(0.01)
"""


@pytest.fixture
def cluster(home, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(ELSEWHERE.format(ahead=AHEAD))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RANKROOM_PRELOAD", "none")  # not forked: each has its own clock
    made = Cluster.local(ranks=2)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.cluster
def test_a_rank_whose_clock_is_an_hour_ahead_is_aligned_with_the_others(cluster, tmp_path):
    for name in ("first", "second"):
        known = tmp_path / name
        run = cluster.run(WORK.format(compared=str(known)))
        deadline = time.monotonic() + 60
        while cluster.store.load(run.id).ranks[1].clock is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        known.touch()
        assert run.wait(60) and run.state == "done"
        saved = cluster.store.load(run.id)
        clock = saved.ranks[1].clock
        assert saved.ranks[0].clock is None and clock is not None
        assert abs(clock.offset - AHEAD) <= clock.error < AHEAD / 4
        profile = run.profile()
        assert 400_000 < profile.wall < AHEAD / 4
        assert [row.calls for row in profile.kinds] == [3]
        spread = max(abs(c.spread) for c in Collectives(run.timeline))
        assert spread < AHEAD / 4
