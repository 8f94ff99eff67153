"""The output of a cell: bounded whatever a run wrote, with what matters most first."""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest

from checkout import RECORDS
from collapse_cases import ABSL, FLAGS
from rankroom.display import MIME, bundle, running_bundle, runs_table, words
from rankroom.record.model import Clock, Failure, Hang, Place, RunInfo, event_line
from rankroom.record.store import Store
from rankroom.text import amounts
from record_makers import finished_record, log, make_run, start_record

LIMIT = 64 << 10


ALLOWED = {"div": {"style"}, "pre": {"style"}, "span": {"style"}, "b": {"style"}}
ALLOWED |= {"i": {"style"}, "br": set(), "img": {"src", "alt", "style"}}


class Tags(HTMLParser):
    """Asserts that HTML is well-formed and inert, and collects its text."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.images: list[str] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert {name for name, _ in attrs} <= ALLOWED[tag]
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        elif tag != "br":
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError("a comment")


def read(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert not tags.stack
    return tags


def saved(data: dict[str, Any]) -> int:
    """How many bytes the output adds to the notebook file."""
    cell = nbformat.v4.new_code_cell("x")
    empty = len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode())
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.validate(notebook)
    return len(nbformat.writes(notebook).encode()) - empty


def error(rank: int, evalue: str = "boom", t: int = 100, trace: list[str] | None = None) -> dict:
    trace = [f"Traceback of rank {rank}", f"ValueError: {evalue}"] if trace is None else trace
    return {
        "kind": "error", "rank": rank, "seq": 1, "t": t, "ename": "ValueError", "evalue": evalue,
        "traceback": trace,
    }  # fmt: skip


def value(rank: int, text: str, result: bool = True, **fields: Any) -> dict[str, Any]:
    data = fields.pop("data", {"text/plain": text})
    return {
        "kind": "display", "rank": rank, "seq": 1, "t": 5, "data": data, "result": result, **fields
    }  # fmt: skip


def ended(size: int = 4, state: str = "done", **fields: Any) -> RunInfo:
    run = make_run(size, state=state, **fields)
    run.end = run.start + 12_400_000
    return run


def line_of(event: dict[str, Any]) -> bytes:
    return event_line(**event)


def bundled(run: RunInfo, *events: dict[str, Any]) -> dict[str, Any]:
    """The bundle of a run whose record has these events."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        writer = store.create(run, "x")
        writer.append(b"".join(map(line_of, events)))
        writer.finish(run)
        return bundle(run, store)


def pages(run: RunInfo, *events: dict[str, Any], store: Store | None = None) -> tuple[str, Tags]:
    data = bundled(run, *events) if store is None else bundle(run, store)
    return data["text/plain"], read(data["text/html"])


# --- contents -------------------------------------------------------------------------------------


def test_an_empty_run_is_one_line():
    text, html = pages(ended())
    assert text == "● 4 ranks · done in 12.4 s"
    assert html.text == text


def test_the_bundle_carries_run_json():
    run = ended()
    data = bundle(run)
    assert data[MIME] == {"version": 1, "run": run.to_json()}
    assert set(data) == {MIME, "text/html", "text/plain"}


def test_a_running_run_says_how_to_follow_it():
    run = make_run(2)
    data = running_bundle(run)
    assert data["text/plain"] == "● 2 ranks · running"
    assert f"rankroom runs tail -f {run.id}" in read(data["text/html"]).text


def test_a_running_run_shows_its_notes():
    run = make_run(2)
    run.notes = ["cell line 4: <b>hvd.allreduce</b>", *(f"note {i}" for i in range(40))]
    data = running_bundle(run)
    assert data["text/plain"].startswith("● 2 ranks · running\ncell line 4: <b>hvd.allreduce</b>\n")
    assert "cell line 4: <b>hvd.allreduce</b>" in read(data["text/html"]).text
    assert "note 5" not in data["text/plain"]


def test_equal_results_are_shown_once():
    for page in pages(ended(), *[value(rank, "0.931" if rank < 3 else "0.5") for rank in range(4)]):
        text = page if isinstance(page, str) else page.text
        assert "ranks 0–2: 0.931\n" in text + "\n" and "rank 3: 0.5" in text


def test_a_value_shown_twice_by_a_rank_names_the_rank_once():
    for page in pages(ended(2), *[value(0, "0.931", result=False)] * 2):
        text = page if isinstance(page, str) else page.text
        assert "rank 0: 0.931" in text


def test_a_value_of_several_lines_stands_under_its_ranks():
    text, _ = pages(ended(2), *[value(rank, "[[1 2]\n [3 4]]") for rank in range(2)])
    assert text.endswith("ranks 0–1:\n[[1 2]\n [3 4]]")


@pytest.mark.parametrize("rest", ["", "\nb"])
def test_a_value_is_shown_as_a_terminal_would(rest: str):
    for page in pages(ended(1), value(0, "10 %\rdone" + rest)):
        text = page if isinstance(page, str) else page.text
        assert "done" in text and "10 %" not in text and "␍" not in text


def test_the_root_cause_is_shown_first_in_full_and_other_errors_in_a_line():
    run = ended(state="failed", failure=Failure(2, "ValueError", "boom", 3))
    trace = [f"line {n}" for n in range(60)]
    peers = [error(rank, "Connection closed by peer", t=50) for rank in (0, 1, 3)]
    for page in pages(run, *peers, error(2, "boom", t=100, trace=trace)):
        text = page if isinstance(page, str) else page.text
        assert "failed on rank 2 after 12.4 s · ValueError: boom (cell line 3)" in text
        assert text.index("rank 2 failed first") < text.index("line 0\n")
        assert all(f"line {n}\n" in text for n in range(60))
        assert "ranks 0–1,3: ValueError: Connection closed by peer" in text
        assert "Traceback of rank" not in text
        assert text.index("line 59") < text.index("Connection closed")


def test_errors_that_follow_a_killed_rank_are_not_called_the_first():
    run = ended(state="failed", failure=Failure(2, "RankLost", "rank 2 was killed by SIGKILL"))
    for page in pages(run, *(error(rank, "Connection closed by peer", t=50) for rank in (0, 1, 3))):
        text = page if isinstance(page, str) else page.text
        assert "RankLost: rank 2 was killed by SIGKILL" in text
        assert "rank 0 failed:" in text and "first" not in text


def test_a_huge_traceback_keeps_both_ends():
    run = ended(state="failed", failure=Failure(0, "RecursionError", "deep"))
    text, html = pages(run, error(0, trace=[f"frame {n}\n  code" for n in range(90_000)]))
    for page in (text, html.text):
        assert "frame 0\n" in page and "frame 89999\n" in page
        assert "more lines of this traceback" in page
        assert f"rankroom runs show {run.id}" in page


def test_an_interrupt_is_not_called_a_failure():
    text, _ = pages(ended(2, state="interrupted"), error(0), error(1))
    assert "interrupted after 12.4 s" in text and "rank 0 was interrupted:" in text
    assert "failed" not in text


def test_a_short_log_is_whole_and_collapsed(tmp_path: Path):
    lines = [log(rank, f"same\nrank {rank}\n") for rank in range(3)]
    lines.append(log(1, "\x1b[33mwarn <&>\x1b[0m\n", 2, stream="stderr"))
    store, run = finished_record(tmp_path, *lines, size=3, lines=7)
    text, html = pages(run, store=store)
    expected = ["0–2 │ same", "0   │ rank 0", "1   │ rank 1", "2   │ rank 2", "1   ┃ warn <&>"]
    assert text.splitlines()[1:] == expected
    assert html.text.splitlines()[1:] == expected or "".join(expected) in html.text.replace(
        "\n", ""
    )


def test_start_up_messages_are_one_line_and_not_called_left_out(tmp_path: Path):
    lines = [log(rank, f"{ABSL}\n{FLAGS}\n" * 3, stream="stderr") for rank in range(3)]
    store, run = finished_record(tmp_path, *lines, size=3, lines=18)
    for page in pages(run, store=store):
        assert "TensorFlow's start-up messages: 18 lines" in str(getattr(page, "text", page))
        assert "left out" not in str(getattr(page, "text", page))


def test_a_long_log_shows_both_ends_and_counts_the_rest(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    for n in range(0, 50_000, 100):
        for rank in range(2):
            writer.append(log(rank, "".join(f"{rank}: {k}\n" for k in range(n, n + 100)), n))
    run.state, run.end, run.lines = "done", run.start + 1, 100_000
    writer.finish(run)
    text, html = pages(run, store=store)
    for page in (text, html.text):
        assert "0 │ 0: 0\n" in page and "1 │ 1: 49999\n" in page
        left = int(page.partition("… ")[2].partition(" lines left out")[0].replace(",", ""))
        assert left + page.count(" │ ") == 100_000
        assert f"rankroom runs show {run.id}" in page


def test_lines_left_out_of_a_collapsed_log_are_counted_for_every_rank(tmp_path: Path):
    text_of_all = "".join(f"{k}\n" for k in range(1500))
    store, run = finished_record(
        tmp_path, *[log(rank, text_of_all) for rank in range(4)], size=4, lines=6000
    )
    text, _ = pages(run, store=store)
    shown = text.count("0–3 │ ")
    assert f"… {6000 - 4 * shown:,} lines left out …" in text
    assert "0–3 │ 0\n" in text and "0–3 │ 1499\n" in text


def test_an_event_longer_than_the_part_that_is_read_shows_both_ends(tmp_path: Path):
    big = "".join(f"line {n}\n" for n in range(100_000))
    store, run = finished_record(tmp_path, log(0, big), log(1, big), lines=200_000)
    text, _ = pages(run, store=store)
    assert "│ line 0\n" in text and "│ line 99999\n" in text


def test_a_record_with_damaged_lines_is_shown(tmp_path: Path):
    run = ended(2, state="failed", failure=Failure(1, "ValueError", "boom"))
    events = [
        event_line("error", 1, 1, 9, ename="ValueError", evalue="boom", traceback=["the trace"]),
        event_line("display", 0, 2, 9, data={"text/plain": "42"}, result=True),
    ]
    store = Store(tmp_path)
    writer = store.create(run, "x")
    writer.append(log(0, "hello\n") + b"garbage\n" + b"".join(events) + b'{"half')
    writer.finish(run)
    text, _ = pages_later(store, run)
    assert all(part in text for part in ("the trace", "rank 0: 42", "0 │ hello"))


def pages_later(store: Store, run: RunInfo) -> tuple[str, Tags]:
    data = bundle(run, store)
    return data["text/plain"], read(data["text/html"])


def test_a_lost_run_shows_what_it_left(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    writer.append(log(0, "last words\n"))
    writer.close()
    run.state = "lost"
    text, _ = pages_later(store, run)
    assert "lost: the process" in text and "0 │ last words" in text


def test_displays_are_updated_and_cleared():
    seen = [
        value(0, "old", result=False, display_id="d"),
        value(1, "kept", result=False, display_id="d"),
        value(0, "", result=False, data={}, clear="next"),
        value(0, "new", result=False, display_id="d", update=True),
        value(2, "without a name", result=False),
        value(2, "of nothing", result=False, update=True),
        value(2, "gone", result=False),
        value(2, "", result=False, data={}, clear="now"),
        value(3, "gone too", result=False),
        value(3, "", result=False, data={}, clear="next"),
        value(3, "after", result=False),
    ]
    text, _ = pages(ended(), *seen)
    assert text.splitlines()[1:] == ["rank 0: new", "rank 1: kept", "rank 3: after"]
    text, _ = pages(ended(), *seen[:-1])
    assert text.splitlines()[-1] == "rank 3: gone too"


def figure(size: int, salt: int = 0) -> str:
    return base64.b64encode(random.Random(salt).randbytes(size)).decode()


def test_small_figures_are_inlined_while_they_fit():
    figures = [
        value(
            rank,
            "<Figure>",
            False,
            data={"image/png": figure(6_000, rank), "text/plain": "<Figure>"},
        )
        for rank in range(8)
    ]
    data = bundled(ended(8), *figures)
    html = read(data["text/html"])
    assert 2 <= len(html.images) < 8
    assert html.images[0] == f"data:image/png;base64,{figure(6_000, 0)}"
    assert "rank 7: a figure of 6.0 kB; open it in JupyterLab" in html.text
    assert saved(data) <= LIMIT


def test_equal_figures_are_inlined_once():
    png = {"image/png": figure(500), "text/plain": "<Figure>"}
    _, html = pages(ended(4), *[value(rank, "", False, data=png) for rank in range(4)])
    assert len(html.images) == 1 and "ranks 0–3" in html.text


@pytest.mark.parametrize("png", ['"><script>alert(1)</script>', "", 7, None, "x" * 200_000])
def test_an_invalid_or_large_figure_is_not_inlined(png: Any):
    data = {"image/png": png, "text/plain": "a figure"}
    text, html = pages(ended(1), value(0, "", False, data=data))
    assert not html.images and "a figure" in text and "rank 0: a figure" in html.text


def test_html_of_ranks_is_not_trusted():
    data = {"text/html": "<script>alert(1)</script>", "text/plain": "<b>frame</b>"}
    _, html = pages(ended(1), value(0, "", data=data))
    assert "<b>frame</b>" in html.text and "alert" not in html.text


# --- size and speed -------------------------------------------------------------------------------

NASTY = ["<", "&", '"', "'", "\\", "\n", "\r", "\x00", "\x1b[31m", "\x1b[0m", "火", "🙂", "\ud800",
         "\u2028", "</pre>", "<script>", "x" * 400, "\t", " ", "0.931"]  # fmt: skip


def nasty(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(NASTY) for _ in range(rng.randrange(most)))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [1, 64])
def test_any_run_stays_within_bounds(tmp_path: Path, size: int, seed: int):
    rng = random.Random(seed)
    most = rng.choice([5, 200, 5_000])
    run = ended(size, state="failed", title=nasty(rng, most), name=nasty(rng, most))
    run.failure = Failure(0, nasty(rng, most), nasty(rng, most), 1)
    run.notes = [nasty(rng, most) for _ in range(rng.randrange(40))]
    run.lines = 10**9
    for rank in run.ranks:
        rank.host = nasty(rng, 50) if seed % 3 else rank.host
        rank.device = nasty(rng, 50) if seed % 3 else rank.device
    seen = [
        error(r, nasty(rng, most), trace=[nasty(rng, most)] * rng.randrange(99))
        for r in range(size)
    ]
    for rank in range(size):
        seen.append(value(rank, nasty(rng, most)))
        data = {"text/plain": nasty(rng, 20), "image/png": figure(rng.randrange(30_000), rank)}
        seen.append(value(rank, "", False, data=data))
        seen.append(value(rank, "", False, data={nasty(rng, 9) or "x/y": nasty(rng, most)}))
    store = Store(tmp_path)
    writer = store.create(run, "x")
    for n in range(50):
        writer.append(
            log(rng.randrange(size), nasty(rng, most), n, stream=rng.choice(["stdout", "stderr"]))
        )
    writer.append(b"".join(line_of(event) for event in seen))
    writer.finish(run)
    data = bundle(run, store)
    assert saved(data) <= LIMIT
    assert len(json.dumps(data, ensure_ascii=False).encode()) <= LIMIT
    read(data["text/html"])
    assert data["text/plain"].startswith(f"● {'1 rank' if size == 1 else '64 ranks'} · failed")
    first = running_bundle(run)
    total = sum(len(json.dumps(d, ensure_ascii=False).encode()) for d in (first, data))
    assert total <= LIMIT, "both outputs of a cell together"
    read(first["text/html"])


def test_a_thousand_ranks_stay_within_bounds():
    run = ended(1000)
    data = bundled(run, *[value(rank, f"value {rank}") for rank in range(1000)])
    assert saved(data) <= LIMIT
    assert "1000 ranks · done" in data["text/plain"]


def test_a_shortened_list_of_ranks_is_not_taken_for_a_subset():
    def kept(run: RunInfo) -> int:
        return len(bundle(run)[MIME]["run"]["ranks"])

    run = ended(1000)
    assert kept(ended(64)) == 64 and kept(run) == 0, "none stand for all"
    run.ranks = run.ranks[::2]
    assert 0 < kept(run) < 500


def bytes_read() -> int:
    """What this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_of_a_very_long_log_only_the_ends_of_the_file_are_read(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    block = b"".join(log(n % 2, f"{n}\n" * 50, n) for n in range(1000))
    for _ in range(200):
        writer.append(block)
    run.state, run.lines = "done", 200 * 50_000
    writer.finish(run)
    size = store.paths(run.id).events.stat().st_size
    assert size > 40e6
    before = bytes_read()
    data = bundle(run, store)
    assert bytes_read() - before < 2e6
    assert saved(data) < 16 << 10


def test_errors_and_values_are_found_within_a_long_log(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    flood = b"".join(log(n % 2, f"{n}\n" * 50, n) for n in range(4000))
    writer.append(flood + line_of(error(0)) + line_of(value(1, "a value", False)) + flood)
    run.state, run.lines = "failed", 400_000
    writer.finish(run)
    text = bundle(run, store)["text/plain"]
    assert "ValueError: boom" in text and "a value" in text


def test_a_run_whose_events_are_gone_is_shown(tmp_path: Path):
    store, run = finished_record(tmp_path)
    store.paths(run.id).events.unlink()
    assert bundle(run, store)["text/plain"].startswith("● 2 ranks · done")


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (-5, "0 ms"), (85_400, "85 ms"), (999_400, "999 ms"), (999_600, "1.0 s"),
        (12_400_000, "12.4 s"), (59_940_000, "59.9 s"), (59_960_000, "1 min 00 s"),
        (125_000_000, "2 min 05 s"), (3_599_600_000, "1 h 00 min"), (7_380_000_000, "2 h 03 min"),
    ],
)  # fmt: skip
def test_durations(micros: int, text: str):
    assert amounts.duration(micros) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (830, "830 B"), (12_500, "12.5 kB"), (1.25e9, "1.2 GB")]
)
def test_sizes(count: float, text: str):
    assert amounts.size(count) == text


def test_a_subset_of_ranks_is_named():
    run = ended(4)
    run.ranks = [run.ranks[0], run.ranks[2], run.ranks[3]]
    assert words.headline(run) == "ranks 0,2–3 of 4 · done in 12.4 s"


def test_the_table_of_runs_has_a_row_for_each_run(tmp_path: Path):
    finished_record(tmp_path, title="a\x1b[31m\nb", lines=1234, name="train")
    store, _ = finished_record(tmp_path, size=64)
    table = runs_table(store.newest()).splitlines()
    assert table[0].split() == ["id", "when", "state", "ranks", "time", "lines", "cell"]
    assert "0–63" in table[1]
    assert table[2].endswith("1,234  train: a") and "done" in table[2] and "1.5 s" in table[2]


def test_a_live_run_says_why_it_is_stuck(tmp_path: Path):
    run = RunInfo.from_json(json.loads((RECORDS / "hang" / "run.json").read_bytes()))
    assert run.hang is not None
    data = bundle(run)
    assert data["text/plain"].splitlines()[:2] == ["● 4 ranks · running", f"! {run.hang.text}"]
    assert run.hang.text in read(data["text/html"]).text
    run.state = "lost"
    assert run.hang.text not in bundle(run)["text/plain"]


def test_the_explanation_of_a_hang_of_many_ranks_stays_small():
    said = Place([0], "still", "y" * 5000, "x" * 5000, "\x1b[31m" * 5000)
    places = [replace(said, ranks=[rank]) for rank in range(64)]
    run = make_run(size=64, hang=Hang(1, "<b>\x1b[31m\n" * 5000, places))
    data = bundle(run)
    assert saved(data) <= LIMIT
    read(data["text/html"])
    assert "\x1b" not in data["text/plain"]


def test_released_ranks_name_the_collective(tmp_path: Path):
    errors = [
        {"kind": "error", "rank": r, "seq": 1, "t": 5 + r, "ename": "E", "evalue": f"{r}",
         "traceback": ["x"], **({"released": "allreduce grad.3"} if r else {})}
        for r in range(4)
    ]  # fmt: skip
    run = make_run(size=4, state="failed", failure=Failure(0, "E", "0"))
    assert "ranks 1–3: released from allreduce grad.3" in bundled(run, *errors)["text/plain"]


@pytest.mark.parametrize("folder", sorted(RECORDS.glob("*/run.json")), ids=lambda p: p.parent.name)
def test_golden_records_can_be_shown(folder: Path, tmp_path: Path):
    run = RunInfo.from_json(json.loads(folder.read_bytes()))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / run.id).symlink_to(folder.parent)
    data = bundle(run, Store(tmp_path))
    assert saved(data) <= LIMIT
    read(data["text/html"])


def test_an_error_without_a_message_is_its_name():
    assert words.error_words("KeyboardInterrupt", "", 80) == "KeyboardInterrupt"
    assert words.error_words("ValueError", "no such rank\nor any", 80) == "ValueError: no such rank"


@pytest.mark.parametrize(("ranks", "lines"), [(64, 40), (32, 70), (24, 95), (128, 20)])
def test_equal_lines_of_many_ranks_are_shown_once(tmp_path: Path, ranks: int, lines: int):
    """No rank has more lines than are shown at both ends, so none is left out or repeated."""
    events = [
        log(rank, f"epoch {number}\n", seq)
        for seq, number in enumerate(range(lines), 1)
        for rank in range(ranks)
    ]
    store, run = finished_record(tmp_path, *events, size=ranks, lines=ranks * lines)
    data = bundle(run, store)
    assert "left out" not in data["text/html"]
    for text in (data["text/html"], data["text/plain"]):
        assert "… -" not in text
        assert [text.count(f"epoch {number}") for number in (0, lines - 1)] == [1, 1]


def test_lines_between_many_spans_are_in_the_summary(tmp_path: Path):
    """The spans of many ranks may follow the last line that the cell printed."""
    spans = json.dumps({"kind": "spans", "rank": 0, "seq": 0, "t": 0, "define": ["x" * 1000]})
    many = f"{spans.replace(': ', ':').replace(', ', ',')}\n".encode() * 600
    lines = [log(0, f"loss {number}\n", number) for number in range(3)]
    store, run, writer = start_record(tmp_path)
    for each in (many, *lines[:2], many, lines[2], many):
        writer.append(each)
    run.lines, run.state = 3, "done"
    writer.finish(run)
    said = bundle(run, store)["text/plain"]
    assert "loss 0" in said and "loss 1" in said and "loss 2" in said
    assert "left out" not in said


def test_rank_numbers_are_kept_where_there_is_no_room_for_hosts(tmp_path: Path):
    run = make_run(64)
    run.ranks = [
        replace(rank, host=f"nid{rank.rank:06}.cluster.example.org", clock=Clock(123_456, 789))
        for rank in run.ranks[:60]
    ]
    run.size, run.state, run.notes = 64, "done", ["a note"]
    said = running_bundle(run)[MIME]["run"]
    assert [each["rank"] for each in said["ranks"]] == list(range(60))
    assert said["notes"] == ["a note"]


def test_a_log_that_cannot_be_read_now_is_left_out_and_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, run, writer = start_record(tmp_path)
    writer.append(log(0, "hello\n"))
    run.state, run.lines = "done", 1
    writer.finish(run)
    opened = Path.open

    def fail(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "events.jsonl":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", fail)
    assert "… 1 line left out …" in bundle(run, store)["text/plain"]
