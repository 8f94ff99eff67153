"""Report at once which tests have failed, and which have been running for long.

A test run that is cut off prints no summary; its log then still names the tests that hung.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

LOOK_EVERY = 30.0
LONG = 240.0  # seconds; most tests take less than one


class RunningTests:
    """Prints to the terminal; under xdist, to that of the process to which all workers report."""

    def __init__(self) -> None:
        # Duplicated now, as output is captured while a test runs.
        self.terminal = os.fdopen(os.dup(sys.__stdout__.fileno()), "w", buffering=1)
        self.start = time.monotonic()
        self.begun: dict[str, float] = {}
        self.say_next: dict[str, float] = {}
        self.over = threading.Event()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        looking = threading.Thread(target=self.look, daemon=True)
        looking.start()
        before = signal.signal(signal.SIGTERM, self.end)
        try:
            return (yield)
        finally:
            signal.signal(signal.SIGTERM, before)
            self.over.set()
            looking.join()

    def end(self, number: int, frame: object) -> None:
        """On SIGTERM, name the tests that are running, and end."""
        self.say(f"ended after {time.monotonic() - self.start:.0f} s")
        for nodeid, begun in list(self.begun.items()):
            self.say(f"running for {time.monotonic() - begun:.0f} s: {nodeid}")
        raise KeyboardInterrupt

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begun[nodeid] = time.monotonic()
        self.say_next[nodeid] = LONG

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.begun.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(f"{report.when or 'test'} failed: {report.nodeid}{reason(report)}")
            # A test whose worker died is reported, but does not finish.
            self.begun.pop(report.nodeid, None)

    def look(self) -> None:
        while not self.over.wait(LOOK_EVERY):
            for nodeid, begun in list(self.begun.items()):
                seconds = time.monotonic() - begun
                if seconds > self.say_next[nodeid]:
                    self.say_next[nodeid] *= 2
                    self.say(f"running for {seconds:.0f} s: {nodeid}")

    def say(self, line: str) -> None:
        self.terminal.write(f"\n{line}\n")


def reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return f": {crash.message.splitlines()[0][:200]}" if crash and crash.message else ""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunningTests())
