"""`hvd.init()` of many ranks on one machine: from the last rank's call until all have returned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kernel import MARK
from sides import Rankroom, alternate, workplace
from table import NotMeasured, Row
from training import plain_horovod

AT_MOST = {2: 0.3, 8: None, 16: 3.0, 64: 15.0}
CELL = "import time\ncalled = time.time()\nhvd.init()\nmet = time.time()"
# Under horovodrun; all processes have done their imports before the first call.
SCRIPT = """
import pathlib, time
import horovod.torch as hvd, os
pathlib.Path(f"here.{os.environ['HOROVOD_RANK']}").touch()
while len(list(pathlib.Path().glob("here.*"))) < int(os.environ["HOROVOD_SIZE"]):
    time.sleep(0.02)
called = time.time()
hvd.init()
met = time.time()
path = pathlib.Path(f"told.{os.environ['HOROVOD_RANK']}")
path.write_text(f"{called} {met}")
"""


def measure(quick: bool) -> list[Row]:
    """Measure 64 ranks on our side only: a sample of the peer's may take minutes."""
    os.environ.setdefault("RANKROOM_START_SECONDS", "240")  # for 64 ranks on few cores
    rows = []
    for ranks in (2, 8) if quick else (2, 8, 16, 64):
        count = 1 if quick or ranks > 16 else 3
        with workplace() as folder:
            side = Rankroom(folder / "rankroom")
            try:
                side.kernel.run(f"%cluster start --ranks {ranks}").ok()
                side.cell("import horovod.torch as hvd")
                calls = [lambda side=side, ranks=ranks: _ours(side, ranks)]
                if ranks <= 16:
                    calls.append(lambda folder=folder, ranks=ranks: _peers(folder, ranks))
                ours, *peers = alternate(count, *calls)
            finally:
                side.close()
        what = f"hvd.init() of {ranks} ranks"
        peer = peers[0] if peers else ()
        rows.append(Row(what, "s", ours, peer, at_most=AT_MOST[ranks], peer="horovodrun"))
    return rows


def _ours(side: Rankroom, ranks: int) -> float:
    side.cell(CELL)
    side.kernel.run("%ranks pull called met").ok()
    taken: float = side.kernel.value(
        f"max(met[r] for r in range({ranks})) - max(called[r] for r in range({ranks}))"
    )
    side.cell("hvd.shutdown()")
    return taken


def _peers(folder: Path, ranks: int) -> float:
    here = folder / f"horovodrun-{len(list(folder.iterdir()))}"
    here.mkdir()
    (here / "init.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo",
         sys.executable, "init.py"],
        env=os.environ | {MARK: str(here), "PYTHONPATH": str(plain_horovod())},
        cwd=here, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    told = [list(map(float, path.read_text().split())) for path in here.glob("told.*")]
    if len(told) != ranks:
        raise NotMeasured(f"horovodrun: {len(told)} of {ranks} have met: {done.stderr[-400:]!r}")
    return max(met for _, met in told) - max(called for called, _ in told)
