"""The lessons' diagrams match their numbers, and also describe themselves in words."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from rankroom.course import diagrams
from rankroom.course.diagrams import Diagram
from rankroom.course.exercises.deepspeed_exercises import _bytes
from rankroom.course.figures import COLOURS, WhoHasWhat

SVG = "{http://www.w3.org/2000/svg}"


def drawn(diagram: Diagram) -> ElementTree.Element:
    text = diagram._repr_html_().replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return ElementTree.fromstring(text)


@pytest.mark.parametrize(
    "diagram",
    [
        diagrams.ring(1), diagrams.ring(3), diagrams.ring(8),
        diagrams.buckets(3), diagrams.buckets(8),
        diagrams.pipeline(2, 8), diagrams.pipeline(8, 2), diagrams.shared_out(2),
        diagrams.shared_out(8), diagrams.split_layer(2), diagrams.split_layer(6),
        diagrams.tunnel(),
    ],
)  # fmt: skip
def test_diagrams_fit_their_canvas_and_have_a_text_description(diagram: Diagram):
    picture = drawn(diagram)
    for box in picture.iter(f"{SVG}rect"):
        x, y, wide, high = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + wide <= diagram.width and y + high <= diagram.height
    for words in picture.iter(f"{SVG}text"):
        assert float(words.get("y")) <= diagram.height
    assert picture.find(f"{SVG}title").text in repr(diagram)
    assert picture.find(f"{SVG}desc").text in repr(diagram)


@pytest.mark.parametrize(("stages", "micro"), [(1, 3), (4, 4), (3, 7)])
def test_the_stated_pipeline_bubble_matches_the_empty_slots(stages: int, micro: int):
    diagram = diagrams.pipeline(stages, micro)
    boxes = list(drawn(diagram).iter(f"{SVG}rect"))
    idle = sum(box.get("fill") == "none" for box in boxes)
    assert len(boxes) - idle == stages * micro
    assert f"{idle / len(boxes):.0%} are empty" in diagram.words


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_bytes_by_zero_stage_match_the_deepspeed_exercise(ranks: int):
    told = re.findall(r"stage (\d): ([\d.]+)", diagrams.shared_out(ranks).words)
    assert {int(s): float(b) for s, b in told} == {
        stage: pytest.approx(_bytes(1, ranks, stage), rel=1e-4) for stage in range(4)
    }


def test_numbers_have_the_color_of_their_rank_and_sums_are_white():
    picture = WhoHasWhat("", {0: [10, 11], 1: [20, 21]}, {0: [30, 32], 1: [20, None]})._repr_html_()
    fills = re.findall(r'<rect [^>]*fill="(.*?)"', picture)
    first, second = COLOURS[:2]
    assert fills == [first, first, "#ffffff", "#ffffff", second, second, second, "#ffffff"]
