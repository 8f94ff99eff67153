"""`rankroom doctor`: what is running, what was left behind, and cleaning that up."""

from __future__ import annotations

import click

from rankroom.cluster.cleanup import findings
from rankroom.record.store import Store


@click.command()
@click.option("--clean", is_flag=True, help="Clean up what was left behind.")
def doctor(clean: bool) -> None:
    """List clusters, and what ended ones have left behind: processes, folders, half-made records.

    Only what is provably Rankroom's own is listed, and nothing is found by name. Clusters that
    run are left alone.
    """
    store = Store()
    found = findings(store)
    for each in found:
        click.echo(each.what)
        if each.clean is not None and clean:
            each.clean()
            click.echo(f"    {each.done}")
        elif each.clean is not None:
            click.echo(f"    `rankroom doctor --clean` {each.remedy}")
    if not any(each.clean for each in found):
        click.echo(f"nothing is left over in {store.root}")
