"""Where things lie in the checkout."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
TOOLS = ROOT / "tools"
NOTEBOOKS = ROOT / "notebooks"
RECORDS = SUPPORT / "records"
TRACES = SUPPORT / "traces"
TUTORIALS = SUPPORT / "tutorials"
