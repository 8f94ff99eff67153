"""The collective checker warns where ranks would wait for each other, and only there."""

import ast
import json
from textwrap import dedent
from time import process_time

import pytest
from IPython.core.interactiveshell import InteractiveShell

from checkout import ROOT, SUPPORT, TUTORIALS
from rankroom.errors import CellError
from rankroom.lint import checker, warnings
from rankroom.notebook.cell_source import check_syntax, notes


def snippets(name: str) -> dict[str, str]:
    """Return the cells of a file in tests/support/collective_checker/, by their headings."""
    parts = (SUPPORT / "collective_checker" / name).read_text().split("=== ")[1:]
    found = dict(part.split("\n", 1) for part in parts)
    assert len(found) == len(parts), "two of one name"
    return found


# `# here` marks the line to warn about; the text after the arrow must be in the warning.
WAITS = snippets("waits.txt")
FINE = snippets("fine.txt")


def said(source: str, ranks: list[int] | None = None, size: int = 4) -> list[str]:
    return [each.text for each in warnings(dedent(source), ranks, size)]


@pytest.mark.parametrize("size", [2, 4, 64])
@pytest.mark.parametrize("name", WAITS)
def test_a_collective_that_some_ranks_skip_is_reported_with_its_line(name: str, size: int):
    source, text = WAITS[name], name.partition(" → ")[2]
    line = next(i for i, each in enumerate(source.split("\n"), 1) if each.endswith("# here"))
    found = said(source, size=size)
    if size == 2 and name.startswith("new_group"):
        assert found == []  # both ranks reach it
        return
    assert len(found) == 1, found
    assert found[0].startswith(f"cell line {line}: ")
    assert text in found[0]
    # The notebook cuts notes off after 200 characters.
    assert len(found[0]) <= 200


@pytest.mark.parametrize("size", [2, 4, 64])
@pytest.mark.parametrize("name", FINE)
def test_correct_code_causes_no_warning(name: str, size: int):
    source = FINE[name]
    if name == "equal shares" and size == 64:
        assert said(source, size=size) != []  # only ranks 0 to 3 reach it
        return
    # Without the search for words that lets most cells skip the check.
    assert checker._all(source, ast.parse(source).body, size) == []
    assert said(source, size=size) == []


ONE_OR_NEITHER = """
if rank == 0:
    if not resume and save:
        dist.barrier()
    elif resume and save:
        dist.barrier()
else:
    dist.barrier()
"""
OF_TWO_FUNCTIONS = """
def f(flag):
    if flag:
        dist.barrier()
def g(flag):
    if not flag:
        dist.barrier()
if rank == 0:
    f(cached); g(other)
else:
    dist.barrier()
"""


@pytest.mark.parametrize("source", [ONE_OR_NEITHER, OF_TWO_FUNCTIONS])
def test_branches_with_independent_conditions_may_both_be_skipped(source: str):
    assert len(said(source)) == 3


def test_a_warning_names_the_line_the_condition_and_a_remedy():
    assert said("\n\nx = 1\nif rank == 0:\n    hvd.allreduce(x)") == [
        "cell line 5: hvd.allreduce under `if rank == 0` is not reached by every rank: the ranks "
        "that reach it will wait (move it out of the if)"
    ]


def cells() -> dict[str, str]:
    found = {path.name: path.read_text() for path in TUTORIALS.glob("*.py")}
    found["torch_loop.py"] = (ROOT / "bench/scripts/torch_loop.py").read_text()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            source = "".join(cell["source"])
            # Cells that fail on purpose have a tag; some of them must cause a warning.
            failing = "raises-exception" in cell["metadata"].get("tags", [])
            if cell["cell_type"] == "code" and source.startswith("%%distributed") and not failing:
                found[f"{path.name} {number}"] = source.partition("\n")[2]
    return found


@pytest.mark.parametrize("name", cells())
def test_tutorials_and_notebooks_cause_no_warning(name: str):
    source = cells()[name]
    for size in (2, 4, 7, 64):
        assert checker._all(source, ast.parse(source).body, size) == []
        assert said(source, size=size) == []


def test_a_cell_on_some_ranks_is_warned_of_collectives_for_all_ranks():
    source = """\
    hvd.init()
    hvd.allreduce(x)
    hvd.allreduce(x, process_set=pair)
    if rank == 3:
        dist.barrier()
    ', '.join(names)
    """
    assert said(source, [0]) == [
        "cell line 2: hvd.allreduce is for all 4 ranks and will be refused in a cell on rank 0 "
        "(run it on all of them, or give it a process_set)"
    ]
    assert "cell on ranks 0,3 (" in said(source, [3, 0])[1]
    assert "or give it a group" in said(source, [3, 0])[1]
    assert said(source, [0, 1, 2, 3]) == said(source) != []
    assert said("if rank == 0:\n    hvd.allreduce(x)", [0], 1) == []


def test_a_cell_with_a_timing_magic_or_shell_command_is_checked():
    from IPython.core.inputtransformer2 import TransformerManager

    transform = TransformerManager().transform_cell
    code = transform("%%time\nif rank == 0:\n    hvd.allreduce(x)\n")
    assert [each.line for each in warnings(code, None, 2)] == [3]
    assert notes(transform("!ls\nif rank == 0:\n    hvd.barrier()\n"), None, 2)[0].startswith(
        "cell line 3: hvd.barrier"
    )


def test_hostile_cells_neither_break_nor_slow_the_checker():
    deep = "if rank == 0: hvd.allreduce(" + "-" * 5000 + "1)"
    assert notes(deep, None, 2) in ([], [said("if rank == 0: hvd.allreduce(1)", size=2)[0]])
    assert notes("if rank == 0:\n    hvd.allreduce(", None, 2) == []
    many = "".join(f"if rank == {i}:\n    hvd.allreduce(x)\n" for i in range(50))
    assert len(notes(many, None, 64)) == checker.MAX_WARNINGS
    loops = "".join("  " * i + "for x in data:\n" for i in range(18))
    begun = process_time()
    notes(loops + "  " * 18 + "if rank == 0: break\n" + "  " * 18 + "hvd.barrier()", None, 64)
    assert process_time() - begun < 5
    assert notes("if rank == 10 ** 10 ** 10: hvd.barrier()", None, 2)


def test_a_shared_walk_finds_the_same_as_a_walk_per_rank(monkeypatch):
    class DivergesAlways(checker.Walk):
        may_diverge = property(lambda self: True, lambda self, value: None)

    sources = list(cells().values())
    found = [said(source, size=4) for source in sources]
    monkeypatch.setattr(checker, "Walk", DivergesAlways)
    assert [said(source, size=4) for source in sources] == found


def test_a_syntax_error_is_left_to_ranks_with_another_python():
    shell = InteractiveShell.instance()
    with pytest.raises(CellError, match="nothing was sent to the ranks"):
        check_syntax(shell, "x = = 1")
    assert check_syntax(shell, "x = = 1", lambda: True) == "x = = 1"
    with pytest.raises(CellError, match="null bytes"):
        check_syntax(shell, "x = '\0'", lambda: False)
