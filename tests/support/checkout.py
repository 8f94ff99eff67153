"""Paths in the checkout."""

import os
from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
CACHE = Path(os.environ.get("RANKROOM_CACHE") or ROOT / ".cache")
TOOLS = ROOT / "tools"
NOTEBOOKS = ROOT / "notebooks"
RECORDS = SUPPORT / "records"
TRACES = SUPPORT / "traces"
TUTORIALS = SUPPORT / "tutorials"
