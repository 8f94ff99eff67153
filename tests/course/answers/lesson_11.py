"""Scaling."""

import ast
import re

from playing import Played

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
    assert "8 GPUs: 17.9 s, 1.70 × as fast, efficiency 21%" in played.text("polaris")
    fast = float(re.search(r"2 ranks: [\d.]+ s, ([\d.]+) ×", played.text("strong-rows"))[1])
    assert 1.2 < fast < 1.9  # 1.62 by what was planted
    assert re.search(r"serial share: 0\.\d+ measured, 0\.24 planted", played.text("fit"))
    weak = int(re.search(r"2 ranks: .* efficiency (\d+)%", played.text("weak-rows"))[1])
    assert weak > 70
