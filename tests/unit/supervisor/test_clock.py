"""Clocks of other hosts: the error bound of an estimate holds whatever the network does."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from typing import Any

import pytest

from rankroom.record.model import Clock, RankInfo
from rankroom.supervisor.clock import Clocks, Trip, estimate, hull


def trips(offset: int, dice: random.Random, there: float, back: float, count: int = 12):
    """Yield round trips to a clock `offset` ahead; `there` and `back` are the shortest delays."""
    now = 1_790_000_000_000_000.0
    for _ in range(count):
        now += dice.uniform(10, 5_000)
        asked = now
        now += there + dice.expovariate(1 / (there + 1))
        told = now + offset
        now += back + dice.expovariate(1 / (back + 1))
        yield Trip(int(asked), int(told // 1), int(now))


@pytest.mark.parametrize("there, back", [(100, 100), (5, 5), (40_000, 200), (200, 40_000), (0, 0)])
@pytest.mark.parametrize("offset", [0, 1, -17, 3_600_000_000, -86_400_000_000])
def test_the_true_offset_is_within_the_error(there: float, back: float, offset: int):
    for seed in range(50):
        clock = estimate(trips(offset, random.Random(seed), there, back))
        assert clock is not None and abs(clock.offset - offset) <= clock.error
        assert clock.error <= (there + back) / 2 + (there + back + 2) / 2 + 3


def test_more_round_trips_bring_the_error_bound_close_to_its_minimum():
    """No error bound can be less than half of the shortest round trip."""
    errors, first = [], []
    for seed in range(50):
        found = list(trips(500, random.Random(seed), 300, 300, 20))
        whole, one = estimate(found), estimate(found[:1])
        assert whole is not None and one is not None
        errors.append(whole.error)
        first.append(one.error)
        assert 300 <= whole.error <= one.error
    assert sorted(errors)[25] < 330 < 500 < sorted(first)[25]


def test_a_clock_set_between_round_trips_is_estimated_from_the_shortest_one():
    early = [Trip(0, 1_000, 400), Trip(500, 1_450, 600)]
    late = [Trip(700, 9_000_760, 800), Trip(900, 9_000_905, 910)]
    clock = estimate([*early, *late])
    assert clock is not None and abs(clock.offset - 9_000_000) <= clock.error <= 7


def test_without_valid_round_trips_there_is_no_estimate():
    assert estimate([]) is None
    assert estimate([Trip(10, 5, 0)]) is None  # this host's own clock was set back


def test_the_hull_of_two_estimates_covers_both_intervals():
    both = hull(Clock(100, 10), Clock(130, 5))
    assert both.offset - both.error <= 90 and both.offset + both.error >= 135
    assert both.error <= 23
    assert hull(Clock(7, 3), Clock(7, 3)) == Clock(7, 3)


# --- clocks of a cluster's hosts ------------------------------------------------------------------


def rank_on(rank: int, host: str) -> RankInfo:
    return RankInfo(rank, host, 1000 + rank, "cpu")


class Hosts:
    """Connections to ranks that reply at once; their clocks are `ahead` microseconds ahead."""

    def __init__(self, ahead: dict[int, int]) -> None:
        self.ahead = ahead
        self.asked: list[int] = []

    def connected(self) -> list[int]:
        return list(self.ahead)

    def __call__(self, ranks: list[int], do: str) -> list[Future[Any]]:
        assert do == "clock"
        out: list[Future[Any]] = []
        for rank in ranks:
            self.asked.append(rank)
            if rank in self.ahead:
                future: Future[Any] = Future()
                future.set_result({"time": time.time_ns() // 1000 + self.ahead[rank]})
                out.append(future)
        return out


def compared(clocks: Clocks, ranks: list[RankInfo]) -> dict[int, Clock]:
    found: dict[int, Clock] = {}
    thread = clocks.compare(ranks, found.update)
    if thread is not None:
        thread.join(60)
    return found


def test_ranks_on_this_host_are_not_asked():
    hosts = Hosts({0: 0})
    clocks = Clocks(hosts, hosts.connected, "here")
    assert compared(clocks, [rank_on(0, "here")]) == {}
    assert hosts.asked == []


def test_ranks_of_one_host_share_a_clock():
    hosts = Hosts({1: 5_000_000, 2: 5_000_000, 3: 5_000_000, 4: -7_000})
    ranks = [rank_on(0, "here"), *(rank_on(n, "a") for n in (1, 2, 3)), rank_on(4, "b")]
    found = compared(Clocks(hosts, hosts.connected, "here"), ranks)
    assert found.keys() == {1, 2, 3, 4}
    assert found[1] == found[2] == found[3]
    assert abs(found[1].offset - 5_000_000) <= found[1].error
    assert abs(found[4].offset + 7_000) <= found[4].error
    assert 3 not in hosts.asked  # at most two ranks per host are asked


def test_clocks_are_compared_again_when_they_may_have_drifted(monkeypatch: pytest.MonkeyPatch):
    hosts = Hosts({1: 100})
    clocks = Clocks(hosts, hosts.connected, "here")
    ranks = [rank_on(1, "a")]
    assert compared(clocks, ranks) and clocks.of(ranks)
    count = len(hosts.asked)
    assert compared(clocks, ranks) == {} and len(hosts.asked) == count
    monkeypatch.setattr("rankroom.supervisor.clock.COMPARISON_INTERVAL_S", 0.0)
    assert clocks.of(ranks) == {}
    assert compared(clocks, ranks) and len(hosts.asked) > count


def test_a_comparison_waits_for_ranks_that_are_not_connected_yet(monkeypatch: pytest.MonkeyPatch):
    """When a cluster has just started, its ranks may not be connected yet."""
    # On a busy machine, a thread may be delayed for longer than the timeout.
    monkeypatch.setattr("rankroom.supervisor.clock.CONNECT_TIMEOUT_S", 60.0)
    hosts = Hosts({})
    clocks = Clocks(hosts, hosts.connected, "here")
    ranks = [rank_on(1, "a"), rank_on(2, "b")]
    assert not clocks.comparing
    thread = clocks.compare(ranks)
    assert thread is not None and clocks.comparing
    hosts.ahead = {1: 100, 2: 200}
    thread.join(60)
    assert not clocks.comparing
    assert clocks.of(ranks).keys() == {1, 2}


def test_no_request_is_sent_while_ranks_are_still_connecting(monkeypatch: pytest.MonkeyPatch):
    """Requests whose replies are not read would delay the round trips that are measured."""
    monkeypatch.setattr("rankroom.supervisor.clock.CONNECT_TIMEOUT_S", 0.2)
    hosts = Hosts({1: 0})
    clocks = Clocks(hosts, hosts.connected, "here")
    assert compared(clocks, [rank_on(1, "a"), rank_on(2, "b")]).keys() == {1}
    assert hosts.asked.count(1) == hosts.asked.count(2) == 12


def test_a_host_is_measured_through_another_rank_if_one_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rankroom.supervisor.clock.CONNECT_TIMEOUT_S", 0.1)
    hosts = Hosts({2: 77_000_000})
    found = compared(Clocks(hosts, hosts.connected, "here"), [rank_on(1, "a"), rank_on(2, "a")])
    assert abs(found[2].offset - 77_000_000) <= found[2].error


def test_hosts_that_do_not_answer_have_no_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rankroom.supervisor.clock.CONNECT_TIMEOUT_S", 0.1)
    hosts = Hosts({})
    clocks = Clocks(hosts, hosts.connected, "here")
    assert compared(clocks, [rank_on(1, "a")]) == {}
    assert clocks.of([rank_on(1, "a")]) == {}
