"""`rankroom cluster …`: what notebook and sidebar can do to clusters, from a terminal."""

from __future__ import annotations

from typing import Any

import click

from rankroom.cli.job_options import (
    INTERRUPTED_EXIT_STATUS,
    job_options,
    start_cluster,
    tell,
    wait_until_ready,
)
from rankroom.cluster import actions, liveness, lookup
from rankroom.cluster.cluster_status import all_clusters
from rankroom.display.text import keep_lines
from rankroom.errors import UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.text.rank_ranges import count_ranks, name_ranks, parse_ranks

NAME_ARGUMENT = click.argument("name", required=False)
RANKS_OPTION = click.option("--ranks", "chosen", metavar="0,2-3", help="Only these ranks.")


@click.group()
def cluster() -> None:
    """Clusters of ranks: list, start, stop, restart, resize, interrupt, release, stacks, log.

    NAME may be left out where only one cluster runs.
    """


@cluster.command("list")
def list_() -> None:
    """List clusters, newest first, with the state of each and of its ranks."""
    found = all_clusters()
    for each in found:
        where = f" on {each.site}" if each.site else ""
        size = f"{each.size or '?':>5} rank{' ' if each.size == 1 else 's'}"
        click.echo(keep_lines(f"{each.name:24}  {size}{where}  {each.words}"))
        if each.remedy:
            click.echo(f"{'':24}  {each.remedy}")
        for rank in each.ranks:
            if rank.note:
                click.echo(keep_lines(f"{'':24}  rank {rank.rank} {rank.note}"))
    if not found:
        click.echo("no clusters: `rankroom cluster start --ranks 2` starts one")


@cluster.command()
@click.option("--ranks", type=int, metavar="N", help="How many ranks.")
@click.option("--name", metavar="NAME", help="What the cluster is called.")
@click.option("--site", "site_name", metavar="NAME", help="Start in a job on this site.")
@click.option("--auto-restart", is_flag=True, help="Restart ranks that die.")
@click.option("--preload", default="", metavar="MODULE,…", help="Import these before the fork.")
@job_options
def start(
    ranks: int | None,
    name: str | None,
    site_name: str | None,
    auto_restart: bool,
    preload: str,
    **job: Any,
) -> None:
    """Start ranks that stay when this command has ended; notebooks attach to them."""
    made = start_cluster(ranks, site_name, job, name, auto_restart, preload)
    for note in made.info.notes:
        click.echo(note, err=True)
    click.echo(made.describe() if site_name else f"{made.name}: {count_ranks(made.size)} ready")
    made.close()


@cluster.command()
@NAME_ARGUMENT
def stop(name: str | None) -> None:
    """End a cluster and everything that belongs to it."""
    chosen = _named(name)
    said = actions.stop(chosen)
    click.echo(said or f"{chosen} stopped")


@cluster.command()
@NAME_ARGUMENT
@RANKS_OPTION
def restart(name: str | None, chosen: str | None) -> None:
    """Restart ranks, all of them by default, and wait for them; their variables are gone.

    Ranks on a site stay in their job. A cluster that is over is started again.
    """
    from rankroom.remote.cluster import RemoteCluster

    paths, info = actions.find(_named(name))
    lookup.require_in_reach(info)
    if not liveness.alive(info) and not liveness.remote_on(info):
        if chosen is not None:
            raise UsageError(RANKS_OF_ENDED.format(name=paths.name))
        _start_again(paths, info)
        return
    if not liveness.alive(info):  # its agent here is gone: start it again
        wait_until_ready(RemoteCluster.of(info)).close()
    ranks = [*range(info.size)] if chosen is None else parse_ranks(chosen, info.size)
    actions.restart_and_wait(paths.name, ranks)
    click.echo(f"{name_ranks(ranks)} of {paths.name} restarted, without variables")


@cluster.command()
@click.argument("ranks", type=int)
@click.option("--name", metavar="NAME", help="Which cluster, where several run.")
def resize(ranks: int, name: str | None) -> None:
    """Restart a cluster with RANKS ranks; their variables are gone."""
    chosen = _named(name)
    actions.resize(chosen, {"ranks": str(ranks)})
    click.echo(f"{chosen} is being restarted with {count_ranks(ranks)}")


@cluster.command()
@NAME_ARGUMENT
def interrupt(name: str | None) -> None:
    """Interrupt every rank (KeyboardInterrupt); release blocked collectives half a second later."""
    chosen = _named(name)
    actions.interrupt(chosen)
    click.echo(f"interrupted the ranks of {chosen}")


@cluster.command()
@NAME_ARGUMENT
def release(name: str | None) -> None:
    """Release ranks that are blocked in a collective; those that compute go on."""
    click.echo(actions.release(_named(name)))


@cluster.command()
@NAME_ARGUMENT
@RANKS_OPTION
def stacks(name: str | None, chosen: str | None) -> None:
    """Show where every thread of each rank is."""
    _, info = actions.find(_named(name))
    wanted = range(info.size) if chosen is None else parse_ranks(chosen, info.size)
    for rank, text in actions.stacks(info.name).items():
        if rank in wanted:
            click.echo(f"── rank {rank}\n{keep_lines(text)}")


@cluster.command()
@NAME_ARGUMENT
def log(name: str | None) -> None:
    """Show the end of the log of each of the cluster's processes, or of its job."""
    click.echo(keep_lines(actions.log(_named(name))))


def _start_again(paths: ClusterPaths, info: ClusterInfo) -> None:
    """Restart a cluster that is over, with the same settings, and wait for its ranks."""
    from rankroom.cluster.local import Cluster
    from rankroom.remote.cluster import RemoteCluster

    supervisor = actions.prepare_restart(paths, info, {})()
    try:
        made = (
            wait_until_ready(RemoteCluster.in_folder(paths))
            if supervisor is None
            else Cluster.ready(paths, supervisor, tell)
        )
    except KeyboardInterrupt:  # its ranks have been ended by now
        raise SystemExit(INTERRUPTED_EXIT_STATUS) from None
    click.echo(f"{made.name} was started again: {count_ranks(made.size)} ready")
    made.close()


def _named(name: str | None) -> str:
    """Return the cluster's name; without one, that of the only running cluster. Raises UsageError
    if several are running."""
    if name is not None and ClusterPaths(name).read() is not None:
        return name
    running = lookup.clusters_in_use() if name is None else []
    if len(running) > 1:
        raise UsageError(SEVERAL_RUNNING.format(names=", ".join(info.name for info in running)))
    return lookup.find(name).name


RANKS_OF_ENDED = "cluster {name} is over, so it is started again as a whole: leave out --ranks"
SEVERAL_RUNNING = "several clusters are running, so name one: {names}"
