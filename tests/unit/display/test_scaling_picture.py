"""The scaling plot as SVG, for pages that are converted from notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from rankroom.analysis.profile.shares import PARTS
from rankroom.analysis.scaling import Measured, Scaling
from rankroom.display.scaling_picture import PLOT, TOP, picture

SVG = "{http://www.w3.org/2000/svg}"


def scaling(times: dict[int, tuple[int, ...]]) -> Scaling:
    made = Scaling()
    for ranks, all_times in times.items():
        for time in all_times:
            waiting = time * (ranks - 1) // 10
            causes = dict.fromkeys(PARTS, 0) | {"compute": time - waiting, "waiting": waiting}
            made.add(ranks, Measured(time, causes))
    return made


def test_without_measurements_there_is_no_picture():
    assert picture(Scaling()) == ""


@pytest.mark.parametrize("times", [{1: (8_000_000,)}, {2: (0,)}])
def test_a_single_number_of_ranks_has_a_picture(times: dict[int, tuple[int, ...]]):
    svg = picture(scaling(times))
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    assert "nan" not in svg
    assert ("on 1 rank: " if 1 in times else "on 2 ranks: ") in svg


def test_the_picture_shows_speedups_and_causes():
    svg = ElementTree.fromstring(
        picture(scaling({1: (8_000_000, 8_200_000), 4: (2_500_000,), 2: (4_000_000,)}))
    )
    points = svg.find(f"{SVG}polyline")
    assert points is not None
    at = [tuple(map(float, point.split(","))) for point in points.attrib["points"].split()]
    assert [x for x, _ in at] == sorted(x for x, _ in at)
    # On 4 ranks the speed-up is 3.24, and the plot reaches up to 4.
    assert at[-1][1] == pytest.approx(TOP + PLOT * (1 - 8.1 / 2.5 / 4), abs=0.06)
    bars = [each for each in svg.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    assert [bar.find(f"{SVG}title").text for bar in bars if float(bar.attrib["height"])][-1] == (
        "waiting for others on 2 ranks: 400 ms"
    )
    whole = sum(float(bar.attrib["height"]) for bar in bars[: len(PARTS)])
    assert whole == pytest.approx(PLOT, abs=0.3)
