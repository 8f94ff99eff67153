"""The debugger of a rank, used from a notebook's kernel."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel import Kernel, Shown
from rankroom.cluster.local import Cluster
from rankroom.run.run import Run

pytestmark = pytest.mark.cluster

SOON_S = 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def kernel(home: Path) -> Iterator[Kernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(home))
        made = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
        try:
            assert not made.run("%load_ext rankroom\n%cluster start --ranks 2 --name here").error
            yield made
        finally:
            made.run("%cluster stop")
            made.close()


@pytest.fixture(scope="module")
def other(kernel: Kernel, home: Path) -> Iterator[Cluster]:
    """Another client of the same cluster, which answers the prompts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(home))
        attached = Cluster.attach("here")
        yield attached
        attached.close()


def in_debugger(other: Cluster, ranks: tuple[int, ...]) -> Run:
    """Wait until exactly these ranks are at a prompt of the debugger, and return the run."""
    deadline = time.monotonic() + SOON_S
    while True:
        other.follow()
        run = other.latest
        if run is not None and tuple(p.rank for p in run.prompts) == ranks:
            return run
        assert time.monotonic() < deadline
        time.sleep(0.05)


def attended(kernel: Kernel, cell: str, act: Callable[[], None]) -> Shown:
    """Run a cell in a front end that accepts input, with `act()` in a thread beside it."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)
            kernel.interrupt()

    beside = threading.Thread(target=guarded)
    shown = kernel.run(cell, attended=True, after=beside.start)
    beside.join()
    if failed:
        raise failed[0]
    return shown


def test_a_notebook_that_cannot_ask_for_input_skips_breakpoints(kernel: Kernel):
    shown = kernel.run("%%distributed\nx = 1\nbreakpoint()\nx + 1")
    assert not shown.error
    assert "breakpoint() at cell line 2 skipped: the run is not interactive" in shown.text
    shown = kernel.run("%%distributed --quiet\nbreakpoint()", attended=True)
    assert not shown.error


def test_without_the_view_the_output_says_how_to_reply(kernel: Kernel, other: Cluster):
    seen: list[str] = []

    def answer() -> None:
        run = in_debugger(other, (0,))
        deadline = time.monotonic() + SOON_S
        while "rankroom runs debug" not in kernel.shown.text and time.monotonic() < deadline:
            time.sleep(0.05)
        seen.append(kernel.shown.text)
        run.answer("c")

    shown = attended(kernel, "%%distributed\nif rank == 0:\n    breakpoint()\nrank", answer)
    assert re.search(
        r"rank 0 is in the debugger at cell line 2: reply with `rankroom runs debug \S+`", seen[0]
    )
    assert not shown.error and "debugger" not in shown.text.partition("ipdb")[0]


def test_the_timeout_does_not_count_time_in_the_debugger(kernel: Kernel, other: Cluster):
    def late(text: str) -> Callable[[], None]:
        def answer() -> None:
            run = in_debugger(other, (0, 1))
            time.sleep(4.0)
            run.answer(text)

        return answer

    shown = attended(kernel, "%%distributed --timeout 2\nbreakpoint()\nrank", late("c"))
    assert not shown.error and shown.run["state"] == "done"
    endless = "%%distributed --timeout 2\nimport time\nbreakpoint()\ntime.sleep(600)"
    begun = time.monotonic()
    shown = attended(kernel, endless, late("c"))
    assert "stopped after --timeout 2 s" in shown.error and time.monotonic() - begun > 5.0


def test_the_stop_button_ends_the_debugger(kernel: Kernel, other: Cluster):
    def stop() -> None:
        in_debugger(other, (0, 1))
        kernel.interrupt()

    shown = attended(kernel, "%%distributed --timeout 60\nbreakpoint()", stop)
    assert "interrupted" in shown.error and "timeout" not in shown.error


def test_debug_inspects_a_failure_on_one_rank(kernel: Kernel, other: Cluster):
    assert not kernel.run("%cluster restart --ranks 1").error
    assert "nothing to debug on rank 1" in kernel.run("%debug --rank 1", attended=True).error
    failing = (
        "%%distributed\ndef half(n):\n    m = n // 2\n    return 1 / m\nif rank == 1:\n    half(1)"
    )
    assert "ZeroDivisionError" in kernel.run(failing).error
    assert "no one can answer here" in kernel.run("%debug --rank 1").error
    assert "no rank 7" in kernel.run("%debug --rank 7", attended=True).error

    def look() -> None:
        run = in_debugger(other, (1,))
        number = run.prompts[0].number
        run.answer("p 'm is', m")
        while not run.prompts or run.prompts[0].number == number:
            time.sleep(0.05)
        run.answer("q")

    shown = attended(kernel, "%debug --rank 1", look)
    assert not shown.error and "('m is', 0)" in shown.text
    # Without --rank, %debug is IPython's own.
    kernel.run("1 / 0")
    assert "this frontend does not support input requests" in kernel.run("%debug").error
