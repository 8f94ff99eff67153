"""The notebooks as committed and as run, and what the demo reports when they do not train."""

import copy
import os
import re
import subprocess
import sys

import nbformat
import pytest

from checkout import NOTEBOOKS
from rankroom.cli.demo_command import TENSORFLOW_TAG, DemoFailed, verdict
from rankroom.course.exercise import find
from rankroom.record.model import event_line
from record_makers import start_record

QUICKSTART = nbformat.read(NOTEBOOKS / "quickstart.ipynb", as_version=4)
LONGEST_CELL = 25
FOLD = re.compile(r"<details>.*?</details>", re.DOTALL)
FOLDED_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
CHECKED = re.compile(r"%%check (\S+)")
START = "%load_ext rankroom\n%cluster start --ranks 2"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_committed_notebook_is_valid_and_has_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    exercise = ""
    for cell in notebook.cells:
        # Hints and the solution are folded, and a reader opens one at a time.
        seen = FOLD.sub("", cell.source).strip()
        assert seen or "<summary>Solution</summary>" in cell.source
        assert len(seen.splitlines()) <= LONGEST_CELL
        for code in FOLDED_CODE.findall(cell.source):
            is_script = exercise and find(exercise).script  # a file, not a cell
            assert is_script or len(code.splitlines()) <= LONGEST_CELL
        # A cell that fails on purpose must not stop "Run All Cells".
        assert cell.metadata in ({}, {"tags": ["raises-exception"]}, {"tags": [TENSORFLOW_TAG]})
        if cell.cell_type == "code":
            exercise = asked[1] if (asked := CHECKED.match(cell.source)) else ""
            assert cell.outputs == []
            assert cell.execution_count is None


def test_the_quickstart_explains_each_cell_and_tells_where_to_go_next():
    cells = QUICKSTART.cells
    kinds = [cell.cell_type for cell in cells]
    assert "code code" not in " ".join(kinds), "a code cell without words before it"
    assert "you will" in cells[0].source
    assert "## What to remember" in cells[-2].source
    assert "## Where to go next" in cells[-2].source


def test_cells_of_the_quickstart_that_need_tensorflow_are_tagged():
    sources = "\n".join(
        c.source
        for c in QUICKSTART.cells
        if TENSORFLOW_TAG not in c.metadata.get("tags", []) and c.cell_type == "code"
    )
    assert "keras" not in sources and "import tensorflow" not in sources


def demo(notebook, tmp_path, **environment):
    """Run `rankroom demo` on a notebook, which must leave no process; return exit code, output."""
    path = tmp_path / "notebook.ipynb"
    nbformat.write(notebook, path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "rankroom", "demo", str(path)],
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(temporary) not in left, "the demo left processes behind"
    return done.returncode, done.stdout


def sabotaged(old, new):
    """The quickstart up to its PyTorch results, with `old` replaced once."""
    notebook = copy.deepcopy(QUICKSTART)
    last = next(i for i, cell in enumerate(notebook.cells) if cell.id == "results")
    notebook.cells = notebook.cells[: last + 1]
    assert sum(cell.source.count(old) for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
    return notebook


def small(*sources):
    """A notebook that starts two ranks and then runs these cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in (START, *sources)]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.cluster
def test_the_quickstart_trains_in_two_minutes(tmp_path):
    code, text = demo(QUICKSTART, tmp_path)
    assert code == 0, text
    for rank in (0, 1):
        assert f"hello from rank {rank} of 2" in text
    assert len(re.findall(r"I brought \d+, and together we have 300", text)) == 2
    for framework in ("PyTorch", "Keras"):
        found = re.search(rf"^{framework} +accuracy (0\.\d+), weights \w+ on each of 2", text, re.M)
        assert float(found[1]) > 0.9
    assert int(re.search(r"^trained, in (\d+) s$", text, re.M)[1]) < 120


@pytest.mark.thorough
@pytest.mark.cluster
def test_without_tensorflow_pytorch_trains(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    code, text = demo(QUICKSTART, tmp_path, PYTHONPATH=f"{own}:{os.environ.get('PYTHONPATH', '')}")
    assert code == 0, text
    assert re.search(r"^PyTorch +accuracy 0\.9", text, re.M)
    assert re.search(r"^Keras +left out, as TensorFlow is not installed$", text, re.M)


@pytest.mark.thorough
@pytest.mark.cluster
def test_a_demo_that_does_not_train_fails(tmp_path):
    code, text = demo(sabotaged("range(1, 11):", "range(1, 1):"), tmp_path)
    assert code == 1
    assert re.search(r"PyTorch did not train: accuracy 0\.\d+ on rank 0, .* above 0\.9", text)


@pytest.mark.thorough
@pytest.mark.cluster
def test_a_demo_whose_ranks_train_apart_fails(tmp_path):
    line = "optimizer = hvd.DistributedOptimizer(optimizer, "
    code, text = demo(sabotaged(line, "unused = dict("), tmp_path)
    assert code == 1
    assert re.search(r"PyTorch: the ranks hold different weights: rank 0 \w+, rank 1 \w+", text)


@pytest.mark.thorough
@pytest.mark.cluster
def test_a_demo_names_the_cell_that_failed(tmp_path):
    code, text = demo(small("%%distributed\n1 / rank"), tmp_path)
    assert code == 1
    assert re.search(r"cell 2 of the notebook failed: RunFailed: rank 0 .*ZeroDivision", text), text


GOOD = "{'accuracy': 0.95, 'weights': 'abc'}"


def recorded(root, values, state="done", **fields):
    """A store with one run, in which rank n reported the n-th of `values`."""
    results = [
        event_line("display", rank, 1, 1, data={"text/plain": value}, result=True)
        for rank, value in enumerate(values)
        if value is not None
    ]
    store, run, writer = start_record(root, size=len(values), **fields)
    writer.append(b"".join(results))
    run.state, run.end = state, run.start + 1_000_000
    writer.finish(run)
    return store


def test_the_verdict_reports_accuracy_and_weights_of_all_ranks(tmp_path):
    line = verdict("keras", "Keras", recorded(tmp_path, [GOOD, GOOD, GOOD], name="keras"))
    assert line == "Keras    accuracy 0.950, weights abc on each of 3 ranks"


@pytest.mark.parametrize(
    ("values", "fields", "cause"),
    [
        ([GOOD, GOOD], {"name": "other"}, "Keras did not report: no cell was run with `-o keras`"),
        ([GOOD, GOOD], {"state": "failed"}, "the run keras is failed"),
        ([GOOD], {}, "on 1 rank"),
        ([GOOD, None], {}, "rank 1 reported nothing"),
        ([GOOD, "'trained!'"], {}, "rank 1 reported \"'trained!'\", which has no accuracy"),
        ([GOOD, "{'accuracy': 0.95}"], {}, "rank 1 reported .* no accuracy and weights"),
        ([GOOD, GOOD.replace("0.95", "float('nan')")], {}, "rank 1 reported"),
        ([GOOD, GOOD.replace("0.95", "0.9")], {}, "accuracy 0.900 on rank 1, .* above 0.9"),
        ([GOOD, GOOD.replace("abc", "abd")], {}, "different weights: rank 0 abc, rank 1 abd"),
    ],
)
def test_the_verdict_names_what_is_wrong(tmp_path, values, fields, cause):
    with pytest.raises(DemoFailed, match=cause):
        verdict("keras", "Keras", recorded(tmp_path, values, **{"name": "keras", **fields}))


def test_a_demo_of_a_missing_notebook_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rankroom", "demo", str(tmp_path / "none.ipynb")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"cannot read the notebook {tmp_path / 'none.ipynb'}" in done.stderr
    assert "Traceback" not in done.stderr
