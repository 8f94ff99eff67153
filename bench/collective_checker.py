"""The look at a cell before it runs: processor time, for each cell of the quickstart.

No peer has one. It is a courtesy, so it must cost a cell nothing that anybody notices.
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
    """All cells one after the other, which are a sample together: one takes too little to time."""
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
