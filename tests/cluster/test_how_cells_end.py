"""How a cell ends on a rank: its own error fails it, and no other error that is shown does."""

from __future__ import annotations

from textwrap import dedent

import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster

RELEASES = """
import torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
"""


def test_an_unknown_magic_fails_the_cell(cluster: Cluster):
    run = finish(cluster, "%no_such_magic\nafter = 1")
    assert "UsageError" in failure(run) and "no_such_magic" in failure(run)
    assert states(run) == {0: "error", 1: "error"}
    assert finish(cluster, "after").info.failure.ename == "NameError"


@pytest.mark.skipif("sys.version_info < (3, 11)", reason="Python has no groups of errors")
def test_an_exception_group_fails_the_cell(cluster: Cluster):
    run = finish(cluster, "raise ExceptionGroup('many', [ValueError('one'), KeyError('two')])")
    assert ": ExceptionGroup: many" in failure(run)
    run = finish(
        cluster, "try:\n    raise ExceptionGroup('a', [ValueError()])\nfinally:\n    1 / 0"
    )
    assert "ZeroDivisionError" in failure(run)


def test_a_failing_html_representation_does_not_fail_the_cell(cluster: Cluster):
    finish(cluster, RELEASES)
    source = """
        from IPython.display import display
        class Report:
            def _repr_html_(self):
                raise ValueError("no template")
        if rank == 0:
            display(Report())
        total = torch.ones(1)
        for _ in range(20):
            dist.all_reduce(total)
        float(total)
    """
    run = finish(cluster, source)
    assert run.state == "done", failure(run)
    assert "ValueError: no template" in log(run, 0, "stderr")
    assert values(cluster, "float(total)") == [2.0**20] * 2


def test_an_error_in_a_timed_cell_fails_the_cell(cluster: Cluster):
    assert "ZeroDivisionError" in failure(finish(cluster, "%%time\n1 / 0"))


def test_an_error_fails_the_cell_when_a_library_formats_tracebacks(cluster: Cluster):
    finish(cluster, "import rich.traceback\n_ = rich.traceback.install()")
    run = finish(cluster, "def step():\n    1 / 0\nstep()")
    assert (run.state, states(run)) == ("failed", {0: "error", 1: "error"})
    assert "ZeroDivisionError" in failure(run)
    assert "SyntaxError" in failure(finish(cluster, "x = = 1"))
    assert finish(cluster, "raise SystemExit(3)").info.failure.ename == "SystemExit"
    names = "_showtraceback", "showtraceback", "showsyntaxerror"
    finish(cluster, f"for name in {names}: vars(get_ipython()).pop(name)")


def test_forked_children_of_a_cell_can_be_terminated(cluster: Cluster):
    source = """
        import multiprocessing, signal, time
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=time.sleep, args=(1000,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(20)
        ends = [child.exitcode]
        # As Lightning does while it trains: the handler before is called by a new one.
        before = signal.getsignal(signal.SIGTERM)
        _ = signal.signal(signal.SIGTERM, lambda number, frame: before(number, frame))
        child = fork.Process(target=time.sleep, args=(1000,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(20)
        _ = signal.signal(signal.SIGTERM, before)
        ends + [child.exitcode]
    """
    assert values(cluster, source) == [[-15, -15]] * 2


@pytest.mark.parametrize("ranks", [[0], [0, 1]], ids=["one rank", "all"])
def test_forked_children_can_create_their_own_process_groups(cluster: Cluster, ranks: list[int]):
    # In PyTorch, a forked copy of a process that has a process group cannot create another one.
    finish(
        cluster,
        "import torch.distributed as dist\nif dist.is_initialized(): dist.destroy_process_group()",
    )
    source = """
        import multiprocessing, os, socket, torch, torch.distributed as dist
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        def train(number):
            os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_PORT=str(port))
            dist.init_process_group("gloo")
            dist.all_reduce(total := torch.ones(1) * number)
            queue.put((number, float(total)))
            dist.destroy_process_group()
        children = [fork.Process(target=train, args=(number,)) for number in range(2)]
        for each in children:
            each.start()
        try:
            found = sorted(queue.get(timeout=30) for _ in children)
        finally:
            for each in children:
                each.kill()
                each.join()
        found
    """
    assert values(cluster, source, ranks=ranks) == [[(0, 1.0), (1, 1.0)]] * len(ranks)


def test_stacks_are_still_written_after_a_signal_handler_was_replaced(cluster: Cluster):
    finish(cluster, "import signal\n_ = signal.signal(signal.SIGUSR2, signal.SIG_IGN)")
    source = """
        import faulthandler, os, pathlib, time
        written = pathlib.Path(os.environ["RANKROOM_SPOOL"]) / "stacks"
        begun = written.stat().st_size
        os.kill(os.getpid(), signal.SIGUSR2)
        written.stat().st_size > begun
    """
    assert values(cluster, source) == [True] * 2


def test_a_replaced_print_function_is_noted_once(cluster: Cluster):
    source = """
        import builtins
        def setup_for_distributed(is_first, before=print):
            def print(*words):
                if is_first:
                    before(*words)
            builtins.print = print
        setup_for_distributed(rank == 0)
        print("set up")
    """
    run = finish(cluster, source)
    assert log(run, 0, "stdout") == "set up\n" and not log(run, 1, "stdout")
    [note] = run.info.notes
    assert "`setup_for_distributed.<locals>.print` of a cell" in note
    assert finish(cluster, "print(1)").info.notes == []
    assert (
        finish(cluster, "builtins.print = setup_for_distributed.__defaults__[0]").info.notes == []
    )


def test_the_traceback_of_an_interrupt_ends_in_the_cell(cluster: Cluster):
    """In print(), too: the frames that handle the interrupt say nothing about the cell."""
    for line in ("time.sleep(60)", "for _ in range(10**9):\n    print(_, end='')"):
        run = cluster.run(f"import time\n{line}")
        assert not run.wait(1.0)
        run.interrupt()
        assert run.wait(20) and run.state == "interrupted"
        traces = ["\n".join(each["traceback"]) for each in run.events if each["kind"] == "error"]
        assert len(traces) == 2
        assert all("KeyboardInterrupt" in each and "rankroom" not in each for each in traces)


def test_exit_ends_the_cell_and_not_the_rank(cluster: Cluster):
    pids = values(cluster, "import os\nkept = rank\nos.getpid()")
    for source in ("exit()\nkept = 'lost'", "quit(3)\nkept = 'lost'"):
        assert "SystemExit" in failure(finish(cluster, source))
    assert values(cluster, "kept") == [0, 1]
    assert values(cluster, "os.getpid()") == pids


def test_a_forked_child_exits_at_the_end_of_the_cell(cluster: Cluster):
    source = """
        import os, sys
        child = os.fork()
        if child == 0:
            {ends}
        else:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    """
    for ends, status in (("sys.exit(3)", 3), ("pass", 0), ("1 / 0", 1), ("sys.exit('no')", 1)):
        run = finish(cluster, dedent(source).format(ends=ends), 30)
        assert run.state == "done", failure(run)
        assert values(cluster, "status") == [status] * 2
        assert ("ZeroDivisionError" in log(run, 0, "stderr")) == (ends == "1 / 0")


def test_numpy_and_nan_values_in_display_data_are_recorded(cluster: Cluster):
    source = """
        import numpy as np
        from IPython.display import JSON, display
        display(JSON({"acc": np.float32(0.5), "loss": float("nan")}))
    """
    run = finish(cluster, source)
    assert run.state == "done", failure(run)
    shown = [each for each in run._store.events(run.id) if each["kind"] == "display"]
    assert {str(each["data"]["application/json"]["loss"]) for each in shown} == {"nan"}
    assert {each["data"]["application/json"]["acc"] for each in shown} == {0.5}
