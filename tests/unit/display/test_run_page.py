"""A run as one page of HTML: what it holds, and what it lets a browser do."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_metric_picture import recorded
from test_summary import record_of

from rankroom.analysis.metrics import curve_answer
from rankroom.display import run_page
from rankroom.errors import RankroomError, UsageError
from rankroom.record.model import RunInfo
from rankroom.record.store import Store
from record_makers import finished_record, log, start_record
from trace_makers import slow_loader

PART = re.compile(r'<script type="text/plain" id="part-(\w+)">([^<]*)</script>')


def page_of(store: Store, run: RunInfo) -> str:
    return b"".join(run_page.run_page(store, run)).decode()


def parts_of(page: str) -> dict[str, bytes]:
    return {name: gzip.decompress(base64.b64decode(text)) for name, text in PART.findall(page)}


def test_the_page_has_curves_by_step_and_by_time(tmp_path: Path):
    store, run = record_of(slow_loader(), tmp_path)
    event = {"kind": "metrics", "rank": 0, "seq": 9999, "t": 9, "from": 0, "define": ["loss"],
             "name": [0, 0], "step": [5, 6], "at": [1000, 1000], "value": [0.5, 0.25]}  # fmt: skip
    with store.paths(run.id).events.open("a") as file:
        file.write(json.dumps(event, separators=(",", ":")) + "\n")
    parts = parts_of(page_of(store, run))
    for part, x in (("metrics_step", [5, 6]), ("metrics_time", [1000, 2000])):
        told = json.loads(parts[part])
        assert [each["name"] for each in told["names"]] == ["loss"]
        assert told["curves"][0]["x"] == x
        assert told["curves"][0]["mean"] == [0.5, 0.25]


def test_the_page_has_the_curves_of_compared_runs(tmp_path: Path):
    _, other = recorded(tmp_path, {"loss": [4, 2], "acc": [1]}, 2)
    _, strange = recorded(tmp_path, {"acc": [1, 2]})
    store, run = recorded(tmp_path, {"loss": [3, 1], "lr": [1]})
    run.compare = [other.id, "gone", strange.id]
    parts = parts_of(page_of(store, run))
    assert json.loads(parts["run_1"])["id"] == other.id
    for axis in ("step", "time"):
        told = json.loads(parts[f"metrics_{axis}_1"])
        assert [each["name"] for each in told["names"]] == ["loss"]
        assert [each["mean"] for each in told["curves"]] == [[4, 2], [5, 3]]
    assert "run_2" not in parts
    told = json.loads(parts["metrics_step_3"])
    assert [each["name"] for each in told["names"]] == ["acc"] and told["curves"] == []


def test_the_page_of_many_ranks_has_fewer_metrics_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(curve_answer, "CURVES_AT_ONCE", 1)  # room for eight curves
    named = {"loss": [1.0], "acc": [2.0], "rate": [3.0]}
    _, wide = recorded(tmp_path, named, 5)
    store, run = recorded(tmp_path, named, 3)
    run.compare = [wide.id]
    parts = parts_of(page_of(store, run))
    for axis in ("step", "time"):
        told = json.loads(parts[f"metrics_{axis}"])
        assert [each["name"] for each in told["names"]] == ["loss", "acc"]
        assert len(told["curves"]) == 6
        assert told["notes"][0].startswith("this page has 2 of the run's 3 metrics")
        told = json.loads(parts[f"metrics_{axis}_1"])
        assert [each["name"] for each in told["names"]] == ["loss"] and len(told["curves"]) == 5
    assert not any("this page" in each for each in json.loads(parts["metrics_step_1"])["notes"])
    store, run = recorded(tmp_path, named, 9)
    told = json.loads(parts_of(page_of(store, run))["metrics_step"])
    assert len(told["curves"]) == 9 and "this page has 1 of the run's 3" in told["notes"][0]


def test_the_page_holds_the_data_that_the_server_would_send(tmp_path: Path):
    store, run = record_of(slow_loader(), tmp_path)
    parts = parts_of(page_of(store, run))
    paths = store.paths(run.id)
    assert json.loads(parts["run"]) == run.to_json()
    assert parts["events"] == paths.events.read_bytes()
    assert json.loads(parts["profile"])["diagnosis"].startswith("steps 2–40: rank 2 ")
    assert json.loads(parts["trace"])["traceEvents"]
    others = {"log", "collectives", "overview", "metrics_step", "metrics_time"}
    assert set(parts) == {"run", "events", "profile", "trace"} | others


def test_the_page_allows_only_its_own_script(tmp_path: Path):
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    source = f"print({hostile!r})\n"
    line = log(0, f"{hostile}\n", seq=0)
    store, run = finished_record(tmp_path, line, source=source, title=hostile, name=hostile)
    page = page_of(store, store.load(run.id))
    assert "alert(1)</script>" not in page
    assert "<img src=x" not in page
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None
    seal = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{seal}'" in page
    assert "default-src 'none'" in page
    assert hostile.encode() in parts_of(page)["log"]


def test_the_script_of_the_page_is_read_as_utf8_in_any_locale(tmp_path: Path):
    """A login node may have an ASCII locale, which lacks the view's symbols."""
    _, run = finished_record(tmp_path, log(0, "x\n", seq=0))
    script = tmp_path / "page.js"
    script.write_text("'✗ ▴ │ …'", "utf-8")
    code = f"""if True:
        import sys
        from pathlib import Path
        from rankroom.display import run_page
        from rankroom.record.store import Store

        run_page.SCRIPT, store = Path({str(script)!r}), Store({str(tmp_path)!r})
        sys.stdout.buffer.write(b"".join(run_page.run_page(store, store.load({run.id!r}))))
    """
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    page = subprocess.run(command, env=os.environ | plain, capture_output=True, check=True).stdout
    assert "<script>'✗ ▴ │ …'</script>" in page.decode()


def test_a_run_without_source_has_a_page(tmp_path: Path):
    store, run = record_of(slow_loader(), tmp_path)
    store.paths(run.id).source.unlink()
    assert "the cell" not in page_of(store, run).partition("<main")[0]


def test_a_live_run_has_no_page_yet(tmp_path: Path):
    store, run, _ = start_record(tmp_path)
    with pytest.raises(UsageError, match="is still running"):
        run_page.run_page(store, run)


def test_a_missing_build_of_the_extension_is_reported(tmp_path: Path, monkeypatch):
    store, run = record_of(slow_loader(), tmp_path)
    monkeypatch.setattr(run_page, "SCRIPT", tmp_path / "page.js")
    with pytest.raises(RankroomError, match="build it with `make lab`"):
        run_page.run_page(store, run)
