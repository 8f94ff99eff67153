"""Timelines, collectives and profiles: results for the golden traces, and invariants."""

from __future__ import annotations

import json
import math
import random
import sys
from typing import Any

import pytest

from rankroom.analysis.collectives import Collectives
from rankroom.analysis.profile import Profile
from rankroom.analysis.timeline import Timeline
from rankroom.errors import UsageError
from rankroom.record.model import Json, RankInfo, RunInfo, event_line, spans_line
from trace_makers import ALL, FOLDER, Trace, collective, files, train
from trace_truth import expected as truth

PARTS = ("compute", "data", "waiting", "exposed", "idle")
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def golden(name: str) -> tuple[Timeline, dict[str, Any]]:
    folder = FOLDER / name
    run = RunInfo.from_json(json.loads((folder / "run.json").read_text()))
    timeline = Timeline.read(run, folder / "events.jsonl")
    return timeline, json.loads((folder / "expected.json").read_text())


def timeline_of(trace: Trace, lines: list[str] | None = None) -> Timeline:
    run = RunInfo.from_json(trace.run_json("made"))
    return Timeline.of(run, [f"{line}\n".encode() for line in lines or trace.lines()])


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9)
    return bool(found == expected)


# --- golden traces --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_the_golden_traces_are_up_to_date_with_their_makers(make: Any):
    folder = FOLDER / make.__name__.replace("_", "-")
    for name, text in files(make).items():
        assert (folder / name).read_text() == text, (
            f"run tests/support/trace_makers.py: {folder / name}"
        )


def test_golden_traces_and_their_makers_correspond():
    assert [make.__name__.replace("_", "-") for make in sorted(ALL, key=lambda m: m.__name__)] == (
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_collectives_are_matched(name: str):
    timeline, expected = golden(name)
    assert [each.to_json() for each in Collectives(timeline)] == expected["collectives"]


@pytest.mark.parametrize("name", NAMES)
def test_collectives_as_json_equal_the_golden_file_of_the_views_tests(name: str):
    timeline, _ = golden(name)
    kept = json.loads((FOLDER / name / "collectives.json").read_text())
    assert Collectives(timeline).to_json() == kept
    run = RunInfo.from_json(json.loads((FOLDER / name / "run.json").read_text()))
    only = Timeline.read(run, FOLDER / name / "events.jsonl", only="collective")
    assert Collectives(only).to_json() == kept


@pytest.mark.parametrize("name", NAMES)
def test_the_profile_is_the_expected_one(name: str):
    timeline, expected = golden(name)
    found = Profile.of(timeline).to_json()
    for key, value in expected["profile"].items():
        assert close(found[key], value), (key, found[key], value)
    assert found.keys() ^ expected["profile"].keys() == {"named", "dropped"}
    assert found["dropped"] == expected["dropped"]["why"]
    assert all(str(rank) in found["diagnosis"] for rank in found["named"])
    assert Profile.from_json(json.loads(json.dumps(found))) == Profile.of(timeline)


@pytest.mark.parametrize("name", NAMES)
def test_unsound_spans_are_counted(name: str):
    timeline, expected = golden(name)
    assert dict(sorted(timeline.dropped.items())) == expected["dropped"]["why"]
    assert sum(timeline.dropped.values()) == expected["dropped"]["spans"]


# --- invariants -----------------------------------------------------------------------------------


def at_random(seed: int) -> Trace:
    """A random schedule: spans overlap, and ranks miss collectives or never start."""
    dice = random.Random(seed)
    size = dice.randint(1, 5)
    trace = Trace(size)
    library = dice.choice(["hvd.torch", "hvd.tensorflow", "dist"])
    cats = ["wait", "data", "collective", "collective", "user", "cell", "op"]
    if dice.random() < 0.3:
        trace.offsets = dict.fromkeys(range(size), 0)
        trace.errors = {rank: dice.randrange(60) for rank in range(size)}
    if dice.random() < 0.3:
        cats.remove("wait")
    starts = set()
    for _ in range(dice.randint(0, 60)):
        rank, cat = dice.randrange(size), dice.choice(cats)
        start = dice.randrange(-50, 1_000)
        while (rank, start) in starts:  # a tie would depend on the order of events
            start = dice.randrange(-50, 1_000)
        starts.add((rank, start))
        name: Any = cat
        if cat == "collective":
            more = {"group": "g", "ranks": [0, 1]} if dice.random() < 0.2 else {}
            kind = dice.choice(["allreduce", "broadcast"])
            name = collective(kind, dice.choice("ab"), library, dice.choice([8, 16, None]), **more)
        trace.add(rank, cat, name, start, dice.choice([0, 1, dice.randrange(300)]))
    if dice.random() < 0.8:
        for rank in range(size):
            if dice.random() < 0.9:
                begin = dice.randrange(200)
                ends = dice.random() < 0.9
                end = begin + dice.randrange(-20, 900) if ends else None
                trace.active(rank, begin, end, dice.choice(["ok", "ok", "released", "lost"]))
    return trace


@pytest.mark.parametrize("seed", range(200))
def test_profiles_of_random_schedules_equal_an_independent_computation(seed: int):
    trace = at_random(seed)
    lines = trace.lines()
    timeline, expected = timeline_of(trace, lines), truth(trace)
    assert [each.to_json() for each in Collectives(timeline)] == expected["collectives"]
    found = Profile.of(timeline).to_json()
    found = {key: found[key] for key in expected["profile"]}
    assert close(found, expected["profile"]), (found, expected["profile"])


def in_loops(seed: int) -> Trace:
    """One or two loops with steps of random length, some of them much longer than others."""
    dice = random.Random(seed)
    trace = Trace(dice.randint(1, 4))
    clock = {rank: dice.randrange(200_000) for rank in range(trace.size)}
    for line in range(1, dice.randint(2, 3)):
        begun = dict(clock)
        steps, slow = dice.randint(2, 24), dice.randrange(trace.size)
        named = [collective("allreduce", f"g.{n}") for n in range(dice.randint(0, 2))]
        optimizer = dice.choice(["", "SGD.step", "batch", "test batch"])
        longest = dice.choice([500, 20_000])
        for _ in range(steps):
            loads = [dice.randrange(100, longest) * (3 if r == slow else 1) for r in clock]
            if dice.random() < 0.1:
                loads = [load + dice.randrange(200_000) for load in loads]
            samples = dice.choice([None, 8])
            train(
                trace, clock, lambda rank, _, loads=loads: loads[rank], 1, named, optimizer, samples
            )
            if dice.random() < 0.2:
                train(trace, clock, lambda rank, _: 100, 1, [], "evaluate")
        if dice.random() < 0.7:
            for rank in clock:
                name = {"name": "for …:", "line": line} if dice.random() < 0.9 else "for …:"
                trace.add(rank, "cell", name, begun[rank], clock[rank] - begun[rank] + 1)
                clock[rank] += dice.randrange(2, 90_000)
    if dice.random() < 0.6:
        for rank in clock:
            trace.active(rank, dice.randrange(20_000), clock[rank] - dice.randrange(50_000))
    return trace


@pytest.mark.parametrize("seed", range(80))
def test_profiles_of_random_loops_equal_an_independent_computation(seed: int):
    trace = in_loops(seed)
    lines = trace.lines()
    found, expected = Profile.of(timeline_of(trace, lines)).to_json(), truth(trace)["profile"]
    assert found.keys() ^ expected.keys() == {"named", "dropped"}
    for key, value in expected.items():
        assert close(found[key], value), (key, found[key], value)


def test_the_random_loops_are_of_every_kind():
    found = [Profile.of(timeline_of(in_loops(seed))) for seed in range(80)]
    loops = [profile.loop for profile in found if profile.loop]
    assert 20 < len(loops) < 75
    assert any(loop.apart for loop in loops) and any(loop.first > 2 for loop in loops)
    assert any(loop.others for loop in loops) and any(loop.samples for loop in loops)
    assert any(loop.line is None for loop in loops) and any(loop.line for loop in loops)


@pytest.mark.parametrize("seed", range(60))
def test_the_phases_add_up_to_the_run(seed: int):
    timeline = timeline_of(in_loops(seed))
    profile = Profile.of(timeline)
    if not profile.loop:
        assert not profile.phases
        return
    assert sum(phase.wall for phase in profile.phases) == profile.wall
    for row in profile.ranks:
        for part in (*PARTS, "communication"):
            parts = [getattr(phase.ranks[row.rank], part) for phase in profile.phases]
            assert sum(parts) == getattr(row, part)
    for late in profile.stragglers:
        rows = [s for phase in profile.phases for s in phase.stragglers if s.rank == late.rank]
        assert sum(row.cost for row in rows) == late.cost
    begin, end = timeline.wall
    calls = sum(begin <= each.last < end for each in Collectives(timeline))
    assert sum(kind.calls for phase in profile.phases for kind in phase.kinds) == calls


@pytest.mark.parametrize("seed", range(60))
def test_the_parts_of_each_rank_add_up_to_the_wall(seed: int):
    profile = Profile.of(timeline_of(at_random(seed)))
    for row in profile.ranks:
        assert sum(getattr(row, part) for part in PARTS) == profile.wall
        assert all(0 <= getattr(row, part) <= profile.wall for part in (*PARTS, "communication"))
        assert row.exposed <= row.communication <= profile.wall - row.idle


@pytest.mark.parametrize("seed", range(60))
def test_the_order_of_events_changes_nothing(seed: int):
    trace = at_random(seed)
    lines = trace.lines(batch=5)
    expected = Profile.of(timeline_of(trace, lines))
    random.Random(seed).shuffle(lines)
    assert Profile.of(timeline_of(trace, lines)) == expected


@pytest.mark.parametrize("seed", range(60))
def test_shifting_all_clocks_alike_does_not_change_the_profile(seed: int):
    trace, moved = at_random(seed), at_random(seed)
    by = random.Random(seed).choice([1, -7, 3_600_000_000, -86_400_000_000])
    for span in moved.spans:
        span.start, span.end = span.start + by, span.end + by
    moved.begun = {rank: t + by for rank, t in trace.begun.items()}
    moved.ended = {rank: t + by for rank, t in trace.ended.items()}
    assert Profile.of(timeline_of(moved)) == Profile.of(timeline_of(trace))


@pytest.mark.parametrize("seed", range(60))
def test_known_offsets_of_clocks_change_nothing(seed: int):
    trace, apart = at_random(seed), at_random(seed)
    dice = random.Random(seed)
    trace.offsets = dict.fromkeys(range(trace.size), 0)
    apart.offsets = {rank: dice.randrange(-(10**10), 10**10) for rank in range(apart.size)}
    assert Profile.of(timeline_of(apart)) == Profile.of(timeline_of(trace))


@pytest.mark.parametrize("seed", range(40))
def test_a_profile_recovers_the_waits_from_which_a_schedule_was_made(seed: int):
    """Ranks load and compute for known times, wait for the last one, then transfer together."""
    dice = random.Random(seed)
    size, steps = dice.randint(2, 6), dice.randint(1, 30)
    transfer = dice.randrange(1, 2_000)
    trace = Trace(size)
    now = 0
    computed, loaded, waited, lasts = ([0] * size for _ in range(4))
    for _ in range(steps):
        loads = [dice.randrange(3_000) for _ in range(size)]
        works = [dice.randrange(1, 10_000) for _ in range(size)]
        arrivals = [now + loads[r] + works[r] for r in range(size)]
        last = max(arrivals)
        for rank in range(size):
            trace.add(rank, "data", "load", now, loads[rank])
            end = last + transfer - arrivals[rank]
            trace.add(rank, "collective", collective("allreduce", "g"), arrivals[rank], end)
            trace.add(rank, "wait", "hvd.allreduce g", arrivals[rank], end)
            loaded[rank] += loads[rank]
            computed[rank] += works[rank]
            waited[rank] += last - arrivals[rank]
        lasts[arrivals.index(last)] += sorted(arrivals)[-2] < last or arrivals.count(last) > 1
        now = last + transfer
    for rank in range(size):
        trace.active(rank, 0, now)
    profile = Profile.of(timeline_of(trace))
    for row in profile.ranks:
        assert row.waiting == waited[row.rank]
        assert row.exposed == row.communication == steps * transfer
        assert (row.compute, row.data, row.idle) == (computed[row.rank], loaded[row.rank], 0)
    assert profile.wall == now and profile.kinds[0].calls == steps
    assert profile.kinds[0].bandwidth == pytest.approx(4096e6 / transfer)
    assert {s.rank: s.last for s in profile.stragglers} == {
        rank: count for rank, count in enumerate(lasts) if count
    }


@pytest.mark.parametrize("seed", range(20))
def test_communication_overlapped_by_gpu_kernels_is_not_exposed(seed: int):
    dice = random.Random(seed)
    trace = Trace(2)
    named = {**collective("allreduce", "g", "dist"), "kernel": "ncclDevKernel_AllReduce"}
    for rank in range(2):
        for step in range(8):
            at = 20_000 * step
            start, end = sorted(dice.sample(range(at, at + 20_000), 2))
            trace.add(rank, "kernel", "gemm", at, dice.randrange(20_000))
            trace.add(rank, "collective", named, start, end - start)
            # A collective that does not run on the GPU counts even while the GPU computes.
            trace.add(rank, "collective", collective("barrier", "", "dist"), end, 500)
    found = Profile.of(timeline_of(trace)).to_json()
    for key, value in truth(trace)["profile"].items():
        assert close(found[key], value), (key, found[key], value)
    assert all(0 < row["exposed"] + row["waiting"] < 160_000 for row in found["ranks"])


def test_a_loop_on_one_rank_has_a_rate_and_no_straggler():
    trace = Trace(1)
    train(trace, {0: 1_000_000}, lambda rank, step: 7_000, 20, [collective("allreduce", "g")])
    profile = Profile.of(timeline_of(trace))
    assert profile.loop and profile.loop.steps == 19 and profile.loop.named == []
    assert profile.loop.rate == pytest.approx(1e6 * 19 / profile.loop.time)
    assert profile.diagnosis == "" and "steps/s" in str(profile)


def test_a_running_loop_has_the_steps_completed_so_far():
    trace = Trace(2)
    clock = {rank: trace.add(rank, "cell", "import torch", 0, 5_000_000) for rank in range(2)}
    for rank in range(2):
        trace.active(rank, 0, None)
    few, seen = dict(clock), []
    train(trace, clock, lambda rank, step: 3_000 + 20_000 * rank, 4, [collective("allreduce", "g")])
    seen.append(Profile.of(timeline_of(trace)))
    train(
        trace, clock, lambda rank, step: 3_000 + 20_000 * rank, 26, [collective("allreduce", "g")]
    )
    seen.append(Profile.of(timeline_of(trace)))
    assert seen[0].loop is None and few != clock
    loop = seen[1].loop
    assert loop and (loop.first, loop.last, loop.line) == (2, 30, None)
    assert seen[1].diagnosis.startswith("steps 2–30: rank 1 arrives last")
    assert seen[1].diagnosis.endswith("; before that: 5.0 s")
    warm_up = seen[1].phase("warmup")
    assert warm_up and warm_up.begin == clock_of_import(trace)


def clock_of_import(trace: Trace) -> int:
    return max(span.end for span in trace.spans if span.cat == "cell" and span.rank == 0)


def test_a_loop_begins_when_all_statements_before_it_are_over():
    trace = Trace(1)
    for begin, end in ((0, 100_000), (10_000, 50_000)):  # the first executes the second
        trace.add(0, "cell", "get_ipython().run_cell(text)", begin, end - begin)
    train(trace, {0: 200_000}, lambda rank, step: 7_000, 20, [])
    warm_up = Profile.of(timeline_of(trace)).phase("warmup")
    assert warm_up and warm_up.begin == 100_000


def test_collectives_with_numbered_names_are_one_repeating_pattern():
    trace = Trace(2)
    clock = {0: 0, 1: 0}
    for step in range(12):
        named = [
            collective("all_reduce", f"#{step + 1}", "dist"),
            collective("barrier", "#", "dist"),
        ]
        train(trace, clock, lambda rank, _: 9_000 + 9_000 * rank, 1, named, "")
    loop = Profile.of(timeline_of(trace)).loop
    assert loop and (loop.name, loop.last) == ("barrier", 12)


def test_rows_can_be_those_of_one_phase():
    profile = Profile.of(golden("imports")[0])
    part = profile.phase("loop")
    assert part and profile.rows("kinds", "loop") == [vars(kind) for kind in part.kinds]
    assert profile.rows("kinds", "loop") != profile.rows("kinds")
    with pytest.raises(UsageError, match="no 'loops'; it has startup, warmup, loop, rest"):
        profile.rows("kinds", "loops")
    with pytest.raises(UsageError, match="no phases, because no part of the run repeats"):
        Profile.of(golden("broken")[0]).rows("ranks", "loop")


def test_a_profile_of_an_earlier_version_is_read():
    kept = Profile.of(golden("imports")[0]).to_json()
    earlier = {key: value for key, value in kept.items() if key not in ("loop", "phases")}
    read = Profile.from_json(earlier)
    assert read.loop is None and read.phases == [] and "whole run" not in str(read)


# --- the rows -------------------------------------------------------------------------------------


def test_profile_rows_are_plain_json_data():
    timeline, expected = golden("slow-loader")
    profile = Profile.of(timeline)
    assert profile.rows() == expected["profile"]["ranks"]
    assert json.loads(json.dumps(profile.rows("kinds"))) == profile.rows("kinds")
    assert profile.rows("stragglers") == expected["profile"]["stragglers"]
    with pytest.raises(UsageError, match="no 'rank'; it has ranks, kinds, stragglers"):
        profile.rows("rank")


def test_a_profile_has_a_readable_text_and_html_form():
    timeline, expected = golden("slow-loader")
    profile = Profile.of(timeline)
    text = repr(profile)
    assert text.startswith(expected["profile"]["diagnosis"])
    read = (
        "data loading", "480 ms  51 %", "hvd.torch allreduce", "2.0 MB/s", "39 of 39", "start-up",
        "steps 2–40 end with step (line 3): 43.2 steps/s", "waiting per rank",
    )  # fmt: skip
    for words in read:
        assert words in text
        assert " ".join(words.split()) in profile._repr_html_().replace("\u00a0", " ")


def test_a_profile_reports_the_spans_it_left_out():
    timeline, _ = golden("hostile")
    text = str(Profile.of(timeline))
    assert "25 unsound spans left out: 7 farther than ten years away, 5 in columns" in text


def test_names_cannot_become_html():
    trace = Trace(2)
    for rank in range(2):
        trace.add(rank, "collective", collective("<script>", "x"), 10 * rank, 50)
    assert "<script>" not in Profile.of(timeline_of(trace))._repr_html_()


def test_a_profile_converts_to_a_pandas_data_frame(monkeypatch: pytest.MonkeyPatch):
    profile = Profile.of(golden("turns")[0])

    class FakePandas:
        @staticmethod
        def DataFrame(rows: Any, columns: list[str]) -> tuple[Any, list[str]]:  # noqa: N802
            return rows, columns

    monkeypatch.setitem(sys.modules, "pandas", FakePandas)
    rows, columns = profile.to_pandas()
    assert rows == profile.rows() and columns[:2] == ["rank", "compute"]
    assert profile.to_pandas("kinds")[1][0] == "library"


def test_to_pandas_without_pandas_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install pandas.*rows\('ranks'\)"):
        Profile.of(golden("turns")[0]).to_pandas()


def test_a_profile_of_many_spans_counts_all_of_them():
    trace = Trace(2)
    run = RunInfo.from_json(trace.run_json("big"))
    count, batch = 20_000, 4_000
    lines = [event_line("status", rank, 0, 0, state="running") for rank in range(2)]
    for rank in range(2):
        define = [collective("allreduce", "g"), {"name": "wait"}, {"name": "phase"}]
        for n, cat in enumerate(("collective", "wait", "phase")):
            for at in range(0, count, batch):
                columns = {"name": [n] * batch, "start": [100 * at + 5, *[100] * (batch - 1)]}
                fields = {"from": 0, "define": define, **columns, "dur": [60] * batch}
                lines.append(event_line("spans", rank, 1, 0, cat=cat, **fields))
    profile = Profile.of(Timeline.of(run, lines))
    assert profile.kinds[0].calls == count
    assert [row.exposed for row in profile.ranks] == [60 * count] * 2


def test_collectives_are_matched_again_after_a_rank_was_restarted() -> None:
    define = {"from": 0, "define": [{"name": "allreduce g", "op": "allreduce", "tensor": "g"}]}
    again = {**define, "from": 50_001}

    def spans(rank: int, seq: int, names: Json, number: int, *starts: int) -> bytes:
        apart = [now - before for before, now in zip((0, *starts), starts, strict=False)]
        columns = {"name": [number] * len(starts), "start": apart, "dur": [9] * len(starts)}
        return spans_line(rank, seq, 0, {"cat": "collective", **names}, columns)

    met = {"name": "regrouped", "args": {"meeting": 1}}
    lines = [
        event_line("status", 0, 0, 0, state="running"),
        event_line("status", 1, 0, 0, state="running"),
        spans(0, 1, define, 0, 10, 20, 30, 510),
        spans(1, 1, define, 0, 10, 20),
        event_line("mark", 1, 2, 40, name="away", args={"why": "was killed"}),
        event_line("mark", 0, 2, 50, **met),
        event_line("status", 1, 3, 400, state="running"),
        event_line("mark", 1, 4, 401, **met),
        spans(1, 5, again, 50_001, 500),
        event_line("status", 0, 3, 600, state="ok"),
        event_line("status", 1, 6, 600, state="ok"),
    ]
    run = RunInfo("r", "c", 2, 0, [RankInfo(rank, "h", 1, "cpu", state="ok") for rank in (0, 1)])
    timeline = Timeline.of(run, lines)
    found = [(each.n, each.arrivals) for each in Collectives(timeline)]
    assert found == [(0, [10, 10]), (1, [20, 20]), (2, [30]), (3, [510, 500])]
    idle = {each.rank: each.idle for each in Profile.of(timeline).ranks}
    assert idle == {0: 0, 1: 400 - 40}


def test_a_rank_that_is_absent_still_does_not_compute():
    run = RunInfo("r", "c", 2, 0, [RankInfo(rank, "h", 1, "cpu") for rank in (0, 1)])
    columns = {"name": [0], "start": [500], "dur": [100]}
    timeline = Timeline.of(run, [
        event_line("status", 0, 0, 0, state="running"),
        event_line("status", 1, 0, 0, state="running"),
        event_line("mark", 1, 1, 40, name="away", args={"why": "was killed"}),
        spans_line(0, 1, 600, {"cat": "user", "from": 0, "define": [{"name": "x"}]}, columns),
    ])  # fmt: skip
    idle = {each.rank: each.idle for each in Profile.of(timeline).ranks}
    assert idle == {0: 0, 1: 600 - 40}
