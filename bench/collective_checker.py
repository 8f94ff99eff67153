"""The collective checker, which reads a cell before it runs: processor time for a quickstart cell.

No peer has one. Users have not asked for it, so its cost must not be noticeable.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

from rankroom.lint import warnings
from table import NotMeasured, Row

QUICKSTART = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"
RANKS = 4


def measure(quick: bool) -> list[Row]:
    """Time all cells together for each sample: a single one takes too little time to measure."""
    cells = json.loads(QUICKSTART.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    sources = [each.partition("\n")[2] for each in sources if each.startswith("%%distributed")]
    if not sources:
        raise NotMeasured("the quickstart has no %%distributed cell")
    each = []
    for _ in range(5 if quick else 50):
        begun = process_time()
        for source in sources:
            warnings(source, None, RANKS)
        each.append((process_time() - begun) / len(sources))
    return [Row("a cell is looked at before it runs", "µs", each, at_most=300e-6)]
