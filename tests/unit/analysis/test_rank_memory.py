"""The memory of ranks over a run: its peak, and whether it rises throughout."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rankroom.analysis.profile import Profile
from rankroom.analysis.profile.of_run import GrowingProfile, stored_profile, write_profile
from rankroom.analysis.profile.rank_memory import memory_rows, memory_words
from rankroom.analysis.profile.rows import RankMemory
from rankroom.analysis.timeline import Timeline
from rankroom.errors import UsageError
from rankroom.record.model import RunInfo
from rankroom.record.store import Store
from trace_makers import Trace, collective, train

GB = 1_000_000_000
SECOND = 1_000_000


def sampled(trace: Trace, rank: int, memory: list[Any], **others: Any) -> None:
    """One sample a second, from 1 s on, on the rank's own clock."""
    for i, value in enumerate(memory):
        t = (1 + i) * SECOND + trace.offsets.get(rank, 0)
        event = {"kind": "sample", "rank": rank, "seq": 900 + i, "t": t, "memory": value, **others}
        trace.event(json.dumps(event, separators=(",", ":")))


def timeline(trace: Trace) -> Timeline:
    run = RunInfo.from_json(trace.run_json("made"))
    return Timeline.of(run, [f"{line}\n".encode() for line in trace.lines()])


def of(memory: list[Any], **others: Any) -> RankMemory:
    trace = Trace(1)
    sampled(trace, 0, memory, **others)
    [row] = memory_rows(timeline(trace), (0, 1000 * SECOND))
    return row


def test_memory_rows_have_first_last_and_peak():
    row = of([GB, 3 * GB, 2 * GB])
    assert row == RankMemory(0, first=GB, last=2 * GB, peak=3 * GB, rise=None, gpu_peak=None)
    assert of([GB], gpu_memory=5 * GB).gpu_peak == 5 * GB


@pytest.mark.parametrize(
    ("memory", "rise"),
    [
        ([GB + i * 10_000_000 for i in range(40)], 300_000_000),  # a leak
        ([GB] * 40, 0),
        ([GB] * 10 + [2 * GB] * 30, 0),  # it rose once
        ([GB + 5_000_000 * (i % 4) for i in range(40)], 0),  # fluctuates
        ([2 * GB - i * 10_000_000 for i in range(40)], 0),
        ([GB, GB, 2 * GB, 2 * GB, 3 * GB, 3 * GB, 4 * GB], None),  # too few to tell
    ],
)
def test_only_memory_that_rises_throughout_counts_as_rising(memory: list[int], rise: int | None):
    assert of(memory).rise == rise


@pytest.mark.parametrize("bad", [None, "1", -1, float("nan"), True, 1 << 60, 0.5])
def test_invalid_memory_samples_are_ignored(bad: Any):
    trace = Trace(1)
    sampled(trace, 0, [bad])
    assert memory_rows(timeline(trace), (0, 100 * SECOND)) == []
    assert of([GB], gpu_memory=bad).gpu_peak is None


def test_peak_and_rising_memory_are_described_in_words():
    rows = [
        RankMemory(0, GB, GB, GB, 0, None),
        RankMemory(1, GB, 2 * GB, 2 * GB, 700_000_000, None),
    ]
    assert memory_words(rows, None) == (
        "peak memory 1.0 GB to 2.0 GB per rank; memory of rank 1 rises throughout the run, "
        "by 700.0 MB on rank 1"
    )
    even = [dataclasses.replace(rows[0], rank=rank, gpu_peak=3 * GB) for rank in (0, 1)]
    assert memory_words(even, None) == "peak memory 1.0 GB per rank, 3.0 GB on its GPU"
    small = [RankMemory(0, GB, GB, GB, 31_000_000, None)]
    assert memory_words(small, None) == "peak memory 1.0 GB per rank"
    assert memory_words([], None) == ""


def trained() -> Trace:
    """A loop of 20 s in which the memory of rank 1 grows; its clock is an hour ahead."""
    trace = Trace(2, offsets={0: 0, 1: 3600 * SECOND})
    train(trace, {0: 0, 1: 0}, lambda rank, step: 495_000, 40, [collective("allreduce", "grad")])
    sampled(trace, 0, [GB] * 19)
    sampled(trace, 1, [GB + 50_000_000 * i for i in range(19)])
    return trace


def test_memory_over_the_loop_is_in_the_profiles_text_rows_and_json():
    profile = Profile.of(timeline(trained()))
    assert profile.loop is not None
    steady, rising = profile.memory
    assert steady.rise == 0 and rising.rise is not None and rising.rise > 500_000_000
    text = str(profile)
    assert f"memory of rank 1 rises throughout {profile.loop.title}, by" in text
    [line] = [each for each in text.splitlines() if each.startswith("memory of rank")]
    assert " ".join(line.split()) == "memory of rank at start at end peak rise"
    again = Profile.from_json(json.loads(json.dumps(profile.to_json())))
    assert again.memory == profile.memory and again.rows("memory") == profile.rows("memory")
    assert "memory" not in Profile.of(timeline(Trace(1))).to_json()
    with pytest.raises(UsageError, match="it has ranks, kinds, stragglers"):
        profile.rows("memory", "loop")


def test_a_live_profile_has_the_samples_there_are_by_now(tmp_path: Any):
    store, trace = Store(tmp_path), trained()
    info = trace.run_json("live")
    folder = store.paths(info["id"]).folder
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(info))
    lines = [f"{line}\n" for line in trace.lines()]
    spans = [line for line in lines if '"sample"' not in line]
    paths, run = store.paths(info["id"]), RunInfo.from_json(info)
    paths.events.write_text("".join(spans))
    growing = GrowingProfile(paths, run)
    assert growing.refresh(run).memory == []
    with paths.events.open("a") as file:
        file.writelines(line for line in lines if '"sample"' in line)
    found = growing.refresh(run)
    assert [row.peak for row in found.memory] == [GB, GB + 18 * 50_000_000]
    write_profile(store, run)
    kept = stored_profile(paths)
    assert kept is not None and kept.memory == found.memory
