"""Run Horovod's own tests against the Horovod of this environment.

`tools/horovod_suites.py [--ranks 2] [--repeat 20] [--busy 2] [--plain] [--source DIR] [SUITE …]`.
The tests are fetched from Horovod's repository into the cache, once; --source takes a checkout of
it in place of that (or a bare repository). Each suite runs whole, on all ranks under horovodrun.
--busy keeps that many cores busy meanwhile. A line a run, and at the end what failed, how often;
ends with 1 if something did.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from plain_horovod import plain_horovod
from rankroom.horovod_build.cache import cache_folder
from rankroom.horovod_build.edits.edit import VERSION
from rankroom.horovod_build.source import unpack

URL = f"https://codeload.github.com/horovod/horovod/tar.gz/refs/tags/v{VERSION}"
SUITES = {
    "torch": "test_torch.py",
    "tensorflow": "test_tensorflow.py",
    "static-sets": "test_process_sets_static.py",
    "tensorflow-sets": "test_tensorflow_process_sets.py",
    "dynamic-sets": "test_tensorflow_process_sets_dynamic.py",
}
LIMIT_S = 1500
# Each rank says what failed in a file of its own.
RANK = """
import os, sys, pytest
rank = os.environ["HOROVOD_RANK"]
sys.exit(pytest.main([*sys.argv[1:], f"--junitxml={os.environ['REPORTS']}/{rank}.xml"]))
"""
RENAMED = "sys.modules[__name__] = mock\n"


@dataclass
class Outcome:
    """How one run of a suite ended: on which ranks each test failed, and what was said."""

    seconds: float = 0.0
    passed: int = 0
    skipped: int = 0
    failed: dict[str, list[int]] = field(default_factory=dict)
    unfinished: str = ""


def main() -> int:
    """Run what was asked for; 1 if a test failed."""
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
    tests = fetched(asked.source)
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
                print(
                    f"{number:3} {name:16} {asked.ranks} ranks: {outcome.passed} passed, "
                    f"{len(outcome.failed)} failed, {outcome.skipped} skipped, "
                    f"{outcome.seconds:.0f} s{', not finished' if outcome.unfinished else ''}",
                    flush=True,
                )
    for test, times in failed.most_common():
        print(f"failed {times} of {asked.repeat} times: {test}")
    return 1 if failed else 0


def fetched(source: Path | None) -> Path:
    """The folder `test` of Horovod's repository at this version."""
    place = cache_folder() / f"tests-{VERSION}"
    if source is not None:
        shutil.rmtree(place, ignore_errors=True)
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            archive = Path(scratch, "source.tar.gz")
            if source is None:
                try:
                    urllib.request.urlretrieve(URL, archive)
                except OSError as error:
                    sys.exit(
                        f"Horovod's tests could not be fetched from {URL}: {error}; "
                        "--source takes a checkout of its repository"
                    )
            else:
                subprocess.run(
                    ["git", "-C", source, "archive", f"--output={archive}",
                     f"--prefix=horovod-{VERSION}/", f"v{VERSION}", "test"],
                    check=True,
                )  # fmt: skip
            (unpack(archive, Path(scratch)) / "test").rename(place)
    return place


def run(tests: Path, suite: str, ranks: int, site: Path | None, deselect: list[str]) -> Outcome:
    """One suite, once."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as reports:
        path = [reports, str(site)] if site else [reports]
        # They ask for the package that became unittest.mock.
        Path(reports, "mock.py").write_text("import sys, unittest.mock as mock\n" + RENAMED)
        env = os.environ | {
            "REPORTS": reports,
            "PYTHONPATH": os.pathsep.join([*path, str(tests / "utils"), str(tests / "parallel")]),
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
            report = Path(reports, f"{rank}.xml")
            if not report.is_file():
                outcome.unfinished = re.sub(r"(?m)^", "    ", said[-3000:])
                continue
            cases = list(ElementTree.parse(report).iter("testcase"))
            broken = [
                c for c in cases if c.find("failure") is not None or c.find("error") is not None
            ]
            for case in broken:
                outcome.failed.setdefault(str(case.get("name")), []).append(rank)
            outcome.skipped = sum(case.find("skipped") is not None for case in cases)
            outcome.passed = len(cases) - outcome.skipped - len(broken)
    return outcome


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """So many processes that do nothing but take time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main())
