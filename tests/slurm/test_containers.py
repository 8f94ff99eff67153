"""Ranks in a container, on two nodes of a real Slurm job; everything else runs outside."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from job_python import JobPython
from machines import CHECKOUT, Machines
from rankroom.scheduler import jobs, step_launcher
from rankroom.scheduler.site import Container, Site

pytestmark = pytest.mark.skipif(not shutil.which("ch-run"), reason="needs charliecloud")
# Makes a folder for use as an image: a root in which the machine's own folders are mounted.
MAKE = """
mkdir -p "$1" && cd "$1"
mkdir -p usr etc proc sys dev tmp home run var opt mnt root
for each in lib lib64 bin sbin; do ln -sfn usr/$each $each; done
touch etc/passwd etc/group etc/hosts etc/resolv.conf in-the-container
cp /etc/nsswitch.conf etc
shift
for each; do mkdir -p ".$each"; done
"""


@pytest.fixture(scope="module")
def site(machines: Machines) -> Site:
    """A site with an image in alice's home that has the Python of these tests."""
    image = "/home/alice/image"
    tops = {f"/{Path(each).parts[1]}" for each in (CHECKOUT, sys.prefix, sys.base_prefix)}
    shown = sorted({"/usr", "/home", *tops})
    machines.run("c1", ["sh", "-ec", MAKE, "sh", image, *shown], "alice")
    binds = tuple(f"--bind={each}:{each}" for each in shown)
    return Site("x", container=Container("charliecloud", image, binds, sys.executable))


def test_ranks_of_two_nodes_are_in_the_container(machines: Machines, site: Site):
    words = shlex.join(jobs.contained(site, [site.container.python]))
    assert any(words in line.replace("'", "") for line in jobs.body(site, []))
    options = ("--nodes=2", "--ntasks-per-node=1")
    with JobPython(machines, "alice", *options) as job:
        job.do(
            "import os\nfrom cells import values\nfrom rankroom.cluster.local import Cluster\n"
            f"os.environ[{step_launcher.PYTHON_VARIABLE!r}] = {words!r}\ncluster = Cluster.local()"
        )
        seen = "(rank, __import__('os').path.exists('/in-the-container'))"
        assert job.do(f"values(cluster, {seen!r})") == [[0, True], [1, True]]
        assert job.do("os.path.exists('/in-the-container')") is False
        # The notebook's working directory, as without a container.
        assert job.do("values(cluster, '__import__(\"os\").getcwd()')") == ["/home/alice"] * 2
        job.do("cluster.restart([1])")
        assert job.do(f"values(cluster, {seen!r})") == [[0, True], [1, True]]
        job.do("cluster.stop()")
        job.until_gone(60)
