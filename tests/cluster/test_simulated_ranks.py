"""Hundreds of simulated ranks under a real supervisor: their records, stalls, losses and cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import psutil
import pytest

import simulated_cluster
from rankroom.cluster.local import Cluster
from rankroom.display.lines import lines_of
from rankroom.record.model import RunInfo
from rankroom.run.run import Run
from rankroom.system.polling import poll_until
from simulated_agent import EACH
from simulated_cluster import supervisor_of
from simulated_ranks import Script

pytestmark = pytest.mark.cluster

RANKS = 256
LATE = [17, 100, 101, 102, 103]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        with simulated_cluster.cluster(RANKS) as made:
            yield made


real = Run.told


def demand_all_lines(run: Run, ranks: int, each: int) -> None:
    """Check that the record holds every line of every rank once and in order."""
    assert run.state == "done" and run.info.lines == ranks * each, run.info
    found: dict[int, int] = dict.fromkeys(range(ranks), 0)
    for line in lines_of(run._store.events(run.id)):
        assert line.text == f"rank {line.rank} line {found[line.rank]}"
        found[line.rank] += 1
    assert set(found.values()) == {each}
    assert run.info.notes == []


def test_every_line_of_many_ranks_is_kept_and_their_profile_made(many: Cluster):
    run = many.run(str(Script(seconds=5, rate=40, spans=200, apart=20_000)))
    assert run.wait(120)
    demand_all_lines(run, RANKS, 200)
    profile = run.profile()
    assert len(profile.ranks) == RANKS
    assert [kind.calls for kind in profile.kinds] == [200]  # matched across all ranks


def test_a_stall_of_many_ranks_is_one_sentence_and_a_release_ends_it(many: Cluster):
    run = many.run(str(Script(waits="allreduce loss", waits_for=LATE)))
    deadline = time.monotonic() + 60
    while run.info.hang is None or "do not respond" in run.info.hang.text:
        assert time.monotonic() < deadline, run.info
        time.sleep(0.05)
    text = run.info.hang.text
    assert text.startswith("251 ranks wait in allreduce loss (cell line 7) for ")
    assert text.endswith("; ranks 17,100–103 are stuck at cell line 9: `time.sleep(60)`")
    assert many.release().startswith("released Horovod")
    run.interrupt()
    assert run.wait(60) and run.state == "interrupted"
    states = [rank.state for rank in run.info.ranks]
    assert [rank for rank, state in enumerate(states) if state == "interrupted"] == LATE
    assert states.count("released") == RANKS - len(LATE)


def test_all_ranks_waiting_for_a_rank_that_raises_are_released(many: Cluster):
    run = many.run(str(Script(waits="allreduce loss", raises=[5], raises_in=1.0)))
    assert run.wait(60) and run.state == "failed"
    failure = run.info.failure
    assert failure is not None and (failure.rank, failure.ename) == (5, "ValueError")
    assert [rank.state for rank in run.info.ranks].count("released") == RANKS - 1


def test_simultaneous_errors_of_many_ranks_are_sent_in_combined_updates(
    many: Cluster, monkeypatch: pytest.MonkeyPatch
):
    told: list[RunInfo] = []
    monkeypatch.setattr(Run, "told", lambda run, info: told.append(info) or real(run, info))
    run = many.run(str(Script(seconds=60, raises=list(range(RANKS)), raises_in=1.0)))
    assert run.wait(60) and run.state == "failed"
    assert {rank.state for rank in run.info.ranks} == {"error"}
    # Each update writes, sends and reads run.json with all ranks, so updates must be combined.
    assert 0 < len(told) < RANKS / 4


def test_output_of_ranks_killed_together_is_kept_and_the_others_are_released(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
    with simulated_cluster.cluster(RANKS) as cluster:
        run = cluster.run(str(Script(seconds=2, rate=20, waits="allreduce loss")))
        events = run.path / "events.jsonl"
        poll_until(lambda: events.read_bytes().count(b'"kind":"log"') == RANKS * 40, 60, 0.1)
        psutil.Process(cluster.ranks[EACH].pid).kill()
        assert run.wait(60) and run.state == "failed"
        states = [rank.state for rank in run.info.ranks]
        assert states == ["released"] * EACH + ["lost"] * (RANKS - EACH)
        assert run.info.failure is not None and run.info.failure.ename == "RankLost"
        assert run.info.lines == RANKS * 40
        exits = cluster.refresh().exits
        assert sorted(map(int, exits)) == list(range(EACH, RANKS))


@pytest.mark.alone
@pytest.mark.thorough
def test_one_supervisor_takes_what_1024_ranks_write_in_bounded_memory(home):
    with simulated_cluster.cluster(1024) as cluster:
        process = supervisor_of(cluster)
        before = process.memory_info().rss
        run = cluster.run(str(Script(seconds=20, rate=100, spans=1000, apart=20_000)))
        most = before
        while not run.wait(0.2):
            most = max(most, process.memory_info().rss)
        demand_all_lines(run, 1024, 2000)
        assert most - before < 150e6
        paths = cluster.store.paths(run.id)
        while not paths.profile.exists():
            time.sleep(0.1)
        assert len(json.loads(paths.profile.read_text())["ranks"]) == 1024
