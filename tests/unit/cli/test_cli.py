"""The command `rankroom`, as users type it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner, Result

from checkout import TRACES
from collapse_cases import ABSL, FLAGS
from rankroom.cli import COMMANDS, main, runs_command
from rankroom.errors import FileError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import Failure, RunInfo, event_line
from rankroom.record.owner import this_process
from rankroom.record.retention import DAY_S
from rankroom.record.store import Store
from rankroom.record.tail import READ_LIMIT_BYTES, Chunk, Tail
from record_makers import finished_record, gone_process, log, lost_record, make_run, start_record


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def rankroom(*args: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="rankroom")


def good(*args: str) -> str:
    result = rankroom(*args)
    assert result.exit_code == 0, result.output
    return result.output


def bad(*args: str, code: int = 1) -> str:
    """Run a command that fails without a traceback, and return the line with its error."""
    result = rankroom(*args)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    line = result.output.splitlines()[-1]
    assert line.startswith("Error: ")
    return line


def test_show_ends_with_the_last_values_of_metrics(home: Path):
    columns = {"name": [0, 0, 1], "step": [0, 7, 7], "at": [1, 1, 1], "value": [2, 0.123456, "NaN"]}
    lines = [
        event_line("metrics", rank, 1, 1, **{"from": 0, "define": ["loss", "\x1b[2J"]}, **columns)
        for rank in range(2)
    ]
    finished_record(home, log(0, "one\n", 0), *lines)
    shown = good("runs", "show").splitlines()
    at = shown.index("metrics:")
    assert shown[at - 1] == "0 │ one"
    assert shown[at + 1].split() == ["metric", "step", "rank", "0", "rank", "1"]
    assert shown[at + 3].split() == ["loss", "7", "0.12346", "0.12346"]
    assert "\x1b[2J" not in "\n".join(shown)
    assert shown[-1].endswith("is NaN on ranks 0–1 since step 7")
    assert "metrics:" not in good("runs", "show", finished_record(home, log(0, "x\n"))[1].id)


def test_show_has_the_last_values_of_other_runs_beside_them(home: Path):
    columns = {"from": 0, "define": ["loss"], "name": [0], "step": [7], "at": [1]}
    ids = [
        finished_record(home, event_line("metrics", 0, 1, 1, value=[value], **columns), name=name)[
            1
        ].id
        for value, name in ((0.5, "baseline"), (0.25, "wide"))
    ]
    shown = good("runs", "show", ids[1], "--compare", "baseline,nothing").splitlines()
    assert shown[0].startswith("not compared: no record 'nothing'")
    at = shown.index("metrics:")
    assert shown[at + 3].split() == ["loss", "0.25", "7", "0.5", "7", "-0.25"]
    assert shown[at + 4].startswith(f"A: baseline, run {ids[0]}, ")
    page = good("runs", "show", ids[1], "--compare", ids[0], "--html", "-o", "-")
    assert 'id="part-metrics_step_1"' in page
    without = finished_record(home, log(0, "x\n"))[1].id
    assert good("runs", "show", without, "--compare", ids[0]).endswith("no metrics to compare\n")


def test_repair_says_which_records_it_completed(home: Path):
    assert good("runs", "repair") == "no record can be completed\n"
    run = lost_record(home, log(0, "one\n", 0), log(0, "two\n"), pid=gone_process().pid)
    assert "lost" in good("runs", "list")
    said = good("runs", "repair")
    assert said.startswith(f"completed {run.id}: 1 rank · failed"), said
    assert good("runs", "repair") == "no record can be completed\n"
    assert "two" in good("runs", "show")


def failed_run(home: Path) -> tuple[Store, RunInfo]:
    lines = [log(rank, f"same\nrank {rank}\n\x1b[31mred\x1b[0m") for rank in range(4)]
    lines.append(log(3, "warn\n", 2, stream="stderr"))
    for rank in (0, 2):
        trace = [f"trace {rank}"]
        fields = {"ename": "E", "evalue": "v", "traceback": trace}
        lines.append(event_line("error", rank, 3, 9 - rank, **fields))
    for rank in (1, 3):
        data = {"text/plain": "0.9"}
        lines.append(event_line("display", rank, 4, 9, data=data, result=True))
    return finished_record(
        home, *lines, b"garbage\n", size=4, failure=Failure(2, "E", "v"), notes=["a note"]
    )


def test_help_names_every_command():
    text = good("--help")
    for name, line in COMMANDS.items():
        assert name in text and line[:40] in text


@pytest.mark.parametrize("name", ["list", "show", "tail", "path", "prune"])
def test_runs_subcommands_have_help(name: str):
    assert len(good("runs", name, "--help").splitlines()) > 4


def test_version():
    assert re.fullmatch(r"rankroom, version \d+\.\d+\.\d+\n", good("--version"))


def test_python_m_rankroom_prints_an_error_in_one_line(home: Path):
    done = subprocess.run(
        [sys.executable, "-m", "rankroom", "runs", "show", "x"], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: no record 'x'") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sign"), [(["--help"], rb"\u2026"), (["runs", "show"], rb"\u25cf")]
)
def test_characters_the_locale_lacks_are_escaped(home: Path, words: list[str], sign: bytes):
    failed_run(home)
    done = subprocess.run(
        [sys.executable, "-m", "rankroom", *words],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0 and sign in done.stdout, done.stderr


def test_paths_in_displayed_commands_are_quoted(tmp_path: Path):
    into = tmp_path / "my course"
    assert f"`jupyter lab '{into}/" in good("course", "copy", str(into))


def test_listing_the_jobs_of_an_unknown_site_is_an_error():
    assert "nowhere" in bad("jobs", "--site", "nowhere")
    assert good("jobs", "--site", "local") == "no jobs\n"


def test_unknown_commands_and_options_are_refused():
    assert "runs" in bad("rnus", code=2)
    assert "No such option" in bad("runs", "list", "--wrong", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["batch", "--collect", "7", "--dry-run"], "--collect JOB only copies what a job has left"),
        (["batch", "--collect", "7", "nb.ipynb"], "--collect JOB only copies what a job has left"),
        (["runs", "show", "--html", "--ranks", "0"], "leave out --ranks"),
        (["cluster", "restart", "x", "--ranks", "0"], "is over, so it is started again as a whole"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(home: Path, words: list[str], said: str):
    finished_record(home)
    paths = ClusterPaths("x")
    paths.make(1)
    paths.write(ClusterInfo("x", 1, "failed", created=time.time()))
    assert said in bad(*words)


def test_a_folder_of_an_unknown_user_or_a_deleted_one_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    nbformat.write(notebook, tmp_path / "nb.ipynb")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    shown = good("batch", f"{tmp_path}/nb.ipynb", "--cwd", "~nosuchuser/x", "--dry-run")
    assert "/gone/~nosuchuser/x" in shown
    (tmp_path / "gone").rmdir()
    assert "the current directory has been deleted" in bad("batch", "nb.ipynb", "--dry-run")


def test_list_shows_the_newest_runs_first(home: Path):
    assert "no runs yet" in good("runs", "list")
    ids = [finished_record(home, title=f"cell {n}")[1].id for n in range(3)]
    table = good("runs", "list", "-n", "2").splitlines()
    assert [line.split()[0] for line in table[1:]] == ids[:0:-1]


def test_show_prints_notes_errors_logs_and_results(home: Path):
    failed_run(home)
    lines = good("runs", "show").splitlines()
    assert lines == [
        "● 4 ranks · done in 1.5 s · E: v",
        "a note",
        "1 damaged line of the record is left out",
        *["rank 2:", "trace 2", "rank 0:", "trace 0"],
        *["0–3 │ same", "0 │ rank 0", "1 │ rank 1", "2 │ rank 2", "3 │ rank 3"],
        *["3 ┃ warn", "0–3 │ red", "ranks 1,3:", "0.9"],
    ]


def test_show_names_a_rank_once_for_two_equal_displays(home: Path):
    data = {"text/plain": "0.9"}
    finished_record(home, *[event_line("display", 1, seq, 9, data=data) for seq in (1, 2)])
    assert good("runs", "show").splitlines()[1:] == ["rank 1:", "0.9"]


def test_show_some_ranks_line_by_line(home: Path):
    failed_run(home)
    lines = good("runs", "show", "last", "--ranks", "0,1", "--no-collapse").splitlines()
    assert lines[3:] == [
        *["rank 0:", "trace 0", "0 │ same", "0 │ rank 0", "1 │ same", "1 │ rank 1"],
        *["0 │ red", "1 │ red", "rank 1:", "0.9"],
    ]


def test_show_folds_start_up_messages_and_joins_lines_by_their_numbers(home: Path):
    lines = [log(rank, f"{ABSL}\n{FLAGS}\n", stream="stderr") for rank in (0, 1)]
    lines += [log(rank, f"loss 0.{rank + 1}\n", 1) for rank in (0, 1)]
    finished_record(home, *lines)
    fold = "0–1 ┃ TensorFlow's start-up messages: 4 lines"
    assert good("runs", "show").splitlines()[1:] == [fold, "0 │ loss 0.1", "1 │ loss 0.2"]
    assert good("runs", "show", "--by-numbers").splitlines()[1:] == [fold, "0–1 │ loss 0.1|0.2"]
    every = good("runs", "show", "--no-collapse").splitlines()
    assert len(every) == 7 and every[1] == f"0 ┃ {ABSL}"


def test_show_prints_colors_only_to_a_terminal(home: Path):
    failed_run(home)
    assert "\x1b" not in good("runs", "show")
    seen = CliRunner().invoke(main, ["runs", "show"], color=True).output
    assert "\x1b[31mred\x1b[0m" in seen


def test_invalid_ranks_are_refused(home: Path):
    failed_run(home)
    assert "no rank 4" in bad("runs", "show", "--ranks", "4") and "0–3" in bad(
        "runs", "tail", "--ranks", "x"
    )


def test_an_unknown_or_damaged_run_is_an_error(home: Path):
    assert "there are no records yet" in bad("runs", "show")
    store, run = finished_record(home)
    assert run.id in bad("runs", "path", run.id[:-6] + "zzzzzz")
    assert "no record '../..'" in bad("runs", "path", "../..")
    store.paths(run.id).run.write_text("{")
    assert "is damaged" in bad("runs", "show", run.id)


def test_path_prints_the_folder_of_a_record(home: Path):
    store, run = finished_record(home)
    assert good("runs", "path", run.id[-6:]).strip() == str(store.paths(run.id).folder)


def test_tail_shows_the_last_lines(home: Path):
    _, run = finished_record(home, *[log(n % 2, f"{n}\n", n) for n in range(100)], log(0, "end"))
    assert good("runs", "tail", "-n", "3").splitlines() == ["0 │ 98", "1 │ 99", "0 │ end"]
    assert good("runs", "tail", run.id, "-n", "2", "--ranks", "1").splitlines() == [
        "1 │ 97",
        "1 │ 99",
    ]
    assert good("runs", "tail", "-n", "0") == ""


def test_tail_of_a_record_without_events_shows_nothing(home: Path):
    _, run = finished_record(home)
    Store().paths(run.id).events.unlink()
    assert good("runs", "tail") == ""


def test_tail_reads_back_as_far_as_it_needs(home: Path, monkeypatch):
    monkeypatch.setattr("rankroom.cli.runs_command.READ_LIMIT_BYTES", 300)
    finished_record(home, *[log(0, f"{n}\n", n) for n in range(1000)])
    for number in (1, 2, 50, 1000, 5000):
        lines = good("runs", "tail", "-n", str(number)).splitlines()
        assert lines == [f"0 │ {n}" for n in range(1000)][-number:]


def test_tail_follows_to_the_end(home: Path):
    _, run, writer = start_record(home)
    writer.append(log(0, "first\nhal"))

    def write() -> None:
        time.sleep(0.3)
        writer.append(log(0, "f\n", 2) + log(1, "second\n"))
        writer.append(log(1, "no end", 2))
        run.state, run.end = "done", run.start + 2_000_000
        writer.finish(run)

    thread = threading.Thread(target=write)
    thread.start()
    lines = good("runs", "tail", "-f").splitlines()
    thread.join()
    assert lines == [
        *["0 │ first", "0 │ half", "1 │ second", "1 │ no end"],
        "● 2 ranks · done in 2.0 s",
    ]


def test_following_with_tail_can_be_interrupted(home: Path):
    _, _, writer = start_record(home)
    writer.append(log(0, "first\n"))
    argv = [sys.executable, "-u", "-m", "rankroom", "runs", "tail", "-f"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "0 │ first\n"
    process.send_signal(2)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == ""
    assert out == "● 2 ranks · running\n"
    writer.close()


@pytest.mark.parametrize("words", [("tail", "-f"), ("debug",)])
def test_a_run_is_still_followed_after_its_record_was_briefly_unreadable(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    """Such as while a file server is being restarted."""
    _, run, writer = start_record(home)
    writer.append(log(0, "first\n"))
    read, load = Tail.read, Store.load
    refused: list[str] = []

    def refuse(what: str, count: int) -> None:
        if refused.count(what) < count:
            refused.append(what)
            raise OSError(errno.ESTALE, "Stale file handle", what)

    def read_late(self: Tail, limit: int = READ_LIMIT_BYTES) -> Chunk:
        if sys._getframe(1).f_code.co_name == "_patiently":
            refuse("events.jsonl", 2)
        return read(self, limit)

    def load_late(self: Store, run_id: str) -> RunInfo:
        if sys._getframe(1).f_code.co_name == "_patiently":
            refuse("run.json", 2)
        return load(self, run_id)

    def end() -> None:
        time.sleep(0.3)
        writer.append(log(1, "second\n"))
        run.state, run.end = "done", run.start + 2_000_000
        writer.finish(run)

    monkeypatch.setattr(runs_command, "READ_RETRY_DELAY_S", 0.01)
    monkeypatch.setattr(Tail, "read", read_late)
    monkeypatch.setattr(Store, "load", load_late)
    thread = threading.Thread(target=end)
    thread.start()
    lines = good("runs", *words).splitlines()
    thread.join()
    assert lines == ["0 │ first", "1 │ second", "● 2 ranks · done in 2.0 s"]
    assert sorted(refused) == ["events.jsonl"] * 2 + ["run.json"] * 2
    monkeypatch.setattr(runs_command, "READ_RETRY_TIMEOUT_S", 0.0)
    refused.clear()
    monkeypatch.setattr(
        Tail, "read", lambda self, limit=READ_LIMIT_BYTES: refuse("events.jsonl", 9)
    )
    with pytest.raises(FileError, match=r"cannot read events\.jsonl: Stale file handle"):
        runs_command._patiently(Store().tail(run.id).read)


def test_output_into_a_closed_pipe_prints_no_traceback(home: Path):
    finished_record(home, *[log(0, f"{n}\n" * 100, n) for n in range(3000)])
    done = subprocess.run(
        f"{sys.executable} -m rankroom runs show | head -n 2",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert len(done.stdout.splitlines()) == 2 and "Traceback" not in done.stderr


def test_prune_removes_old_records_and_those_beyond_the_size_limit(home: Path):
    then = time.time() - 40 * DAY_S
    store, old = finished_record(home, start=int(then * 1e6))
    _, new = finished_record(home)
    for path in store.paths(old.id).folder.iterdir():
        os.utime(path, (then, then))
    said = good("runs", "prune", "--dry-run")
    assert old.id in said and "1 record" in said and "would be removed" in said
    assert good("runs", "prune").splitlines()[-1].startswith("1 record, ")
    assert store.ids() == [new.id]
    assert good("runs", "prune") == "0 records, 0 B, removed\n"
    assert new.id in good("runs", "prune", "--max-gb", "0")
    assert store.ids() == []


def test_prune_options_override_the_configured_limits(home: Path, monkeypatch: pytest.MonkeyPatch):
    then = time.time() - 40 * DAY_S
    store, old = finished_record(home, start=int(then * 1e6))
    for path in store.paths(old.id).folder.iterdir():
        os.utime(path, (then, then))
    monkeypatch.setenv("RANKROOM_KEEP_GB", "0")
    for limit in (("--max-gb", "20"), ("--max-gb", "inf"), ("--days", "365")):
        assert good("runs", "prune", *limit) == "0 records, 0 B, removed\n"
    assert store.ids() == [old.id]
    assert old.id in good("runs", "prune", "--days", "365", "--max-gb", "0")


def test_prune_says_what_it_cannot_remove(home: Path, monkeypatch: pytest.MonkeyPatch):
    _, run = finished_record(home)

    def refuse(folder: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    said = bad("runs", "prune", "--max-gb", "0")
    assert f"cannot remove the record {run.id}: Read-only file system" in said


def test_prune_options_are_checked(monkeypatch):
    bad("runs", "prune", "--days", "-1", code=2)
    monkeypatch.setenv("RANKROOM_KEEP_DAYS", "soon")
    assert "RANKROOM_KEEP_DAYS is 'soon'" in bad("runs", "prune")


def test_a_record_of_a_newer_version_is_listed_but_not_shown(home: Path):
    store = Store(home)
    run = make_run(version=7)
    store.create(run, "").close()
    assert "pip install -U rankroom" in bad("runs", "show", run.id)
    assert run.id in good("runs", "list")


# --- cluster --------------------------------------------------------------------------------------


def test_a_command_needs_the_name_of_a_cluster_where_several_run():
    me = this_process()
    for created, name in enumerate(("one", "two")):
        paths = ClusterPaths(name)
        paths.make(1)
        info = ClusterInfo(name, 1, "running", supervisor=me.pid, began=me.began, created=created)
        paths.write(info)
        if name == "one":
            assert str(paths.logs) in good("cluster", "log")
    for word in ("log", "interrupt"):
        assert bad("cluster", word) == "Error: several clusters are running, so name one: two, one"
    assert str(paths.logs) in good("cluster", "log", "two")
    assert "named 'three'; running: two, one" in bad("cluster", "log", "three")


def test_terminal_escapes_are_stripped_from_cluster_output(monkeypatch: pytest.MonkeyPatch):
    me = this_process()
    paths = ClusterPaths("one")
    paths.make(1)
    paths.write(ClusterInfo("one", 1, "running", supervisor=me.pid, began=me.began))
    monkeypatch.setattr("rankroom.cluster.actions.log", lambda name: "a\x1b]0;mine\nb")
    monkeypatch.setattr("rankroom.cluster.actions.stacks", lambda name: {0: "c\x1b]0;mine\nd"})
    assert good("cluster", "log") == "a\nb\n"
    assert good("cluster", "stacks") == "── rank 0\nc\nd\n"


# --- profile --------------------------------------------------------------------------------------


def test_profile_prints_text_or_json(home: Path):
    folder = TRACES / "slow-loader"
    shutil.copytree(folder, home / "runs" / "trace-slow-loader")
    out = good("runs", "profile", "slow-loader")
    assert out.startswith("● 4 ranks · done in")
    words = "steps 2–40: rank 2 arrives last in 100 % of 39 allreduces and costs 35 % of a step"
    assert words in out and "hvd.torch allreduce" in out
    assert "480 ms  51 %" in out and "468 ms  52 %" in out and "43.2 steps/s" in out
    expected = json.loads((folder / "expected.json").read_text())["profile"]
    found = json.loads(good("runs", "profile", "--json"))
    assert found == {**expected, "named": [2], "dropped": {}}


def test_a_profile_of_a_run_without_spans(home: Path):
    finished_record(home, log(0, "x\n"))
    out = good("runs", "profile")
    assert out.splitlines()[0].startswith("● 2 ranks · done")
    assert re.search(r"^0 +0 ms +0 %", out, re.M)
