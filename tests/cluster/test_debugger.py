"""The debugger of a rank: it stops, takes commands from any client, and can always be ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster import actions
from rankroom.cluster.local import Cluster
from rankroom.errors import UsageError
from rankroom.record.model import Prompt
from rankroom.run.run import Run
from rankroom.text.rank_ranges import name_ranks

pytestmark = pytest.mark.cluster

SOON_S = 30.0  # for a rank to stop, on a busy machine
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def free(cluster: Cluster) -> Iterator[None]:
    """Interrupt ranks that a failed test left in the debugger."""
    yield
    cluster.interrupt()


def begin(cluster: Cluster, source: str, **about: Any) -> Run:
    return cluster.run(dedent(source).strip(), interactive=True, **about)


def until(holds: Callable[[], Any], why: Callable[[], object] = str) -> Any:
    deadline = time.monotonic() + SOON_S
    while not (found := holds()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)
    return found


def asked(run: Run, ranks: tuple[int, ...] = (0, 1)) -> list[Prompt]:
    """Wait until exactly these ranks are at a prompt, and return the prompts."""
    until(
        lambda: tuple(p.rank for p in run.prompts) == ranks or run.state != "running",
        lambda: f"{run.info}: {log(run, 0)}",
    )
    assert run.state == "running", f"{name_ranks(ranks)} did not ask: {failure(run)} {log(run, 0)}"
    return run.prompts


def step(run: Run, *commands: str, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Send each command to `ranks` once all of them are at a prompt."""
    for command in commands:
        before = {p.rank: p.number for p in asked(run, ranks)}
        assert run.answer(command) == list(ranks)
        until(lambda before=before: not [p for p in run.prompts if before.get(p.rank) == p.number])


def said(run: Run, rank: int = 0) -> str:
    return COLOURS.sub("", log(run, rank))


STEPS = """
x = 1
breakpoint()
def double(y):
    z = 2 * y
    return z
x = double(x)
print("x is", x)
"""


def test_the_debugger_steps_prints_shows_the_stack_and_continues(cluster):
    run = begin(cluster, STEPS)
    first = asked(run)
    assert {(p.kind, p.place, p.text) for p in first} == {("debugger", "cell line 2", "ipdb> ")}
    step(run, "p x * 21")
    step(run, "n")  # stops at each statement of the cell
    assert [p.place for p in asked(run)] == ["cell line 3"] * 2
    step(run, "n", "s")
    until(lambda: "--Call--" in said(run))
    step(run, "n", "n", "p z, y", "w", "u", "p x", "d")
    step(run, "r", "n")
    until(lambda: asked(run)[0].place == "cell line 7", lambda: said(run))
    step(run, "!x = 'mine'", "c")
    assert run.wait(SOON_S) and run.state == "done"
    for rank in (0, 1):
        text = said(run, rank)
        assert "ipdb> p x * 21\n21\n" in text, text
        assert "> Cell In[" in text and "(2, 1)" in text and "double(x)" in text
        assert "interactiveshell" not in text, text
        assert text.endswith("x is mine\n")
    assert run.info.prompts == [] and not run.info.notes
    assert values(cluster, "import sys; sys.gettrace() is None") == [True, True]


def test_completion_uses_the_current_frame_and_does_not_answer_the_prompt(cluster):
    run = begin(cluster, "total = 3\ndef f(learning):\n    breakpoint()\n    return 1\n\nf(7)")
    prompts = {p.rank: p.number for p in asked(run)}
    assert actions.complete(run.info, "p lear", 1, prompts[1]) == (2, ["learning"])
    assert actions.complete(run.info, "p total.bit_l", 0, prompts[0]) == (2, ["total.bit_length"])
    step(run, "!learning_rate = 2")
    prompts = {p.rank: p.number for p in asked(run)}
    found = actions.complete(run.info, "p learn", 0, prompts[0])
    assert found == (2, ["learning", "learning_rate"])
    assert actions.complete(run.info, "p learn", 0, prompts[0] - 1)[1] == []  # an answered prompt
    assert {p.rank: p.number for p in asked(run)} == prompts
    step(run, "p learning_rate", "c")  # completion must not undo the assignment
    assert run.wait(SOON_S) and run.state == "done" and "\n2\n" in said(run)
    assert actions.complete(run.info, "p learn", 0, prompts[0])[1] == []


def test_breakpoints_stop_in_the_last_line_and_in_functions(cluster):
    run = begin(cluster, "y = 5\nbreakpoint()")
    step(run, "p y + 1", "n")
    assert run.wait(SOON_S) and run.state == "done" and "\n6\n" in said(run)
    run = begin(cluster, "import pdb\ndef f(n):\n    pdb.set_trace()\n\nf(7); f(8)")
    step(run, "p n", "c", "p n", "c")
    assert run.wait(SOON_S) and run.state == "done"
    assert "\n7\n" in said(run) and "\n8\n" in said(run)


def test_breakpoints_that_are_set_end_with_the_cell(cluster):
    source = "breakpoint()\ndef g(n):\n    return n + 1\n\nfor i in range(3):\n    g(i)"
    run = begin(cluster, source)
    step(run, "n", "n", "b g", "c", "p n", "c", "p n * 100")
    assert "\n100\n" in said(run)
    step(run, "cl 1", "c")
    assert run.wait(SOON_S) and run.state == "done"
    assert values(cluster, "import sys; g(1), sys.gettrace() is None") == [(2, True)] * 2


def test_quitting_ends_the_cell_as_an_interrupt_does(cluster):
    run = begin(cluster, "kept = 'kept'\nbreakpoint()\nkept = 'lost'")
    step(run, "q")
    assert run.wait(SOON_S) and run.state == "interrupted"
    assert states(run) == {0: "interrupted", 1: "interrupted"}
    assert values(cluster, "kept") == ["kept", "kept"]


def test_a_rank_in_the_debugger_is_not_reported_as_stuck_while_another_waits(cluster):
    run = begin(
        cluster,
        """
        import torch, torch.distributed as dist
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        if rank == 1:
            breakpoint()
        ones = torch.ones(2)
        dist.all_reduce(ones)
        ones.tolist()
        """,
    )
    asked(run, (1,))
    hang = until(lambda: run.info.hang, lambda: run.info)
    assert hang.text.startswith("rank 1 is in the debugger at cell line 5; rank 0 waits in "), hang
    assert "stuck" not in hang.text
    time.sleep(1.0)
    assert run.state == "running" and [p.rank for p in run.prompts] == [1]
    step(run, "n", "n", "p 40 + 2", "c", ranks=(1,))
    assert run.wait(SOON_S) and run.results == {0: "[2.0, 2.0]", 1: "[2.0, 2.0]"}
    assert not any("stuck" in note for note in run.info.notes)


def test_an_interrupt_ends_the_debugger(cluster):
    run = begin(cluster, "a = 1\nbreakpoint()\na = 2")
    asked(run)
    run.interrupt()
    assert run.wait(5) and states(run) == {0: "interrupted", 1: "interrupted"}
    assert values(cluster, "a") == [1, 1]


def test_an_interrupt_ends_input_and_plain_pdb(cluster):
    for source in ("input('? ')", "from pdb import Pdb; Pdb().set_trace(); b = 1"):
        run = begin(cluster, source)
        asked(run)
        run.interrupt()
        assert run.wait(10), said(run)
        assert run.state == "interrupted", failure(run)


def test_a_release_ends_the_debugger(cluster):
    run = begin(cluster, "a = 3\nbreakpoint()\na = 4")
    asked(run)
    assert cluster.release().startswith("released the debugger")
    assert run.wait(5) and states(run) == {0: "released", 1: "released"}
    assert values(cluster, "a") == [3, 3]


def test_a_rank_that_fails_does_not_end_the_debugger_of_another(cluster):
    run = begin(cluster, "if rank == 0:\n    1 / 0\nbreakpoint()\n'went on'")
    asked(run, (1,))
    time.sleep(1.5)
    step(run, "p rank + 1", "c", ranks=(1,))
    assert run.wait(SOON_S) and run.state == "failed"
    assert run.results == {1: "'went on'"} and "\n2\n" in said(run, 1)


def test_ranks_can_be_answered_one_by_one_and_a_stale_answer_is_refused(cluster):
    run = begin(cluster, "breakpoint()\nrank")
    first = asked(run)
    assert run.answer("p 'a' * 3", ranks=[1]) == [1]
    until(lambda: "aaa" in said(run, 1))
    numbers = [first[0].number, first[1].number + 1]
    until(lambda: [p.number for p in run.prompts] == numbers, lambda: run.prompts)
    assert "aaa" not in said(run, 0)
    with pytest.raises(UsageError, match="already answered"):
        actions.answer(run.info, "p 'b' * 3", {1: first[1].number})
    assert actions.answer(run.info, "c", {p.rank: p.number for p in run.prompts}) == [0, 1]
    assert run.wait(SOON_S) and run.results == {0: "0", 1: "1"}
    with pytest.raises(UsageError):
        run.answer("c")


def test_input_and_getpass_read_answers_in_an_interactive_run(cluster):
    run = begin(
        cluster, "name = input('your name? ')\nimport getpass\nkey = getpass.getpass()\nname, key"
    )
    assert {(p.kind, p.text, p.place) for p in asked(run)} == {
        ("input", "your name? ", "cell line 1")
    }
    step(run, "Ada", "s3cret")
    assert run.wait(SOON_S) and run.results[1] == "('Ada', 's3cret')"
    assert said(run, 1) == "your name? Ada\nPassword: \n"


def test_the_debugger_works_in_a_cell_on_some_ranks(cluster):
    run = begin(cluster, "breakpoint()\nrank", ranks=[1])
    step(run, "p rank * 10", "c", ranks=(1,))
    assert run.wait(SOON_S) and run.results == {1: "1"} and "\n10\n" in said(run, 1)


PASSED = "breakpoint() at cell line 1 skipped: the run is not interactive, so no one can answer\n"


def test_breakpoints_are_skipped_in_a_run_that_is_not_interactive(cluster):
    run = finish(cluster, "for i in range(3): breakpoint()\nimport pdb; pdb.set_trace()\n'over'")
    assert run.state == "done" and run.results == {0: "'over'", 1: "'over'"}
    assert said(run) == PASSED + PASSED.replace("line 1", "line 2")


def test_breakpoints_are_skipped_outside_of_the_main_thread(cluster):
    source = (
        "import threading\nt = threading.Thread(target=lambda: breakpoint())\nt.start(); t.join()"
    )
    run = begin(cluster, source)
    assert run.wait(SOON_S) and run.state == "done"
    assert "skipped: it is not in the rank's main thread" in said(run)


def test_breakpoints_are_skipped_in_a_forked_child_process(cluster):
    run = begin(
        cluster,
        """
        import os
        child = os.fork()
        if not child:
            breakpoint()
            os._exit(0)
        os.waitpid(child, 0)[1]
        """,
    )
    assert run.wait(SOON_S) and run.results == {0: "0", 1: "0"}
    assert "skipped: it is in a child process of the rank" in said(run)


def test_debug_inspects_the_last_failure_post_mortem(cluster):
    broken = finish(cluster, "def half(n):\n    m = n // 2\n    return 1 / m\nhalf(1)")
    assert broken.state == "failed"
    run = begin(cluster, "%debug")
    step(run, "p m, n", "u", "w", "q")
    assert run.wait(SOON_S) and run.state == "done", failure(run)
    assert "(0, 1)" in said(run) and "ZeroDivisionError" not in said(run)


def test_a_terminal_can_continue_debugging_after_the_kernel_has_died(cluster, tmp_path):
    """The process that started the run is gone; another one answers."""
    home = str(cluster.paths.folder.parent.parent)
    source = (
        "import os, sys; from rankroom.cluster.local import Cluster\n"
        f"cluster = Cluster.attach({cluster.name!r})\n"
        "run = cluster.run('breakpoint()\\nrank + 40', interactive=True)\n"
        "print(run.id, flush=True); os._exit(0)"
    )
    env = {**os.environ, "RANKROOM_HOME": home}
    asker = subprocess.run(
        [sys.executable, "-c", source], env=env, capture_output=True, text=True, check=True
    )
    run_id = asker.stdout.strip()
    other = Cluster.attach(cluster.name)
    try:
        run = other.latest
        assert run is not None and run.id == run_id
        asked(run)
        # Standard input is a pipe here, with what a user would type in a terminal.
        typed = "@1\np rank * 7\nc\n@\nc\n"
        command = [sys.executable, "-m", "rankroom", "runs", "debug", run_id]
        done = subprocess.run(
            command, env=env, input=typed, capture_output=True, text=True, timeout=60
        )
        assert run.wait(SOON_S), done
        assert run.results == {0: "40", 1: "41"}
        assert "1 │ 7" in done.stdout and "0 │ 0" not in done.stdout
        assert "ranks 0–1 are in the debugger at cell line 1" in done.stderr
    finally:
        other.close()
