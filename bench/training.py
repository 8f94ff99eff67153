"""A training loop (digits, horovod.torch) as a cell, and the same text under horovodrun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernel import MARK
from sides import RANKS, Rankroom, alternate, workplace
from table import NotMeasured, Row

SCRIPT = Path(__file__).parent / "scripts" / "digits.py"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def measure(quick: bool) -> list[Row]:
    """Steps per second of the loop alone; imports and start-up do not count on either side."""
    steps, pairs = (400, 1) if quick else (2500, 9)
    source = SCRIPT.read_text().replace("STEPS = 2500", f"STEPS = {steps}", 1)
    with workplace() as folder:
        script = folder / "digits.py"
        script.write_text(source)
        rankroom = Rankroom(folder / "rankroom")
        try:
            rankroom.start()
            peers, ours = alternate(
                pairs, lambda: _horovodrun(script), lambda: _cell(rankroom, source)
            )
        finally:
            rankroom.close()
    for name, side in (("horovodrun", peers), ("rankroom", ours)):
        for each in side:
            _check(name, each, steps)
    return [
        Row(
            f"training loop, {RANKS} ranks", "steps/s",
            [steps / each["seconds"] for each in ours],
            [steps / each["seconds"] for each in peers],
            ratio_at_least=0.98, peer="horovodrun",
            detail={"accuracy": [each["accuracy"] for each in ours + peers]},
        )
    ]  # fmt: skip


def _cell(side: Rankroom, source: str) -> dict[str, Any]:
    side.cell(source, timeout=300)
    report = "\n".join(side.lines(side.latest())[0])
    # Horovod's threads look for work every millisecond, which would slow horovodrun's turn down.
    side.cell("hvd.shutdown()")
    return _trained(report)


def _horovodrun(script: Path) -> dict[str, Any]:
    program = Path(sys.executable).parent / "horovodrun"
    if not program.exists():
        raise NotMeasured("horovodrun is not installed: `rankroom horovod build` brings it")
    # What Rankroom gives its ranks, so that both sides compute with as many threads.
    share = str(max(1, len(os.sched_getaffinity(0)) // RANKS))
    done = subprocess.run(
        [program, "-np", str(RANKS), "--gloo", sys.executable, script],
        env=os.environ | dict.fromkeys(THREADS, share) | {MARK: str(script.parent)},
        cwd=script.parent, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NotMeasured(f"horovodrun ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return _trained(done.stdout)


def _trained(text: str) -> dict[str, Any]:
    found = re.search(r"TRAINED (\{.*\})", text)
    if found is None:
        raise NotMeasured(f"the loop did not report; it said:\n{text[-1000:]}")
    return json.loads(found[1])


def _check(name: str, result: dict[str, Any], steps: int) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // RANKS)
    if (result["size"], result["steps"], result["alike"]) != (RANKS, steps, True):
        raise NotMeasured(f"{name}: not the loop that was meant: {result}")
    if result["accuracy"] < 0.8:
        raise NotMeasured(f"{name}: it did not learn: accuracy {result['accuracy']:.2f}")
    if result["threads"] != share:
        raise NotMeasured(f"{name}: {result['threads']} threads a rank instead of {share}")
