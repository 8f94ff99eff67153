"""What to do about a scheduler's errors: the words of its messages, and the remedy for each."""

from __future__ import annotations

import re

from rankroom.scheduler.site import Site, profile_of
from rankroom.system.commands import Completed, without_env

_STATUS_DENIED, _STATUS_NOT_FOUND = 126, 127


def remedy(site: Site, done: Completed) -> str:
    """Return a sentence or two about what to do after a command of the scheduler's has failed."""
    values = {
        "command": without_env(done.argv)[0],
        "account": site.job.account or "none",
        "partition": site.job.partition or "none: the default",
        "qos": site.job.qos or "none: the default",
        "constraint": site.job.constraint or "none",
        "time": site.job.time,
        "nodes": site.job.nodes,
        "gpus": site.job.gpus_per_node,
        "profile": profile_of(site.name),
        "site": site.name,
    }
    if done.returncode == _STATUS_DENIED:
        return DENIED.format(**values)
    if done.returncode == _STATUS_NOT_FOUND:
        return NO_COMMAND.format(**values)
    for pattern, sentence in _REMEDIES:
        if re.search(pattern, done.output, re.IGNORECASE):
            return sentence.format(**values)
    return (TIMED_OUT if done.timed_out else OTHER).format(**values)


NO_COMMAND = (
    "There is no `{command}` there, not even in a login shell: check that `login` in {profile} "
    "names the right machine. If a module provides it, load that module in your shell's profile "
    "there"
)
DENIED = (
    "`{command}` is there, but you are not permitted to run it: some sites restrict it to certain "
    "machines. Check that `login` in {profile} names the right one"
)
TIMED_OUT = (
    "The scheduler, or the machine, is overloaded or down. Try again in a while; "
    "`rankroom site check {site}` says which part does not answer"
)
OTHER = "Correct the profile ({profile}), or take the scheduler's words to the site's support"
_DOWN = (
    "The scheduler is down or being restarted; nothing was lost. Try again in some minutes, and "
    "look at the site's status page"
)
_ACCOUNT = (
    "Set `account` in [job] of {profile} (it is: {account}). Slurm lists yours with "
    "`sacctmgr show assoc user=$USER format=account,partition,qos`"
)
_LIMITS = (
    "Such a job can never start: ask for less ({nodes} node(s) for {time}), or for another "
    "`partition` ({partition}) or `qos` ({qos}) in {profile}"
)
# By the messages of Slurm 20.11 to 25.05 and of PBS; the first match counts.
_REMEDIES = [
    (
        r"establish a configuration source|Unable to process configuration",
        "Slurm's commands are installed there, but Slurm is not configured: check that `login` in "
        "{profile} names the right machine",
    ),
    (
        r"Unable to contact slurm controller|connect failure|Connection refused|Zero Bytes were"
        r"|Socket timed out|cannot connect to server|Communication failure|Slurm backup controller",
        _DOWN,
    ),
    (
        r"(Assoc|QOS)GrpSubmitJob",
        "The account ({account}) or QoS ({qos}) has as many jobs in the queue as it may, those of "
        "others included: try again when some have ended",
    ),
    (
        r"AssocMaxSubmitJobLimit|QOSMaxSubmitJob|MaxSubmitJobs|would exceed .*limit",
        "You have as many jobs in the queue as you may: let some end, or cancel one "
        "(`rankroom jobs` lists Rankroom's)",
    ),
    (r"Job violates accounting/QOS policy|time limit is invalid|exceeds.*limit", _LIMITS),
    (r"violates queue and/or server resource limits|exceed.*max", _LIMITS),
    (
        r"Invalid account|account/partition|No default account|Account_?Name|invalid project",
        _ACCOUNT,
    ),
    (
        r"group not permitted to use this partition|not authorized to use (the )?queue"
        r"|Unauthorized (Request|access)|Access (is )?denied to queue",
        "You may not use this partition or queue ({partition}) with this account ({account}): "
        "set `partition` or `account` in [job] of {profile}",
    ),
    (
        r"invalid partition|Unknown queue|partition not available|partition .*not exist",
        "Set `partition` in [job] of {profile} (it is: {partition}). `sinfo -o '%P %l %D'` lists "
        "Slurm's partitions, `qstat -Q` the queues of PBS",
    ),
    (
        r"Invalid (partition or )?qos",
        "Set `qos` in [job] of {profile} (it is: {qos}). "
        "`sacctmgr show assoc user=$USER format=account,partition,qos` lists yours",
    ),
    (
        r"Invalid feature|invalid constraint",
        "Set `constraint` in [job] of {profile} (it is: {constraint}). `sinfo -o '%P %f %G'` lists "
        "what nodes have",
    ),
    (
        r"reservation is invalid|denied to requested reservation|Invalid reservation",
        "Set `reservation` in [job] of {profile}, or leave it out when the course is over",
    ),
    (
        r"Invalid generic resource|Invalid Trackable RESource|Invalid GRES|Unknown resource",
        "This partition ({partition}) has no such GPUs: set `gpus_per_node` ({gpus}) and "
        "`partition` in [job] of {profile}. `sinfo -o '%P %G'` lists what nodes have",
    ),
    (
        r"node configuration is not available|Memory (required|specification)|More processors"
        r"|CPU count per node|Insufficient|Can Never Run",
        "No node satisfies the request: check `gpus_per_node` ({gpus}), `cpus_per_task`, "
        "`memory_per_node` and `partition` ({partition}) in {profile}",
    ),
    (
        r"Disk quota exceeded|No space left",
        "There is no space: remove what is not needed (`rankroom runs prune` removes old records), "
        "or set `scratch` of {profile} to a folder with space",
    ),
    (
        r"authentication|Invalid user|munge|pbs_iff|No Permission",
        "The scheduler does not accept you from this machine: log in again, and ask the site's "
        "support if that does not help",
    ),
    (
        r"invalid option -- '?F",
        "This `qstat` does not support `-F json` (Torque's never does): OpenPBS or PBS "
        "Professional is required",
    ),
    (
        r"unrecognized option|invalid option|illegal -|usage: qsub",
        "An option is not known to this version: look at `extra` in [job] of {profile}",
    ),
]
