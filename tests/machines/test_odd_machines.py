"""Unusual homes and machines: ranks start, train and end there, or one line says why not."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from odd_machine import Machine

pytestmark = pytest.mark.cluster

TRAINS = """
import json, rankroom
cluster = rankroom.Cluster.attach()
run = cluster.run('''
import horovod.torch as hvd
import torch
hvd.init()
hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum).item()
''')
run.wait(120)
print(json.dumps([run.state, run.results, str(run.info.failure), run.info.notes]))
"""
# More than 200 characters; LD_PRELOAD and ssh would split the path at its spaces.
LONG = "Eigene Dateien/Ünïcödé/" + "x" * 90 + "/" + "y z" * 40
HOMELESS = (
    "grep -v ^root: /etc/passwd > $FOLDER/passwd; mount --bind $FOLDER/passwd /etc/passwd; "
    "echo passwd: files > $FOLDER/nss; mount --bind $FOLDER/nss /etc/nsswitch.conf; "
)
FULL = "mount -t tmpfs -o size=64k none /mnt; head -c 65536 /dev/zero > /mnt/filler; "
NOEXEC = "mount -t tmpfs -o noexec none /mnt; "
ONLY_V6 = (
    "ip link set lo up; ip link add here type veth peer name wire; ip link set wire up; "
    "ip -6 addr add fd00::2/64 dev here; ip link set here up; "
)


@dataclass
class Oddity:
    """How a machine differs: its home, setup script, shell prefix, environment and options."""

    home: str = "home"
    setup: str = ""
    first: str = ""
    about: dict[str, str] = field(default_factory=dict)
    how: dict[str, bool] = field(default_factory=dict)


ODDITIES = {
    "long-home": Oddity(home=LONG),
    "no-passwd": Oddity(setup=HOMELESS),
    "full-tmp": Oddity(setup=FULL, about={"TMPDIR": "/mnt"}),
    "noexec-tmp": Oddity(setup=NOEXEC, about={"TMPDIR": "/mnt"}),
    "umask-000": Oddity(first="umask 000; "),
    "umask-077": Oddity(first="umask 077; "),
    "256-files": Oddity(first="ulimit -n 256; "),
    "no-reaper": Oddity(how={"reaps": False}),
    "only-IPv6": Oddity(setup=ONLY_V6, how={"network": True}),
    # None of these machines' names resolves.
    "all": Oddity(
        LONG, HOMELESS + FULL + ONLY_V6, "umask 000; ulimit -n 256; ", {"TMPDIR": "/mnt"},
        {"reaps": False, "network": True},
    ),
}  # fmt: skip


@contextlib.contextmanager
def machine(odd: Oddity, folder: Path) -> Iterator[Machine]:
    """A machine with this oddity, on which only RANKROOM_HOME is set, and HOME is not."""
    about = odd.about | {"RANKROOM_HOME": str(folder / odd.home / "rankroom")}
    setup = f"FOLDER={folder}; {odd.setup}"
    made = Machine(
        "odd-one", folder, setup=setup, environment=about, first=odd.first, **odd.how
    )  # fmt: skip
    made.environment.pop("HOME", None)
    try:
        yield made
    finally:
        made.crash()


@pytest.mark.parametrize(
    "name",
    [
        name if name == "all" else pytest.param(name, marks=pytest.mark.thorough)
        for name in ODDITIES
    ],
)
def test_ranks_start_train_and_end_on_unusual_machines(tmp_path: Path, name: str):
    odd = ODDITIES[name]
    home = tmp_path / odd.home / "rankroom"
    home.parent.mkdir(parents=True)
    with machine(odd, tmp_path) as there:
        there.rankroom("cluster", "start", "--ranks", "2")
        # No note says that the ports are unguarded: the port guard was loaded from each home.
        assert there.do(TRAINS) == ["done", {"0": "2.0", "1": "2.0"}, "None", []]
        assert home.stat().st_mode & 0o777 == 0o700
        [stopped] = there.each("cluster stop")
        assert stopped[0] == 0, stopped
        assert there.processes("rankroom") == []
        assert list((home / "clusters").iterdir()) == []


def test_folders_above_a_home_are_not_open_to_others(tmp_path: Path):
    with machine(Oddity(first="umask 000; "), tmp_path) as there:
        there.environment |= {"RANKROOM_HOME": str(tmp_path / "a" / "b" / "home")}
        there.refused("cluster", "start", "--ranks", "9999")
        there.do("import json; from rankroom import config; "
                 "config.make_private(config.home() / 'x'); print(json.dumps(0))")  # fmt: skip
    for each in ("a", "a/b", "a/b/home", "a/b/home/x"):
        assert (tmp_path / each).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        pytest.param(
            Oddity(setup="mount -t tmpfs none $FOLDER/home; mount -o remount,ro $FOLDER/home"),
            "Read-only file system; set RANKROOM_HOME to a folder that you may write to",
            id="read-only-home",
        ),
        pytest.param(
            Oddity(how={"network": True}),
            "this machine cannot connect to itself at 127.0.0.1",
            id="no-loopback",
        ),
    ],
)
def test_one_line_says_why_a_cluster_cannot_start(tmp_path: Path, odd: Oddity, says: str):
    (tmp_path / "home").mkdir()
    with machine(odd, tmp_path) as there:
        said = there.refused("cluster", "start", "--ranks", "1")
        assert says in said and len(said.splitlines()) == 1, said
        assert there.processes("rankroom") == []
        assert there.rankroom("cluster", "list").startswith("no clusters")


def test_a_user_without_a_home_folder_is_told_so(tmp_path: Path):
    with machine(Oddity(setup=HOMELESS), tmp_path) as there:
        del there.environment["RANKROOM_HOME"]
        for words in (["cluster", "start"], ["runs", "list"], ["doctor"]):
            said = there.refused(*words)
            assert said.startswith("Error: HOME is not set, and the system knows no home"), said


SHARED = """
import json, rankroom
cluster = rankroom.Cluster.attach()
loads = cluster.run('''
import torch
class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return torch.zeros(24 << 20)
list(torch.utils.data.DataLoader(Large(), num_workers=1, batch_size=1))
''')
loads.wait(120)
writes = cluster.run('''
import mmap, os
file = os.open("/dev/shm/large", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 100 << 20)
mmap.mmap(file, 100 << 20)[:] = bytes(100 << 20)
''')
writes.wait(120)
print(json.dumps([loads.state, loads.info.notes, writes.state, str(writes.info.failure)]))
"""


def test_shared_memory_that_is_too_small_is_named(tmp_path: Path):
    odd = Oddity(setup="mount -t tmpfs -o size=64m none /dev/shm")
    with machine(odd, tmp_path) as there:
        there.rankroom("cluster", "start", "--ranks", "1")
        loads, notes, writes, failure = there.do(SHARED)
    assert (loads, writes) == ("failed", "failed")
    assert notes[0].startswith("rank 0: /dev/shm has 64 MiB, "), notes
    assert "SIGBUS" in failure and "/dev/shm has 64 MiB, " in failure


@pytest.fixture
def half_a_core(tmp_path: Path) -> Iterator[Path]:
    """A control group with a quota of half a core, of cgroup version 1 or 2."""
    for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = root / f"rankroom-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            break
    else:
        pytest.skip("no control group can be made here")
    try:
        limits = {"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000"}
        written = [(group / name).write_text(text) for name, text in limits.items()
                   if (group / name).exists()]  # fmt: skip
        if not written:
            pytest.skip("control groups here give no shares of a core's time")
        yield group
    finally:
        group.rmdir()


def test_the_number_of_cores_follows_the_quota_of_the_control_group(half_a_core: Path):
    code = (
        "import json, sys; open(sys.argv[1], 'w').write('0'); "
        "from rankroom.system import control_groups; print(json.dumps(control_groups.cores()))"
    )
    argv = [sys.executable, "-c", code, str(half_a_core / "cgroup.procs")]
    assert json.loads(subprocess.check_output(argv)) == 1
