"""The magics in a real kernel."""

import os
import re
import threading
import time

import pytest

from kernel import MIME, Kernel
from rankroom.horovod_build.features import Features
from rankroom.notebook.cluster_magic import horovod_line
from rankroom.record.store import Store

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    made = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
    made.home = home
    made.run("%load_ext rankroom")
    yield made
    made.run("%cluster stop")
    made.close()


@pytest.fixture(scope="module")
def started(kernel):
    shown = kernel.run("%cluster start --ranks 2 --name lesson")
    assert "lesson: 2 ranks on " in shown.stdout, shown
    return kernel


def test_magics_name_the_remedy_before_there_is_a_cluster(kernel):
    remedy = "no cluster yet: start one with `%cluster start --ranks 2`"
    assert kernel.run("%%distributed\n1").error == remedy
    assert kernel.run("%cluster").stdout.strip() == remedy
    assert kernel.run("%ranks push x").error == remedy
    assert kernel.run("%cluster stop").error == remedy


def test_a_second_start_reports_the_running_cluster(started):
    assert "already running" in started.run("%cluster start").stdout
    assert "already running" in started.run("%cluster start --ranks 2").stdout
    assert "%cluster resize 3" in started.run("%cluster start --ranks 3").error
    for option in ("--auto-restart", "--preload none"):
        said = started.run(f"%cluster start --ranks 2 {option}").error
        assert said == f"lesson is running, and was started without {option}: `%cluster stop` first"


def test_a_cluster_that_another_kernel_has_left_is_named(started):
    """This is the state after `Restart Kernel and Run All Cells`."""
    started.run("from rankroom.cluster.base import AnyCluster; AnyCluster.current.close()")
    try:
        shown = started.run("%cluster start --ranks 1 --name again").stdout
        assert "lesson (2 ranks) also exists, and no notebook is attached to it: `%cluster" in shown
        assert "`%cluster stop lesson` ends it" in shown
    finally:
        started.run("%cluster stop again")
        assert "lesson: 2 ranks" in started.run("%cluster attach lesson").stdout


def test_predefined_names_survive_the_reset_magic(started):
    for how in ("-f", "-s -f"):
        assert started.run(f"%%distributed\n%reset {how}").error == ""
        given = "f'{rank} of {size} {device} {local_rank} {span.__name__}'"
        shown = started.run(f"%distributed {given}")
        assert shown.error == "" and "rank 1: '1 of 2 cpu 1 span'" in shown.text, shown


def test_an_error_is_reported_with_the_line_of_its_own_cell(started):
    started.run("%%distributed\n\n\n\ndef train(n):\n    return 1 / n")
    shown = started.run("%%distributed\ntrain(1)\ntrain(0)")
    assert "(cell line 2)" in shown.text and "ZeroDivisionError" in shown.text, shown.text


def test_a_cell_runs_on_all_ranks_and_shows_a_single_output(started):
    shown = started.run("%%distributed\nprint('hello', rank)\nsize")
    assert shown.error == ""
    assert shown.run["state"] == "done"
    assert "0 │ hello 0" in shown.text
    assert "1 │ hello 1" in shown.text
    assert "ranks 0–1: 2" in shown.text
    assert set(shown.outputs[0]) == {MIME, "text/html", "text/plain"}
    assert len(shown.outputs) == 1


def test_a_flood_stays_small_in_the_notebook(started):
    shown = started.run("%%distributed\nfor i in range(20000): print('line', i)")
    assert shown.run["lines"] == 40_000
    assert shown.iopub_bytes < 64 << 10


def test_the_distributed_line_magic_shows_every_ranks_value(started):
    assert "ranks 0–1: 4" in started.run("%distributed 2 + 2").text


def test_options_choose_ranks_name_the_run_and_silence_output(started):
    shown = started.run("%%distributed --ranks 1 -o kept\nrank")
    assert "rank 1: 1" in shown.text
    assert "done on 1 of 2 ranks" in started.run("kept").text
    assert started.run("kept.results").text == "{1: '1'}"
    assert started.run("%%distributed --quiet\n1").outputs == []


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%distributed --foo\n1", "unknown option '--foo'; options: --ranks 0,2-3, --timeout"),
        ("%%distributed --ranks 2\n1", "no rank 2 (asked for '2'): this cluster has 0–1"),
        ("%%distributed --ranks x\n1", "cannot read 'x' as ranks"),
        ("%%distributed --timeout soon\n1", "invalid float value: 'soon'"),
        ("%%distributed -o 2x\n1", "not a variable name"),
        ("%distributed", "needs an expression, or on|off"),
        ("%cluster bogus", "unknown; valid are start, stop, restart, resize, attach, interrupt,"),
        ("%cluster start --gpus 3", "unknown option '--gpus'; options: --ranks N, --name NAME"),
        ("%ranks push nothing_here", "no variable 'nothing_here' in this notebook"),
        ("%ranks throw x", "invalid choice: 'throw'"),
        ("%runs nonesuch", "no record 'nonesuch'"),
        ("%cluster attach nowhere", "no running cluster is named 'nowhere'; running: lesson"),
    ],
)
def test_bad_input_gets_one_clear_line(started, cell, words):
    error = started.run(cell).error
    assert words in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


def test_a_syntax_error_is_reported_once_and_nothing_is_sent(started):
    before = Store(started.home).ids()
    shown = started.run("%%distributed\nx = 1\ny = = 2")
    assert shown.error.count("SyntaxError") == 1
    assert "line 2" in shown.error
    assert "nothing was sent" in shown.error
    assert Store(started.home).ids() == before


def test_a_collective_that_some_ranks_do_not_reach_is_noted_before_the_cell_runs(started):
    cell = "def mean(x):\n    if rank == 0:\n        return hvd.allreduce(x)\n"
    shown = started.run(f"%%distributed --detach -o noted\n{cell}import time; time.sleep(0.3)")
    (note,) = shown.run["notes"]
    assert note.startswith("cell line 3: hvd.allreduce under `if rank == 0` is not reached")
    assert note in shown.text
    assert started.run("noted.wait(60) and noted.info.notes").text == str([note])
    assert (
        "will be refused in a cell on rank 1"
        in started.run("%%distributed --ranks 1\nif size > 5:\n    hvd.allreduce(1)").run["notes"][
            0
        ]
    )


def test_a_failing_rank_fails_the_cell_in_one_line(started):
    shown = started.run("%%distributed\nx = rank\n1 / (1 - x)")
    assert shown.error == ("rank 1 failed first (cell line 2): ZeroDivisionError: division by zero")
    assert shown.run["state"] == "failed"
    assert "Cell In[" in shown.text


def test_the_stop_button_ends_the_cell_on_all_ranks(started, tmp_path):
    def press():
        # Interrupt once the cell runs on each rank, not while the notebook still parses it.
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.02)
        started.interrupt()

    begun = f"import pathlib, time; pathlib.Path({str(tmp_path)!r}, str(rank)).touch()"
    presses = threading.Thread(target=press, daemon=True)
    shown = started.run(f"%%distributed\n{begun}\ntime.sleep(600)", after=presses.start)
    assert shown.error == "interrupted; the ranks' variables are kept"
    assert shown.run["state"] == "interrupted"


def test_a_timeout_stops_the_cell(started):
    shown = started.run("%%distributed --timeout 0.5\nwhile True: pass")
    assert shown.error == "stopped after --timeout 0.5 s"


GATED = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\n'late'"


def test_detach_returns_at_once(started, tmp_path):
    gate = tmp_path / "gate"
    shown = started.run("%%distributed --detach -o later\n" + GATED.format(gate=str(gate)))
    assert shown.run["state"] == "running"
    gate.touch()
    assert started.run("later.wait(60), later.state, later.results").text == (
        "(True, 'done', {0: \"'late'\", 1: \"'late'\"})"
    )


def test_push_and_pull(started):
    started.run("learning_rate = 0.1")
    assert "ranks 0–1" in started.run("%ranks push learning_rate").stdout
    assert "ranks 0–1: 0.1" in started.run("%distributed learning_rate").text
    started.run("%ranks pull rank")
    assert started.run("rank").text == "{0: 0, 1: 1}"


def test_who_lists_variables_with_their_size_and_differences(started):
    started.run(
        "%%distributed\nimport torch\ntorch.manual_seed(0)\nnet = torch.nn.Linear(2, 2)\n"
        "loss = torch.tensor(float(rank))"
    )
    text, _, memory = started.run("%ranks who").text.partition("\n\n")
    lines = {line.split()[0]: line for line in text.splitlines()}
    said = " ".join(lines["net"].split())
    assert said == "net 0–1 Linear 6 parameters float32 cpu 24 B equal"
    assert lines["loss"].endswith("differ: 0 | 1")
    assert not {"rank", "size", "device", "torch"} & lines.keys()
    alone = started.run("%ranks who net").text
    assert "loss" not in alone and "memory of rank" not in alone
    head, _, *rows = memory.splitlines()
    assert " ".join(head.split()) == "memory of rank in all unshared in these names"
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert rows[0].endswith(" 28 B")  # 24 B of net, 4 B of loss
    assert started.run("%ranks who nothing").error == (
        "%ranks who: no variable 'nothing' on these ranks"
    )
    assert started.run("%ranks push").error == "%ranks push needs a variable's name"
    assert started.run("%ranks").error == "%ranks needs one of push, pull, who, debug"
    assert "pulled loss from rank 1:" in started.run("%ranks pull --ranks 1 loss").stdout


def test_distributed_on_sends_every_cell_except_local_ones_to_the_ranks(started):
    started.run("%distributed on")
    try:
        assert "0 │ there" in started.run("if rank == 0: print('there')").text
        here = started.run("%%local\nprint('here')")
        assert here.stdout == "here\n"
        assert here.outputs == []
        assert "lesson" in started.run("%cluster").stdout
        broken = started.run("%%local\n%time x = 1\n1 / 0")
        assert "ZeroDivisionError" in broken.error and broken.errors == 1
        refused = started.run("%time x = 1\nif rank == 0:\n  x = = 2")
        assert "nothing was sent to the ranks" in refused.error
        parts = started.run("%time x = 1\nif rank == 0:\n    hvd.allreduce(x)")
        assert "hvd.allreduce" in parts.run["notes"][0]
        started.run("%%distributed\nmomentum_here = 1")
        assert completes(started, "momentum_h", "momentum_here")
    finally:
        started.run("# the notebook's own again\n%distributed off")
    assert started.run("print('home')").stdout == "home\n"
    awaits = "%%local\nimport asyncio\nawait asyncio.sleep(0)\nprint('waited')\n1 / 0"
    assert started.run(awaits).stdout == "waited\n"
    assert started.run(awaits).errors == 1


def test_the_extension_may_be_loaded_again(started):
    started.run("%distributed on")
    assert started.run("%reload_ext rankroom").error == ""
    assert started.run("print('home')").stdout == "home\n"
    started.run("%distributed on")
    assert "0–1 │ there" in started.run("print('there')").text
    assert started.run("%%local\nprint('here')").stdout == "here\n"
    started.run("%distributed off")
    assert started.run("print('home')").stdout == "home\n"


def test_expressions_use_the_ranks_variables_and_options_the_notebooks(started):
    started.run("mine, only = 'the notebook', 1")
    started.run("%%distributed\nmine = f'rank {rank}'")
    assert "'rank 0!'" in started.run("%distributed f'{mine}!'").text
    assert "rank 0: '$mine'" in started.run("%distributed '$mine' if rank == 0 else 0").text
    shown = started.run("%%distributed --ranks {only}\nrank")
    assert [each["rank"] for each in shown.run["ranks"]] == [1]
    assert shown.error == ""


def completes(kernel, code, word):
    """Return whether `word` is offered within a minute: a rank's late reply is left out."""
    deadline = time.monotonic() + 60
    while word not in kernel.complete(code):
        if time.monotonic() > deadline:
            return False
    return True


def test_completion_of_names_on_the_ranks(started):
    started.run(
        "%%distributed\nmomentum_of_ranks = 1\nclass Net:\n    hidden_units = 3\nnet = Net()"
    )
    assert completes(started, "%%distributed\nmomentum_", "momentum_of_ranks")
    assert completes(started, "%%distributed\nx = 1\nnet.hid", "net.hidden_units")
    assert "momentum_of_ranks" not in started.complete("momentum_")


def test_runs_are_compared_in_the_record_and_in_the_output(started):
    cell = "import rankroom\nfor step in range(5): rankroom.log(loss={} / (1 + step), step=step)"
    base = started.run(f"%%distributed -o base\n{cell.format(4)}").run["id"]
    started.run("%%distributed\nprint('no metrics')")
    shown = started.run(f"%%distributed --compare last\n{cell.format(2)}")
    assert shown.run["compare"] == [base] and shown.run["notes"] == []
    assert "this − A" in shown.text and f"A: base, run {base}, " in shown.text
    shown = started.run(f"%%distributed --compare none,base --ranks 1\n{cell.format(2)}")
    assert shown.run["state"] == "done" and shown.run["compare"] == [base]
    assert shown.run["notes"][0].startswith("not compared: no record 'none' in")


def test_the_runs_magic_lists_and_shows_records(started):
    started.run("%%distributed\nprint('find me')")
    assert "find me" in started.run("%runs").stdout
    shown = started.run("%runs last")
    assert shown.run["title"] == "print('find me')"
    assert "0–1 │ find me" in shown.text


def test_a_restarted_kernel_can_attach_to_its_cluster(started):
    started.run("%%distributed\nsurvivor = rank + 40")
    started.restart()
    started.run("%load_ext rankroom")
    error = started.run("%%distributed\n1").error
    assert "running: lesson (2 ranks). `%cluster attach` connects to it" in error
    assert "lesson: 2 ranks" in started.run("%cluster attach").stdout
    assert "rank 1: 41" in started.run("%distributed survivor").text


def test_a_run_of_a_dead_kernel_continues_and_can_be_interrupted(started):
    started.run("%%distributed --detach\nimport time; time.sleep(600)")
    started.restart()
    out = started.run("%load_ext rankroom\n%cluster attach").stdout
    assert out.startswith("attached to lesson: 2 ranks on ") and "is still running: `%runs " in out
    assert "busy with a run of a process that has ended" in started.run("%distributed 1").error
    started.run("%cluster interrupt")
    deadline = time.monotonic() + 120
    while started.run("%distributed 5").error and time.monotonic() < deadline:
        pass
    assert "ranks 0–1: 5" in started.run("%distributed 5").text
    assert "interrupted" in started.run("%runs").stdout


def test_two_kernels_can_share_one_cluster(started, tmp_path):
    other = Kernel(**{**os.environ, "RANKROOM_HOME": str(started.home)})
    try:
        other.run("%load_ext rankroom\n%cluster attach")
        assert "ranks 0–1: 7" in other.run("%distributed 7").text
        gate = tmp_path / "gate"
        started.run("%%distributed --detach -o busy\n" + GATED.format(gate=str(gate)))
        assert "busy with a run of another process (pid" in other.run("%distributed 8").error
        gate.touch()
        started.run("busy.wait(60)")
        assert "ranks 0–1: 8" in other.run("%distributed 8").text
    finally:
        other.close()


def test_a_sites_own_horovod_is_named_with_what_it_lacks(tmp_path):
    site = Features("0.28.1", tmp_path, {"torch": "2.13.0", "tensorflow": "2.21.0"})
    line = horovod_line(site)
    assert "not Rankroom's build and lacks a native timeline on other ranks than 0" in line
    assert "Keras 3" in line
    assert "rankroom horovod build" in horovod_line(None)


def test_status_names_every_rank(started):
    out = started.run("%cluster").stdout
    assert out.count("ready") == 2
    assert "rank 0" in out and "rank 1" in out
    assert (
        "it runs until `%cluster stop`, or until 12 h after the last notebook has detached" in out
    )


def test_one_rank_is_restarted(started):
    started.run("%%distributed\nkept = 1")
    out = started.run("%cluster restart --ranks 1").stdout
    assert re.search(r"rank 1 restarted in \d+\.\d s: its variables are gone", out)
    shown = started.run("%distributed 'kept' in globals()").text
    assert "rank 0: True" in shown and "rank 1: False" in shown
    assert "no rank 7 (asked for '7')" in started.run("%cluster restart --ranks 7").error


def test_an_invalid_size_is_refused_before_anything_is_stopped(started):
    started.run("%%distributed\nkept = 7")
    assert "ranks must be a number from 1 to " in started.run("%cluster resize 100000").error
    assert "ranks must be a number from 1 to " in started.run("%cluster resize 0").error
    assert "ranks 0–1: 7" in started.run("%distributed kept").text


@pytest.mark.thorough
def test_a_resized_cluster_works_in_the_folder_it_was_started_in(started, tmp_path):
    before = started.run("%distributed import os; os.getcwd()").text
    folder = before.partition(": ")[2].strip()
    started.run(f"import os; here = os.getcwd(); os.chdir({str(tmp_path)!r})")
    assert "lesson: 1 rank" in started.run("%cluster resize 1").stdout
    assert folder and folder in started.run("%distributed import os; os.getcwd()").text
    started.run("os.chdir(here)")
    assert "lesson: 2 ranks" in started.run("%cluster resize 2").stdout


def test_restart_gives_fresh_ranks_under_the_same_name(started):
    started.run("%%distributed\ngone = 1")
    assert "lesson: 2 ranks" in started.run("%cluster restart").stdout
    assert "ranks 0–1: False" in started.run("%distributed 'gone' in globals()").text
    assert "lesson: 1 rank" in started.run("%cluster resize 1").stdout
    assert "rank 0: 1" in started.run("%distributed size").text
