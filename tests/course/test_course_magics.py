"""`%course` and `%%check` in a real kernel, also if a lesson's requirements are not met."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from kernel import Kernel

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home = tmp_path_factory.mktemp("home")
    made = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
    try:
        made.run("%load_ext rankroom")
        yield made
        made.run("%cluster stop")
    finally:
        made.close()


def said(kernel: Kernel, code: str) -> str:
    shown = kernel.run(code, timeout=180)
    return f"{shown.stdout}\n{shown.text}\n{shown.error}"


def test_a_check_without_a_cluster_is_refused_without_a_traceback(kernel: Kernel):
    words = said(kernel, "%%check hello.2\ndef speaks(rank, size): return True")
    assert "no cluster yet" in words and "Traceback" not in words


def test_a_lesson_starts_ranks_or_reuses_running_ones(kernel: Kernel):
    assert "2 ranks on" in said(kernel, "%course 1")
    again = said(kernel, "%course 2")
    assert (
        "ready in" not in again
        and "lesson 02 Collectives: everything it needs is available" in again
    )


def test_unknown_lessons_and_exercises_are_answered_with_the_valid_ones(kernel: Kernel):
    assert "there is no lesson 77: the course has lessons 0 to 20" in said(kernel, "%course 77")
    assert "there are ring.1, ring.2" in said(kernel, "%%check ring.9\npass")
    assert "the topics are" in said(kernel, "%%check nothing\npass")
    assert "needs the name of an exercise" in said(kernel, "%%check\npass")


def test_a_different_number_of_ranks_asks_for_a_resize(kernel: Kernel):
    said(kernel, "%course 1")
    assert "`%cluster resize 4` first" in said(kernel, "%course 1 --ranks 4")


def test_an_answer_that_lacks_an_earlier_definition_names_it(kernel: Kernel):
    words = said(kernel, "%%check ring.2\ndef reduce_scatter(chunks):\n    pass_on(chunks, 0)")
    assert "✗ ring.2: your code raised on rank" in words
    assert "cell line 2: NameError: name 'pass_on' is not defined" in words


def test_catching_up_puts_solutions_on_all_ranks(kernel: Kernel):
    said(kernel, "%course 1")
    kernel.run("%%distributed\ndef share(*args): return None")
    words = said(kernel, "%course 1 --catch-up hello.2")
    assert "hello.1: solved on your ranks\nhello.2: solved on your ranks" in words
    assert "hello.3" not in words
    shown = said(kernel, "%distributed share(list(range(5)), rank, size), speaks(rank, size)")
    assert "([0, 2, 4], False)" in shown and "([1, 3], True)" in shown
    # Later exercises are left to the learner.
    assert "'careful' is not defined" in said(kernel, "%distributed careful(1, 0)")
    # It may be repeated. Without a name it solves all of the lesson's exercises.
    assert "hello.3: solved on your ranks" in said(kernel, "%course 1 --catch-up")
    assert "inf" in said(kernel, "%distributed careful(1, 0)")
    assert "it has hello.1, hello.2" in said(kernel, "%course 1 --catch-up ring.1")
    assert "needs the lesson's number" in said(kernel, "%course --catch-up")


def test_a_missing_package_stops_a_lesson_at_its_first_cell(kernel: Kernel):
    kernel.run(
        "import rankroom.course.lessons as lessons\n"
        "object.__setattr__(lessons.LESSONS[3], 'needs', ('no_such_package',))"
    )
    words = said(kernel, "%course 3")
    assert "lesson 03 Ring all-reduce needs no_such_package" in words
    assert "Lessons that work already: 0, 1, 2, 4" in words and "Traceback" not in words
    for cell in ("%%distributed\nprint(1)", "%%check ring.1\nx = 1", "%%scaling 1,2\nprint(1)"):
        assert "needs no_such_package" in said(kernel, cell)
    said(kernel, "%course 1")
    assert "needs" not in said(kernel, "%%distributed\nprint(1)")


def test_an_answer_that_never_ends_is_stopped(kernel: Kernel):
    kernel.run(
        "from rankroom.course import exercise, trial\n"
        "short = exercise.find('hello.2'); object.__setattr__(short, 'limit', 3.0)"
    )
    words = said(kernel, "%%check hello.2\ndef speaks(rank, size):\n    while True: pass")
    assert "✗ hello.2: the cell did not end within 3 s" in words
    assert "2" in said(kernel, "%distributed 1 + 1")


@pytest.mark.thorough
def test_an_answer_that_hangs_in_a_collective_is_explained(kernel: Kernel):
    kernel.run("import torch.distributed")
    said(kernel, "%course 2")
    said(
        kernel,
        "%%distributed\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')",
    )
    words = said(
        kernel,
        "%%check collectives.4\ndef report(loss):\n    if rank == 0:\n"
        "        dist.all_reduce(torch.ones(1))",
    )
    assert "✗ collectives.4: the ranks wait for one another" in words


@pytest.mark.thorough
@pytest.mark.parametrize("slow", ["time.sleep(8)", "while time.monotonic() < until: pass"])
def test_an_answer_that_keeps_other_ranks_waiting_for_a_while_is_right(kernel: Kernel, slow: str):
    said(kernel, "%course 2")
    said(kernel, "%%distributed\nimport torch, torch.distributed as dist\n"
                 "if not dist.is_initialized(): dist.init_process_group('gloo')")  # fmt: skip
    words = said(
        kernel,
        "%%check collectives.4\nimport time\n\n\ndef report(loss):\n"
        f"    until = time.monotonic() + 8\n    if rank == 1:\n        {slow}\n"
        "    total = torch.tensor([loss], dtype=torch.float64)\n    dist.all_reduce(total)\n"
        "    return total.item() / size if rank == 0 else None",
    )
    assert "✓ collectives.4: right, on every rank" in words


def test_overwriting_the_variable_rank_is_reported(kernel: Kernel):
    words = said(
        kernel,
        "%%check hello.2\nfor rank in range(9): pass\n"
        "def speaks(rank, size):\n    return rank == size - 1",
    )
    assert "✗ hello.2: not yet: `rank` is 8 instead of" in words
    said(kernel, '%%distributed\nimport os; rank = int(os.environ["RANK"])')
    words = said(kernel, "%%check hello.2\ndef speaks(rank, size):\n    return rank == size - 1")
    assert "✓ hello.2: right, on every rank" in words


def test_the_package_check_leaves_no_run_and_no_variables(kernel: Kernel):
    said(kernel, "%%distributed\n'the newest run'")
    assert "everything it needs is available" in said(kernel, "%course 2")
    assert "the newest run" in said(kernel, "%runs last")
    assert "NameError" in said(kernel, "%%distributed\nfind_spec")


def test_check_can_be_called_as_a_function(kernel: Kernel):
    words = said(
        kernel,
        "from rankroom.course import check\n"
        "def last(rank, size):\n    return rank == size - 1\n"
        "check('hello.2', last)",
    )
    assert "✓ hello.2: right, on every rank" in words
    wrong = said(kernel, "check('straggler.1', 1)")
    assert "✗ straggler.1: not yet: no rank has been slow yet" in wrong


def test_a_lesson_is_refused_while_there_are_too_few_ranks(kernel: Kernel):
    said(kernel, "%cluster resize 1")
    assert "lesson 02 Collectives needs 2 ranks, and you have 1" in said(kernel, "%course 2")
    said(kernel, "%course 1 --ranks 1")
    words = said(kernel, "%course 15\n")
    assert "everything it needs is available" in words
    assert "ring.2 needs at least 2 ranks" in said(kernel, "%%check ring.2\nx = 1")
    assert "`%course 2` again" in said(kernel, "%course 2")
    assert "needs 2 ranks" in said(kernel, "%%distributed\nprint(1)")
    said(kernel, "%cluster resize 2")
    assert "needs 2 ranks" not in said(kernel, "%%distributed\nprint(1)")


@pytest.fixture
def notebooks(tmp_path) -> Iterator[Callable[[], Kernel]]:
    """Open notebooks of one learner, and stop the learner's ranks at the end."""
    opened: list[Kernel] = []

    def another() -> Kernel:
        opened.append(Kernel(**{**os.environ, "RANKROOM_HOME": str(tmp_path / "home")}))
        opened[-1].run("%load_ext rankroom")
        return opened[-1]

    try:
        yield another
    finally:
        for each in opened:
            each.run("%cluster stop")
            each.close()


def test_lessons_share_one_cluster_whichever_notebook_is_open(notebooks):
    first = notebooks()
    assert "course: 3 ranks on" in said(first, "%course 1 --ranks 3")
    said(first, "%%distributed\nkept = rank")
    second = notebooks()
    words = said(second, "%course 2")
    assert "ready in" not in words and "everything it needs is available (course: 3 ranks" in words
    assert "[0, 1, 2]" in said(
        second, "print(sorted(__import__('rankroom').Cluster.current.pull('kept')))"
    )
    assert "course has 3 ranks: `%cluster resize 2` first" in said(second, "%course 2 --ranks 2")


def test_a_lesson_that_needs_fresh_ranks_has_them_restarted(notebooks):
    kernel = notebooks()
    kernel.run("import rankroom.course.lessons as lessons\n"
               "object.__setattr__(lessons.LESSONS[0], 'fresh', 'of a test')")  # fmt: skip
    assert "restarted" not in said(kernel, "%course 0")
    said(kernel, "%%distributed\nkept = rank")
    assert "restarted" not in said(kernel, "%course 0 --catch-up")
    assert "NameError" not in said(kernel, "%%distributed\nkept")
    said(kernel, "%%distributed --detach\nimport time; time.sleep(60)")
    assert "busy with a run" in said(kernel, "%course 0")
    said(kernel, "%cluster interrupt")
    assert "lesson 00 Start here needs fresh ranks, as of a test: restarting them" in said(
        kernel, "%course 0"
    )
    assert "NameError" in said(kernel, "%%distributed\nkept")


def test_the_login_node_of_a_site_is_refused_and_a_job_proposed(notebooks, tmp_path, monkeypatch):
    folder = tmp_path / "config" / "rankroom" / "sites"
    folder.mkdir(parents=True)
    (folder / "here.toml").write_text('login = "localhost"\nscheduler = "slurm"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    words = said(notebooks(), "%course 1")
    assert "this is the login node of here" in words
    assert "`%course 1 --site here` starts ranks in a job" in words and "Traceback" not in words


def test_shell_lines_find_the_rankroom_command_of_the_environment(notebooks, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    kernel = notebooks()
    said(kernel, "%course 0")
    assert "Usage: rankroom" in said(kernel, "!rankroom --help")


@pytest.mark.thorough
def test_another_cluster_can_be_stopped_by_its_name(notebooks):
    first, second = notebooks(), notebooks()
    said(first, "%cluster start --ranks 1 --name other")
    said(second, "%cluster start --ranks 1 --name mine")
    assert "other stopped" in said(second, "%cluster stop other")
    assert "mine: 1 rank" in said(second, "%cluster")
