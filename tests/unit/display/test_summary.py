"""Profile and picture in a cell's output: shown if there is something to see, and bounded."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from test_display import saved

from rankroom.analysis.profile import Profile, Shares
from rankroom.analysis.timeline import Timeline
from rankroom.display import bundle
from rankroom.display.page import weight
from rankroom.display.picture import COLOURS, WIDTH, picture
from rankroom.display.summary import MAX_SPAN_BYTES, summary
from rankroom.record.model import RunInfo, event_line
from rankroom.record.store import Store
from trace_makers import ALL, FOLDER, Trace, collective, loop

NAMES = [make.__name__.replace("_", "-") for make in ALL]
PLAIN = re.compile(r"<(\w+)|(\w+)=")


def record_of(trace: Trace, root: Path) -> tuple[Store, RunInfo]:
    """The trace as a record under `root`."""
    folder = root / "runs" / "trace-made"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(trace.run_json("made")))
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in trace.lines()))
    (folder / "source.py").write_text("train()\n")
    store = Store(root)
    return store, store.load("trace-made")


def shares_of(name: str) -> Shares:
    run = RunInfo.from_json(json.loads((FOLDER / name / "run.json").read_text()))
    return Shares(Timeline.read(run, FOLDER / name / "events.jsonl"))


def parsed(svg: str) -> ElementTree.Element:
    """Parse the SVG as XML, with quotes around attributes, which HTML does not need."""
    return ElementTree.fromstring(re.sub(r"(\s[a-z-]+)=([^'\s>]+)", r"\1='\2'", svg))


# --- the picture ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("room", [2_000, 6_000, 20_000])
def test_a_picture_keeps_to_its_size_limit_and_is_well_formed(name: str, room: int):
    svg = picture(shares_of(name), "a <title> & more", room)
    assert weight(svg) <= room
    if svg:
        tree = parsed(svg)
        tags = {each.tag for each in tree.iter()}
        assert tags <= {"svg", "g", "title", "path", "text"}
        assert tree.findtext("title") == "a <title> & more" == tree.get("aria-label")
        numbers = re.findall(r"nan|inf|-?\d+\.\d{4,}", svg)
        assert not numbers


def drawn(svg: str, wall: int) -> dict[str, float]:
    """The total length of each colour in the upper strips of all lanes, in microseconds."""
    out: dict[str, float] = {}
    for path in parsed(svg).iter("path"):
        name = {colour: name for name, colour in COLOURS.items()}.get(path.get("stroke", ""))
        if name and int(path.get("stroke-width", "0")) > 20:
            units = sum(map(int, re.findall(r"h(\d+)", path.get("d", ""))))
            out[name] = units * wall / (2 * 670)
    return out


def test_bars_are_as_long_as_the_parts_they_stand_for():
    shares = shares_of("turns")
    svg = picture(shares, "t", 20_000)
    found = drawn(svg, shares.wall)
    for name in ("compute", "waiting"):
        truth = sum(b - a for times in shares.ranks.values() for a, b in getattr(times, name))
        assert found[name] == pytest.approx(truth, rel=0.05)
    assert "data" not in found


def test_what_was_not_recorded_is_a_gap_in_the_picture():
    # Two cells of 1 s, 9 s apart, as in two files of a profiler.
    seconds = (("cell", 0, 1), ("unrecorded", 1, 9), ("cell", 10, 1))
    lines = [
        event_line("spans", rank, number, 1_000_000 * start, **{
            "cat": cat, "from": number, "define": [{"name": f"{cat} {number}"}],
            "name": [number], "start": [1_000_000 * start], "dur": [1_000_000 * dur],
        })
        for rank in (0, 1)
        for number, (cat, start, dur) in enumerate(seconds)
    ]  # fmt: skip
    shares = Shares(Timeline.of(RunInfo.from_json(Trace(2).run_json("made")), lines))
    assert (shares.wall, shares.end - shares.begin) == (2_000_000, 11_000_000)
    tree = parsed(picture(shares, "t", 20_000))
    [bars] = [path.get("d", "") for path in tree.iter("path") if path.get("stroke-width") == "44"]
    ends = {sum(map(int, re.findall("(?:^|[mh])([0-9]+)", lane))) for lane in bars.split("M")[1:]}
    assert ends == {2 * (WIDTH - 6)}
    assert [each.text for each in tree.iter("text") if re.fullmatch(r"\d+ s", each.text or "")] == [
        "2 s", "4 s", "6 s", "8 s", "10 s",
    ]  # fmt: skip


def test_stacked_areas_are_as_large_as_the_parts_they_stand_for():
    trace = Trace(2)
    loop(trace, 900, lambda rank, step: (0, 3_000 + 6_000 * rank))
    run = RunInfo.from_json(trace.run_json("made"))
    lines = [f"{line}\n".encode() for line in trace.lines()]
    shares = Shares(Timeline.of(run, lines))
    svg = picture(shares, "t", 8_000)
    assert svg and "stroke-width=34" not in svg
    areas = {}
    for path in parsed(svg).iter("path"):
        if path.get("fill"):
            areas[path.get("fill")] = area(path.get("d", ""))
    # Each area reaches down to the bottom of its lane, behind those below it.
    lane = 2 * 34 * 2 * 670
    waiting = areas[COLOURS["waiting"]] / lane
    late = shares.ranks[0]
    assert not len(shares.ranks[1].waiting)
    truth = sum(b - a for part in (late.waiting, late.exposed) for a, b in part)
    assert waiting == pytest.approx(truth / (2 * shares.wall), abs=0.05)


def area(outline: str) -> float:
    """The area of the upper strips: those that are higher than ten units."""
    total = 0.0
    for part in re.findall(r"M[^M]+", outline):
        height, found, highest = 0, 0, 0
        for step, value in re.findall(r"([hv])(-?\d+)", part):
            if step == "v":
                height -= int(value)
                highest = max(highest, height)
            else:
                found += height * int(value)
        total += found if highest > 10 else 0
    return total


# --- the output -----------------------------------------------------------------------------------


def test_the_output_names_the_straggler(tmp_path: Path):
    trace = Trace(4)
    loop(trace, 40, lambda rank, step: (12_000 if rank == 2 else 4_000, 9_000))
    store, run = record_of(trace, tmp_path)
    data = bundle(run, store)
    sentence = "steps 2–40: rank 2 arrives last in 100 % of 39 allreduces and costs 35 % of a step"
    lines = data["text/plain"].splitlines()
    assert lines[0].startswith("● 4 ranks · done")
    assert lines[1].startswith(f"{sentence}; its data loading takes 12.0 of 23.1 ms, 3.0 ×")
    assert any(line.startswith("rank, steps 2–40 ") for line in lines)
    assert any(re.match(r"2 +355 ms +39 % +468 ms +52 %", line) for line in lines)
    html = data["text/html"]
    assert sentence in html and "468 ms" in html and html.count("<svg") == 1
    assert "timeline of 4 ranks: computing" in html


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("steps", [3, 60])
def test_the_output_stays_small(tmp_path: Path, ranks: int, steps: int):
    dice = random.Random(1)
    trace = Trace(ranks, title="x" * 5_000)
    loop(trace, steps, lambda rank, step: (dice.randrange(5_000), dice.randrange(9_000)))
    store, run = record_of(trace, tmp_path)
    run.notes = ["a note of some length"] * 20
    data = bundle(run, store)
    assert saved(data) <= 64 << 10
    if ranks > 1:
        assert "<svg" in data["text/html"] and "data loading" in data["text/plain"]
    assert "a note of some length" in data["text/html"]


def test_a_long_log_leaves_room_for_the_picture(tmp_path: Path):
    trace = Trace(8)
    loop(trace, 60, lambda rank, step: (0, 5_000 + 100 * rank))
    long = json.dumps({"kind": "log", "rank": 0, "seq": 5, "t": 1, "stream": "stdout"})
    text = json.dumps("".join(f"line {n} {'x' * 250}\n" for n in range(800)))
    for rank in range(8):
        line = long.replace('"rank": 0', f'"rank": {rank}')[:-1] + f', "text": {text}}}'
        trace.event(line)
    store, run = record_of(trace, tmp_path)
    run.lines = 6_400
    data = bundle(run, store)
    assert saved(data) <= 64 << 10
    assert "<svg" in data["text/html"] and "lines left out" in data["text/html"]
    assert "arrives last" in data["text/plain"] or "no rank stands out" in data["text/plain"]


def test_a_short_cell_without_collectives_gets_no_picture(tmp_path: Path):
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 0, 900_000)
        trace.add(rank, "data", "load", 100, 500_000)
    store, run = record_of(trace, tmp_path)
    data = bundle(run, store)
    assert "svg" not in data["text/html"] and data["text/plain"].count("\n") == 0


def test_a_long_cell_without_collectives_gets_a_picture_if_it_has_other_spans(
    tmp_path: Path,
):
    for name, shown in (("cell", False), ("data", True)):
        trace = Trace(2)
        for rank in range(2):
            trace.active(rank, 0, 1_500_000)
            trace.add(rank, name, "x", 100, 500_000)
        store, run = record_of(trace, tmp_path / name)
        assert ("svg" in bundle(run, store)["text/html"]) == shown


def test_for_a_large_timeline_the_output_names_the_profile_command(tmp_path: Path):
    trace = Trace(2)
    loop(trace, 5, lambda rank, step: (0, 1_000))
    store, run = record_of(trace, tmp_path)
    events = store.paths(run.id).events
    line = events.read_bytes().splitlines(keepends=True)[2]
    with events.open("ab") as file:
        file.write(line * (MAX_SPAN_BYTES // len(line) + 1))
    data = bundle(run, store)
    assert f"rankroom runs profile {run.id}" in data["text/plain"]
    assert "svg" not in data["text/html"]


def test_a_long_log_is_not_called_a_large_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trace = Trace(2)
    loop(trace, 5, lambda rank, step: (0, 1_000))
    store, run = record_of(trace, tmp_path)
    monkeypatch.setattr("rankroom.display.summary.MAX_SEARCHED_BYTES", 10)
    note = summary(run, store.paths(run.id).events).note
    assert "the record is too large" in note and "timeline" not in note


def test_output_and_profile_agree_after_a_regrouping(tmp_path: Path):
    trace = Trace(2)
    for rank in range(2):
        trace.active(rank, 0, 3_100_000)
        for n in range(20 - 3 * rank):
            trace.add(rank, "collective", collective("allreduce", "g"), 10_000 * n, 1_000)
        for n in range(100):
            at = 1_000_000 + 20_000 * n + 10_000 * rank
            trace.add(rank, "collective", collective("allreduce", "g"), at, 11_000 - 10_000 * rank)
    store, run = record_of(trace, tmp_path)
    events = store.paths(run.id).events
    met = {"name": "regrouped", "args": {"meeting": 1}}
    with events.open("ab") as file:
        file.writelines(event_line("mark", rank, 9, 500_000, **met) for rank in range(2))
    sentence = Profile.of(Timeline.read(run, events)).diagnosis
    assert "rank 1 arrives last in" in sentence
    assert summary(run, events).sentence == sentence


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_trace_can_be_shown(name: str, tmp_path: Path):
    folder = tmp_path / "runs" / f"trace-{name}"
    shutil.copytree(FOLDER / name, folder)
    store = Store(tmp_path)
    data = bundle(store.load(folder.name), store)
    assert saved(data) <= 64 << 10


def test_nbconvert_shows_the_picture(tmp_path: Path):
    from nbconvert import exporters

    trace = Trace(2)
    loop(trace, 20, lambda rank, step: (0, 1_000 + 4_000 * rank))
    store, run = record_of(trace, tmp_path)
    cell = nbformat.v4.new_code_cell("%%distributed\ntrain()")
    cell.outputs = [nbformat.v4.new_output("display_data", data=bundle(run, store))]
    page, _ = exporters.HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "<svg " in page and "timeline of 2 ranks: computing" in page
    assert "rank 1 arrives last in 100 % of 19 allreduces" in page
