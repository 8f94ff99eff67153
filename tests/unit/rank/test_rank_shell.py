"""Output of a cell on a rank other than printed text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy

from rankroom.rank.shell import jsonable

RANK = """
import json, sys, types
from rankroom.rank.shell import RankShell

def emit(kind, **fields):
    if kind == "display":
        print(json.dumps(fields["data"]))

shell = RankShell.instance()
shell.attach(types.SimpleNamespace(run="a run", emit=emit, emit_now=lambda *said, **more: None))
shell.run_cell(sys.argv[1])
"""


def shown(cell: str, folder: Path) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", RANK, cell],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "IPYTHONDIR": str(folder)},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_and_source_of_an_object_are_displayed(tmp_path: Path):
    about, source, text = shown(
        "def scale(x):\n    'Says what it does.'\n    return 2 * x\n\n"
        "scale?\nscale??\nget_ipython().run_line_magic('pdoc', 'scale')",
        tmp_path,
    )
    assert "Says what it does." in about["text/plain"]
    assert "Source:" in source["text/plain"]
    assert "Says what it does." in text["text/plain"]


def test_a_representation_that_is_too_large_is_named():
    bundle = {"text/plain": "<Figure>", "image/png": bytes(20 << 20)}
    assert jsonable(bundle) == {
        "text/plain": "<Figure>\n<image/png of 27,962,028 characters, not kept>"
    }
    figure = {"data": ["x" * 1000] * 20_000}
    (named,) = jsonable({"application/vnd.plotly.v1+json": figure}).values()
    assert named.startswith("<application/vnd.plotly.v1+json of 20,")
    small = {"text/plain": "<Figure>", "image/png": "aGk=", "application/json": {"a": [1, None]}}
    assert jsonable(small) == small


def test_application_json_output_is_always_serializable():
    given = {"application/json": numpy.arange(3)}, {"application/json": numpy.float32(0)}
    assert [jsonable(each)["application/json"] for each in given] == [[0, 1, 2], 0.0]
    assert json.dumps(jsonable({"application/json": set()}))
