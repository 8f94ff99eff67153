"""Speed-up, efficiency, and Amdahl's law."""

from __future__ import annotations

import math
from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("scaling.1", answer="speed_up", ranks=1)
def speed_up(learner: Learner) -> None:
    """Check speed-up and efficiency, by number of ranks."""
    ask = learner.function("speed_up")
    times = {1: learner.chance.uniform(10, 40)}
    for ranks in (2, 4, 8):
        times[ranks] = times[1] / ranks * learner.chance.uniform(1.05, 1.5)
    found = ask(dict(times))
    if not isinstance(found, dict) or set(found) != set(times):
        raise Wrong(f"speed_up gives {found!r}: a dictionary with {sorted(times)}, please"[:300])
    for ranks, time in times.items():
        fast = times[1] / time
        pair = found[ranks]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise Wrong(f"for {ranks} ranks there should be (speed-up, efficiency), not {pair!r}")
        if not _is(pair[0], fast):
            raise Wrong(
                f"{times[1]:.2f} s on one rank and {time:.2f} s on {ranks}: {fast:.2f} times as "
                f"fast, and you have {pair[0]!r}"
            )
        if not _is(pair[1], fast / ranks):
            raise Wrong(
                f"{fast:.2f} times as fast on {ranks} ranks is an efficiency of "
                f"{fast / ranks:.2f}, and you have {pair[1]!r}"
            )


@exercise("scaling.2", answer="amdahl", ranks=1)
def amdahl(learner: Learner) -> None:
    """Check the speed-up that a serial share allows."""
    ask = learner.function("amdahl")
    for _ in range(4):
        serial, ranks = learner.chance.uniform(0.01, 0.5), learner.chance.randrange(2, 2000)
        wanted = 1 / (serial + (1 - serial) / ranks)
        found = ask(serial, ranks)
        if not _is(found, wanted):
            raise Wrong(
                f"with {serial:.1%} of the work serial, {ranks} ranks are {wanted:.2f} times as "
                f"fast as one: you have {found!r}"
            )


@exercise("scaling.3", answer="serial", ranks=1)
def serial(learner: Learner) -> None:
    """Check the serial share that follows from a measured speed-up."""
    ask = learner.function("serial")
    for _ in range(4):
        share, ranks = learner.chance.uniform(0.02, 0.6), learner.chance.randrange(2, 64)
        fast = 1 / (share + (1 - share) / ranks)
        found = ask(fast, ranks)
        if not _is(found, share):
            raise Wrong(
                f"{fast:.3f} times as fast on {ranks} ranks: {share:.3f} of the work is serial, "
                f"and you have {found!r}"
            )


@exercise("scaling.4", answer="weak_efficiency", ranks=1)
def weak(learner: Learner) -> None:
    """Check the efficiency where the work grows with the number of ranks."""
    ask = learner.function("weak_efficiency")
    alone = learner.chance.uniform(5, 20)
    for ranks in (2, 8, 64):
        time = alone * learner.chance.uniform(1, 2)
        found = ask(alone, time, ranks)
        if not _is(found, alone / time):
            hint = ""
            if _is(found, alone / time / ranks):
                hint = ": with more ranks there was more work"
            raise Wrong(
                f"one rank takes {alone:.2f} s, {ranks} ranks {time:.2f} s for {ranks} times the "
                f"work: the efficiency is {alone / time:.2f}, and you have {found!r}{hint}"
            )


def _is(found: Any, wanted: float) -> bool:
    return isinstance(found, (int, float)) and math.isclose(found, wanted, rel_tol=1e-6)
