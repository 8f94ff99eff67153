"""The note on a killed rank's memory: its limit, and whether the kernel killed it."""

import subprocess
import sys
import time

import psutil
import pytest

from rankroom.agent.memory import Memory, kills, limit, size
from rankroom.system.control_groups import groups

V2 = {
    "proc/self/cgroup": "0::/user/app\n",
    "sys/fs/cgroup/user/app/memory.max": "max\n",
    "sys/fs/cgroup/user/app/memory.events": "oom 1\noom_kill 0\n",
    "sys/fs/cgroup/user/memory.max": f"{3 << 20}\n",
    "sys/fs/cgroup/user/memory.events": "oom_kill 5\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/box\n0::/\n",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 << 20}\n",
    "sys/fs/cgroup/memory/box/memory.oom_control": "under_oom 0\noom_kill 0\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}
# In a container, /proc/self/cgroup has the host's path, which does not exist there.
CONTAINER = {
    "proc/self/cgroup": "4:memory:/docker/1234\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 << 20}\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 0\n",
}


def machine(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"), [(V2, 3 << 20), (V1, 2 << 20), (CONTAINER, 2 << 20)]
)
def test_the_lowest_memory_limit_of_the_control_groups_applies(tmp_path, files, expected):
    assert limit(groups("memory", machine(tmp_path, files))) == expected


def test_without_control_group_limits_the_limit_is_the_machines_memory(tmp_path):
    assert limit(groups("memory", tmp_path)) == psutil.virtual_memory().total
    assert kills(groups("memory", tmp_path)) == 0


def sampled(root, last):
    memory = Memory(root)
    memory._last = dict(last)
    memory._together = sum(last.values())
    return memory


def test_a_rank_ran_out_of_memory_if_the_oom_kill_count_rose(tmp_path):
    memory = sampled(machine(tmp_path, V2), {0: 1 << 20, 1: 1 << 20})
    assert memory.words(0) == "it last used 1 MiB of memory, the limit is 3 MiB"
    events = tmp_path / "sys/fs/cgroup/user/app/memory.events"
    events.write_text("oom 2\noom_kill 1\n")
    assert memory.words(1) == "it last used 1 MiB of memory, the limit is 3 MiB: out of memory"
    assert memory.words(1) == ""


def test_ranks_that_were_near_the_limit_together_may_be_out_of_memory(tmp_path):
    memory = sampled(machine(tmp_path, V1), {0: 800 << 10, 1: 800 << 10})
    assert memory.words(1).endswith("the limit is 2 MiB (out of memory?)")
    assert memory.words(0).endswith("the limit is 2 MiB (out of memory?)"), "in the same look"
    memory = sampled(tmp_path, {0: 800 << 10, 1: 800 << 10})
    memory.words(1)
    memory.sample({})
    assert memory.words(0).endswith("the limit is 2 MiB"), "the other was gone already"


def test_an_oom_kill_is_attributed_to_all_ranks_that_end_soon_after(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("rankroom.agent.memory.time.monotonic", lambda: now)
    events = tmp_path / "sys/fs/cgroup/user/app/memory.events"
    memory = sampled(machine(tmp_path, V2), dict.fromkeys(range(3), 1 << 18))
    events.write_text("oom_kill 2\n")
    assert memory.words(0).endswith(": out of memory")
    assert memory.words(1).endswith(": out of memory")
    now += 3600
    assert memory.words(2).endswith("the limit is 3 MiB")


def test_an_oom_kill_is_not_attributed_to_a_rank_that_ends_much_later(tmp_path, monkeypatch):
    """Such as a data loader's worker: the kernel did not kill a rank that ends much later."""
    now = 1000.0
    monkeypatch.setattr("rankroom.agent.memory.time.monotonic", lambda: now)
    memory = sampled(machine(tmp_path, V2), {0: 1 << 18})
    (tmp_path / "sys/fs/cgroup/user/app/memory.events").write_text("oom_kill 1\n")
    memory.sample({})
    now += 3600
    assert memory.words(0).endswith("the limit is 3 MiB")


def test_the_last_memory_of_a_killed_rank_is_that_of_its_live_process():
    memory = Memory()
    # A new process has almost no memory yet, so wait for its first line.
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        rank.stdout.readline()
        memory.sample({0: rank.pid})
        rank.kill()
        while psutil.Process(rank.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        memory.sample({0: rank.pid})
        assert "it last used 0 " not in memory.words(0)


def test_sizes_are_written_in_mib_and_gib():
    assert [size(n) for n in (400 << 20, (1 << 30) - 1, 33 << 28)] == [
        "400 MiB",
        "1024 MiB",
        "8.2 GiB",
    ]
