"""`rankroom timeline` and `rankroom runs export`, as users type them."""

from __future__ import annotations

import errno
import gzip
import json
import os
import tempfile
from pathlib import Path

import pytest
from test_cli import bad, good

from rankroom.record.store import Store


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    # Hides Jupyter servers of other tests.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trace(path: Path, late: int, rank: int) -> Path:
    """Write a trace of ten allreduces at which this rank arrives `late` µs late."""
    args = {"op": "allreduce", "library": "dist"}
    events = [
        {"ph": "X", "pid": rank, "tid": 1, "cat": "collective", "name": "allreduce", "args": args,
         "ts": 1_790_000_000_000_000 + 30_000 * i + late, "dur": 15_000 - late}
        for i in range(10)
    ]  # fmt: skip
    path.write_text(json.dumps(events)[:-1])
    return path


def test_files_become_a_record_with_a_profile(place: Path):
    trace(place / "t.rank0.json", 0, 0)
    trace(place / "t.rank1.json", 12_000, 1)
    said = good("timeline", "t.rank0.json", "t.rank1.json", "--name", "mine")
    assert (
        "t.rank1.json: 10 spans of rank 1 (Chrome); repaired: 1 × closing bracket missing" in said
    )
    assert "rank 1 arrives last" in said
    store = Store()
    run = store.newest()[0]
    assert (run.state, run.name, run.size) == ("done", "mine", 2)
    assert f"`%runs {run.id}` shows it in a notebook" in said
    assert "t.rank0.json" in store.source(run.id)
    assert good("runs", "list").splitlines()[1].startswith(run.id)


def test_terminal_escapes_are_stripped_from_file_names(place: Path):
    for rank in (0, 1):
        trace(place / f"\x1b]0;mine\x07.rank0.{rank}", 0, 0)
    said = good("timeline", *(each.name for each in sorted(place.glob("*rank0*"))))
    assert "so the next free number is used" in said and "\x1b]" not in said


def test_text_only_keeps_no_record(place: Path):
    trace(place / "t.json", 0, 0)
    said = good("timeline", "t.json", "--text")
    assert "rank" in said and "%runs" not in said
    assert Store().newest() == []


def test_only_text_output_needs_a_temporary_folder(place: Path, monkeypatch: pytest.MonkeyPatch):
    trace(place / "t.json", 0, 0)

    def refuse(*about: object, **options: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    said = bad("timeline", "t.json", "--text")
    assert "No usable temporary directory" in said and "set TMPDIR" in said
    assert "Traceback" not in said
    assert "shows it in a notebook" in good("timeline", "t.json")


def test_html_writes_a_page_of_the_timeline(place: Path):
    trace(place / "t.json", 0, 0)
    good("timeline", "t.json", "--html", "page.html")
    page = (place / "page.html").read_text()
    assert page.startswith("<!doctype html>") and "t.json" in page


def test_a_file_that_is_not_a_trace_is_an_error_without_a_record(place: Path):
    (place / "a.json").write_text("no")
    assert "is not a trace" in bad("timeline", "a.json")
    assert "cannot read" in bad("timeline", "missing.json")
    assert Store().newest() == []


def test_open_shows_the_timeline_in_a_notebook(place: Path, monkeypatch: pytest.MonkeyPatch):
    trace(place / "t.json", 0, 0)
    assert "you have no running Jupyter server" in good("timeline", "t.json", "--open")
    server = {"url": "http://127.0.0.1:1/", "root_dir": str(place), "token": "abc"}
    opened: list[str] = []
    monkeypatch.setattr("jupyter_server.serverapp.list_running_servers", lambda: iter([server]))
    monkeypatch.setattr("webbrowser.open", opened.append)
    good("timeline", "t.json", "--open")
    run = Store().newest()[0]
    notebook = place / f"timeline-{run.id}.ipynb"
    # All users of a machine can read command lines, so the token is in a private file.
    [page] = (place / "home" / "pages").iterdir()
    assert opened == [page.as_uri()]
    assert f'"0; url=http://127.0.0.1:1/lab/tree/{notebook.name}?token=abc"' in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.parent.stat().st_mode & 0o777 == 0o700
    cell = json.loads(notebook.read_text())["cells"][0]
    assert cell["outputs"][0]["data"]["application/vnd.rankroom.run+json"]["run"]["id"] == run.id


def test_pages_with_a_token_do_not_pile_up(place: Path, monkeypatch: pytest.MonkeyPatch):
    trace(place / "t.json", 0, 0)
    server = {"url": "http://127.0.0.1:1/", "root_dir": str(place), "token": "abc"}
    monkeypatch.setattr("jupyter_server.serverapp.list_running_servers", lambda: iter([server]))
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    good("timeline", "t.json", "--open")
    [first] = (place / "home" / "pages").iterdir()
    good("timeline", "t.json", "--open")
    assert first.exists()  # a browser may be about to read it
    os.utime(first, (0, 0))
    good("timeline", "t.json", "--open")
    assert not first.exists()


def test_a_server_without_a_token_needs_no_page(place: Path, monkeypatch: pytest.MonkeyPatch):
    trace(place / "t.json", 0, 0)
    server = {"url": "http://127.0.0.1:1/", "root_dir": str(place), "token": ""}
    opened: list[str] = []
    monkeypatch.setattr("jupyter_server.serverapp.list_running_servers", lambda: iter([server]))
    monkeypatch.setattr("webbrowser.open", opened.append)
    good("timeline", "t.json", "--open")
    assert opened[0].startswith("http://127.0.0.1:1/lab/tree/timeline-")
    assert not (place / "home" / "pages").exists()


def test_export_into_a_file_compressed_or_not(place: Path):
    trace(place / "t.json", 0, 0)
    good("timeline", "t.json")
    assert "ui.perfetto.dev" in good("runs", "export", "last", "-o", "out.json")
    plain = (place / "out.json").read_bytes()
    good("runs", "export", "last", "-o", "out.json.gz", "--format", "chrome")
    assert gzip.decompress((place / "out.json.gz").read_bytes()) == plain
    spans = [event for event in json.loads(plain)["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 10 and spans[0]["args"]["op"] == "allreduce"
    assert good("runs", "export", "-o", "-") == plain.decode()
    run = Store().newest()[0]
    assert f"wrote {run.id}.trace.json.gz" in good("runs", "export")
    assert "cannot write no/where.json" in bad("runs", "export", "-o", "no/where.json")


def test_export_as_a_trace_for_each_rank(place: Path):
    trace(place / "t.json", 0, 0)
    good("timeline", "t.json")
    said = good("runs", "export", "last", "--format", "pytorch", "-o", "traces")
    assert "wrote 1 file (" in said and "the traces hold no GPU kernels" in said
    data = json.loads(gzip.decompress((place / "traces" / "rank0.json.gz").read_bytes()))
    assert data["distributedInfo"]["rank"] == 0
    again = bad("runs", "export", "last", "--format", "pytorch", "-o", "traces")
    assert "traces is not empty" in again
    (place / "file").write_text("")
    assert "cannot write file" in bad("runs", "export", "--format", "pytorch", "-o", "file")
