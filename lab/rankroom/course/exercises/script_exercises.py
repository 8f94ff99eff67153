"""Outside the notebook: how a process knows its rank, and what starts it."""

from __future__ import annotations

import re
import shlex

from rankroom.course.exercise import Learner, Wrong, exercise

# The environment variables in which launchers pass rank, size and local rank.
_TOLD = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
# The launchers' options for the number of nodes, of processes per node, and of processes in all.
_COUNTS: dict[str, dict[str, tuple[str, ...]]] = {
    "srun": {"nodes": ("--nodes", "-N"), "each": ("--ntasks-per-node",), "all": ("--ntasks", "-n")},
    "torchrun": {"nodes": ("--nnodes",), "each": ("--nproc-per-node", "--nproc_per_node")},
    "horovodrun": {"all": ("-np", "--num-proc")},
}
# Which combinations of these suffice; in a job, `srun -n` uses all of its nodes.
_ENOUGH = {
    "srun": ({"nodes", "each"}, {"all"}),
    "torchrun": ({"nodes", "each"},),
    "horovodrun": ({"all"},),
}
_USUAL = {
    "srun": "--nodes={nodes} --ntasks-per-node={each}",
    "torchrun": "--nnodes={nodes} --nproc-per-node={each}",
    "horovodrun": "-np {all}",
}
_PYTHON = re.compile(r"(.*/)?python[\d.]*")


@exercise("script.1", answer="who", ranks=1)
def who(learner: Learner) -> None:
    """Check that rank, size and local rank are read from the launcher's environment variables."""
    ask = learner.function("who")
    for launcher, names in _TOLD.items():
        each, nodes = learner.chance.choice([2, 4, 8]), learner.chance.randrange(2, 5)
        rank = learner.chance.randrange(1, each * nodes)  # not 0, as the job's script has
        wanted = rank, each * nodes, rank % each
        env = {"PATH": "/usr/bin", **{name: str(n) for name, n in zip(names, wanted, strict=True)}}
        _demand(ask(dict(env)), wanted, launcher, names)
        if launcher != "srun":
            # Within a job, whose script is itself a task of Slurm, number 0.
            tasks = str(each * nodes)
            inside = {"SLURM_PROCID": "0", "SLURM_NTASKS": tasks, "SLURM_LOCALID": "0"}
            _demand(ask(inside | env), wanted, f"{launcher} in a job of Slurm's", names)
    _demand(ask({"PATH": "/usr/bin"}), (0, 1, 0), "`python train.py`, without a launcher,", ())


def _demand(found: object, wanted: tuple[int, int, int], how: str, names: tuple[str, ...]) -> None:
    if found not in (wanted, list(wanted)):
        told = f" ({', '.join(names)})" if names else ""
        raise Wrong(f"{how} makes it {wanted}{told}, and you have {found!r}")


@exercise("script.2", answer="command", ranks=1)
def command(learner: Learner) -> None:
    """Check the command that starts a script on all GPUs of some nodes."""
    ask = learner.function("command")
    for _ in range(2):
        nodes, gpus = learner.chance.randrange(2, 9), learner.chance.choice([2, 4, 6, 8])
        for launcher in _COUNTS:
            wanted = {"nodes": [str(nodes)], "each": [str(gpus)], "all": [str(nodes * gpus)]}
            if launcher == "torchrun":  # it can count a node's GPUs itself
                wanted["each"] += ["gpu", "auto"]
            said = ask(launcher, nodes, gpus)
            if not isinstance(said, str) or not said.split():
                raise Wrong(f"for {launcher} it gives {said!r}, and should give text")
            words = shlex.split(said)
            if words[0] != launcher or words[-1] != "train.py":
                raise Wrong(f"`{said}` should begin with {launcher} and end with train.py")
            if any(map(_PYTHON.fullmatch, words)) == (launcher == "torchrun"):
                starts = "Python by itself" if launcher == "torchrun" else "any program: say which"
                raise Wrong(f"`{said}`: {launcher} starts {starts}")
            found = _counts(launcher, words)
            is_right = all(count in wanted[what] for what, count in found.items())
            if not is_right or not any(enough <= set(found) for enough in _ENOUGH[launcher]):
                usual = _USUAL[launcher].format(nodes=nodes, each=gpus, all=nodes * gpus)
                raise Wrong(
                    f"for {nodes} nodes with {gpus} GPUs each, `{said}` should have `{usual}`"
                )


def _counts(launcher: str, words: list[str]) -> dict[str, str]:
    """Return the numbers of nodes, of processes per node and of processes in all that a command
    requests, as far as it does: `--nodes=2`, `--nodes 2`, `-N 2` and `-N2` are the same."""
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-[Nn]\d+", word):
            name, equals, value = word[:2], "=", word[2:]
        for what, names in _COUNTS[launcher].items():
            if name in names:
                found[what] = value if equals else following
    return found


@exercise("script.3", answer="goes_on", ranks=1)
def states(learner: Learner) -> None:
    """Check which of squeue's states are those of a job that is not over."""
    ask = learner.function("goes_on")
    states = {
        "PD": True, "CF": True, "R": True, "S": True, "CG": True, "CD": False, "CA": False,
        "F": False, "TO": False, "NF": False, "OOM": False,
    }  # fmt: skip
    for state, wanted in learner.chance.sample(sorted(states.items()), len(states)):
        found = ask(state)
        if found is not wanted:
            raise Wrong(
                f"a job in state {state} {'may still do something' if wanted else 'is over'}, and "
                f"goes_on gives {found!r}"
            )
