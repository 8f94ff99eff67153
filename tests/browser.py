"""Where Playwright and Chromium are, and what is worth reading of what Playwright says."""

from __future__ import annotations

import os
from pathlib import Path

UI = Path(__file__).parent / "ui"
PLAYWRIGHT = UI / "node_modules" / ".bin" / "playwright"
CHROMIUM = Path(os.environ.get("RANKROOM_CHROMIUM", "/usr/bin/chromium"))
FIRST_FAILURE = "\n  1) "


def what_failed(said: str) -> str:
    """From the first failure on; all of it where there is none."""
    return said[max(0, said.find(FIRST_FAILURE)) :][:20_000]
