"""A rank in JupyterLab's debugger panel, by the requests that it sends to a notebook's kernel."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cells import log
from kernel import Kernel
from panel import InCell, Panel, stopped
from rankroom.cluster.local import Cluster
from rankroom.record.model import Prompt
from rankroom.run.run import Run

pytestmark = pytest.mark.cluster

SOON_S = 30.0
HALVES = """%%distributed

def half(n):
    m = n // 2
    return m
x = 6 + rank
y = half(x)
y
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def notebook(home: Path, words: str) -> Kernel:
    made = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
    error = made.run(f"%load_ext rankroom\n{words}").error
    assert not error, error
    return made


@pytest.fixture(scope="module")
def kernel(home: Path) -> Iterator[Kernel]:
    made = notebook(home, "%cluster start --ranks 2 --name here")
    try:
        yield made
    finally:
        made.run("%cluster stop")
        made.close()


@pytest.fixture(scope="module")
def cluster(kernel: Kernel, home: Path) -> Iterator[Cluster]:
    """Another client of the same cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(home))
        attached = Cluster.attach("here")
        yield attached
        attached.close()


@pytest.fixture
def panel(kernel: Kernel) -> Iterator[Panel]:
    """The debugger panel, switched on and showing rank 1."""
    made = Panel(kernel)
    try:
        assert not kernel.run("%ranks debug 1").error
        made.switch_on()
        yield made
        if made.is_on:
            made.switch_off()
        assert not kernel.run("%ranks debug off").error
    finally:
        made.close()


def asking(cluster: Cluster, after: int = 0) -> tuple[Run, Prompt]:
    """Wait for a prompt with a number above `after`; return its run and the prompt."""
    deadline = time.monotonic() + SOON_S
    while True:
        cluster.follow()
        run = cluster.latest
        if run is not None and run.prompts and run.prompts[0].number > after:
            return run, run.prompts[0]
        assert time.monotonic() < deadline, run and run.prompts
        time.sleep(0.02)


def test_a_breakpoint_in_the_gutter_stops_the_selected_rank(panel: Panel, cluster: Cluster):
    assert panel.click(HALVES, 4) == [4]
    with stopped(panel, HALVES) as cell:
        assert panel.frames() == [("half", 4), ("<module>", 7)]
        assert panel.variables()["n"] == "7"
        run, prompt = asking(cluster)
        assert (prompt.rank, prompt.kind, prompt.place) == (1, "debugger", "cell line 3")
        assert panel.step() == [("half", 5), ("<module>", 7)]
        assert panel.variables() == {"m": "3", "n": "7"}
        [frame, *_] = panel.do("stackTrace", threadId=1)["stackFrames"]
        told = panel.do("evaluate", expression="m * 10", frameId=frame["id"], context="repl")
        assert told["result"] == "30"
        # JupyterLab shows the source of a cell as it is in the notebook.
        source = panel.do("source", source={"path": frame["source"]["path"]})
        assert source["content"] == HALVES
        panel.go_on()
        shown = cell.over()
    assert not shown.error and run.wait(SOON_S) and run.state == "done"
    assert run.results == {0: "3", 1: "3"}
    names = {each["name"] for each in panel.do("inspectVariables")["variables"]}
    assert {"x", "y"} <= names


@pytest.mark.thorough
def test_stepping_over_a_statement_stops_at_the_next_one(panel: Panel):
    code = "%%distributed --timeout 60\na = 1\nb = 2\nc = a + b"
    assert panel.click(code, 1) == [2], "the magic has no line that runs"
    with stopped(panel, code) as cell:
        assert panel.frames() == [("<module>", 2)]
        assert [panel.step()[0][1] for _ in range(2)] == [3, 4]
        panel.go_on()
        cell.over()


def test_the_runs_prompt_accepts_commands_while_the_panel_debugs(panel: Panel, cluster: Cluster):
    panel.click(HALVES, 4)
    with stopped(panel, HALVES) as cell:
        run, prompt = asking(cluster)
        run.answer("pp n * 2")
        run, prompt = asking(cluster, prompt.number)
        run.answer("w")
        run, prompt = asking(cluster, prompt.number)
        before = panel.stops()
        run.answer("n")
        panel.heard("stopped", before)
        assert panel.frames()[0] == ("half", 5)
        asking(cluster, prompt.number)
        run.answer("c")
        shown = cell.over()
    assert not shown.error
    said = log(run, 1)
    assert "debugger> pp n * 2\n14\n" in said
    assert "cell line 3 in half\ncell line 6 in <module>" in said


@pytest.mark.thorough
def test_breakpoint_stops_in_the_panel(panel: Panel, cluster: Cluster):
    code = "%%distributed\nz = 3\nif rank == 1: breakpoint()\nw = z + 1"
    panel.click(code)
    with stopped(panel, code) as cell:
        assert panel.frames() == [("<module>", 3)]
        assert asking(cluster)[1].place == "cell line 2"
        assert panel.step() == [("<module>", 4)]
        panel.go_on()
        cell.over()


def test_breakpoints_stop_again_after_an_interrupt_a_release_or_a_quit(
    panel: Panel, kernel: Kernel, cluster: Cluster
):
    panel.click(HALVES, 4)
    with stopped(panel, HALVES) as cell:
        kernel.interrupt()
        assert "interrupted" in cell.over().error
    panel.heard("continued")
    with stopped(panel, HALVES) as cell:
        begun = time.monotonic()
        cluster.release()
        assert cell.over().error and time.monotonic() - begun < 5
    with stopped(panel, HALVES) as cell:
        run, _ = asking(cluster)
        run.answer("q")
        assert "interrupted" in cell.over().error
    with stopped(panel, HALVES) as cell:
        panel.go_on()
        assert not cell.over().error


@pytest.mark.thorough
def test_a_conditional_breakpoint_can_be_set_while_the_cell_runs(
    panel: Panel, kernel: Kernel, tmp_path: Path
):
    flag = tmp_path / "flag"
    code = (
        "%%distributed\nimport pathlib\n"
        f"while not pathlib.Path({str(flag)!r}).exists():\n    pass\n"
        "for i in range(10):\n    square = i * i\nsquare"
    )
    path = panel.do("dumpCell", code=code)["sourcePath"]
    panel.click_in(path, 2)
    with stopped(panel, code) as cell:
        panel.go_on()
        where = {"line": 6, "condition": "i == 7"}
        panel.do("setBreakpoints", source={"path": path}, breakpoints=[where])
        before = panel.stops()
        flag.touch()
        panel.heard("stopped", before)
        assert panel.frames() == [("<module>", 6)]
        [frame] = panel.do("stackTrace", threadId=1)["stackFrames"]
        panel.do("copyToGlobals", srcVariableName="i", dstVariableName="seen",
                 srcFrameId=frame["id"])  # fmt: skip
        panel.go_on()
        assert "81" in cell.over().text
    assert "7" in kernel.run("%%distributed --ranks 1\nseen").text


@pytest.mark.thorough
def test_breakpoints_work_where_every_cell_is_distributed(panel: Panel, kernel: Kernel):
    assert not kernel.run("%distributed on").error
    try:
        code = "a = rank\nb = a + 1\nb"
        assert panel.click(code, 2) == [2]
        with stopped(panel, code) as cell:
            assert panel.frames() == [("<module>", 2)]
            panel.go_on()
            assert not cell.over().error
    finally:
        assert not kernel.run("%distributed off").error


@pytest.mark.thorough
def test_the_timeout_does_not_count_time_at_a_breakpoint(panel: Panel, cluster: Cluster):
    code = "%%distributed --timeout 2\nx = 1\ny = rank"
    panel.click(code, 3)
    with stopped(panel, code) as cell:
        run, _ = asking(cluster)
        time.sleep(4.0)  # twice the cell's timeout
        assert run.state == "running"
        panel.go_on()
        assert not cell.over().error


def test_the_debugger_opens_no_port_and_stops_tracing_when_switched_off(
    panel: Panel, kernel: Kernel, cluster: Cluster
):
    listens = [
        sum(each.status == "LISTEN" for each in psutil.Process(rank.pid).net_connections())
        for rank in cluster.ranks
    ]
    assert panel.is_on and listens[0] == listens[1]
    traced = (
        "%%distributed\nimport sys\n"
        "tools = getattr(sys, 'monitoring', None)\n"  # from Python 3.12 on
        "(sys.gettrace() is None and not (tools and tools.get_tool(tools.DEBUGGER_ID)), rank)"
    )
    panel.click(HALVES, 4)
    assert "(False, 1)" in kernel.run(traced).text
    panel.switch_off()
    assert "(True, 1)" in kernel.run(traced).text
    assert not kernel.run(HALVES).error
    panel.switch_on()
    panel.click(HALVES, 4)
    panel.switch_off()
    assert "(True, 1)" in kernel.run(traced).text
    panel.switch_on()
    panel.click(HALVES, 4)
    with stopped(panel, HALVES) as cell:
        panel.go_on()
        cell.over()


@pytest.mark.thorough
def test_a_run_that_is_not_interactive_skips_breakpoints(panel: Panel, kernel: Kernel):
    panel.click(HALVES, 4)
    shown = kernel.run(HALVES)
    assert not shown.error
    assert "a breakpoint at cell line 3 skipped: the run is not interactive" in shown.text


@pytest.mark.thorough
def test_a_forked_child_process_does_not_stop_at_breakpoints(panel: Panel, kernel: Kernel):
    code = (
        "%%distributed\nimport os\ndef work():\n    return 5\n"
        "child = os.fork()\nif child == 0:\n    os._exit(work())\n"
        "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    )
    panel.click(code, 4)
    cell = InCell(kernel, code)
    assert "5" in cell.over().text


@pytest.mark.thorough
def test_a_file_that_ranks_import_can_have_breakpoints(
    panel: Panel, kernel: Kernel, tmp_path: Path
):
    file = tmp_path / "doubling.py"
    file.write_text("def double(n):\n    twice = 2 * n\n    return twice\n")
    code = (
        f"%%distributed\nimport sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import doubling\ndoubling.double(4)"
    )
    panel.click(code)
    assert panel.click_in(str(file), 3) == [3]
    with stopped(panel, code) as cell:
        assert panel.frames() == [("double", 3), ("<module>", 4)]
        assert panel.variables() == {"n": "4", "twice": "8"}
        panel.go_on()
        assert "8" in cell.over().text


@pytest.mark.thorough
def test_a_local_cell_keeps_its_breakpoints(panel: Panel, kernel: Kernel):
    code = "a = 1\nb = 2"
    assert panel.click(code, 2) == [2]
    assert not kernel.run(code).error
    lines = {each["source"]: each["breakpoints"] for each in panel.do("debugInfo")["breakpoints"]}
    assert [{"line": 2}] in lines.values()


@pytest.mark.thorough
def test_a_page_that_is_loaded_again_finds_the_breakpoints(panel: Panel):
    path = panel.do("dumpCell", code=HALVES)["sourcePath"]
    panel.click(HALVES, 4)
    info = panel.do("debugInfo")
    assert info["isStarted"] and path.startswith(info["tmpFilePrefix"])
    assert {"source": path, "breakpoints": [{"line": 4}]} in info["breakpoints"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "needs a rank, or off"),
        ("7", "no rank 7"),
        ("0-1", "one rank at a time"),
        ("x", "rank"),
    ],
)
def test_invalid_arguments_of_ranks_debug_are_refused(kernel: Kernel, words: str, said: str):
    assert said in kernel.run(f"%ranks debug {words}").error


@pytest.mark.thorough
def test_switching_ranks_requires_the_debugger_to_be_off(panel: Panel, kernel: Kernel):
    for words in ("0", "off"):
        assert "switch it off first" in kernel.run(f"%ranks debug {words}").error
    panel.switch_off()
    assert "shows rank 0 now" in kernel.run("%ranks debug 0").stdout
    assert not kernel.run("%ranks debug off").error
    # The panel debugs the notebook's own kernel again, and cannot switch to a rank while it is on.
    panel.switch_on()
    assert "switch it off first" in kernel.run("%ranks debug 1").error
    panel.switch_off()
    assert not kernel.run("%ranks debug 1").error


@pytest.mark.thorough
def test_one_notebook_at_a_time_debugs_a_rank_and_closing_it_leaves_nothing(
    kernel: Kernel, home: Path
):
    other = notebook(home, "%cluster attach here\n%ranks debug 1")
    its = Panel(other)
    mine = Panel(kernel)
    try:
        its.switch_on()
        its.click(HALVES, 4)
        assert "is being debugged from another notebook" in kernel.run("%ranks debug 1").error
        its.close()
        other.close()
        assert not InCell(kernel, "%%distributed\nrank").over().error
        cell = InCell(kernel, HALVES)  # the other notebook had a breakpoint in it
        assert not cell.over().error
        assert not kernel.run("%ranks debug 1").error and not mine.is_on
        mine.switch_on()
        mine.click(HALVES, 4)
        with stopped(mine, HALVES) as cell:
            mine.go_on()
            assert not cell.over().error
        mine.switch_off()
        assert not kernel.run("%ranks debug off").error
    finally:
        mine.close()


def test_the_death_of_a_rank_ends_its_debugger(panel: Panel, kernel: Kernel, cluster: Cluster):
    panel.click(HALVES, 4)
    with stopped(panel, HALVES) as cell:
        os.kill(cluster.ranks[1].pid, signal.SIGKILL)
        assert "rank 1" in cell.over().error
    panel.heard("continued")
    assert not panel.is_on
    said = panel.ask("setBreakpoints", source={"path": "x.py"}, breakpoints=[])
    assert not said["success"] and "rank 1 is gone" in said["message"]
    assert not kernel.run("%cluster restart --ranks 1").error
    panel.switch_on()
    panel.click(HALVES, 4)
    with stopped(panel, HALVES) as cell:
        panel.go_on()
        assert not cell.over().error


@pytest.mark.thorough
def test_stopping_the_cluster_returns_the_panel_to_the_notebooks_kernel(home: Path):
    made = notebook(home, "%cluster start --ranks 1 --name brief\n%ranks debug 0")
    panel = Panel(made)
    try:
        panel.switch_on()
        assert not made.run("%cluster stop").error
        assert not panel.is_on
        panel.switch_on()  # the debugger of the notebook's own kernel
        assert panel.is_on and made.run("%ranks debug off").error
        panel.switch_off()
    finally:
        panel.close()
        made.close()
