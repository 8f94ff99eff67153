"""Run ipyparallel's own tests of its client with the ranks of a Rankroom cluster as engines.

`tools/ipyparallel_suite.py [FILE …]`. The tests are those in the installed package: of its client,
its direct views, its magics and their results. Tests of load-balanced and broadcast views, and of
what is built on them, are left out: a cluster's controller has neither a task queue nor a broadcast
tree, as ranks are addressed one by one. Prints which tests failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from horovod_suites import Outcome, add_report, own_path

FILES = (
    "test_client", "test_view", "test_magics", "test_asyncresult", "test_remotefunction",
    "test_async", "test_dependency",
)  # fmt: skip
LIMIT_S = 600
RANKS = 6  # the most engines that one of these tests requests


def run(name: str) -> Outcome:
    """Run one file of tests, with a cluster of its own."""
    outcome = Outcome()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankroom-ipp-") as folder:
        report = Path(folder, "report.xml")
        env = os.environ | {
            "RANKROOM_HOME": f"{folder}/home",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *own_path()]),
        }
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "ipyparallel_ranks",
            "-p", "no:cacheprovider", "-c", os.devnull, f"--junitxml={report}",
            "--pyargs", f"ipyparallel.tests.{name}",
        ]  # fmt: skip
        with Path(folder, "output").open("w+") as output:
            process = subprocess.Popen(
                command, env=env, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            add_report(outcome, report, 0, output.read())
    outcome.seconds = time.monotonic() - begun
    return outcome


def main(names: list[str]) -> int:
    failed = False
    for name in names or FILES:
        outcome = run(name)
        print(f"{name:20} {outcome}", flush=True)
        for test in outcome.failed:
            print(f"    {test}: {outcome.why[test]}", flush=True)
        failed = failed or bool(outcome.failed or outcome.unfinished)
        if outcome.unfinished:
            print(outcome.unfinished, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
