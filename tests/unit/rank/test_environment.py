"""A rank's environment variables, for all frameworks at once."""

import json
import socket

import pytest

from rankroom.rank.environment import (
    EPHEMERAL_PORT_RANGE_FILE,
    Position,
    Wiring,
    free_ports,
    rank_environment,
)
from rankroom.rank.world import World

WIRING = Wiring("10.0.0.7", "eth0", "node7", 4000, (4001, 4002, 4003))
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def environment(rank=1, size=3, devices=0, cores=8, **own):
    return rank_environment(rank, size, WIRING, devices, cores, own)


def test_every_framework_finds_its_rank():
    env = environment()
    assert [env[name] for name in ("HOROVOD_RANK", "RANK", "LOCAL_RANK")] == ["1"] * 3
    assert [env[name] for name in ("HOROVOD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["3"] * 3
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.7", "4000")
    # From these, libraries conclude that a launcher has started all ranks.
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert env["TORCHELASTIC_RUN_ID"] and env["NODE_RANK"] == "0"
    assert (env["HOROVOD_GLOO_IFACE"], env["GLOO_SOCKET_IFNAME"]) == ("eth0", "eth0")
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.7:4001", "10.0.0.7:4002", "10.0.0.7:4003"]},
        "task": {"type": "worker", "index": 1},
    }


def test_the_users_horovod_timeline_and_stall_settings_are_kept():
    for own, given in (({}, "DYNAMIC"), ({"HOROVOD_TIMELINE": "/a.json"}, "/a.json")):
        assert environment(**own)["HOROVOD_TIMELINE"] == given
    assert environment(HOROVOD_TIMELINE="")["HOROVOD_TIMELINE"] == "DYNAMIC"
    # The view under the cell reports stalls, unless the user configures Horovod's stall check.
    assert environment()["HOROVOD_STALL_CHECK_DISABLE"] == "1"
    for name in ("SHUTDOWN_TIME_SECONDS", "CHECK_TIME_SECONDS", "CHECK_DISABLE"):
        own = {f"HOROVOD_STALL_{name}": "60"}
        assert "HOROVOD_STALL_CHECK_DISABLE" not in environment(**own)


def test_accelerate_is_told_that_there_is_no_gpu():
    assert environment()["ACCELERATE_USE_CPU"] == "true"
    assert "ACCELERATE_USE_CPU" not in environment(devices=3)
    assert "ACCELERATE_USE_CPU" not in environment(ACCELERATE_USE_CPU="no")


@pytest.mark.parametrize(("cores", "size", "share"), [(8, 3, "2"), (8, 2, "4"), (1, 4, "1")])
def test_cores_are_shared_out(cores, size, share):
    env = environment(rank=0, size=size, cores=cores)
    assert [env[name] for name in THREADS] == [share] * 4


def test_the_users_own_thread_count_is_left_alone():
    assert not set(THREADS) & set(environment(OMP_NUM_THREADS="7"))
    env = environment(TF_NUM_INTRAOP_THREADS="6")
    assert "TF_NUM_INTRAOP_THREADS" not in env and env["TF_NUM_INTEROP_THREADS"] == "2"


@pytest.mark.parametrize(
    ("rank", "devices", "device"),
    [(0, 2, "cuda:0"), (1, 2, "cuda:1"), (2, 2, "cuda:0"), (1, 0, "cpu")],
)
def test_each_rank_has_its_device(rank, devices, device):
    env = environment(rank=rank, devices=devices)
    world = World.from_environment(env)
    assert (world.device, world.rank, world.size, world.local_rank) == (device, rank, 3, rank)


@pytest.mark.parametrize(("devices", "is_shared"), [(0, False), (2, True), (3, False), (8, False)])
def test_nccl_treats_ranks_that_share_a_gpu_as_different_hosts(devices, is_shared):
    hosts = [environment(rank=rank, devices=devices).get("NCCL_HOSTID") for rank in range(3)]
    assert hosts == (["node7-0", "node7-1", "node7-2"] if is_shared else [None] * 3)
    assert "NCCL_HOSTID" not in environment(devices=devices, NCCL_HOSTID="mine")


def test_nccl_treats_mig_instances_as_different_hosts():
    mine = {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2,MIG-3"}
    hosts = [environment(rank=rank, devices=3, **mine)["NCCL_HOSTID"] for rank in range(3)]
    assert hosts == ["node7-0", "node7-1", "node7-2"]


def test_on_a_single_node_nccl_is_confined_to_one_interface():
    assert environment(devices=3)["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "NCCL_SOCKET_IFNAME" not in environment(devices=3, NCCL_SOCKET_IFNAME="ib0")
    # Between nodes, NCCL may use several interfaces, and selects the fast ones itself.
    between = rank_environment(0, 3, WIRING, 2, 8, {}, Position(0, 2, 0, 2))
    assert "NCCL_SOCKET_IFNAME" not in between


def test_ports_are_free_and_all_different():
    assert len(set(free_ports(6))) == 6
    given = range(*map(int, EPHEMERAL_PORT_RANGE_FILE.read_text().split()))
    for port in free_ports(3):
        assert port not in given  # the system might give it to another program first
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_free_ports_may_be_ephemeral_if_the_range_covers_all_ports(monkeypatch, tmp_path):
    monkeypatch.setattr("rankroom.rank.environment.EPHEMERAL_PORT_RANGE_FILE", tmp_path / "range")
    (tmp_path / "range").write_text("1024\t60999\n")
    assert len(set(free_ports(3))) == 3
    with pytest.raises(OSError, match="assign"):
        free_ports(1, "192.0.2.1")  # not an address of this machine
