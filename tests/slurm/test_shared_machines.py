"""The machines that files of tests share: what one leaves behind is no other's trouble."""

import subprocess

import pytest

from shared_machines import SharedMachines


@pytest.mark.thorough
def test_what_a_file_leaves_is_removed_and_after_what_it_changes_they_are_others():
    shared = SharedMachines()
    try:
        with shared.used() as machines:
            left = machines.start("c1", ["sleep", "1000"], "alice", stdin=subprocess.DEVNULL)
            machines.put("alice", "left.txt", "left")
            machines.run("c2", ["touch", "/tmp/left", "/dev/shm/left"], "bob")
            (machines.root / "laptop-left").mkdir()
            machines.unplug("c1")
            machines.plug("c1")
        with shared.used() as again:
            assert again is machines
            assert left.wait(10) != 0 and again.processes("c1", "alice") == []
            assert [each.name for each in again.home("alice").iterdir()] == [".ssh"]
            assert again.run("c2", ["ls", "/tmp", "/dev/shm"]).split() == ["/dev/shm:", "/tmp:"]
            assert not (again.root / "laptop-left").exists()
            assert (
                again.run(
                    "laptop", ["ssh", "-F", again.root / "client/ssh_config", "login", "id", "-un"]
                ).strip()
                == "alice"
            )
            assert again.run("login", ["srun", "-n1", "hostname"], "alice").strip() == "c1"
            again.run("ctl", ["scontrol", "update", "PartitionName=gpu", "State=DOWN"])
        with shared.used() as others:
            assert others is not machines and not machines.root.exists()
            others.unplug("c2")
        with shared.used() as last:
            assert last is not others
    finally:
        shared.close()
