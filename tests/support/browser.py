"""Where Playwright and Chromium are, and the relevant part of Playwright's output."""

from __future__ import annotations

import os
from pathlib import Path

from checkout import TESTS

UI = TESTS / "ui"
PLAYWRIGHT = UI / "node_modules" / ".bin" / "playwright"
CHROMIUM = Path(os.environ.get("RANKROOM_CHROMIUM", "/usr/bin/chromium"))
FIRST_FAILURE = "\n  1) "


def what_failed(said: str, results: Path) -> str:
    """Output from the first failure on, or all of it if there is none; and what the page showed."""
    pages = sorted(results.glob("*/error-context.md"), key=lambda each: each.stat().st_mtime)
    shown = "".join(each.read_text()[:20_000] for each in pages[-1:])
    return said[max(0, said.find(FIRST_FAILURE)) :][:8_000] + shown
