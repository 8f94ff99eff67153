"""The subcommands of `%cluster`: a function each, for this notebook's cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from rankroom.batch.batch_folder import in_batch_job
from rankroom.cluster import actions, launch, liveness
from rankroom.cluster.base import AnyCluster
from rankroom.cluster.local import Cluster
from rankroom.cluster.lookup import clusters_in_use
from rankroom.errors import NO_CLUSTER, NoClusterError, RankroomError, SshError, UsageError
from rankroom.horovod_build.features import Features, features
from rankroom.notebook import site_start
from rankroom.notebook.options import Options
from rankroom.notebook.progress_line import progress
from rankroom.rank import packed_values
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, silent_words
from rankroom.remote.cluster import RemoteCluster
from rankroom.scheduler.site import Site
from rankroom.supervisor.lease import held
from rankroom.text.rank_ranges import count_ranks, name_ranks, parse_ranks


def the_cluster() -> AnyCluster:
    """Return this notebook's cluster. Raises NoClusterError, which names the running clusters."""
    if AnyCluster.current is not None:
        return AnyCluster.current
    others = clusters_in_use()
    raise NoClusterError(NO_CLUSTER if not others else _attachable(others))


def ranks_have_another_python() -> bool:
    """Return whether this notebook's ranks run another version of Python than it does; False if
    they do not answer within 2 s."""
    current = AnyCluster.current
    if current is None:
        return False
    info = current.refresh()
    if info.remote is None and info.python in ("", sys.executable):
        return False
    try:
        return (
            tuple(current.apply(0, packed_values.python, patience=2.0))
            != packed_values.PYTHON_VERSION
        )
    except RankroomError:
        return False


def start(line: str) -> None:
    options = Options("%cluster start")
    options.add_argument("--ranks", type=int, metavar="N")
    options.add_argument("--name", metavar="NAME")
    options.add_argument("--auto-restart", action="store_true")
    options.add_argument("--preload", default="", metavar="MODULE,…")
    site_start.add_options(options)
    chosen = options.read(line)
    site = site_start.site_asked(chosen)
    if chosen.dry_run:
        print(site_start.dry_run(site, chosen))
        return
    current = AnyCluster.current
    if current is not None and current.running and chosen.name in (None, current.name):
        _demand_same(current, site, chosen)
        if isinstance(current, RemoteCluster) and current.refresh().state == "starting":
            site_start.wait(current)
        else:
            print(f"{current.describe()} (already running)")
        return
    if site is None:
        how = (chosen.ranks, chosen.name, None, chosen.auto_restart)
        _started(launch.launch(*how, preload=chosen.preload), current)
        return
    if in_batch_job() and site.scheduler != "none":
        raise UsageError(FROM_JOB.format(site=site.name))
    made = RemoteCluster.start(site, chosen.name, chosen.auto_restart)
    if current is not None:
        current.close()
    _tell_left(made.name)
    site_start.wait(made)


def _started(
    launched: tuple[ClusterPaths, subprocess.Popen[bytes]], before: AnyCluster | None = None
) -> None:
    """Wait until launched ranks on this machine, or in this job, are ready, and describe them. They
    replace the cluster that this notebook had `before`."""
    begun = time.monotonic()
    with progress() as tell:
        cluster = Cluster.ready(*launched, tell)
    if before is not None:
        before.close()
    print(f"{cluster.describe()}, ready in {time.monotonic() - begun:.1f} s")
    for line in (*cluster.info.notes, cluster.warning(), horovod_line(features())):
        if line:
            print(line)
    _tell_left(cluster.name)


def _tell_left(name: str) -> None:
    """Print the clusters other than `name` that no notebook holds."""
    for other in clusters_in_use():
        if other.name != name and not held(ClusterPaths(other.name).folder / "lease"):
            print(UNHELD_CLUSTER.format(name=other.name, about=_about(other)))


def _demand_same(current: AnyCluster, site: Site | None, chosen: Any) -> None:
    """Raise UsageError if the running cluster is not the one that is asked for."""
    info = current.refresh()
    is_more = chosen.ranks not in (None, info.size)
    is_here = site is None or (info.remote is not None and info.remote.site == site.name)
    if is_more or not is_here or not (site is None or site_start.is_as_asked(current, site)):
        resize = f"`%cluster resize {chosen.ranks}` or " if is_more and is_here else ""
        raise UsageError(
            OTHER_CLUSTER_RUNNING.format(
                name=info.name, ranks=count_ranks(info.size), resize=resize
            )
        )
    unlike = ["--auto-restart"] if chosen.auto_restart and not info.auto_restart else []
    if site is None and chosen.preload and chosen.preload != info.preload:
        unlike.append(f"--preload {chosen.preload}")
    if unlike:
        raise UsageError(OTHER_OPTIONS.format(name=info.name, options=" and ".join(unlike)))


def stop(line: str) -> None:
    options = Options("%cluster stop")
    options.add_argument("name", nargs="?", metavar="NAME")
    name = options.read(line).name
    current = AnyCluster.current
    if name is not None and (current is None or current.name != name):
        # Also one that cannot be attached to, for example as its supervisor is of another version.
        print(actions.stop(name) or f"{name} stopped")
        return
    cluster = the_cluster()
    cluster.stop()
    print(f"{cluster.name} stopped")


def restart(line: str) -> None:
    options = Options("%cluster restart")
    options.add_argument("--ranks", metavar="0,2-3")
    chosen = options.read(line).ranks
    cluster = the_cluster()
    if chosen is None:
        info = cluster.refresh()
        if _has_job(info):
            _restart_in_job(cluster, info)
        else:
            again(cluster, None)
        return
    ranks = parse_ranks(chosen, cluster.size)
    print(
        f"{_restarted(cluster, ranks)}: {'their' if len(ranks) > 1 else 'its'} variables are gone"
    )


def _has_job(info: ClusterInfo) -> bool:
    """Return whether a cluster has a job on a site that goes on, as far as is known. Its ranks are
    restarted inside that job, as a new one might wait in the queue for long."""
    return info.remote is not None and info.state != "ending" and liveness.remote_on(info)


def _restart_in_job(cluster: AnyCluster, info: ClusterInfo) -> None:
    assert info.remote is not None
    about = {"job": info.remote.job, "site": info.remote.site}
    try:
        words = _restarted(cluster, range(cluster.size))
    except SshError as error:
        raise SshError(NOT_IN_JOB.format(error=error, **about)) from None
    print(f"{words}, {IN_JOB.format(**about)}")


def _restarted(cluster: AnyCluster, ranks: Sequence[int]) -> str:
    """Restart ranks where they are; return a sentence that says so, and how long it took."""
    begun = time.monotonic()
    cluster.restart(ranks)
    return f"{name_ranks(ranks)} restarted in {time.monotonic() - begun:.1f} s"


def resize(line: str) -> None:
    options = Options("%cluster resize")
    options.add_argument("ranks", type=int, metavar="N")
    again(the_cluster(), options.read(line).ranks)


def again(cluster: AnyCluster, ranks: int | None) -> None:
    """Stop a cluster and start it again under its name, with `ranks` ranks or as many as before."""
    if (supervisor := cluster.start_again(ranks)) is not None:
        _started((cluster.paths, supervisor))
    else:
        site_start.wait(RemoteCluster.in_folder(cluster.paths))


def interrupt(line: str) -> None:
    Options("%cluster interrupt").read(line)
    cluster = the_cluster()
    cluster.interrupt()
    print(f"interrupted the ranks of {cluster.name}")


def release(line: str) -> None:
    Options("%cluster release").read(line)
    print(the_cluster().release())


def stacks(line: str) -> None:
    options = Options("%cluster stacks")
    options.add_argument("--ranks", metavar="0,2-3")
    chosen = options.read(line).ranks
    cluster = the_cluster()
    ranks = None if chosen is None else parse_ranks(chosen, cluster.size)
    for rank, text in cluster.stacks(ranks).items():
        print(f"── rank {rank}\n{text}")


def log(line: str) -> None:
    Options("%cluster log").read(line)
    print(actions.log(the_cluster().name))


def attach(line: str) -> None:
    options = Options("%cluster attach")
    options.add_argument("name", nargs="?", metavar="NAME")
    name = options.read(line).name
    before = AnyCluster.current
    attached = site_start.attach_waiting(name) or Cluster.attach(name)
    if before is not None and before is not attached:
        before.close()
    run = attached.latest
    if run is not None and run.state == "running":
        print(f"attached to {attached.describe()}; {STILL_RUNS.format(id=run.id)}")
    else:
        print(attached.describe())


def status(line: str) -> None:
    Options("%cluster").read(line)
    current = AnyCluster.current
    if current is None:
        others = clusters_in_use()
        print(NO_CLUSTER if not others else _attachable(others))
        return
    print(current.describe())
    info, running = current.refresh(), current.running
    for rank in info.ranks:
        comes = rank.rank in info.starting
        if not running or (str(rank.rank) in info.exits and not comes):
            state = current.how_ended(rank.rank)
        else:
            state = "is starting" if comes or rank.rank not in info.ready else "ready"
        print(f"  rank {rank.rank}  {rank.host}  {rank.device}  pid {rank.pid}  {state}")
    if running and (silent := silent_words(info)):
        print(f"  {silent}")
    if running:
        print(LEASE_HINT.format(hours=info.lease))


def horovod_line(found: Features | None) -> str:
    """Return what the user should know about this environment's Horovod; "" if all is well."""
    if found is None:
        return "Horovod is not installed here: `rankroom horovod build` builds and installs it"
    if found.lacks:
        whose = "an older build of Rankroom's" if found.patched else "not Rankroom's build"
        return (
            f"Horovod {found.version} here is {whose} and lacks "
            f"{', '.join(found.lacks)}; `rankroom horovod build` makes one that has it"
        )
    return ""


def _attachable(others: list[ClusterInfo]) -> str:
    names = ", ".join(f"{each.name} ({_about(each)})" for each in others)
    return f"no cluster in this notebook yet; running: {names}. `%cluster attach` connects to it"


def _about(info: ClusterInfo) -> str:
    if info.remote is not None and info.remote.state != "running":
        return info.remote.words
    return count_ranks(info.size)


ACTIONS = {
    "start": start, "stop": stop, "restart": restart, "resize": resize, "attach": attach,
    "interrupt": interrupt, "release": release, "stacks": stacks, "log": log, "status": status,
}  # fmt: skip
UNHELD_CLUSTER = (
    "cluster {name} ({about}) also exists, and no notebook is attached to it: `%cluster attach "
    "{name}` attaches to it, `%cluster stop {name}` ends it"
)
OTHER_CLUSTER_RUNNING = "{name} is running with {ranks}: {resize}`%cluster stop` first"
OTHER_OPTIONS = "{name} is running, and was started without {options}: `%cluster stop` first"
FROM_JOB = (
    "this is a batch job, and its ranks run in it: `%cluster start`, without --site {site}, "
    "starts them"
)
IN_JOB = (
    "in the same job ({job}): all variables are gone; for a new job, `%cluster stop` and then "
    "`%cluster start --site {site}`"
)
NOT_IN_JOB = (
    "{error}; the job is unchanged: for a new one, `%cluster stop` and then `%cluster start "
    "--site {site}`"
)
STILL_RUNS = "the run {id} is still running: `%runs {id}` shows it"
LEASE_HINT = (
    "it runs until `%cluster stop`, or until {hours:g} h after the last notebook has detached"
)
