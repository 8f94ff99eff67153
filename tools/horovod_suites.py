"""Run Horovod's own tests against the Horovod of this environment.

`tools/horovod_suites.py [--ranks 2] [--repeat 20] [--busy 2] [--plain] [--source DIR] [SUITE …]`.
The tests are fetched once from Horovod's repository into the cache; --source uses a checkout of it
(or a bare repository) instead. Each suite runs as a whole, on all ranks under horovodrun. --busy
keeps that many cores busy in the meantime. Prints a line per run, and at the end how often each
test failed; exits with 1 if one did.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foreign import fetched, packages
from plain_horovod import plain_horovod

# All of Horovod's folder `parallel`, including XLA's and the data service's files, except what is
# for MXNet, for TensorFlow 1 or for MPI.
SUITES = {
    "torch": "test_torch.py",
    "tensorflow": "test_tensorflow.py",
    "keras": "test_tensorflow2_keras.py",
    "torch-adasum": "test_adasum_pytorch.py",
    "tensorflow-adasum": "test_adasum_tensorflow.py",
    "timeline": "test_timeline.py",
    "static-sets": "test_process_sets_static.py",
    "tensorflow-sets": "test_tensorflow_process_sets.py",
    "dynamic-sets": "test_tensorflow_process_sets_dynamic.py",
    "keras-sets": "test_tensorflow2_keras_process_sets.py",
    "xla": "test_xla.py",
    "xla-sets": "test_xla_process_sets.py",
    "data-service": "test_compute_worker.py",
    "common": "test_common.py",
}
LIMIT_S = 900
# Each rank reports its failures in a file of its own.
RANK = """
import os, sys, pytest
rank = os.environ["HOROVOD_RANK"]
sys.exit(pytest.main([*sys.argv[1:], f"--junitxml={os.environ['REPORTS']}/{rank}.xml"]))
"""


@dataclass
class Outcome:
    """Results of a suite: on which ranks each test failed and why; its output if `unfinished`."""

    seconds: float = 0.0
    passed: int = 0
    skipped: int = 0
    failed: dict[str, list[int]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # the first line of each failure
    unfinished: str = ""

    def __str__(self) -> str:
        return (
            f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped, "
            f"{self.seconds:.0f} s{', not finished' if self.unfinished else ''}"
        )


def main() -> int:
    """Run the requested suites; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, metavar="TIMES")
    parser.add_argument("--busy", type=int, default=0, metavar="CORES")
    parser.add_argument("--plain", action="store_true", help="Horovod without Rankroom's edits")
    parser.add_argument("--source", type=Path, metavar="DIR", help="Horovod's repository")
    parser.add_argument("--deselect", action="append", default=[], metavar="WORD")
    asked = parser.parse_args()
    if unknown := set(asked.suites) - SUITES.keys():
        parser.error(f"no suite {min(unknown)!r}; there are {', '.join(SUITES)}")
    tests = fetched("horovod", asked.source) / "test"
    site = plain_horovod() if asked.plain else None
    failed: Counter[str] = Counter()
    with busy(asked.busy):
        for number in range(1, asked.repeat + 1):
            for name in asked.suites or SUITES:
                outcome = run(tests, SUITES[name], asked.ranks, site, asked.deselect)
                failed.update(f"{name}: {test}" for test in outcome.failed)
                if outcome.unfinished:
                    failed[f"{name}: not finished"] += 1
                    print(outcome.unfinished, file=sys.stderr)
                print(f"{number:3} {name:16} {asked.ranks} ranks: {outcome}", flush=True)
    for test, times in failed.most_common():
        print(f"failed {times} of {asked.repeat} times: {test}")
    return 1 if failed else 0


def run(
    tests: Path, suite: str, ranks: int, site: Path | None = None, deselect: Sequence[str] = ()
) -> Outcome:
    """Run a suite once."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as reports:
        path = [reports, str(packages(["mock", "parameterized"])), *([str(site)] if site else [])]
        env = os.environ | {
            "REPORTS": reports,
            "PYTHONPATH": os.pathsep.join(
                [*path, str(tests / "utils"), str(tests / "parallel"), *own_path()]
            ),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        words = " and ".join(f"not {word}" for word in deselect)
        command = [
            sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo",
            sys.executable, "-c", RANK, "-q", "-p", "no:cacheprovider", "-k", words,
            "--rootdir", str(tests), str(tests / "parallel" / suite),
        ]  # fmt: skip
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, env=env, cwd=reports, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            outcome.seconds = time.monotonic() - began
            output.seek(0)
            said = output.read()
        for rank in range(ranks):
            add_report(outcome, Path(reports, f"{rank}.xml"), rank, said)
    return outcome


def add_report(outcome: Outcome, report: Path, rank: int, said: str) -> None:
    """Add a rank's results from pytest's report, or the end of the output if there is none."""
    if not report.is_file():
        outcome.unfinished = re.sub(r"(?m)^", "    ", said[-3000:])
        return
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                name = str(case.get("name"))
                outcome.failed.setdefault(name, []).append(rank)
                lines = [
                    line[1:].strip() for line in str(found.text).splitlines() if line[:2] == "E "
                ]
                message = str(found.get("message")).partition("\n")[0]
                # For a file that could not be collected, the message says only that.
                outcome.why[name] = lines[-1] if lines and kind == "error" else message
                break
    broken = sum(1 for ranks in outcome.failed.values() if rank in ranks)
    outcome.skipped = sum(case.find("skipped") is not None for case in cases)
    outcome.passed = len(cases) - outcome.skipped - broken


def own_path() -> list[str]:
    """Return the present entries of PYTHONPATH."""
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Run this many processes that only keep a core busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main())
