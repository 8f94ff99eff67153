"""Runs on two real ranks: results, order, failures, interrupts, and bad input."""

import json
import os
import time

import jsonschema
import numpy as np
import pytest

from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError, RankroomError, RecordError, UsageError
from rankroom.record.model import SCHEMA_FILE
from rankroom.record.store import Store
from rankroom.rpc.client import Direct
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster


def events(run):
    return list(Store().events(run.id))


def text(run, rank, stream="stdout"):
    return "".join(
        e["text"]
        for e in events(run)
        if e["kind"] == "log" and e["rank"] == rank and e["stream"] == stream
    )


def finish(cluster, source, seconds=120, **how):
    run = cluster.run(source, **how)
    assert run.wait(seconds), f"still running after {seconds} s: {run.running}"
    return run


def test_every_rank_prints_and_has_a_result(cluster):
    run = finish(cluster, "print('hello from', rank)\nrank * 10")
    assert run.state == "done"
    assert run.results == {0: "0", 1: "10"}
    assert [text(run, rank) for rank in (0, 1)] == ["hello from 0\n", "hello from 1\n"]


def test_ranks_know_their_rank_size_and_device(cluster):
    run = finish(cluster, "[rank, size, local_rank, device]")
    assert run.results == {0: "[0, 2, 0, 'cpu']", 1: "[1, 2, 1, 'cpu']"}


def test_a_users_own_variable_named_rank_is_kept(cluster):
    finish(cluster, "rank = 'mine'")
    try:
        assert finish(cluster, "rank").results == {0: "'mine'", 1: "'mine'"}
    finally:
        finish(cluster, "import os; rank = int(os.environ['RANK'])")


def test_variables_are_kept_between_cells(cluster):
    finish(cluster, "kept = rank + 1")
    assert finish(cluster, "kept").results == {0: "1", 1: "2"}


def test_the_record_holds_state_title_source_and_line_count(cluster):
    run = finish(cluster, "# a comment\nprint('x')", name="mine")
    info = Store().load(run.id)
    assert (info.state, info.title, info.name, info.size) == ("done", "print('x')", "mine", 2)
    assert info.end >= info.start
    assert info.lines == 2
    assert [r.state for r in info.ranks] == ["ok", "ok"]
    assert Store().source(run.id) == "# a comment\nprint('x')"


def test_sequence_numbers_have_no_gap(cluster):
    run = finish(cluster, "for i in range(50): print(i)\ndisplay({'text/plain': 'x'}, raw=True)")
    for rank in (0, 1):
        seqs = [e["seq"] for e in events(run) if e["rank"] == rank]
        assert seqs == list(range(len(seqs)))


def test_what_ranks_report_follows_the_schema(cluster):
    run = finish(
        cluster,
        "import sys\nprint('x'); print('y', file=sys.stderr)\n"
        "display({'text/html': '<b>x</b>'}, raw=True)\nrank if rank == 0 else 1/0",
    )
    schema = json.loads(SCHEMA_FILE.read_text())
    validate = jsonschema.Draft202012Validator(schema)
    found = events(run)
    kinds = {e["kind"] for e in found} - {"sample"}
    assert kinds == {"status", "log", "display", "error", "mark", "spans"}
    info = json.loads((run.path / "run.json").read_text())
    for event in found:
        validate.validate({"run": info, "event": event})


def test_the_first_failure_is_named_with_its_line(cluster):
    run = finish(cluster, "x = 1\nif rank == 1:\n    raise ValueError('boom')")
    assert run.state == "failed"
    failure = run.info.failure
    assert (failure.rank, failure.ename, failure.evalue, failure.cell_line) == (
        1, "ValueError", "boom", 3,
    )  # fmt: skip
    assert finish(cluster, "x").results == {0: "1", 1: "1"}


def test_await_and_magics_work_in_a_cell(cluster):
    run = finish(
        cluster, "import asyncio\nawait asyncio.sleep(0.01)\n%timeit -n1 -r1 pass\n!echo shell\n7"
    )
    assert run.state == "done"
    assert run.results == {0: "7", 1: "7"}
    assert "shell" in text(run, 0)


def test_shell_lines_print_in_order_and_set_the_exit_code(cluster):
    source = (
        "word = 'here'\nprint('a')\n!echo {word}; echo $word >&2; exit 3\nprint('b', _exit_code)"
    )
    run = finish(cluster, source)
    assert text(run, 1) == "a\nhere\nb 3\n"
    assert text(run, 1, "stderr") == "here\n"
    assert finish(cluster, "!cat\nlines = !echo one; echo two\nlines").results[0] == (
        "['one', 'two']"
    )
    assert finish(cluster, "%%bash\nexit 4").info.failure.ename == "CalledProcessError"


def test_an_error_in_a_cell_that_awaits_fails_the_run(cluster):
    run = finish(cluster, "import asyncio\nawait asyncio.sleep(0)\n1/0")
    assert run.state == "failed"
    assert run.info.failure.ename == "ZeroDivisionError"


def test_input_is_refused_with_a_remedy(cluster):
    for source in ("input('name?')", "import getpass; getpass.getpass()"):
        run = finish(cluster, source)
        assert run.info.failure.ename == "StdinNotImplementedError"
        assert "%ranks push" in run.info.failure.evalue


def test_output_of_child_processes_and_file_descriptors_is_recorded(cluster):
    run = finish(
        cluster,
        "import os, subprocess, sys\nos.write(1, b'raw\\n')\nos.system('echo child')\n"
        "subprocess.run(['echo', 'given'], stdout=sys.stdout)\nprint('err', file=sys.stderr)",
    )
    assert text(run, 1) == "raw\nchild\ngiven\n"
    assert text(run, 1, "stderr") == "err\n"


def test_invalid_bytes_and_huge_lines_are_recorded(cluster):
    run = finish(
        cluster,
        "import os\nos.write(1, b'bad \\xff\\x00 end\\n')\nprint('x' * 5_000_000)\nprint('after')",
    )
    out = text(run, 0)
    assert out.startswith("bad \\xff\x00 end\n")
    assert len(out) == len("bad \\xff\x00 end\n") + 5_000_001 + len("after\n")
    assert run.state == "done"


def test_a_repr_that_raises_fails_the_cell(cluster):
    run = finish(cluster, "class A:\n    def __repr__(self): raise ValueError('no repr')\nA()")
    assert run.info.failure.ename == "ValueError"
    assert finish(cluster, "1").state == "done"


def test_an_error_whose_str_raises_is_still_reported(cluster):
    run = finish(
        cluster,
        "class E(Exception):\n    def __str__(self): raise RuntimeError('no str')\nraise E()",
    )
    assert run.state == "failed"
    assert run.info.failure.ename == "E"


def test_a_figure_belongs_to_its_rank(cluster):
    run = finish(
        cluster,
        "%matplotlib inline\nimport matplotlib.pyplot as plt\n"
        "if rank == 1:\n    plt.plot([1, 2]); plt.show()",
    )
    figures = [e for e in events(run) if e["kind"] == "display" and "image/png" in e["data"]]
    assert [e["rank"] for e in figures] == [1]


def test_display_updates_and_clear_output_are_recorded(cluster):
    run = finish(
        cluster,
        "from IPython.display import clear_output, display\nh = display('a', display_id='x')\n"
        "h.update('b')\nclear_output(wait=True)",
    )
    mine = [e for e in events(run) if e["kind"] == "display" and e["rank"] == 0]
    assert mine[0]["display_id"] == mine[1]["display_id"] == "x"
    assert mine[1]["update"] is True
    assert mine[2]["clear"] == "next"


def test_a_cell_on_a_subset_runs_only_on_those_ranks(cluster):
    run = finish(cluster, "rank", ranks=[1])
    assert run.results == {1: "1"}
    assert [r.rank for r in run.info.ranks] == [1]


def test_ranks_out_of_range_are_refused(cluster):
    with pytest.raises(UsageError, match=r"no rank 2 .*: this cluster has 0–1"):
        cluster.run("1", ranks=[2])
    with pytest.raises(UsageError, match="no ranks chosen"):
        cluster.run("1", ranks=[])


# Waits until the file exists.
GATED = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\n"


def test_two_runs_at_once_are_refused(cluster, tmp_path):
    gate = tmp_path / "gate"
    run = cluster.run(GATED.format(gate=str(gate)))
    with pytest.raises(RankroomError, match="busy with a run of this notebook"):
        cluster.run("1")
    gate.touch()
    assert run.wait(60)
    assert finish(cluster, "1").state == "done"


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(600)",
        "while True: pass",
        "import asyncio\nawait asyncio.sleep(600)",
    ],
)
def test_interrupt_ends_the_cell_and_keeps_state(cluster, source):
    finish(cluster, "state = 'kept'")
    run = cluster.run("print('here', flush=True)\n" + source)
    deadline = time.monotonic() + 60
    while not all(text(run, rank) for rank in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.interrupt()
    assert run.wait(60)
    assert run.state == "interrupted"
    assert finish(cluster, "state").results == {0: "'kept'", 1: "'kept'"}


def test_an_interrupt_before_the_supervisors_reply_ends_the_run(cluster, monkeypatch):
    def interrupted(direct: Direct, seconds: float) -> None:
        assert poll_until(lambda: cluster.store.newest(1)[0].title == title, 20)
        raise KeyboardInterrupt

    title = "import time; time.sleep(60)"
    with monkeypatch.context() as patch:
        patch.setattr(Direct, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(title)
    assert poll_until(lambda: cluster.store.newest(1)[0].state == "interrupted", 20)
    assert finish(cluster, "1").state == "done"


def test_push_and_pull(cluster):
    cluster.push({"pushed": [1, 2]})
    assert finish(cluster, "pushed.append(rank)\npushed").results == {
        0: "[1, 2, 0]",
        1: "[1, 2, 1]",
    }
    assert cluster.pull("pushed") == {0: [1, 2, 0], 1: [1, 2, 1]}
    assert cluster.pull("pushed", [1]) == {1: [1, 2, 1]}


def test_arrays_that_were_pushed_or_pulled_can_be_written_to(cluster):
    cluster.push({"grid": np.zeros(3), "one": 1})
    assert finish(cluster, "grid[0] = rank\ngrid[0] == rank").state == "done"
    pulled = cluster.pull("grid")
    for rank in (0, 1):
        pulled[rank][1] = 5
        assert pulled[rank].tolist() == [rank, 5, 0]


def test_variables_of_ranks_that_run_a_cell_are_refused_at_once(cluster, tmp_path):
    gate = tmp_path / "gate"
    run = cluster.run(GATED.format(gate=str(gate)), ranks=[0])
    for ask in (lambda: cluster.pull("rank"), lambda: cluster.push({"x": 1}), cluster.variables):
        with pytest.raises(RankroomError, match="busy with a run of this notebook: wait for it or"):
            ask()
    assert cluster.pull("rank", [1]) == {1: 1}
    gate.touch()
    assert run.wait(60)
    assert cluster.pull("rank") == {0: 0, 1: 1}


def test_the_help_of_a_name_is_shown(cluster):
    run = finish(cluster, "def scale(x):\n    'Says what it does.'\n\nscale?")
    shown = [e["data"]["text/plain"] for e in events(run) if e["kind"] == "display"]
    assert len(shown) == 2 and all("Says what it does." in text for text in shown)


def test_a_flood_is_complete_and_in_order(cluster):
    count = 20_000
    run = finish(cluster, f"for i in range({count}): print('line', i)")
    for rank in (0, 1):
        assert text(run, rank) == "".join(f"line {i}\n" for i in range(count))
    assert run.info.lines == 2 * count


def test_no_cell_is_sent_if_its_record_cannot_be_created(cluster):
    runs = Store().runs
    aside = runs.rename(runs.with_name("aside"))
    runs.write_text("no folder")
    try:
        with pytest.raises(RecordError, match="set RANKROOM_HOME"):
            cluster.run("never_sent = 1")
    finally:
        runs.unlink()
        aside.rename(runs)
    assert finish(cluster, "'never_sent' in globals()").results == {0: "False", 1: "False"}


def test_following_a_finished_run_returns_its_final_state(cluster):
    run = finish(cluster, "print('x')")
    told = cluster._ask("follow", run=run.id)["run"]
    assert (told["state"], told["lines"]) == ("done", 2)
    assert cluster._ask("follow")["run"] is None
    assert cluster._ask("follow", run="another")["run"] is None


def test_spools_of_finished_runs_are_cleared(cluster):
    run = finish(cluster, "print('x')")
    # The client is told about the end of the run before the spool is removed.
    assert poll_until(lambda: not (cluster.paths.spool(0) / f"{run.id}.jsonl").exists(), 2, 0.01)


def test_a_second_client_can_attach_to_the_cluster(cluster):
    finish(cluster, "shared = 'yes'")
    other = Cluster.attach(cluster.name)
    try:
        assert other.size == 2
        assert finish(other, "shared").results == {0: "'yes'", 1: "'yes'"}
    finally:
        other.close()
    assert finish(cluster, "shared").state == "done"


def test_attaching_to_an_unknown_name_lists_the_running_clusters(cluster):
    with pytest.raises(NoClusterError, match=cluster.name):
        Cluster.attach("no-such-cluster")


def test_the_files_of_a_cluster_are_private(cluster):
    assert cluster.paths.folder.stat().st_mode & 0o077 == 0
    assert cluster.paths.info.stat().st_mode & 0o077 == 0
    assert cluster.paths.client_file.stat().st_mode & 0o077 == 0


def test_the_controller_listens_on_loopback_only(cluster):
    info = json.loads(cluster.paths.client_file.read_text())
    assert info["interface"] == "tcp://127.0.0.1"
    assert cluster.info.rpc.startswith(("ipc:///", "tcp://127.0.0.1:"))


def test_pids_are_those_of_the_ranks(cluster):
    run = finish(cluster, "import os; os.getpid()")
    assert {rank: int(pid) for rank, pid in run.results.items()} == {
        r.rank: r.pid for r in cluster.ranks
    }
    assert os.getpid() not in [r.pid for r in cluster.ranks]
