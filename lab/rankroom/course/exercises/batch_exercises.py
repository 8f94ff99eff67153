"""From a notebook to jobs: resource requests, memory, and resuming where a job ended."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from rankroom.course.audited import watch_replacement
from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("batch.1", answer="header", ranks=1)
def header(learner: Learner) -> None:
    """Check that the job header requests the given nodes, GPUs and time, as Slurm parses it."""
    ask = learner.function("header")
    nodes = learner.chance.randrange(2, 9)
    gpus = learner.chance.choice([each for each in (2, 4, 6) if each != nodes])
    hours = learner.chance.randrange(2, 24)
    said = ask(nodes, gpus, hours)
    if not isinstance(said, str):
        raise Wrong(f"header returns {said!r}: it should return text")
    first = said.partition("\n")[0]
    if first.rstrip() != "#!/bin/bash":
        refused = "" if first.startswith("#!") else ". Without it, Slurm rejects the script"
        raise Wrong(f"the first line of a script is #!/bin/bash: you have {first!r}{refused}")
    asked = _options(said)
    for name, value in (("--nodes", nodes), ("--gpus-per-node", gpus)):
        if asked.get(name) != str(value):
            raise Wrong(f"for {nodes} nodes with {gpus} GPUs, {name} is {value}: you have "
                        f"{asked.get(name, 'no such line')}")  # fmt: skip
    wanted = {f"{hours:02}:00:00", f"{hours}:00:00", str(60 * hours)}
    if asked.get("--time") not in wanted:
        raise Wrong(
            f"for {hours} hours, --time is {hours:02}:00:00: you have "
            f"{asked.get('--time', 'no such line')}"
        )
    if asked.get("--ntasks-per-node") != str(gpus):
        raise Wrong(f"one rank for each GPU: --ntasks-per-node={gpus}")


def _options(said: object) -> dict[str, str]:
    """Return the #SBATCH options of a job header, by name. Raises Wrong for a header that is not
    text, or a line that Slurm would ignore or that is not written as --NAME=VALUE."""
    if not isinstance(said, str):
        raise Wrong(f"the function returns {said!r}: it should return text")
    asked: dict[str, str] = {}
    command = ""
    for written in said.splitlines():
        line = written.strip()
        command = command or (line if line and not line.startswith("#") else "")
        if line.startswith("#SBATCH") and command:
            raise Wrong(f"{line!r} comes after the command {command!r}: Slurm ignores #SBATCH "
                        "lines after the first command")  # fmt: skip
        if line.startswith("#SBATCH") and not written.startswith("#SBATCH"):
            raise Wrong(f"{written!r}: Slurm reads #SBATCH at the start of a line only")
        if match := re.fullmatch(r"#SBATCH\s+(--[\w-]+)[= ](\S+)", line):
            asked[match[1]] = match[2]
        elif line.startswith("#SBATCH"):
            raise Wrong(f"{line!r}: here, write each option as #SBATCH --NAME=VALUE")
    return asked


@exercise("batch.2", answer="asks", ranks=1)
def memory(learner: Learner) -> None:
    """Check that all of a node's memory is requested exactly once, per node or per CPU."""
    ask = learner.function("asks")
    for _ in range(3):
        tasks, cpus = learner.chance.choice([2, 4, 6]), learner.chance.choice([6, 7, 8, 32])
        node = learner.chance.randrange(60_000, 260_000)
        asked = _options(ask(node, tasks, cpus))
        for name, value in (("--ntasks-per-node", tasks), ("--cpus-per-task", cpus)):
            if asked.get(name) != str(value):
                raise Wrong(f"{name}={value} does not request memory: keep it as it is")
        given = {name: asked[name] for name in ("--mem", "--mem-per-cpu") if name in asked}
        if len(given) != 1:
            raise Wrong(
                "--mem and --mem-per-cpu are two ways to ask for the same memory, and "
                + ("both are there: keep one" if given else "none is left: keep one of them")
            )
        ((name, amount),) = given.items()
        if (name, amount) == ("--mem", "0"):
            continue  # 0 requests all of the node's memory
        if not re.fullmatch(r"\d+M?", amount):
            raise Wrong(f"{name}={amount}: give a whole number of MB")
        each, count = int(amount.removesuffix("M")), tasks * cpus if name == "--mem-per-cpu" else 1
        if each * count > node:
            raise Wrong(
                f"{name}={amount} for {tasks} tasks with {cpus} CPUs each is {each * count} MB: "
                f"the node has {node}, and the job never starts"
            )
        if (each + 1) * count <= node:
            raise Wrong(f"{name}={amount} leaves {node - each * count} MB of {node} unused")


@exercise("batch.3", answer="train", ranks=1)
def resume(learner: Learner) -> None:
    """Check that a second job resumes training where the first one was cut off."""
    train = learner.function("train")
    last = learner.chance.randrange(6, 10)
    cut = learner.chance.randrange(2, last - 2)
    done: list[int] = []
    again: list[int] = []

    class Over(Exception):
        pass

    def epoch(number: int) -> None:
        if number == cut and cut not in done and len(done) == cut:
            done.append(-1)
            raise Over
        done.append(number)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        try:
            train(epoch, last, path)
        except Over:
            pass
        else:
            raise Wrong(f"epoch {cut} failed, but train continued: do not catch the error")
        if not path.exists():
            raise Wrong("the job was cut off, and there is no checkpoint: write one every epoch")
        try:
            # Training that has run to its end may remove the checkpoint.
            with watch_replacement(path, lambda: len(done) <= last) as replaced:
                train(epoch, last, path)
        except Over:
            raise Wrong(f"epoch {cut} was done twice without a checkpoint in between") from None
        told = [number for number in done if number >= 0]
        if path.exists():  # as if a follow-up job had been submitted as well
            train(epoch, last, path)
            again = [number for number in done if number >= 0][len(told) :]
    if told != list(range(last)):
        raise Wrong(
            f"cut off in epoch {cut} of {last} and started again, train ran epochs "
            f"{', '.join(map(str, told))}: it should run 0 to {last - 1}, each once"
        )
    replaced.demand()
    if again:
        raise Wrong(
            f"all {last} epochs were done, but the next job ran epoch {again[0]} again: write each "
            "epoch's checkpoint when the epoch is over"
        )
