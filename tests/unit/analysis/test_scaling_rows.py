"""How a cell's times on several numbers of ranks become rows, a table and a chart."""

from __future__ import annotations

import json
import sys

import pytest

from rankroom.analysis.profile.shares import PARTS
from rankroom.analysis.scaling import Measured, Scaling, parse_rank_counts
from rankroom.display.scaling_picture import picture
from rankroom.errors import UsageError


def scaling(*sizes: tuple[int, list[int]]) -> Scaling:
    made = Scaling()
    for ranks, times in sizes:
        for time in times:
            causes = dict.fromkeys(PARTS, 0) | {"compute": time - time // 10, "idle": time // 10}
            made.add(ranks, Measured(time, causes))
    return made


@pytest.mark.parametrize("times", [[60], [60, 140], [60, 140, 150], [20, 60, 140, 900]])
def test_the_causes_add_up_to_the_time(times: list[int]):
    (size,) = scaling((2, times)).sizes
    assert sum(size.causes.values()) == size.time


def test_a_cell_that_took_no_time_has_no_speed():
    made = scaling((1, [0]), (2, [0, 30]))
    assert [cells[3:5] for cells in made.table().rows] == [["–", "–"], ["0.00 ×", "0 %"]]
    assert "nan" not in str(made)
    json.dumps(made.chart(), allow_nan=False)


@pytest.mark.parametrize("text", ["²", "1,²", "x", "0", "-1"])
def test_an_invalid_list_of_rank_counts_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a number of ranks: give a list such as 1,2,4"):
        parse_rank_counts(text, 4)


def test_the_chart_and_the_page_draw_the_speed_up_in_one_color():
    made = scaling((1, [60]), (2, [40]))
    _, spread, line = made.chart()["hconcat"][0]["layer"]
    color = line["mark"]["color"]
    assert spread["mark"]["color"] == color
    assert f'fill="none" stroke="{color}"' in picture(made)


def test_to_pandas_without_pandas_points_to_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install pandas.*scaling\.rows\(\)"):
        scaling((1, [60])).to_pandas()
