"""A rank whose clock is wrong stands beside the others on the timeline."""

from __future__ import annotations

import pytest

from rankroom.analysis.collectives import Collectives
from rankroom.record.model import RankInfo

# --- with real ranks ------------------------------------------------------------------------------

AHEAD = 3_600_000_000  # an hour
# What this rank believes the time to be, and with it all that it reports.
SET_CLOCK = """
if rank == 1:
    import time
    time.time_ns = lambda true=time.time_ns: true() + {ahead} * 1000
"""
WORK = """
import os, time
from rankroom.rank.spans import recorder
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


@pytest.mark.cluster
def test_a_rank_whose_clock_is_an_hour_ahead_stands_beside_the_others(
    cluster, monkeypatch, tmp_path
):
    known = tmp_path / "compared"
    assert cluster.run(SET_CLOCK.format(ahead=AHEAD)).wait(60)
    try:
        usual = cluster._rank

        def elsewhere(rank: int) -> RankInfo:
            info = usual(rank)
            return RankInfo(
                rank, "node1" if rank == 1 else info.host, info.pid, "cpu", 0, "running"
            )

        monkeypatch.setattr(cluster, "_rank", elsewhere)
        for _ in range(2):  # compared while the first runs, and known before the second
            run = cluster.run(WORK.format(compared=str(known)))
            cluster._clocks._thread.join(60)  # on a busy machine it may take longer than the work
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
    finally:
        assert cluster.run(SET_CLOCK.format(ahead=-AHEAD)).wait(60)
