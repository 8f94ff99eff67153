"""`rankroom demo`: the quickstart notebook without a browser, and the proof that it trained.

The notebook's own output is not trusted: accuracy and weights are read from the records of its
runs, rank by rank.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from traitlets.config import Config

from rankroom.batch.cell_text import said, short
from rankroom.cli.terminal import exit_on_signals
from rankroom.cluster import local
from rankroom.cluster.lookup import running_clusters
from rankroom.display.digest import displays_of
from rankroom.errors import RankroomError, UsageError
from rankroom.record.store import Store

MIN_ACCURACY = 0.9
# The runs that must report, by the name that `-o NAME` gave them, and their framework.
FRAMEWORKS_BY_RUN = {"pytorch": "PyTorch", "keras": "Keras"}
# The tag of cells that need TensorFlow, which is not available for every Python and machine.
TENSORFLOW_TAG = "tensorflow"
CELL_TIMEOUT_S = 300


class DemoFailed(RankroomError):
    """The notebook did not train, or could not run."""


@click.command()
@click.argument("notebook", required=False, type=click.Path(dir_okay=False, path_type=Path))
def demo(notebook: Path | None) -> None:
    """Run the quickstart notebook here, print what each rank reports, and check that it trained.

    Exits with 0 only if PyTorch and Keras both reached an accuracy above 0.9 and all ranks hold
    equal weights. Without TensorFlow, the part with Keras is left out.
    """
    exit_on_signals()  # so that its ranks end as well
    begun = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="rankroom-demo-"))
    os.environ["RANKROOM_HOME"] = str(home)
    try:
        left_out = play(notebook or quickstart())
        lines = [
            LEFT_OUT if left_out and name == "keras" else verdict(name, framework, Store())
            for name, framework in FRAMEWORKS_BY_RUN.items()
        ]
    except RankroomError as error:
        raise DemoFailed(f"{error}\n(the records of this demo are in {home})") from None
    finally:
        for left in running_clusters():
            local.Cluster.attach(left.name).stop()
    shutil.rmtree(home, ignore_errors=True)
    click.echo("\n".join(["", *lines, f"trained, in {time.monotonic() - begun:.0f} s"]))


def quickstart() -> Path:
    """Return the path of the quickstart notebook: in the installed package, or in the checkout."""
    for folder in (Path(__file__).parents[1], Path(__file__).parents[3]):
        notebook = folder / "notebooks" / "quickstart.ipynb"
        if notebook.is_file():
            return notebook
    raise UsageError("quickstart.ipynb is not installed: name a notebook, `rankroom demo FILE`")


def play(path: Path) -> bool:
    """Run the notebook's cells, and print the output of each as text when it has ended.

    Return whether cells were left out because TensorFlow is not installed.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellControlSignal, DeadKernelError

        from rankroom.batch.own_kernel import OwnKernel
    except ModuleNotFoundError as error:
        raise UsageError(
            f"rankroom demo needs {error.name}: `pip install nbclient scikit-learn`"
        ) from None
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise UsageError(f"cannot read the notebook {path}: {error}") from None
    # Two processes of one user need no port.
    private = Config({"KernelManager": {"transport": "ipc"}})
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", kernel_manager_class=OwnKernel,
        config=private,
    )  # fmt: skip
    heading = ""
    left_out = False
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                headings = [line for line in cell.source.splitlines() if line.startswith("## ")]
                heading = [heading, *headings][-1]
                continue
            if not has_tensorflow and TENSORFLOW_TAG in cell.metadata.get("tags", []):
                left_out = True
                continue
            if heading:
                click.echo(f"\n{heading}")
                heading = ""
            try:
                client.execute_cell(cell, index)
            except CellControlSignal as error:
                raise DemoFailed(CELL_FAILED.format(number=index + 1, why=short(error))) from None
            except DeadKernelError:
                raise DemoFailed(
                    CELL_FAILED.format(number=index + 1, why="the kernel died")
                ) from None
            finally:
                click.echo(said(cell.outputs), nl=False)
    return left_out


def verdict(name: str, framework: str, store: Store) -> str:
    """Return a line with a framework's accuracy and weights. Raises DemoFailed if it did not
    train."""
    run = next((run for run in store.newest() if run.name == name), None)
    if run is None:
        raise DemoFailed(f"{framework} did not report: no cell was run with `-o {name}`")
    if run.state != "done" or len(run.ranks) < 2:
        raise DemoFailed(f"{framework}: the run {name} is {run.state} on {len(run.ranks)} rank(s)")
    shown = [event for event in displays_of(store.events(run.id)) if event.get("result")]
    # So that an error names the lowest faulty rank, whichever reported first.
    shown.sort(key=lambda event: int(event["rank"]))
    reports = {event["rank"]: _report(framework, event) for event in shown}
    silent = [each.rank for each in run.ranks if each.rank not in reports]
    if silent:
        raise DemoFailed(f"{framework}: rank {silent[0]} reported nothing in the run {name}")
    low = {rank: r["accuracy"] for rank, r in reports.items() if not r["accuracy"] > MIN_ACCURACY}
    for rank, accuracy in low.items():
        raise DemoFailed(
            f"{framework} did not train: accuracy {accuracy:.3f} on rank {rank}, and it must be "
            f"above {MIN_ACCURACY}"
        )
    if len({report["weights"] for report in reports.values()}) > 1:
        weights = ", ".join(f"rank {rank} {r['weights']}" for rank, r in sorted(reports.items()))
        raise DemoFailed(f"{framework}: the ranks hold different weights: {weights}")
    first = reports[min(reports)]
    return (
        f"{framework:8} accuracy {first['accuracy']:.3f}, weights {first['weights']} "
        f"on each of {len(reports)} ranks"
    )


def _report(framework: str, event: dict[str, Any]) -> dict[str, Any]:
    text = event["data"].get("text/plain", "")
    try:
        report = ast.literal_eval(text)
        return {"accuracy": float(report["accuracy"]), "weights": str(report["weights"])}
    except (ValueError, SyntaxError, TypeError, KeyError):
        raise DemoFailed(
            f"{framework}: rank {event['rank']} reported {text[:80]!r}, which has no accuracy and "
            "weights"
        ) from None


LEFT_OUT = "Keras    left out, as TensorFlow is not installed"
CELL_FAILED = "cell {number} of the notebook failed: {why}"
