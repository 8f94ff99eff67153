"""Waits and bandwidth where not every rank takes part in every collective."""

from __future__ import annotations

import pytest
from test_profile import golden, timeline_of

from rankroom.analysis.collectives import Collectives
from rankroom.analysis.profile import Profile
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import Clock, RankInfo, RunInfo
from trace_makers import Trace, collective, train

SIZE = 1_000_000  # bytes


def rate(trace: Trace) -> float | None:
    (kind,) = Profile.of(timeline_of(trace)).kinds
    return kind.bandwidth


def test_only_collectives_never_completed_count_as_waits_for_a_killed_rank():
    timeline, _ = golden("killed")
    found = Collectives(timeline)
    given_up = [each.key.tensor for each in found if each.given_up]
    assert given_up == ["h.0", "h.1"] and found.has_given_up, "two at once, and no other"
    waits = Profile.of(timeline).ranks[0].waiting
    assert waits == 12 * 500 + 50_000


@pytest.mark.parametrize(("state", "count"), [("ok", 0), ("interrupted", 1)])
def test_a_collective_that_only_rank_0_recorded_is_given_up_if_interrupted(state: str, count: int):
    trace = Trace(4)
    for n in range(90):
        trace.add(0, "collective", collective("allreduce", "g"), 10_000 * n, 4_000)
        trace.add(0, "wait", "hvd.allreduce g", 10_000 * n, 4_000)
    for rank in range(4):
        trace.active(rank, 0, 1_000_000, state)
    timeline = timeline_of(trace)
    assert sum(bool(each.given_up) for each in Collectives(timeline)) == count
    assert Profile.of(timeline).ranks[0].waiting == 4_000 * count


def test_a_rank_that_leaves_a_broadcast_early_did_not_wait_for_the_last_rank():
    trace = Trace(4)
    for rank in range(4):
        trace.active(rank, 0, 2_000_000)
        for n in range(20):
            at = 100_000 * n + (50_000 if rank == 3 else 0)
            trace.add(rank, "collective", collective("broadcast", "#1", "dist"), at, 20_000)
            trace.add(rank, "wait", "dist.broadcast", at, 20_000)
    profile = Profile.of(timeline_of(trace))
    assert profile.named == [] and profile.stragglers == []
    assert [(row.waiting, row.exposed) for row in profile.ranks] == [(0, 400_000)] * 4


def test_leaving_a_broadcast_early_within_the_clock_error_counts_as_a_wait():
    timeline, _ = golden("early")
    waits = [
        (calls.wait_end - calls.start).tolist() for calls in Collectives(timeline).calls.values()
    ]
    assert waits == [[2_000, 0] * 5, [2_000, 0] * 5, [0] * 10]


def of_two_hosts(error: int, late: int) -> Trace:
    """Rank 1 arrives `late` µs late at 200 allreduces; its clock may be wrong by `error` µs."""
    trace = Trace(2, offsets={1: 0}, errors={1: error})
    clock = {0: 0, 1: 0}
    train(trace, clock, lambda rank, _: 1_600 + late * rank, 200, [collective("allreduce", "g")])
    for rank in range(2):
        trace.active(rank, 0, clock[rank])
    return trace


@pytest.mark.parametrize(
    ("error", "late", "named"),
    [(0, 300, [1]), (400, 300, []), (400, 2_000, [1])],
)
def test_a_straggler_is_named_only_if_its_delay_exceeds_the_clock_error(
    error: int, late: int, named: list[int]
):
    assert Profile.of(timeline_of(of_two_hosts(error, late))).named == named


def test_clock_errors_count_only_between_hosts():
    hosts = {0: ("a", None), 1: ("b", 400), 2: ("b", 300), 3: ("c", 100)}
    ranks = [
        RankInfo(rank, host, 1, "cpu", clock=None if error is None else Clock(5, error))
        for rank, (host, error) in hosts.items()
    ]
    run = RunInfo("r", "c", 4, 0, ranks)
    assert Timeline(run).doubt == {0: 400, 1: 500, 2: 500, 3: 500}
    run.ranks = ranks[1:3]
    assert Timeline(run).doubt == {1: 0, 2: 0}


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0, 1], [2, 3]]])
def test_bandwidth_per_rank_does_not_depend_on_the_number_of_groups(groups: list[list[int]]):
    trace = Trace(4)
    for number, members in enumerate(groups):
        more = {"group": str(number), "ranks": members}
        named = collective("allreduce", "g", "dist", SIZE, **more)
        for rank in members:
            for n in range(100):
                trace.add(rank, "collective", named, 10_000 * n, 1_000)
    assert rate(trace) == pytest.approx(1e9)


def test_bandwidth_of_messages_in_a_ring():
    trace = Trace(8)
    for rank in range(8):
        for tail in (rank, (rank - 1) % 8):  # sends to the next, receives from the previous
            pair = sorted((tail, (tail + 1) % 8))
            named = collective("send", f"{tail}", "dist", SIZE, ranks=pair)
            for n in range(50):
                trace.add(rank, "collective", named, 20_000 * n, 1_000)
    assert rate(trace) == pytest.approx(2e9)
