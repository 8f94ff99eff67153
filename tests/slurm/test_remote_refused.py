"""Starts on a site that fail: the message has the failed command, its output and a remedy, and
nothing is left running."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from labs import jobs, profile
from machines import BARE, Machines
from remote import Laptop, until_nothing_runs

OTHER = """#!/bin/sh
echo '{"rankroom": "0.0.1", "python": "3.11.2", "host": "login", "home": "/"}'
sleep 15
"""


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    sites = {
        "test": profile(nodes=2, ranks_per_node=1),
        "nowhere": profile(login="nowhere.invalid"),
        "bare": profile().replace("[environment]\npython", "[environment]\n# python").replace(
            "[environment]", '[environment]\npython = "/home/alice/bare"'
        ),
        "none": profile() + 'venv = "/nowhere"\n',
        "other": profile().replace("[environment]\npython", "[environment]\n# python").replace(
            "[environment]", '[environment]\npython = "/home/alice/other"'
        ),
        "full": profile(scratch="/dev/full/rankroom"),
    }  # fmt: skip
    with Laptop(machines, sites) as made:
        machines.put("alice", "other", OTHER)
        machines.put("alice", "bare", BARE)
        made.do(
            """
def begin(name, **options):
    return refused(lambda: RemoteCluster.start(site.load(name).asking(**options)).until_ready())
"""
        )
        yield made


@pytest.mark.parametrize(
    ("ask", "parts"),
    [
        (
            "'test', partition='nosuch'",
            ["`sbatch --parsable` on login failed", "invalid partition specified: nosuch",
             "partition"],
        ),
        (
            "'test', nodes=9",
            ["would never start: PartitionNodeLimit: it asks for more nodes|Node count"
             " specification invalid", "nodes"],
        ),
        ("'test', time='10:00:00'", ["would never start|time limit", "more time|time limit"]),
        ("'test', constraint='nosuch'", ["Invalid feature specification|would never start"]),
        ("'nowhere'", ["cannot reach nowhere.invalid", "check `login` in the site's"]),
        (
            "'bare'",
            ["`/home/alice/bare -m rankroom.remote.login_node` on login", "No module named",
             "Rankroom is not installed on login",
             r"run `/home/alice/bare -m pip install rankroom-\d"],
        ),
        ("'none'", ["on login failed \\(status", "/nowhere/bin/activate", "site check none"]),
        ("'other'", [r"Rankroom is 0\.0\.1 on login, and \d", "pip install rankroom-\\d"]),
        ("'full'", ["/dev/full", "`scratch`"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_failed_start_is_explained_and_leaves_nothing(laptop: Laptop, ask: str, parts: list[str]):
    said = laptop.do(f"begin({ask})", 240)
    for part in parts:
        assert re.search(part, said), (part, said)
    laptop.until("not any(each.state == 'running' for each in all_clusters())")
    until_nothing_runs(laptop.machines)
    assert jobs(laptop.machines) == []
    laptop.until_unkept()


def test_profiles_and_options_are_refused_before_anything_starts(laptop: Laptop):
    assert "there is no site 'nosuch'" in laptop.do("refused(lambda: site.load('nosuch'))")
    assert "nodes must be 1 or more" in laptop.do("begin('test', nodes=0)")
    said = laptop.do("refused(lambda: start.launch(site.load('local')))")
    assert "without --site starts ranks on this machine" in said
    assert laptop.agents() == []
