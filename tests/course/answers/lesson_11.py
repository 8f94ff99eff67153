"""Scaling."""

import ast
import re

from lesson_runner import Played

WRONG = {
    "scaling.1": [
        (
            "def speed_up(times):\n    return {r: (times[1] / t, times[1] / t) for r, t in times.items()}",
            "efficiency of",
        )
    ],
    "scaling.2": [("def amdahl(serial, ranks):\n    return 1 / serial", "times as fast as one")],
    "scaling.3": [
        ("def serial(speed_up, ranks):\n    return 1 / speed_up - 1 / ranks", "is serial")
    ],
    "scaling.4": [
        ("def weak_efficiency(alone, time, ranks):\n    return time / alone", "the efficiency is")
    ],
}


def claims(played: Played) -> None:
    clocks = [
        ast.literal_eval(each) for each in re.findall(r"\{'wall'.*?\}", played.text("clocks"))
    ]
    assert clocks and all(each["wall"] >= 0.49 for each in clocks)
    assert min(each["process"] for each in clocks) < 0.25
    assert "GPUs 8: 17.9 s, 1.70 × as fast, efficiency 21%" in played.text("polaris")
    share = re.search(r"serial share: ([\d.]+) measured, 0\.24 planted", played.text("fit"))
    assert 0.1 < float(share[1]) < 0.5
    for cell, what in (("strong-rows", "images"), ("weak-rows", "tokens")):
        said = re.findall(rf"ranks (\d+): ([\d,]+) {what} per second", played.text(cell))
        counts = [int(ranks) for ranks, _ in said]
        assert counts[0] == 1 and counts[-1] == played.ranks, played.text(cell)
        # The speed itself depends on the machine's load.
        assert all(int(speed.replace(",", "")) > 0 for _, speed in said)
