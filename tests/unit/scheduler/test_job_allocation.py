"""The allocation, parsed from recorded Slurm output, and the placement of ranks on it."""

import socket
from types import SimpleNamespace

import pytest

from rankroom.errors import StartError, UsageError
from rankroom.rank.environment import Position, Wiring, positions, rank_environment
from rankroom.record.cluster_file import ClusterInfo
from rankroom.scheduler import allocation, job_end, step_launcher
from rankroom.system import network

# Slurm 22.05; OLD has the GPU format of 19.05.
TWO = """JobId=1 JobState=RUNNING EndTime=2026-11-21T18:36:46 NodeList=c[1-2] JOB_GRES=gpu:4 \
  Nodes=c[1-2] CPU_IDs=6-7 Mem=200 GRES=gpu:2(IDX:0-1) MinCPUsNode=2 """
MIXED = """JobState=RUNNING EndTime=Unknown   Nodes=nid[001140-001141,7] CPU_IDs=0-31,64-95 \
Mem=0 GRES=gpu:a100:4(IDX:0-3),craynetwork:1   Nodes=cpu1 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1"""
OLD = "JobState=RUNNING    Nodes=taurusi2080 CPU_IDs=0-11 Mem=62000 GRES_IDX=gpu:k80(IDX:0,2-3)"


def counts(said, ranks=None, tasks=()):
    found = allocation.read(said, "1", ranks, list(tasks))
    return [(node.name, node.ranks, node.devices, node.cores) for node in found.nodes]


def test_one_rank_per_gpu():
    assert counts(TWO, tasks=[1, 1]) == [("c1", 2, 2, 2), ("c2", 2, 2, 2)]
    assert counts(OLD) == [("taurusi2080", 3, 3, 12)]


def test_nodes_that_differ_keep_their_own_ranks_gpus_and_cores():
    assert counts(MIXED, tasks=[2, 2, 2, 1]) == [
        ("nid001140", 2, 4, 64),
        ("nid001141", 2, 4, 64),
        ("nid7", 2, 4, 64),
        ("cpu1", 1, 0, 1),
    ]


@pytest.mark.parametrize(("ranks", "shared"), [(1, [1]), (3, [2, 1]), (8, [4, 4])])
def test_a_given_number_of_ranks_is_distributed_over_the_nodes(ranks, shared):
    assert [count for _, count, _, _ in counts(TWO, ranks)] == shared


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:4(IDX:0-3)", 4),
        ("gpu:4(S:0-1)", 4),
        ("gpu:2080ti:4(IDX:0-3)", 4),
        ("gpu:3090:8(IDX:0-7),shard:3090:16", 8),
        ("gpu:a100:1(IDX:0),gpu:3090:2(IDX:1-2)", 3),
        ("gpu:1g.10gb:2(IDX:0-1)", 2),
        ("gpu:3g.20gb:2", 2),
        ("shard:4", 0),
    ],
)
def test_digits_in_a_gpu_type_are_not_taken_for_the_gpu_count(gres, count):
    said = (
        f"JobState=RUNNING EndTime=Unknown   Nodes=c1 CPU_IDs=0-7 Mem=0 GRES={gres} MinCPUsNode=1"
    )
    assert [devices for _, _, devices, _ in counts(said)] == [count]


def test_scontrol_output_that_is_not_utf8_is_read(tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, r"printf 'JobName=M\374ller JobState=TIMEOUT\n'")
    assert job_end.why_over_now("7") == "the time of job 7 is over"


def test_the_end_of_another_task_of_an_array_is_not_this_jobs(tmp_path, monkeypatch):
    """Asked for the task that has the array's own number, Slurm describes all tasks."""
    tasks = "echo JobId=8 JobState=COMPLETED; echo JobId=7 JobState=RUNNING Reason=None"
    fake(tmp_path, monkeypatch, tasks)
    assert job_end.why_over_now("7") == ""
    assert job_end.why_over_now("8") == "job 8 has ended"


def test_the_end_time_of_the_job_is_parsed():
    assert allocation.read(TWO, "1", None, []).until > 1.7e9
    assert allocation.read(MIXED, "1", None, []).until == 0


def test_zero_ranks_and_an_answer_without_nodes_are_refused():
    with pytest.raises(UsageError, match="at least 1 rank"):
        allocation.read(TWO, "1", 0, [])
    with pytest.raises(StartError, match="cannot read which nodes job 1"):
        allocation.read("JobState=RUNNING", "1", None, [])


def test_slurm_host_lists_and_task_counts_are_expanded():
    assert allocation.expand("c[01-03,7],login,r[1-2]n5") == (
        ["c01", "c02", "c03", "c7", "login", "r1n5", "r2n5"]
    )
    assert allocation.tasks("4(x2),1") == [4, 4, 1]


def fake(tmp_path, monkeypatch, script):
    file = tmp_path / "scontrol"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_starting_in_a_job_that_is_over_is_refused(tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, "echo JobId=7 JobState=TIMEOUT")
    with pytest.raises(StartError, match=r"job 7 \(SLURM_JOB_ID\) is timeout: start a new one"):
        allocation.granted(None, {"SLURM_JOB_ID": "7"})
    fake(tmp_path, monkeypatch, "echo slurm_load_jobs error: Invalid job id; exit 1")
    with pytest.raises(StartError, match="Invalid job id\nIf the job is over"):
        allocation.granted(None, {"SLURM_JOB_ID": "7"})


def test_a_slurm_job_without_slurm_commands_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match="unset SLURM_JOB_ID"):
        allocation.granted(None, {"SLURM_JOB_ID": "7"})


def test_without_a_job_there_is_no_allocation():
    assert allocation.granted(None, {}) is None


def test_an_allocation_is_read_back():
    granted = allocation.read(TWO, "1", None, [])
    import dataclasses
    import json

    info = ClusterInfo("x", 4, allocation=granted)
    assert ClusterInfo.from_json(json.loads(json.dumps(dataclasses.asdict(info)))) == info


def test_positions_are_correct_on_nodes_with_different_rank_counts():
    assert positions([2, 1]) == [
        Position(0, 2, 0, 2, node=0, nodes=2),
        Position(1, 2, 0, 1, node=0, nodes=2),
        Position(0, 1, 1, 2, node=1, nodes=2),
    ]


def test_a_rank_on_a_second_node_gets_that_nodes_environment():
    wiring = Wiring("10.0.0.2", "ib0", "c2", 4000, (1, 2, 3), ("10.0.0.1", "10.0.0.1", "10.0.0.2"))
    env = rank_environment(2, 3, wiring, 2, 8, {}, Position(0, 1, 1, 2, 1, 2))
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert (env["MASTER_ADDR"], env["LOCAL_RANK"], env["RANK"]) == ("10.0.0.1", "0", "2")
    assert (env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("1", "2")
    assert (env["HOROVOD_HOSTNAME"], env["GLOO_SOCKET_IFNAME"]) == ("c2", "ib0")
    assert '"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:3"' in env["TF_CONFIG"]
    assert (env["OMP_NUM_THREADS"], env["RANKROOM_DEVICE"]) == ("8", "cuda:0")


def test_the_network_interface_that_the_user_names_is_preferred():
    found = {"lo": "127.0.0.1", "eth0": "10.0.0.2", "ib0": "10.1.0.2"}
    assert network.choose("10.0.0.2", found, {}) == ("eth0", "10.0.0.2")
    assert network.choose("10.0.0.2", found, {"GLOO_SOCKET_IFNAME": "ib0"}) == ("ib0", "10.1.0.2")
    assert network.choose("10.0.0.2", found, {"GLOO_SOCKET_IFNAME": "ib9"}) == ("eth0", "10.0.0.2")


def test_an_interface_with_several_addresses_is_found_by_each(monkeypatch: pytest.MonkeyPatch):
    """Such as one that also has a floating address, which moves between machines."""
    own = [SimpleNamespace(family=socket.AF_INET, address=f"10.0.0.{each}") for each in (5, 99)]
    lo = [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")]
    monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: {"lo": lo, "eth0": own})
    found = network.interfaces()
    assert found == {"lo": "127.0.0.1", "eth0": "10.0.0.5"}
    for address in ("10.0.0.5", "10.0.0.99"):
        assert network.choose(address, found, {}) == ("eth0", address)
    assert network.outer_addresses() == ["10.0.0.5", "10.0.0.99"]


def test_torch_rpc_uses_the_users_interface_only_between_nodes():
    own = {"TP_SOCKET_IFNAME": "ib0"}
    wiring = Wiring("10.0.0.2", "eth0", "c2", 4000, (1, 2), ("10.0.0.1", "10.0.0.2"))
    assert rank_environment(1, 2, wiring, 0, 8, own)["TP_SOCKET_IFNAME"] == "ib0"
    assert rank_environment(1, 2, wiring, 0, 8, {})["TP_SOCKET_IFNAME"] == "eth0"
    here = Wiring("127.0.0.1", "lo", "localhost", 4000, (1, 2))
    assert rank_environment(1, 2, here, 0, 8, own)["TP_SOCKET_IFNAME"] == "lo"


def test_a_single_node_uses_the_loopback_address():
    assert network.towards([network.here()]) == "127.0.0.1"


def test_a_node_that_cannot_resolve_the_login_node_has_the_address_of_its_own_name(monkeypatch):
    known = {"c2": "10.0.0.7", socket.gethostname(): "10.0.0.5"}

    def resolve(host: str) -> str:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[host]

    monkeypatch.setattr(network, "own_address", resolve)
    assert network.towards(["login.example.org"]) == "10.0.0.5"
    assert network.towards(["c1", "c2", "login.example.org"]) == "10.0.0.7"
    known[socket.gethostname()] = "127.0.1.1"
    with pytest.raises(OSError, match=r"login\.example\.org could reach it \(Name or service"):
        network.towards(["login.example.org"])


@pytest.mark.parametrize(
    ("ranks", "room", "counts"),
    [
        (6, [4, 2], [4, 2]), (3, [4, 4], [2, 1]), (10, [8, 2], [8, 2]), (12, [8, 2], [9, 3]),
        (5, [0, 0], [3, 2]), (1, [2, 2, 2], [1, 0, 0]),
    ],
)  # fmt: skip
def test_ranks_are_placed_where_there_is_room_first(ranks, room, counts):
    assert allocation._spread(ranks, room) == counts


@pytest.mark.parametrize(
    ("name", "value", "by_node"),
    [
        ("SLURM_GPUS_PER_NODE", "4", True),
        ("SLURM_TRES_PER_TASK", "cpu=8", True),
        ("SLURM_GPUS_PER_TASK", "1", False),
        ("SLURM_GPUS", "a100:12", False),
        ("SLURM_TRES_PER_TASK", "cpu=8,gres/gpu=1", False),
    ],
)
def test_srun_requests_gpus_unless_the_job_did_so_per_node(monkeypatch, name, value, by_node):
    monkeypatch.setenv(name, value)
    granted = allocation.read(MIXED, "1", None, [])
    for node, gpus in (("nid7", ["--gres=gpu:4"]), ("cpu1", [])):
        words = step_launcher.command(granted, node, "/", [])
        asked = [word for word in words if word.startswith("--g")]
        assert asked == ([] if by_node else gpus)


def test_srun_exit_codes_are_decoded_and_job_variables_passed_on():
    assert [step_launcher.returncode(code) for code in (0, 3, 137, 143)] == [0, 3, -9, -15]
    kept = step_launcher.environment(
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_CONF": "x", "A": "b"}
    )
    assert kept == {"SLURM_JOB_ID": "1", "SLURM_CONF": "x", "A": "b"}
    one_of_several = {"SLURM_CLUSTERS": "b", "SLURM_WORKING_CLUSTER": "b:host:6817:9472"}
    assert step_launcher.environment(one_of_several) == one_of_several


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in step 1.2",
            "was killed by SIGTERM (out of memory on c2: the job has no more there)",
        ),
        # The failed node need not be the rank's own.
        (
            "srun: error: Node failure on c3\n*** STEP 1.2 ON c2 CANCELLED AT DUE TO NODE FAILURE",
            "was killed by SIGTERM (node c3 has failed)",
        ),
        (
            "slurmstepd: error: *** STEP 1.2 ON c2 CANCELLED AT x DUE TO TIME LIMIT ***",
            "was ended: the time of job 1 is over",
        ),
        (
            "slurmstepd: error: *** STEP 1.2 ON c2 CANCELLED AT 2026-11-22T09:17:15 ***",
            "was ended: job 1 was cancelled",
        ),
        ("srun: error: c2: task 0: Killed", "was killed by SIGTERM"),
    ],
)
def test_slurm_messages_explain_why_processes_ended(tmp_path, said, words):
    (tmp_path / "log").write_text(said)
    assert step_launcher.how_ended("was killed by SIGTERM", tmp_path / "log", "c2", "1") == words
