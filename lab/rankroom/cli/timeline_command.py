"""`rankroom timeline`: import timelines of other programs as a record, for the same view."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import click

from rankroom import config, display
from rankroom.analysis.importers import import_files
from rankroom.analysis.profile.of_run import profile_of, write_profile
from rankroom.cli.output_file import write_file
from rankroom.display.text import clean, keep_colours
from rankroom.record.model import Json, RunInfo
from rankroom.record.store import Store
from rankroom.system import redirect_page

# For a browser to start and read its page; the next call removes an older page.
REDIRECT_PAGE_LIFETIME_S = 60.0


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="A name for the record, shown in lists.")
@click.option("--open", "show", is_flag=True, help="Open it in your running JupyterLab.")
@click.option(
    "--html", "page", metavar="OUT", type=click.Path(path_type=Path), help="Write a page as well."
)
@click.option("--text", is_flag=True, help="Only print it here, and keep no record.")
def timeline(
    files: tuple[Path, ...], name: str | None, show: bool, page: Path | None, text: bool
) -> None:
    """Read Horovod timelines and Chrome or PyTorch traces, usually a file for each rank.

    Several files become one timeline. Damaged files are repaired as far as possible, and reported.
    """
    if text and show:
        raise click.UsageError("--open needs a record, and --text keeps none: give only one")
    with _temporary_store() if text else contextlib.nullcontext(Store()) as store:
        made = import_files(files, store, name)
        for each in made.files:
            click.echo(clean(str(each)))
        for note in made.notes:
            click.echo(clean(note))
        if not text:
            # Before the profile, which takes long for a large file.
            click.echo(f"{made.run.id}: `%runs {made.run.id}` shows it in a notebook")
        if show:
            _open(made.run, display.bundle(made.run, store))
        if page is not None:
            from rankroom.display.run_page import run_page

            write_file(run_page(store, made.run), str(page), "open it in any browser")
        with contextlib.suppress(OSError):  # if it is not stored, its readers compute it
            write_profile(store, made.run)
        profile = profile_of(store, made.run)
        click.echo(f"\n{keep_colours(str(profile))}\n")


@contextlib.contextmanager
def _temporary_store() -> Iterator[Store]:
    """Yield a store in a temporary folder, for a record that is not kept."""
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError as error:  # such as FileNotFoundError, if none of the usual folders is usable
        raise click.ClickException(NO_FOLDER.format(error=error.strerror or error)) from None
    with folder as name:
        yield Store(name)


def _open(run: RunInfo, bundle: Json) -> None:
    """Open a notebook that shows the run in a running Jupyter server of the user; without a server,
    print how to show it."""
    from jupyter_server.serverapp import list_running_servers

    servers = list(list_running_servers())
    if not servers:
        click.echo(NO_SERVER.format(id=run.id))
        return
    server = servers[0]
    root = Path(server.get("root_dir") or server.get("notebook_dir") or ".").resolve()
    here = config.current_folder().resolve()
    notebook = (here if here.is_relative_to(root) else root) / f"timeline-{run.id}.ipynb"
    _write_notebook(notebook, run, bundle)
    place = quote(notebook.relative_to(root).as_posix())
    url = f"{server['url']}lab/tree/{place}"
    if server.get("token"):
        url = _page(run, f"{url}?token={quote(server['token'])}").as_uri()
    webbrowser.open(url)
    click.echo(f"{notebook} shows it, opened in {server['url']}lab")


def _page(run: RunInfo, url: str) -> Path:
    """Write a page that redirects to `url`; earlier pages are removed, as they hold tokens."""
    folder = config.home() / "pages"
    config.make_private(folder)
    for page in folder.glob("*.html"):
        if time.time() - page.stat().st_mtime > REDIRECT_PAGE_LIFETIME_S:
            page.unlink(missing_ok=True)
    page = folder / f"{run.id}.html"
    redirect_page.write(page, url)
    return page


def _write_notebook(path: Path, run: RunInfo, bundle: Json) -> None:
    import nbformat

    code = f"%load_ext rankroom\n%runs {run.id}"
    output = nbformat.v4.new_output("display_data", data=json.loads(json.dumps(bundle)))
    cell = nbformat.v4.new_code_cell(code, outputs=[output], execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    # Signed as the user's own, so that the output is shown without running the cell.
    nbformat.sign.NotebookNotary().sign(notebook)
    nbformat.write(notebook, path)


NO_FOLDER = (
    "--text needs a temporary folder, and none can be made: {error}; free some space there, set "
    "TMPDIR to a folder that you may write to, or leave out --text, which keeps a record"
)
NO_SERVER = (
    "you have no running Jupyter server: start `jupyter lab`, and `%runs {id}` shows the timeline "
    "in a notebook"
)
