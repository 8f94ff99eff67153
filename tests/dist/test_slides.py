"""`make slides`: one file with all lessons, which a browser shows without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import slides
from browser import CHROMIUM, PLAYWRIGHT, UI, what_failed
from checkout import NOTEBOOKS, TOOLS
from rankroom.course.lessons import LESSONS


def titles() -> list[str]:
    """Return the first heading of each lesson's notebook."""
    found = []
    for each in LESSONS:
        cells = json.loads((NOTEBOOKS / each.file).read_text("utf-8"))["cells"]
        found.append("".join(cells[0]["source"]).splitlines()[0].removeprefix("# "))
    return found


def test_long_texts_are_cut_between_blocks():
    rows = "\n".join(f"| {n} | some words |" for n in range(60))
    items = "\n".join(f"- item {n},\n  which goes on" for n in range(60))
    code = "```python\nx = 1\n\ny = 2\n```"
    table = f"| a | b |\n|---|---|\n{rows}"
    text = "\n\n".join(["# Title", "A paragraph\nof two lines.", table, items, code])
    found = list(slides.blocks(text))
    assert found[:2] == ["# Title", "A paragraph\nof two lines."] and found[-1] == code
    tables = [each for each in found if each.startswith("|")]
    assert len(tables) > 2 and all(each.startswith("| a | b |\n|---|---|\n") for each in tables)
    assert sum(each.count("some words") for each in tables) == 60
    lists = [each for each in found if each.startswith("- ")]
    assert "\n".join(lists) == items and len(lists) > 2
    assert all(slides.height_of(each) <= slides.ROOM for each in found)


def test_the_diagram_cells_of_all_lessons_are_drawn():
    source = "from rankroom.course.diagrams import ring\n\nring(ranks=3)"
    [drawing] = slides.drawn(source)
    assert "<svg" in drawing._repr_html_()
    for each in LESSONS:
        for cell in json.loads((NOTEBOOKS / each.file).read_text("utf-8"))["cells"]:
            text = "".join(cell["source"])
            if text.startswith(slides.DRAWN):
                assert "%" not in text and list(slides.drawn(text)), text


@pytest.mark.thorough
@pytest.mark.ui
@pytest.mark.timeout(600)
def test_slides_load_nothing_from_the_network_and_open_in_a_browser(tmp_path: Path):
    assert PLAYWRIGHT.exists() and CHROMIUM.exists(), "`make test` sets up Playwright and Chromium"
    file = tmp_path / "slides.html"
    made = subprocess.run(
        [sys.executable, TOOLS / "slides.py", "-o", file],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout
    text = file.read_text("utf-8")
    # The page must load nothing. Scripts are left out, as reveal.js contains such tags as text.
    text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=(?![\"']?data:)", text)
    assert "@import" not in text and not re.findall(r"url\((?![\"']?(?:data:|#))", text)
    own = {"RANKROOM_UI_SLIDES": str(file), "RANKROOM_UI_TITLES": json.dumps(titles())}
    results = tmp_path / "results"
    said = subprocess.run(
        [PLAYWRIGHT, "test", "slides.spec.ts", "--output", results],
        cwd=UI, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=400,
    )  # fmt: skip
    assert said.returncode == 0 and "2 passed" in said.stdout, what_failed(said.stdout, results)
