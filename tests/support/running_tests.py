"""What a run of the tests says at once: what failed, and what has been running for long.

A run that is cut off prints no summary; its log then still names what hung.
"""

import threading
import time
from collections.abc import Iterator

import pytest

LOOK_EVERY = 30.0
LONG = 240.0  # seconds; most tests take less than one


class RunningTests:
    """Prints into the terminal; under xdist, that of the process that all workers report to."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.begun: dict[str, float] = {}
        self.say_next: dict[str, float] = {}
        self.over = threading.Event()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        looking = threading.Thread(target=self.look, daemon=True)
        looking.start()
        try:
            return (yield)
        finally:
            self.over.set()
            looking.join()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begun[nodeid] = time.monotonic()
        self.say_next[nodeid] = LONG

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.begun.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(f"{report.when or 'test'} failed: {report.nodeid}")
            # A test whose worker died is reported, and does not finish.
            self.begun.pop(report.nodeid, None)

    def look(self) -> None:
        while not self.over.wait(LOOK_EVERY):
            for nodeid, begun in list(self.begun.items()):
                seconds = time.monotonic() - begun
                if seconds > self.say_next[nodeid]:
                    self.say_next[nodeid] *= 2
                    self.say(f"running for {seconds:.0f} s: {nodeid}")

    def say(self, line: str) -> None:
        terminal = self.config.get_terminal_writer()
        terminal.write(f"\n{line}\n")
        terminal.flush()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunningTests(config))
