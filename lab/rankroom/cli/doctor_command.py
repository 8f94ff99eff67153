"""`rankroom doctor`: list what is running and what was left behind, and clean that up."""

from __future__ import annotations

import click

from rankroom.cluster.cleanup import demand_untold, findings
from rankroom.errors import RankroomError
from rankroom.record.store import Store


@click.command()
@click.option("--clean", is_flag=True, help="Clean up what was left behind.")
@click.option(
    "--gone", multiple=True, metavar="NAME",
    help="With --clean: the machine or container of this cluster is gone for good.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for confirmation with --gone.")
def doctor(clean: bool, gone: tuple[str, ...], yes: bool) -> None:
    """List clusters, and what ended ones have left behind: processes, folders, half-made records.

    Only what is provably Rankroom's own is listed, and nothing is identified by its name alone.
    Running clusters are left alone. So are clusters of other machines with the same home directory,
    where it cannot be told from here whether they run, until you say with --gone that the machine
    is gone.
    """
    if gone and not clean:
        raise click.UsageError("--gone only works together with --clean: give both")
    for name in gone:
        question = demand_untold(name)
        if not yes:
            click.confirm(question, abort=True)
    store = Store()
    found, failed = findings(store, gone), False
    for each in found:
        click.echo(each.what)
        if each.clean is not None and clean:
            try:
                each.clean()
            except (RankroomError, OSError) as error:  # go on with the other findings
                click.echo(f"    {error}", err=True)
                failed = True
            else:
                click.echo(f"    {each.done}")
        elif each.clean is not None:
            click.echo(f"    `rankroom doctor --clean` {each.remedy}")
    if not any(each.clean for each in found):
        click.echo(f"nothing was left behind in {store.root}")
    if failed:
        raise SystemExit(1)
