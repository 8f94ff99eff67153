"""Where ranks start, and in which job: magic, command and sidebar agree."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rankroom.cli import main
from rankroom.cluster import actions, launch, start_request
from rankroom.cluster.base import AnyCluster
from rankroom.errors import UsageError
from rankroom.notebook import cluster_magic
from rankroom.remote import start
from rankroom.scheduler.site import Site

PROFILES = {
    # A host that is only reachable over SSH, without a scheduler.
    "loginonly": 'login = "login.example.org"\nscheduler = "none"\n',
    "slurmy": 'login = "login.example.org"\n[job]\nranks_per_node = 2\n',
    "near": 'scheduler = "none"\n',
}
Front = Callable[..., str]


class Started(Exception):
    """Raised instead of starting ranks, at the site `where`, or on this machine if it is None."""

    def __init__(self, where: Site | None, ranks: int | None = None) -> None:
        super().__init__("started")
        self.where, self.ranks = where, ranks


def magic(site: str, **asked: Any) -> None:
    words = ["--site", site]
    for name, value in asked.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    cluster_magic.start(shlex.join(words))


def command(site: str, **asked: Any) -> None:
    words = ["cluster", "start", "--site", site]
    for name, value in asked.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    done = CliRunner().invoke(main, words)
    if isinstance(done.exception, Started):
        raise done.exception
    assert done.exit_code == 1, done.output
    raise UsageError(done.output.removeprefix("Error: ").rstrip("\n"))


def sidebar(site: str, **asked: Any) -> None:
    actions.start(site, {name: str(value) for name, value in asked.items()}, None)


fronts = pytest.mark.parametrize("start_by", [magic, command, sidebar])


@pytest.fixture(autouse=True)
def profiles(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own site profiles; Started is raised instead of starting ranks."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(AnyCluster, "current", None)  # another test may have left one
    own = tmp_path / "config" / "rankroom" / "sites"
    own.mkdir(parents=True)
    for name, text in PROFILES.items():
        (own / f"{name}.toml").write_text(text)

    def launch_there(site: Site, *about: object) -> None:
        raise Started(site)

    def launch_here(ranks: int | None, *about: object, **more: object) -> None:
        raise Started(None, ranks)

    monkeypatch.setattr(start, "launch", launch_there)
    monkeypatch.setattr(launch, "launch", launch_here)


@fronts
def test_a_site_behind_ssh_without_a_scheduler_is_refused_and_no_ranks_start_here(
    start_by: Front, tmp_path: Path
):
    with pytest.raises(UsageError) as error:
        start_by("loginonly")
    own = tmp_path / "config" / "rankroom" / "sites"
    assert str(error.value) == (
        f"ranks on login.example.org are started by its scheduler, and {own}/loginonly.toml says "
        '`scheduler = "none"`: name the scheduler that is there, or remove `login` to start ranks '
        "on this machine"
    )


@fronts
@pytest.mark.parametrize("site", ["local", "near"])
def test_a_site_without_login_and_scheduler_is_this_machine(start_by: Front, site: str):
    with pytest.raises(Started) as begun:
        start_by(site, ranks=3)
    assert (begun.value.where, begun.value.ranks) == (None, 3)


@fronts
def test_job_options_are_refused_for_a_site_without_a_scheduler(start_by: Front):
    with pytest.raises(UsageError) as error:
        start_by("near", nodes=2)
    assert str(error.value) == "--nodes applies to a job only, and near has no scheduler"


@fronts
@pytest.mark.parametrize(
    ("asked", "nodes", "each"),
    [
        ({}, 1, 2),
        ({"nodes": 3}, 3, 2),
        ({"ranks": 8}, 4, 2),
        ({"ranks": 8, "ranks_per_node": 4}, 2, 4),
    ],
)
def test_magic_command_and_sidebar_request_the_same_job(
    start_by: Front, asked: dict[str, int], nodes: int, each: int
):
    with pytest.raises(Started) as begun:
        start_by("slurmy", **asked)
    where = begun.value.where
    assert where is not None and (where.job.nodes, where.ranks_per_node) == (nodes, each)


@fronts
def test_an_invalid_number_of_nodes_is_refused(start_by: Front):
    with pytest.raises(UsageError, match="nodes must be 1 or more, not 0"):
        start_by("slurmy", nodes=0)


def test_the_sidebar_reports_errors_by_field(home: Path):
    with pytest.raises(start_request.StartRequestError) as error:
        sidebar("near", nodes=2, time="01:00:00")
    words = "applies to a job only, and near has no scheduler"
    assert error.value.errors == {"nodes": words, "time": words}


def test_a_profile_that_cannot_start_ranks_is_listed_with_the_reason():
    found = {choice.name: choice for choice in start_request.choices()}
    assert found["loginonly"].wrong.startswith("ranks on login.example.org are started by its")
    assert found["near"].wrong == found["slurmy"].wrong == ""
