"""What a rank's watchdog thread costs a training loop: the same ranks, with the thread and without.

Each rank trains by itself: two ranks that wait for one another are never equally fast twice, by
far more than what is looked for here.
"""

from __future__ import annotations

import ast
import re

from sides import RANKS, Rankroom, workplace
from table import NotMeasured, Row

PAIRS = 80
SEGMENT_S = 1.0  # two looks of the watchdog
LOOP = """
import time, torch
from sklearn.datasets import load_digits
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def steps(count):
    begin = time.perf_counter()
    for step in range(count):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return count / (time.perf_counter() - begin)
count = int(steps(2000) * SECONDS)
watchdog = get_ipython().kernel.watchdog
watchdog.stop()
found = [], []
for pair in range(PAIRS):
    for which in ((0, 1) if pair % 2 else (1, 0)):
        if which:
            watchdog.start()
        found[which].append(steps(count))
        watchdog.stop()
watchdog.start()
if rank == 0:
    print("FOUND", repr(found))
"""


def measure(quick: bool) -> list[Row]:
    """Steps per second of short segments in turns, within one cell."""
    seconds, pairs = (0.5, 5) if quick else (SEGMENT_S, PAIRS)
    source = LOOP.replace("SECONDS", str(seconds)).replace("PAIRS", str(pairs))
    with workplace() as folder:
        side = Rankroom(folder / "rankroom")
        try:
            side.start()
            side.cell(source, timeout=600)
            lines = "\n".join(side.lines(side.latest())[0])
        finally:
            side.close()
    said = re.search(r"FOUND (.*)", lines)
    if said is None:
        raise NotMeasured(f"the loop did not report; it said:\n{lines[-1000:]}")
    without, with_it = ast.literal_eval(said[1])
    return [
        Row(
            f"training loop with the watchdog thread, {RANKS} ranks", "steps/s",
            with_it, without, ratio_at_least=0.99, peer="without",
        )
    ]  # fmt: skip
