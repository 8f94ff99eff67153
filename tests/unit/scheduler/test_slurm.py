"""Slurm and PBS: the text of job scripts, and parsing of recorded output of several versions."""

import json
import signal
import subprocess
import sys

import pytest

from rankroom.errors import SchedulerError, StartError
from rankroom.scheduler import jobs, pbs, site, slurm
from rankroom.scheduler.scheduler_client import answered, submitted

PERLMUTTER = site.load("perlmutter").asking(nodes=2, account="m1234_g")

SLURM_SCRIPT = """\
#!/bin/bash -l
#SBATCH --job-name=rankroom-one
#SBATCH --output=/scratch/e/elvis/rankroom/%x-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --account=m1234_g
#SBATCH --qos=interactive
#SBATCH --constraint=gpu
#SBATCH --signal=B:USR1@120
#SBATCH --no-kill
#SBATCH --no-requeue

trap '' USR1

set -e
module load cudnn/8.7.0 nccl/2.15.5-ofi evp-patch
export SLURM_CPU_BIND="cores"
eval "$(conda shell.bash hook)"
conda activate "horovod"
export GLOO_SOCKET_IFNAME=hsn0 NCCL_SOCKET_IFNAME=hsn0
export HOROVOD_GLOO_IFACE=hsn0

srun python train.py
"""

PBS_SCRIPT = """\
#!/bin/bash -l
#PBS -N rankroom-one
#PBS -l select=2:mpiprocs=4:ngpus=4:system=polaris
#PBS -l walltime=00:30:00
#PBS -j oe
#PBS -r n
#PBS -o /home/elvis/rankroom/
#PBS -A fallwkshp23
#PBS -q debug
#PBS -l filesystems=home:eagle
#PBS -l place=scatter

cd "$PBS_O_WORKDIR"

set -e
module load conda/2023-10-04
conda activate
export GLOO_SOCKET_IFNAME=hsn0 NCCL_SOCKET_IFNAME=hsn0
export HOROVOD_GLOO_IFACE=hsn0

mpiexec python train.py
"""


def test_the_perlmutter_profile_renders_the_expected_slurm_script():
    found = slurm.script(
        PERLMUTTER, "rankroom-one", "/scratch/e/elvis/rankroom", ["srun python train.py"]
    )
    assert found == SLURM_SCRIPT


def test_a_job_of_three_minutes_or_less_requests_no_warning_signal():
    """The signal would arrive at once, and end the shell while it reads the user's profile."""
    for time, warned in (("00:01:00", False), ("00:03:00", False), ("00:03:01", True)):
        text = slurm.script(site.Site("x", job=site.Job(time=time)), "x", "/tmp", [])
        assert ("--signal" in text) == warned


def test_the_polaris_profile_renders_the_expected_pbs_script():
    polaris = site.load("polaris").asking(nodes=2, account="fallwkshp23")
    found = pbs.script(polaris, "rankroom-one", "/home/elvis/rankroom", ["mpiexec python train.py"])
    assert found == PBS_SCRIPT


def test_a_pbs_script_uses_the_reservations_queue_and_scatters_by_default():
    asked = site.Job(nodes=2, partition="gpu", reservation="R12")
    lines = pbs.script(site.Site("x", scheduler="pbs", job=asked), "x", "/tmp", []).splitlines()
    assert "#PBS -q R12" in lines and "#PBS -q gpu" not in lines
    assert "#PBS -l place=scatter" in lines  # two chunks on two nodes
    asked = site.Job(extra=("-l place=pack",))
    assert "scatter" not in pbs.script(site.Site("x", job=asked), "x", "/tmp", [])


@pytest.mark.parametrize("name", sorted(set(site.files()) - {"local"}))
def test_bash_can_read_every_sites_script(name: str):
    found = site.load(name)
    kind = pbs if found.scheduler == "pbs" else slurm
    text = kind.script(found, "x", "/tmp/a b", ["true"])
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_and_paths_are_quoted_in_a_job_script():
    hostile = PERLMUTTER.asking(memory_per_node="4G")
    text = slurm.script(hostile, "a; rm -rf ~", "/tmp/it's here", [])
    assert "#SBATCH --job-name='a; rm -rf ~'" in text
    assert """#SBATCH --output='/tmp/it'"'"'s here/%x-%j.log'""" in text


PODMAN = [
    "podman-hpc", "run", "--rm", "--interactive", "--gpu", "--network=host", "--ipc=host",
    "--env-host",
]  # fmt: skip


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("shifter", ["shifter", "--image=img", "-m", "python"]),
        ("apptainer", ["apptainer", "exec", "--nv", "-m", "img", "python"]),
        (
            "podman-hpc",
            [*PODMAN, "-m", "img", "python"],
        ),
        ("charliecloud", ["ch-run", "-m", "img", "--", "python"]),
    ],
)
def test_each_container_runtime_has_its_command_line(runtime, words):
    contained = site.Site("x", container=site.Container(runtime, "img", ("-m",)))
    assert jobs.contained(contained, ["python"]) == words


def test_a_command_without_a_container_is_unchanged():
    assert jobs.contained(site.Site("x"), ["python"]) == ["python"]


@pytest.mark.parametrize(
    ("said", "job"),
    [
        ("1234\n", "1234"),
        ("1234;cluster2\n", "1234"),
        ("Submitted batch job 5473133\n", "5473133"),
        ("sbatch: warning: something of the site's own\n77\n", "77"),
    ],
)
def test_the_job_id_is_read_from_sbatch_output(said: str, job: str):
    assert submitted(slurm, said) == job


def test_sbatch_output_without_a_job_id_is_an_error():
    said = "sbatch: error: invalid partition specified: gpuu"
    with pytest.raises(StartError, match="no job id; it said:\nsbatch: error: invalid partition"):
        submitted(slurm, said)


ANSWER = """\
101|RUNNING|None|2026-11-20T10:00:00|nid[001140-001141]|2026-11-20T11:00:00|rankroom-x
102|PENDING|Priority|2026-11-20T12:00:00|(null)|2026-11-20T13:00:00|a|b
103|PENDING|PartitionTimeLimit|N/A||N/A|rankroom-lab
104|PENDING|ReqNodeNotAvail, UnavailableNodes:c3|N/A||N/A|x
105|COMPLETING|None|2026-11-20T10:00:00|c1|2026-11-20T10:20:00|x
106|TIMEOUT|TimeLimit|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x
107_3|RUNNING|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x
slurm_load_jobs error: something in between
108|CONFIGURING|None|2026-11-20T10:00:00|c2|N/A|x
"""
NOON = 1795176000  # 2026-11-20 12:00 UTC


def test_squeue_output_is_parsed_and_described():
    found = answered(slurm, ANSWER, ["101", "102", "103", "104", "105", "106", "108", "999"])
    assert {job: status.words for job, status in found.items()} == {
        "101": "runs on nid[001140-001141]",
        "102": "is waiting in the queue (Priority: higher-priority jobs are ahead of it), expected "
        f"to start {jobs.moment(NOON)}",
        "103": "is waiting in the queue (PartitionTimeLimit: it asks for more time than the "
        "partition allows): as submitted, it will never start",
        "104": "is waiting in the queue (ReqNodeNotAvail: nodes that it needs are down or "
        "reserved)",
        "105": "is ending",
        "106": "has ended (timeout)",
        "108": "is waiting in the queue (its nodes are being prepared)",
        "999": "is no longer known to the scheduler",
    }
    assert (found["101"].until, found["101"].name) == (NOON - 3600, "rankroom-x")
    assert (found["102"].expected, found["102"].name) == (NOON, "a|b")
    assert found["103"].never
    assert not found["102"].never
    assert found["105"].state == "ending"
    assert found["108"].until == 0


def test_an_unknown_job_state_is_not_taken_as_ended():
    line = "7|{}|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x"
    states = ("RESIZING", "POWER_UP_NODE", "NODE_FAIL", "OUT_OF_MEMORY")
    found = [slurm.listed(line.format(state))["7"].state for state in states]
    assert found == ["running", "running", "ended", "ended"]
    said = {"timestamp": NOON, "Jobs": {"7.pbs": {"job_state": "F"}, "8.pbs": {}}}
    assert [each.state for each in pbs.listed(json.dumps(said)).values()] == ["ended", "running"]


def test_a_federated_job_revoked_on_this_cluster_is_not_over():
    line = "7|REVOKED|BadConstraints|N/A||N/A|x"
    assert "(another cluster of the federation" in slurm.listed(line)["7"].words
    assert not slurm.listed(line)["7"].never
    assert slurm.found(line, "x") == ["7"]
    assert slurm.ended("JobId=7 JobState=REVOKED", "7") is None


def test_one_command_asks_for_all_jobs():
    words = slurm.ask(["1", "2"])
    assert words[0] == "env" and "TZ=UTC" in words and "SQUEUE_STATES" in words
    assert "squeue" in words
    assert "--me" in words
    assert pbs.ask(["1", "2"])[-2:] == ["1", "2"]


PBS_ANSWER = {
    "timestamp": NOON,
    "Jobs": {
        "11.polaris-pbs-01": {
            "Job_Name": "rankroom-x",
            "job_state": "R",
            "exec_host": "x3006c0s13b0n0/0*64+x3006c0s19b0n0/0*64",
            "Resource_List": {"walltime": "00:30:00"},
            "resources_used": {"walltime": "00:10:30"},
        },
        "12.polaris-pbs-01": {
            "job_state": "Q",
            "comment": "Not Running: Insufficient amount of resource: ncpus",
            "estimated": {"start_time": "Fri Nov 20 12:00:00 2026"},
        },
        "13.polaris-pbs-01": {"job_state": "Q", "comment": "Can Never Run: too many nodes"},
        "14.polaris-pbs-01": {"job_state": "F", "Exit_status": 271},
        "17.polaris-pbs-01": {"job_state": "F", "Exit_status": 0},
        # Some versions print the value of a variable unescaped.
        "16.polaris-pbs-01": {
            "Variable_List": {"BASH_FUNC_ml%%": "() {  eval ...\n}"},
            "job_state": "R",
            "stime": "Fri Nov 20 12:00:00 2026",
            "Resource_List": {"walltime": "01:00:00"},
        },
    },
}


def test_qstat_output_is_parsed_and_described():
    said = json.dumps(PBS_ANSWER, indent=4).replace("\\n", "\n")
    found = answered(pbs, f"Welcome!\n{said}\nqstat: Unknown Job Id 15.polaris-pbs-01\n",
                         ["11", "12", "13", "14", "15", "16", "17"])  # fmt: skip
    assert found["11"].words == "runs on x3006c0s13b0n0,x3006c0s19b0n0"
    assert found["11"].until == NOON + 19 * 60 + 30
    assert found["11"].name == "rankroom-x"
    assert found["12"].expected == NOON
    assert found["13"].never
    # PBS also says this while nodes are down, and these may return.
    assert found["13"].patience == pbs.NEVER_PATIENCE_S
    assert found["13"].words == "is waiting in the queue (Can Never Run: too many nodes)"
    assert found["14"].words == "has ended (exit status 271)"
    assert found["17"].words == "has ended (completed)"
    assert found["15"].state == "gone"
    assert found["16"].until == NOON + 3600


def test_variables_that_qstat_prints_as_invalid_json_are_parsed():
    """OpenPBS before version 22 does not quote what C parses as a number; `qsub` adds escapes."""
    variables = r""""A":005,
                "B":.5,
                "C":"it\'s \"one\"\, or \\two\u00e9",
                "D":0x1F,
                "E":,
                "F":-1.5e3
"""
    said = f"""{{
    "timestamp":{NOON},
    "Jobs":{{
        "11.pbs":{{
            "Variable_List":{{
                {variables}            }},
            "job_state":"F",
            "Exit_status":0
        }}
    }}
}}"""
    found = pbs.details(said, "11")["Variable_List"]
    assert found == {
        "A": "005", "B": ".5", "C": "it's \"one\", or \\twoé", "D": "0x1F", "E": "", "F": -1500.0
    }  # fmt: skip
    assert answered(pbs, said, ["11"])["11"].words == "has ended (completed)"


def test_the_warning_signal_ends_neither_the_job_shell_nor_what_it_execs():
    """Python ignores the signal until it sets a handler; processes that it starts then do not."""
    python = (
        "import signal, subprocess; signal.signal(signal.SIGUSR1, lambda *about: None); "
        "print(subprocess.run(['sh', '-c', 'kill -USR1 \\$\\$; echo not ended']).returncode)"
    )
    lines = ["kill -USR1 $$", "echo begun", f'exec {sys.executable} -c "{python}"']
    for commands, said in (
        (lines, f"begun\n-{signal.SIGUSR1:d}\n"),
        (["exec sh -c 'kill -USR1 $$; echo not ended'"], "not ended\n"),
        (["trap 'echo soon' USR1", "kill -USR1 $$"], "soon\n"),
    ):
        text = slurm.script(site.Site("x"), "x", "/tmp", commands)
        done = subprocess.run(["bash"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, said)


def until(**about: object) -> float:
    job = {"stime": NOON - 7200, "Resource_List": {"walltime": "03:00:00"}, **about}
    said = json.dumps({"timestamp": NOON, "Jobs": {"11.pbs": job}})
    return answered(pbs, said, ["11"])["11"].until


def test_time_suspended_does_not_count_against_the_jobs_time_limit():
    used = {"walltime": "00:30:00"}
    assert until(job_state="R", resources_used=used) == NOON + 9000
    # The used time is reported late, so a small lag does not change the start time.
    assert until(job_state="R", resources_used={"walltime": "01:58:00"}) == NOON + 3600
    assert until(job_state="R") == NOON + 3600
    for state in "SU":
        assert until(job_state=state, resources_used=used) == 0
    line = "7|{}|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x"
    assert slurm.listed(line.format("RUNNING"))["7"].until == NOON - 3600
    suspended = slurm.listed(line.format("SUSPENDED"))["7"]
    assert (suspended.until, suspended.words) == (0, "is suspended on c1")


def test_pbs_nodes_keep_their_order_so_the_scripts_node_is_first():
    job = {"job_state": "R", "exec_host": "node9/0*4+node10/0*4"}
    said = json.dumps({"timestamp": NOON, "Jobs": {"11.pbs": job}})
    assert answered(pbs, said, ["11"])["11"].nodes == "node9,node10"


def test_jobs_unknown_to_qstat_are_gone_but_a_cut_off_answer_is_an_error():
    said = "qstat: Unknown Job Id 15.polaris-pbs-01\n"
    assert pbs.is_partial(said)
    assert answered(pbs, said, ["15"])["15"].state == "gone"
    assert not pbs.is_silent_on(said, "15")
    assert pbs.is_silent_on(said, "5") and pbs.is_silent_on(said, "16")
    with pytest.raises(SchedulerError, match="no JSON"):  # it was cut off behind the first line
        answered(pbs, said + '{\n    "timestamp":1790000000,\n    "Jobs":{', ["15", "16"])


def test_pbs_output_without_an_answer_or_a_job_id_is_an_error():
    with pytest.raises(SchedulerError, match="its output:\nqstat: cannot connect"):
        answered(pbs, "qstat: cannot connect", ["1"])
    assert submitted(pbs, "123456.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov\n") == "123456"
    with pytest.raises(StartError, match="no job id"):
        submitted(pbs, "qsub: Unknown queue")


def test_the_job_id_is_taken_from_the_last_line_that_has_one():
    assert submitted(slurm, "2\nhours left: 7\nSubmitted batch job 1234\n") == "1234"
    assert submitted(slurm, "20261120\n1234;cluster\n") == "1234"
    assert submitted(pbs, "20261120\n1234.pbs-01\n") == "1234"


LIMITS = "gpu*|1-00:00:00|4\ndebug|30:00|2\nlong|infinite|4\nlong|infinite|2\nnone|1:00:00|0\n"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"partition": ""}, ""),
        ({"partition": "", "time": "25:00:00"}, "the partition gpu gives 1-00:00:00 at most"),
        ({"partition": "debug"}, "it asks for 01:00:00, and the partition debug gives 30:00"),
        ({"partition": "debug", "time": "10:00", "nodes": 3}, "asks for 3 nodes, and debug has 2"),
        ({"partition": "long", "time": "9-00", "nodes": 3}, ""),
        ({"partition": "debug,long"}, ""),
        ({"partition": "none"}, "it asks for 1 node, and none has 0"),
        ({"partition": "of another kind"}, ""),
    ],
)
def test_a_request_beyond_all_partition_limits_is_explained(asked, words: str):
    plain = site.Site("x", job=site.Job(**asked))
    found = slurm.too_much(plain, LIMITS)
    assert words in found
    assert bool(found) == bool(words)


# Reasons why jobs waited, as printed by squeue 20.11 to 24.11: PASSES may be resolved by waiting,
# FOR_EVER never are.
PASSES = [
    "None", "Priority", "Resources", "Dependency", "BeginTime", "JobHeldUser", "Licenses",
    "ReqNodeNotAvail, UnavailableNodes:nid[001140-001141]", "ReqNodeNotAvail, May be reserved for "
    "other job", "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher "
    "priority partitions)", "QOSMaxJobsPerUserLimit", "AssocMaxJobsLimit", "QOSGrpCpuLimit",
    "QOSGrpGRES", "QOSGrpNodeLimit", "AssocGrpGRES", "AssocGrpNodeLimit",
    "AssocGrpCPURunMinutesLimit", "QOSGrpCPURunMinutesLimit", "Cleaning", "Reservation",
    "(launch failed requeued held)", "JobHoldMaxRequeue", "AssocGrpCPUMinutesLimit",
    "AssocGrpBillingMinutes", "QOSGrpGRESMinutes",
]  # fmt: skip
FOR_EVER = {
    "PartitionTimeLimit": "more time than the partition",
    "PartitionNodeLimit": "more nodes than the partition",
    "QOSMaxWallDurationPerJobLimit": "more time than the QoS allows",
    "AssocMaxWallDurationPerJobLimit": "more time than your account allows",
    "QOSMaxNodePerJobLimit": "more nodes than the QoS",
    "QOSMaxCpuPerJobLimit": "more CPUs than the QoS",
    "QOSMaxGRESPerJob": "more GPUs than the QoS",
    "QOSMaxMemoryPerJob": "more memory than the QoS",
    "QOSMaxCpuPerNode": "more CPUs than the QoS",
    "AssocMaxCpuPerJobLimit": "more CPUs than your account",
    "AssocMaxNodePerJobLimit": "more nodes than your account",
    "AssocMaxGRESPerJob": "more GPUs than your account",
    "AssocMaxCpuMinutesPerJobLimit": "more CPUs than your account",
    "QOSMinGRES": "less than the QoS's minimum of GPUs",
    "QOSMinCpuNotSatisfied": "less than the QoS's minimum of CPUs",
    "InvalidQOS": "QoS is not valid",
    "AccountNotAllowed": "may not use this partition",
    "DependencyNeverSatisfied": "a job that has failed",
    "Job's account not known, so it can't use this partition (gpu allows course)": "account not",
}


def waiting(reason: str, *others: str):
    lines = [f"7|PENDING|{reason}|N/A|(null)|N/A|x", *others]
    return answered(slurm, "\n".join(lines), ["7"])["7"]


@pytest.mark.parametrize("reason", PASSES)
def test_a_job_pending_for_a_temporary_reason_may_still_start(reason: str):
    assert not waiting(reason).never
    assert waiting(reason).words.startswith("is waiting in the queue (")


@pytest.mark.parametrize("reason", FOR_EVER)
def test_a_job_pending_for_a_permanent_reason_will_never_start(reason: str):
    status = waiting(reason)
    assert status.never
    assert FOR_EVER[reason] in status.words
    assert status.words.endswith("): as submitted, it will never start")


@pytest.mark.parametrize(
    "reason", ["QOSMaxGRESPerUser", "QOSMaxCpuPerUserLimit", "QOSMaxNodePerUserLimit"]
)
def test_a_per_user_limit_is_permanent_only_without_other_running_jobs(reason: str):
    # The job waits for another job of the user, but if none is running, it can never start.
    running = "8|RUNNING|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x"
    assert waiting(reason).never
    # That is not reported at once: Slurm's reason may be older than the end of the other job.
    assert waiting(reason).patience == slurm.OWN_JOBS_PATIENCE_S
    assert "never start" not in waiting(reason).words
    assert not waiting(reason, running).never
    assert "with your other jobs it asks for more" in waiting(reason, running).words
