"""The profile of a run too long to be recorded in full agrees with that of a short run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from rankroom.analysis.profile import Profile
from rankroom.analysis.scaling import Measured
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import RankInfo, RunInfo, event_line, spans_line
from rankroom.reporting import spans as module
from rankroom.reporting.spans import SpanRecorder

STEP_US, LATE_US, TENSORS = 50_000, 20_000, 20
ZERO = 10**15
ABOUT = {"op": "allreduce", "library": "hvd.torch", "bytes": 100}
NOT_RECORDED = [{"name": "not recorded"}]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSAMPLED_SPANS", 4_000)
    monkeypatch.setattr(module, "UNSAMPLED_SPANS_PER_NAME", 300)
    monkeypatch.setattr(module, "SAMPLED_STRETCH_SPANS", 200)


def lines(rank: int, steps: int, stream: str, before: int = 0) -> Iterator[bytes]:
    """The events of a rank: in each training step, rank 1 computes 20 ms longer than the others,
    which wait. A loop of `before` short steps precedes the training."""
    recorder = SpanRecorder()
    recorder.began = ZERO
    recorder.begin()
    seq = itertools.count()
    yield event_line("status", rank, next(seq), 0, state="running")
    one = recorder.number("step", lambda: {"name": "step", "line": 3})
    yield event_line("status", rank, next(seq), 0, state="running")
    for step in range(before):
        number = recorder.number("early", lambda: {**ABOUT, "name": "barrier", "op": "barrier"})
        recorder.extend("collective", [(number, ZERO + step * 1000, 900)], stream)
    zero = ZERO + before * 1000
    for step in range(steps):
        begin = zero + step * STEP_US
        arrives = begin + 20_000 + LATE_US * (rank == 1)
        met = begin + 20_000 + LATE_US
        for tensor in range(TENSORS):
            # All tensors are ready when the last rank arrives; they are then sent one by one.
            name = f"layer{tensor}"
            number = recorder.number(
                name,
                lambda name=name: ABOUT | {"name": f"allreduce {name}", "tensor": name},
            )
            end = met + 400 * (tensor + 1)
            recorder.extend("collective", [(number, arrives, end - arrives)], stream)
        ends = met + 400 * TENSORS
        recorder.add("wait", recorder.number("w", lambda: {"name": "hvd"}), arrives, ends - arrives)
        recorder.add("step", one, begin, STEP_US)
        if step == steps - 1:
            cell = recorder.number("cell", lambda: {"name": "cell", "line": 1})
            recorder.add("cell", cell, ZERO, zero - ZERO + steps * STEP_US)
        if step % 20 == 19 or step == steps - 1:
            for fields in recorder.take(ZERO, last=step == steps - 1):
                columns = {key: fields.pop(key) for key in ("name", "start", "dur")}
                yield spans_line(rank, next(seq), begin - ZERO, fields, columns)
    yield event_line("status", rank, next(seq), zero - ZERO + steps * STEP_US, state="done")


def timeline(steps: int, stream: str, before: int = 0) -> Timeline:
    ranks = [RankInfo(rank, "h", 1, "cpu") for rank in range(3)]
    run = RunInfo("made", "mine", 3, ZERO, ranks=ranks)
    return Timeline.of(
        run, [line for rank in range(3) for line in lines(rank, steps, stream, before)]
    )


@pytest.mark.parametrize("stream", ["torch 0", ""])
@pytest.mark.parametrize("steps", [600, 3_000])
def test_a_sampled_long_run_has_the_straggler_and_shares_of_a_short_run(stream: str, steps: int):
    short, long = (Profile.of(timeline(count, stream)) for count in (150, steps))
    assert "rank 1" in short.diagnosis and "40 % of a step" in short.diagnosis
    assert long.diagnosis.partition(" of a step")[0].endswith("costs 40 %"), long.diagnosis
    assert long.named == [1]
    for of_short, of_long in zip(short.rows("ranks"), long.rows("ranks"), strict=True):
        for part in ("compute", "waiting", "exposed"):
            shares = of_short[part] / short.wall, of_long[part] / long.wall
            assert shares[0] == pytest.approx(shares[1], abs=0.02), (part, of_short["rank"])
    assert long.loop is not None and long.loop.apart == 0
    assert long.wall < steps * STEP_US  # without the unrecorded gaps
    assert long.loop.rate == pytest.approx(1e6 / STEP_US, rel=0.01)


@pytest.mark.parametrize(("before", "steps"), [(5_000, 2_000), (9_000, 2_000), (4_500, 3_000)])
def test_a_loop_that_begins_when_spans_are_left_out_is_found(before: int, steps: int):
    found = Profile.of(timeline(steps, "torch 0", before))
    assert found.loop is not None and found.loop.rate == pytest.approx(20, rel=0.05)
    assert "costs 40 %" in found.diagnosis and found.named == [1]


def test_waits_are_sampled_along_with_their_collectives(monkeypatch: pytest.MonkeyPatch):
    """Here, both are so many that only stretches of them are recorded."""
    monkeypatch.setattr(module, "UNSAMPLED_SPANS", 1_000)
    found = Profile.of(timeline(12_000, "torch 0"))
    assert "costs 40 %" in found.diagnosis, found.diagnosis
    # Of 240,000 collectives, 20 per step, 2,800 are recorded: in more than the first 50 steps.
    assert found.loop is not None and found.loop.steps > 100
    [waiting] = [each["waiting"] for each in found.rows("ranks") if each["rank"] == 0]
    assert waiting / found.wall == pytest.approx(0.4, abs=0.02)


def test_scaling_causes_of_a_sampled_run_match_those_of_a_short_run():
    short, long = (Measured.of(timeline(count, "torch 0")) for count in (150, 3_000))
    assert long.time == pytest.approx(20 * short.time, rel=0.01)
    for cause, time in short.causes.items():
        assert long.causes[cause] / long.time == pytest.approx(time / short.time, abs=0.02), cause


def test_an_unrecorded_gap_is_reported_in_pieces_and_noted():
    recorder = SpanRecorder()
    recorder.begin()
    number = recorder.number("a", lambda: {"name": "a"})
    found: list[tuple[int, int]] = []
    for second in range(100):  # 100 waits per second: the first 4,200, or 42 s, are recorded
        recorder.extend("wait", [(number, 10**6 * second + 10**4 * n, 9_000) for n in range(100)])
        for fields in recorder.take(0, last=second == 99):
            if fields["cat"] == "unrecorded":
                assert fields.get("define", NOT_RECORDED) == NOT_RECORDED
                found += zip(itertools.accumulate(fields["start"]), fields["dur"], strict=True)
    assert found[0][0] == 42 * 10**6
    assert max(length for _, length in found) < 12 * 10**6  # reported in pieces
    # After that, every tenth stretch of 200 is recorded: 2 s of every 20 s.
    assert sum(length for _, length in found) == pytest.approx(54 * 10**6, rel=0.02)
    assert found[-1][0] + found[-1][1] == pytest.approx(100 * 10**6, abs=10**5)
    [note] = recorder.new_notes()
    assert note.endswith(
        "only some stretches; the profile covers only what the timeline has, and its counts are "
        "too small"
    )
