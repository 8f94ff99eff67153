"""A node agent without real ranks: what it measures and reports, and when it ends or restarts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.agent import forking, memory, node_agent
from rankroom.agent.node_agent import NodeAgent
from rankroom.agent.node_ranks import NodeRanks
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node
from rankroom.system import process_tree

BUSY = "print(flush=True)\nwhile True: pass"
ASLEEP = "import time; print(flush=True); time.sleep(1000)"


class Told:
    """Stands in for the connection to the supervisor, and keeps what is sent to it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def tell(self, **words: Any) -> None:
        self.lines.append(words)


def node_ranks(size: int = 2, devices: int = 0) -> NodeRanks:
    return NodeRanks(
        ClusterInfo("one", size, rpc="ipc:///nowhere"), ClusterPaths("one"), 0, devices
    )


def agent_of(pids: list[int], devices: int = 0) -> tuple[NodeAgent, Told]:
    told = Told()
    agent = NodeAgent(told, node_ranks(len(pids), devices), "mark", True)  # type: ignore[arg-type]
    agent.children = {pid: (rank, 1) for rank, pid in enumerate(pids)}
    return agent, told


@pytest.fixture
def processes():
    """Two processes: one computes, one sleeps."""
    made = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for code in (BUSY, ASLEEP)
    ]
    # A new process has almost no memory, and uses CPU time to start: wait for its first line.
    for process in made:
        process.stdout.readline()
    yield [process.pid for process in made]
    for process in made:
        process.kill()
        process.communicate()


def test_a_load_report_has_cpu_and_memory_of_each_rank(home: Path, processes: list[int]):
    agent, told = agent_of(processes)
    deadline = time.monotonic() + 60
    while True:
        agent.look()
        time.sleep(agent._pause() or 0.0)
        agent.do_due()
        busy, asleep = (told.lines[-1]["loads"][rank] for rank in (0, 1))
        # On a busy machine, neither may get to run during one measurement.
        if busy["cpu"] > asleep["cpu"]:
            break
        assert time.monotonic() < deadline, (busy, asleep)
    for each in (busy, asleep):
        assert each["memory"] > 1 << 20
        assert (each["gpu"], each["gpu_memory"]) == (None, None)


def test_only_the_first_load_report_waits_for_a_measurement(home: Path, processes: list[int]):
    agent, _ = agent_of(processes)
    agent.look()
    assert (agent._pause() or 0.0) > node_agent.FIRST_S / 2
    agent.tell_load()
    agent.look()
    assert agent._pause() == 0.0


def test_a_silent_supervisor_is_not_gone_until_its_lease_is_over(monkeypatch):
    """Time during which the job or the machine was suspended does not count as silence."""
    now = 1000.0
    monkeypatch.setattr(node_agent.time, "monotonic", lambda: now)
    agent, _ = agent_of([])
    agent.ranks._info.lease = 2.0

    def abandoned_after(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return agent.is_abandoned()

    def turns(seconds: float) -> list[bool]:
        return [
            abandoned_after(node_agent.HEARTBEAT_PERIOD_S)
            for _ in range(int(seconds / node_agent.HEARTBEAT_PERIOD_S))
        ]

    monkeypatch.setattr(agent.ranks, "are_over", lambda: False)
    assert not abandoned_after(8 * 3600), "it stood still itself"
    assert not any(turns(2 * 3600)), "it may be cut off"
    # The lease of 2 h, for which a cluster may stay unused, is over now.
    assert True in turns(2 * node_agent.SILENCE_TIMEOUT_S)
    agent._heard = now
    monkeypatch.setattr(agent.ranks, "are_over", lambda: True)
    found = turns(2 * node_agent.SILENCE_TIMEOUT_S)
    assert found.index(True) * node_agent.HEARTBEAT_PERIOD_S == node_agent.SILENCE_TIMEOUT_S


def test_a_cluster_is_over_if_its_file_says_so_not_if_the_file_is_missing(home: Path):
    paths, info = ClusterPaths("one"), ClusterInfo("one", 1, "running", rpc_key="k")
    paths.make(1)
    paths.write(info)
    ranks = NodeRanks(info, paths, 0, 0)
    assert not ranks.are_over()
    paths.info.unlink()  # as if the file system did not show it
    assert not ranks.are_over()
    for state, key, is_over in (
        ("failed", "k", True),
        ("ending", "k", False),
        ("running", "l", True),
    ):
        paths.write(ClusterInfo("one", 1, state, rpc_key=key))  # type: ignore[arg-type]
        assert ranks.are_over() is is_over
    paths.write(info)
    paths.remove()
    assert ranks.are_over()


def test_a_load_report_has_the_utilization_and_memory_of_a_ranks_gpu(home: Path, monkeypatch):
    asked = []

    def handle(number: int) -> int:
        asked.append(number)
        return number

    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=70 + handle),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5 << 30),
        NVMLError=OSError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    agent, told = agent_of([-1, os.getpid()], devices=2)
    del agent.children[-1]
    agent.look()
    agent.tell_load()
    [load] = told.lines[-1]["loads"].values()
    assert (load["gpu"], load["gpu_memory"]) == (75, 5 << 30)
    assert asked == [5]


def test_ranks_of_one_machine_meet_on_loopback(home: Path):
    ranks = node_ranks(size=3, devices=2)
    assert ranks.place["at"] == "127.0.0.1" and len(set(ranks.place["ports"])) == 4
    ranks.wire(["127.0.0.1"] * 3, [4001, 4002, 4003], 4000, [["10.0.0.1"]])
    env = ranks.environment(2, 5)
    assert (env["RANK"], env["LOCAL_RANK"], env["RANKROOM_DEVICE"]) == ("2", "2", "cuda:0")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "4000")
    assert env[process_tree.START_MARK] == "5" and env["RANKROOM_PEERS"] == ""
    assert "SLURM_PROCID" not in env


def test_ranks_on_two_nodes_get_master_peers_and_slurm_step_variables(home: Path):
    nodes = (Node("c1", 1, 0, 4), Node("c2", 2, 2, 4))
    info = ClusterInfo("two", 3, rpc="tcp://127.0.0.1:4000", allocation=Allocation("7", nodes))
    ranks = NodeRanks(info, ClusterPaths("two"), 1, 0)
    assert list(ranks.ranks) == [1, 2] and len(ranks.place["ports"]) == 3
    of_nodes = [["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"]]
    ranks.wire(["10.0.0.1", "10.0.0.2", "10.0.0.2"], [1, 2, 3], 4, of_nodes)
    env = ranks.environment(2, 1)
    assert (env["RANK"], env["LOCAL_RANK"], env["HOROVOD_CROSS_RANK"]) == ("2", "1", "0")
    assert (env["SLURM_PROCID"], env["SLURM_LOCALID"]) == ("2", "1")
    # As in a single job step for all ranks: TensorFlow's SlurmClusterResolver reads these.
    step = {name.removeprefix("SLURM_STEP_"): value for name, value in env.items()}
    assert (step["NODELIST"], step["TASKS_PER_NODE"], step["NUM_TASKS"]) == ("c1,c2", "1,2", "3")
    assert (env["SLURM_NTASKS"], env["SLURM_NODEID"]) == ("3", "1")
    assert env["MASTER_ADDR"] == "10.0.0.1"
    # NCCL may connect from any address of another node, but from only one of this node.
    assert env["RANKROOM_PEERS"] == "10.0.0.1,10.0.0.2,10.1.0.1"


class BeginsAgain(BaseException):
    """Raised where the agent would execute itself again."""


@pytest.fixture
def begun_again(monkeypatch: pytest.MonkeyPatch, home: Path):
    """Return a function that imports modules, one of which starts a thread; it returns what the
    supervisor was told, and the command and environment with which the agent restarts itself."""

    def execve(path: str, argv: list[str], env: dict[str, str]) -> None:
        raise BeginsAgain(argv, env)

    def begin(modules: list[str], unsafe: str, fail: set[str]) -> tuple[Told, list[str], Any]:
        done: list[str] = []

        def imports(name: str) -> str:
            done.append(name)
            return "ZeroDivisionError: division by zero" if name in fail else ""

        monkeypatch.setattr(forking, "imports", imports)
        monkeypatch.setattr(forking, "why_unsafe", lambda: "it runs" if unsafe in done else "")
        monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "agent", *modules])
        told = Told()
        told.hand_back = lambda: None  # type: ignore[attr-defined]
        with pytest.raises(BeginsAgain) as again:
            node_agent.import_all(told, node_ranks(), modules)  # type: ignore[arg-type]
        argv, env = again.value.args
        return told, argv[1:], env

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(forking, "prepare", lambda: None)
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "execv", lambda path, argv: execve(path, argv, dict(os.environ)))
    return begin


def test_an_agent_restarts_itself_without_the_first_ranks_environment(begun_again: Any):
    """Otherwise it would be ended with that rank, and with it all other ranks."""
    own = dict(os.environ)
    told, argv, env = begun_again(["one", "threaded", "two"], "threaded", set())
    assert argv == ["-m", "agent", "one", "two"] and env == own
    assert process_tree.SPOOL_MARK in os.environ, "what it imported found the first rank's"
    assert [each["note"] for each in told.lines if "note" in each] == [
        "threaded is not preloaded, as a process that has imported it cannot be forked safely: "
        "it runs"
    ]


def test_modules_that_failed_to_import_are_left_out_after_a_restart(begun_again: Any):
    told, argv, _ = begun_again(["broken", "bad", "two"], "bad", {"broken", "bad"})
    assert argv == ["-m", "agent", "two"], "what has failed fails again, and would be told again"
    assert [each["note"] for each in told.lines if "note" in each] == [
        "broken could not be preloaded: ZeroDivisionError: division by zero",
        "bad could not be preloaded: ZeroDivisionError: division by zero",
    ]


def test_ranks_that_do_not_fit_in_the_nodes_free_memory_are_refused(tmp_path: Path):
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (group / "memory.max").write_text(f"{1 << 30}\n")
    (group / "memory.current").write_text(f"{900 << 20}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {100 << 20}\n")
    found = memory.Memory(tmp_path)
    assert found.refuses(9) == ""  # 224 MiB are free
    (group / "memory.current").write_text(f"{1 << 30}\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 0\n")
    assert found.refuses(1).startswith("1 rank does not fit on ")
    (group / "memory.current").write_text(f"{900 << 20}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {100 << 20}\n")
    refused = found.refuses(64)
    assert "\n" not in refused
    assert refused.startswith("64 ranks do not fit on ")
    assert refused.endswith(
        "each needs 24 MiB of memory before it does anything, and 224 MiB are free"
    )
