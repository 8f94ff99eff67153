"""A run with a torn line in its record: a partial write, followed by further lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankroom.record.model import event_line
from rankroom.run.run import Run
from record_makers import start_record


@pytest.mark.parametrize(
    "torn",
    [
        event_line("status", 0, 1, 5, state="ok")[:-9] + b"\n",
        event_line("display", 0, 1, 5, data={"text/plain": "7"}, result=True)[:40] + b"\n",
        b'{"kind":"display","rank":0}\n{"kind":"status"}\n{"kind":"mar\n',
    ],
    ids=["status", "display", "fields"],
)
def test_a_torn_line_is_passed_over(tmp_path: Path, torn: bytes):
    store, info, writer = start_record(tmp_path)
    result = event_line("display", 1, 0, 4, data={"text/plain": "42"}, result=True)
    writer.append(result + torn + event_line("status", 1, 2, 6, state="ok"))
    run = Run(info, store, ask=lambda *question, **more: {})
    assert run.results == {1: "42"}
    assert [(event["kind"], event["rank"]) for event in run.events] == [
        ("display", 1), ("status", 1),
    ]  # fmt: skip
    assert run.running == [0]
    writer.close()
