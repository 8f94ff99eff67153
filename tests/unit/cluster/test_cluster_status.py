"""The status of clusters, start requests, and classes that agree with the schema."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest

from rankroom.cluster import actions, cluster_status, launch, liveness, start_request
from rankroom.cluster.cluster_status import ClusterStatus, RankStatus, status_of
from rankroom.cluster.start_request import DryRun, SiteChoice, StartRequestError
from rankroom.errors import NoClusterError, NotYoursError, UsageError
from rankroom.record.cluster_file import (
    Allocation,
    ClusterInfo,
    ClusterPaths,
    Node,
    Remote,
    all_clusters,
    all_paths,
    named,
)
from rankroom.record.model import RankInfo
from rankroom.scheduler import site
from rankroom.system import pid_space

SCHEMA = json.loads(cluster_status.SCHEMA_FILE.read_text())
DEFS = SCHEMA["$defs"]


def valid(value: Any, name: str) -> None:
    schema = {"$ref": f"#/$defs/{name}", "$defs": DEFS}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(value)))


def made(state: str = "running", **fields: Any) -> ClusterInfo:
    """A cluster of two ranks, which has no supervisor unless `fields` name one."""
    ranks = [RankInfo(rank, "c1", 100 + rank, "cuda:0" if rank else "cpu", rank) for rank in (0, 1)]
    fields = {"created": time.time(), "ranks": ranks, "ready": [0, 1], "host": "c1", **fields}
    return ClusterInfo("made", 2, state, **fields)  # type: ignore[arg-type]


@pytest.fixture
def supervisor(tmp_path: Path):
    """A process that looks like a cluster's supervisor."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", code, "-m", "rankroom.supervisor.supervisor", str(tmp_path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # Right after its start a process has no command line yet.
    process.stdout.readline()
    yield process.pid
    process.communicate()


@pytest.mark.parametrize("kind", [ClusterStatus, RankStatus, SiteChoice, DryRun])
def test_classes_have_the_fields_of_the_schema(kind: Any):
    assert {field.name for field in dataclasses.fields(kind)} == set(
        DEFS[kind.__name__]["required"]
    )
    assert set(DEFS[kind.__name__]["required"]) == set(DEFS[kind.__name__]["properties"])


def test_states_are_those_of_the_schema():
    assert list(get_args(cluster_status.ClusterState)) == DEFS["ClusterState"]["enum"]
    states = get_type_hints(RankStatus)["state"]
    assert list(get_args(states)) == DEFS["RankStatus"]["properties"]["state"]["enum"]


@pytest.mark.parametrize(
    ("fields", "state", "words", "remedy"),
    [
        ({}, "running", "2 ranks ready", ""),
        ({"ready": [0]}, "starting", "1 of 2 ranks ready", ""),
        ({"ready": [], "ranks": [], "state": "starting"}, "starting", "0 of 2 ranks ready", ""),
        ({"ready": [0], "created": 1.0}, "starting", "1 of 2 ranks ready", "Rank 1 is taking a"),
        ({"ready": [0], "starting": [1]}, "running", "1 of 2 ranks ready", ""),
        (
            {"ready": [0], "exits": {"1": "was ended by signal 9 (SIGKILL)"}},
            "running", "1 of 2 ranks ready; rank 1 is down", "brings it back",
        ),
        (
            {"silent": {"c1": time.time() - 25}},
            "running", "2 ranks ready; node c1 has been silent for", "Wait until the node responds",
        ),
        (
            {"ready": [0], "exits": {"1": "exited"}, "silent": {"c1": 1.0}},
            "running", "; rank 1 is down; node c1 has been silent for", "restart its ranks",
        ),
        ({"state": "ending"}, "ending", "being ended", ""),
        ({"state": "failed", "message": "every rank has ended"}, "failed", "every rank", "Restart"),
        ({"supervisor": 0}, "failed", "its supervisor was killed", "Restart"),
        ({"supervisor": 0, "state": "starting"}, "starting", "the controller is starting", ""),
        ({"supervisor": 0, "state": "starting", "created": 1.0}, "failed", "was killed", "Restart"),
    ],
)  # fmt: skip
def test_status_of_a_local_cluster(home, supervisor, fields, state, words, remedy):
    info = made(**{"supervisor": supervisor, **fields})
    found = status_of(info)
    assert found.state == state
    assert words in found.words
    assert remedy in found.remedy if remedy else not found.remedy
    valid(dataclasses.asdict(found), "ClusterStatus")


def test_status_of_each_rank(home, supervisor):
    exits = {"1": "exited with code 3"}
    info = made(supervisor=supervisor, ready=[0], exits=exits, allocation=None)
    zero, one = status_of(info).ranks
    assert (zero.state, zero.note, zero.device) == ("ready", "", "cpu")
    assert (one.state, one.note, one.local_rank) == ("down", "exited with code 3", 1)
    info.starting = [1]
    assert status_of(info).ranks[1].state == "restarting"
    assert status_of(info).ranks[1].note == ""
    assert status_of(info).gpus_per_node == 1


def test_status_of_a_cluster_in_an_allocation(home):
    granted = Allocation("17", (Node("c1", 1), Node("c2", 1)), 4000.0)
    found = status_of(made("failed", allocation=granted, message="the time of job 17 is over"))
    assert (found.job, found.nodes, found.until, found.site) == ("17", 2, 4000.0, "")


@pytest.mark.parametrize(
    ("remote", "fields", "state", "words"),
    [
        ({"state": "connecting", "words": "connecting to c1"}, {}, "connecting", "to c1"),
        ({"state": "connecting"}, {}, "connecting", "connecting"),
        ({"state": "pending", "reason": "Priority: x"}, {}, "pending", "queue (Priority: x)"),
        ({"state": "running"}, {}, "running", "2 ranks ready"),
        ({"state": "running"}, {"ready": [1], "exits": {"0": "x"}}, "running", "rank 0 is down"),
        ({"state": "lost", "words": "it is lost"}, {}, "lost", "it is lost"),
        ({"state": "ended", "words": "time is over"}, {"supervisor": 0}, "ended", "time is over"),
        ({"state": "failed"}, {"supervisor": 0}, "failed", "failed"),
        ({"state": "connecting", "job": ""}, {"supervisor": 0}, "failed", "was killed"),
        ({"state": "running"}, {"supervisor": 0}, "lost", "its local agent is gone"),
    ],
)  # fmt: skip
def test_status_of_a_cluster_on_a_site(home, supervisor, remote, fields, state, words):
    remote = Remote(
        **{"site": "hpc", "login": "login", "job": "12", "nodes": 2, "ranks_per_node": 1, **remote}
    )
    found = status_of(made(remote=remote, **{"supervisor": supervisor, **fields}))
    assert found.state == state
    assert words in found.words
    assert (found.site, found.job, found.nodes, found.is_remote) == ("hpc", remote.job, 2, True)
    valid(dataclasses.asdict(found), "ClusterStatus")


def test_the_expected_start_is_reported_only_while_the_job_is_pending(home, supervisor):
    for state, expected in (("pending", 99.0), ("starting", 0.0)):
        remote = Remote("hpc", state=state, expected=99.0)  # type: ignore[arg-type]
        assert status_of(made(remote=remote, supervisor=supervisor)).expected == expected


def test_clusters_are_listed_newest_first_without_stopped_ones(home):
    for i, (name, state) in enumerate([("a", "failed"), ("b", "stopped"), ("c", "failed")]):
        paths = ClusterPaths(name)
        paths.make(1)
        paths.write(ClusterInfo(name, 1, state, created=float(i)))  # type: ignore[arg-type]
    # The folder of an earlier cluster of the same name, set aside for its records.
    aside = ClusterPaths("a").folder.with_name("a.1f2e")
    aside.mkdir()
    (aside / "cluster.json").write_text(ClusterPaths("a").info.read_text())
    (ClusterPaths("c").folder.with_name("no-cluster")).mkdir()
    assert [each.name for each in cluster_status.all_clusters()] == ["c", "a"]


def test_an_unreadable_cluster_is_listed_last_with_a_remedy(home):
    for name in ("damaged", "fine"):
        ClusterPaths(name).make(1)
    ClusterPaths("damaged").info.write_text("{")
    ClusterPaths("fine").write(ClusterInfo("fine", 1, "failed", created=1.0))
    fine, damaged = cluster_status.all_clusters()
    assert (fine.name, damaged.name) == ("fine", "damaged")
    assert (damaged.state, damaged.size, damaged.is_remote) == ("lost", 0, False)
    assert str(ClusterPaths("damaged").folder) in damaged.remedy
    valid(dataclasses.asdict(damaged), "ClusterStatus")


def test_a_failed_cluster_shows_the_last_line_of_the_rank_log(home):
    paths = ClusterPaths("made")
    paths.make(1)
    paths.rank_log(1).write_text("Traceback:\nImportError: no module named zmq\n")
    info = made("failed", message="every rank has ended", exits={"1": "exited with code 1"})
    assert status_of(info).remedy == "rank-1.log ends with: ImportError: no module named zmq"


def test_the_server_needs_no_ipyparallel():
    code = "import sys, rankroom.server; print('ipyparallel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- requests


def test_each_field_of_a_start_request_is_checked_separately(home):
    where = site.load("perlmutter")
    asked = {
        "nodes": "0",
        "gpus_per_node": "four",
        "time": "tomorrow",
        "name": "a b",
        "account": "ok",
    }
    with pytest.raises(StartRequestError) as error:
        start_request.granted(where, {**asked, "colour": "red"})
    errors = error.value.errors
    assert set(errors) == {"nodes", "gpus_per_node", "time", "name", "colour"}
    assert errors["nodes"] == "must be 1 or more, not 0"
    assert errors["gpus_per_node"] == "must be a whole number, not 'four'"
    assert "is not a time" in errors["time"]
    assert "account" in errors["colour"]


def test_an_empty_field_keeps_the_value_of_the_profile(home):
    where = site.load("taurus-ml")
    granted = start_request.granted(where, {"nodes": " 3 ", "time": "", "account": "  "})
    assert (granted.job.nodes, granted.job.time) == (3, where.job.time)
    # `memory_per_cpu` replaces the profile's `memory_per_node`.
    granted = start_request.granted(where, {"memory_per_cpu": "4G"})
    assert (granted.job.memory_per_cpu, granted.job.memory_per_node) == ("4G", "")
    with pytest.raises(StartRequestError, match="only one of them"):
        start_request.granted(where, {"memory_per_cpu": "4G", "memory_per_node": "64G"})


def test_invalid_numbers_of_local_ranks_are_refused(home):
    here = site.load("local")
    assert start_request.ranks({"ranks": ""}) is None
    start_request.granted(here, {"ranks": "3"})
    for text in ("0", "-1", "100000", "two", "1.5"):
        with pytest.raises(StartRequestError) as error:
            start_request.granted(here, {"ranks": text})
        assert set(error.value.errors) == {"ranks"}


def test_a_dry_run_shows_the_script_or_the_errors(home):
    run = start_request.dry_run(
        "perlmutter", {"nodes": "3", "name": "mine", "auto_restart": "true"}
    )
    assert "#SBATCH --nodes=3\n" in run.script and "#SBATCH --job-name=mine\n" in run.script
    assert "rankroom.remote.job mine --ranks=12 " in run.script and "--auto-restart" in run.script
    assert run.errors == {}
    unlike = start_request.dry_run("perlmutter", {"auto_restart": "false"})
    assert unlike.script and "--auto-restart" not in unlike.script
    bad = start_request.dry_run("polaris", {"nodes": "x"})
    assert (bad.script, set(bad.errors)) == ("", {"nodes"})
    assert "#PBS" in start_request.dry_run("polaris", {}).script
    assert start_request.dry_run("local", {}) == DryRun("")
    with pytest.raises(UsageError, match="there is no site"):
        start_request.dry_run("nowhere", {})


def test_a_faulty_profile_is_listed_with_its_error(home, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "rankroom" / "sites"
    own.mkdir(parents=True)
    (own / "mine.toml").write_text('[job]\npartitoin = "gpu"\n')
    found = {choice.name: choice for choice in start_request.choices()}
    assert "line 2" in found["mine"].wrong and "partition" in found["mine"].wrong
    assert found["perlmutter"].defaults["gpus_per_node"] == "4"
    assert next(iter(found)) == "local"
    for choice in found.values():
        valid(dataclasses.asdict(choice), "SiteChoice")


# -- untrusted names


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "none", "-x", "a\nb"])
def test_an_invalid_cluster_name_is_not_found(home, name):
    with pytest.raises(NoClusterError):
        actions.find(name)


def test_an_unknown_cluster_name_is_reported(home):
    with pytest.raises(NoClusterError, match=r"^there is no cluster named tpyo: "):
        actions.stop("tpyo")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_clusters_of_others_are_left_alone(home):
    paths = ClusterPaths("theirs")
    paths.make(1)
    paths.write(made("failed"))
    os.chown(paths.folder, 12345, 12345)
    with pytest.raises(NotYoursError, match="another user"):
        actions.stop("theirs")
    assert paths.info.exists()


@pytest.mark.parametrize(
    "name", ["..", ".", "../runs", "a/b", "/tmp", "~", "my run", ".hidden", "-x"]
)
def test_no_name_leads_out_of_the_folder_of_clusters(name: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))
    record = tmp_path / "runs" / "r" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    with pytest.raises(UsageError, match="letters, digits, dots, dashes and underscores"):
        launch.launch(2, name, None)
    assert record.exists() and not (tmp_path / "clusters").exists()
    with pytest.raises(NoClusterError):
        actions.find(name)


@pytest.mark.parametrize("name", ["..", ".", "../runs"])
def test_a_path_outside_the_clusters_folder_is_not_removed(name: str, tmp_path: Path):
    (tmp_path / "clusters" / "one").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="not a cluster's folder"):
        ClusterPaths(name, tmp_path / "clusters").remove()
    assert (tmp_path / "runs").exists() and (tmp_path / "clusters" / "one").exists()


def test_files_that_nfs_keeps_of_a_removed_cluster_are_no_cluster(home: Path, monkeypatch):
    """NFS keeps files that are still open; cluster.json must not stay with them."""
    paths, kept = ClusterPaths("one"), "supervisor.log"
    paths.make(1)
    paths.write(ClusterInfo("one", 1, "running"))
    (paths.logs / kept).touch()
    unlink = os.unlink

    def busy(path: str, **where: Any) -> None:
        if os.fspath(path).endswith(kept):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(path, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", busy)
        paths.remove()
        assert not paths.folder.exists() and paths.read() is None
        assert all_clusters() == [] and all_paths() == []
        [left] = (home / "clusters").iterdir()
        assert [each.name for each in left.rglob("*") if each.is_file()] == [kept]
    paths.make(1)  # the next start removes the rest
    assert [each.name for each in (home / "clusters").iterdir()] == ["one"]


def test_a_cluster_folder_whose_removal_was_interrupted_is_removed(home: Path):
    paths = ClusterPaths("one")
    paths.make(1)
    paths.write(ClusterInfo("one", 1, "stopped"))
    paths.folder.rename(home / "clusters" / ".one-0123abcd.removed")
    launch.wait_end(paths, 1.0)
    assert list((home / "clusters").iterdir()) == []


@pytest.mark.parametrize(
    ("remote", "host", "machine", "state"),
    [
        pytest.param(Remote("far", "login"), "home-3", "m1", "gone", id="a-laptop-elsewhere"),
        pytest.param(Remote("far", "login"), "home-3", "m2", "unknown", id="another-laptop"),
        pytest.param(Remote("near"), "login1", "m1", "unknown", id="login-nodes-of-one-image"),
        pytest.param(None, "login1", "m1", "unknown", id="of-this-machine"),
        pytest.param(None, "net-7", "m1", "gone", id="the-same-name"),
    ],
)
def test_liveness_after_a_machine_reboot(monkeypatch, remote, host: str, machine: str, state: str):
    """A laptop is identified by its machine id, as its host name may depend on the network."""
    monkeypatch.setattr(pid_space, "here", lambda: pid_space.PidSpace("net-7", "m1", "b2", "p"))
    before = pid_space.PidSpace(host, machine, "b1", "p")
    info = made(supervisor=7, space=str(before), remote=remote)
    assert liveness.state(info) == state


def test_an_unreadable_pid_space_is_an_error_and_not_another_machine(monkeypatch):
    """A cluster that recorded an incomplete PID space would seem to be on another machine."""
    before = pid_space.here()
    rebooted = before._replace(machine="m1", boot="before")
    monkeypatch.setattr(pid_space, "MACHINE_ID_FILE", Path("/nowhere"))

    def refuse(self: Path) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        pid_space.here.cache_clear()
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            pid_space.here()
        assert not pid_space.is_here(before) and not pid_space.was_rebooted(rebooted)
    assert pid_space.here() == before._replace(machine="")
    pid_space.here.cache_clear()


@pytest.mark.parametrize("site_name", ["Uni Köln (GPU)", "Über", "計算", "x" * 80])
def test_any_site_name_gives_a_valid_cluster_name(site_name: str):
    assert actions.NAME_PATTERN.fullmatch(named(None, site_name).name)
    assert named("train.2", "local").name == "train.2"


def test_a_file_in_the_clusters_folder_is_not_a_cluster(home: Path):
    ClusterPaths("one").make(1)
    (home / "clusters" / "notes.txt").write_text("mine")
    assert [paths.name for paths in all_paths()] == ["one"]
