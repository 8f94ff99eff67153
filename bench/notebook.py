"""Growth of a saved notebook by each cell, for cells with different output."""

from __future__ import annotations

import io
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import flood
from rankroom.display import MIME
from sides import RANKS, workplace
from table import NotMeasured, Row

MOST = 64 << 10
SLOW = 'import time\nfor i in range(200):\n    print(f"rank {rank} step {i}", flush=True)\n' + (
    "    time.sleep(0.005)"
)
FIGURE = (
    "%matplotlib inline\nimport numpy as np, matplotlib.pyplot as plt\n"
    "plt.imshow(np.random.rand(400, 400)); plt.show()"
)
DEEP = "def down(n):\n    return down(n - 1) if n else 1 / 0\ndown(200)"
WIDE = "list(range(100_000))"
# By what the cell writes; those in `FAILS` must end in an error.
CELLS = {
    "nothing": "pass",
    "200 slow lines": SLOW,
    "a figure on each rank": FIGURE,
    "a value of 100,000 numbers": WIDE,
    "a deep traceback": DEEP,
}
FAILS = {"a deep traceback"}
HEADS = {
    "%%px": (
        "import ipyparallel as ipp\n"
        f"cluster = ipp.Cluster(n={RANKS}, profile_dir={{folder!r}})\n"
        "rc = cluster.start_and_connect_sync()\n"
        "view = rc[:]; view.block = True; view.activate()\n"
        "for i in rc.ids: rc[i].push(dict(rank=i), block=True)",
        "cluster.stop_cluster_sync()",
    ),
    "%%distributed": (
        "%load_ext rankroom\nimport os; os.environ['RANKROOM_HOME'] = {folder!r}\n"
        f"%cluster start --ranks {RANKS}",
        "%cluster stop",
    ),
}


def measure(quick: bool) -> list[Row]:
    """Run a notebook with nbclient on both sides; measure the growth of its file by each cell."""
    lines = flood.LINES // 10 if quick else flood.LINES
    cells = CELLS | {f"{lines:,} lines": flood.source(lines)}
    with workplace() as folder:
        peers, ours = (_grow(magic, folder / f"side-{i}", cells) for i, magic in enumerate(HEADS))
    return [
        Row(f"saved notebook: {name}", "KiB", [ours[name]], [peers[name]], at_most=MOST)
        for name in cells
    ]


def _grow(magic: str, folder: Path, cells: dict[str, str]) -> dict[str, float]:
    """Return by how many bytes each cell's outputs grow the notebook file."""
    folder.mkdir()
    start, stop = (text.format(folder=str(folder / "home")) for text in HEADS[magic])
    new = nbformat.v4.new_code_cell
    notebook = nbformat.v4.new_notebook(
        cells=[new(start), *(new(f"{magic}\n{source}") for source in cells.values()), new(stop)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    client = NotebookClient(
        notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    grown = {}
    with client.setup_kernel():
        try:
            _must_work(client.execute_cell(notebook.cells[0], 0), "the start")
            for index, name in enumerate(cells, 1):
                before = _saved(notebook)
                cell = client.execute_cell(notebook.cells[index], index)
                failed = any(each.output_type == "error" for each in cell.outputs)
                if failed != (name in FAILS):
                    raise NotMeasured(f"{magic}, {name}: failed={failed}: {cell.outputs}"[:2000])
                if magic != "%%px":
                    _must_be_run(cell, name)
                grown[name] = float(_saved(notebook) - before)
        finally:
            last = len(notebook.cells) - 1
            client.execute_cell(notebook.cells[last], last)
    return grown


def _must_be_run(cell: nbformat.NotebookNode, name: str) -> None:
    """Raise NotMeasured unless the output is a run that ended as expected."""
    runs = [output.data[MIME]["run"] for output in cell.outputs if MIME in output.get("data", {})]
    wanted = "failed" if name in FAILS else "done"
    if [run["state"] for run in runs] != [wanted]:
        raise NotMeasured(f"{name}: the cell's output is not one run that is {wanted}: {runs}")


def _saved(notebook: nbformat.NotebookNode) -> int:
    file = io.StringIO()
    nbformat.write(notebook, file)
    return len(file.getvalue().encode())


def _must_work(cell: nbformat.NotebookNode, what: str) -> None:
    for output in cell.outputs:
        if output.output_type == "error":
            raise NotMeasured(f"{what} failed: {output.ename}: {output.evalue}")
