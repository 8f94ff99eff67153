"""A workshop's first minute: many users of one login node, each with ranks of their own."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, until_nothing_runs

USERS = [f"user{number:02}" for number in range(20)]
POLL_S = 5.0
# The requests in `sdiag` that query the queue.
LOOKS = re.compile(r"^\s*REQUEST_JOB_INFO(?:_SINGLE)?\s.*?count:(\d+)", re.M)
CELL = """
import os, torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
added = torch.ones(1) * ({number} + rank)
dist.all_reduce(added)
print("a line of", os.environ["LOGNAME"])
[os.getuid(), int(added), '{secret}']
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Five nodes: 40 processors for twenty users' two ranks each, and none to spare."""
    made = Machines(nodes=5, users=["alice", *USERS])
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def crowd(machines: Machines, number: int) -> Iterator[list[Laptop]]:
    """The users on the login node, each with the Python of a notebook."""
    site = {"here": profile(login="", nodes=1, ranks_per_node=2)}
    with contextlib.ExitStack() as stack:
        made = [Laptop(machines, site, "login", user) for user in USERS[:number]]
        for each in made:
            stack.callback(each.close)
        yield made


@pytest.mark.parametrize(
    "number", [2, pytest.param(20, marks=[pytest.mark.thorough, pytest.mark.alone])]
)
def test_each_user_has_a_cluster_of_their_own(machines: Machines, crowd: list[Laptop], number: int):
    looked, begun = looks(machines), time.monotonic()
    start = "cluster = RemoteCluster.start(site.load('here'), 'mine').until_ready()"
    at_once(crowd, lambda each: each.do(start, 400))
    started = time.monotonic() - begun
    found = at_once(crowd, first_cell)
    first = time.monotonic() - begun
    for place, (laptop, said) in enumerate(zip(crowd, found, strict=True)):
        uid, total = int(machines.id(laptop.user)), str(2 * place + 1)
        mine = f"[{uid}, {total}, 'of {laptop.user}']"
        assert said["results"] == {"0": mine, "1": mine}, said
        assert said["lines"] == [f"a line of {laptop.user}\n"] * 2
        assert said["runs"] == 1  # and no other user's
        assert len(jobs(machines, laptop.user)) == 1
    time.sleep(3 * POLL_S)
    # The requests are counted before the clock is read, so that each falls in the measured time.
    asked = looks(machines) - looked
    seconds = time.monotonic() - begun
    print(
        f"{number} users: all ready after {started:.0f} s, all first cells done after "
        f"{first:.0f} s; {asked} looks at the queue in {seconds:.0f} s"
    )
    # Each user's supervisor queries the queue at the start, then at most once every five seconds.
    assert asked <= number * (seconds / POLL_S + 2)
    at_once(crowd, lambda each: each.do("cluster.stop()", 180))
    for laptop in crowd:
        until_nothing_runs(machines, user=laptop.user)


def first_cell(laptop: Laptop) -> Any:
    source = CELL.format(number=USERS.index(laptop.user), secret=f"of {laptop.user}")
    return laptop.do(
        f"""
from numbered import written
run, store = cluster.run({source!r}), Store()
assert run.wait(240), (run.info, list(store.events(run.id)), cluster.stacks())
{{"results": run.results, "runs": len(store.ids()),
  "lines": [written(store, run.id, rank) for rank in (0, 1)]}}
""",
        300,
    )


def looks(machines: Machines) -> int:
    """The number of queue queries, by all users, since Slurm's controller started."""
    return sum(int(count) for count in LOOKS.findall(machines.run("ctl", ["sdiag"])))


def at_once(crowd: list[Laptop], act: Callable[[Laptop], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(crowd)) as pool:
        return list(pool.map(act, crowd))
