"""The subcommands of `%ranks`: a function each, for the variables and debuggers of ranks."""

from __future__ import annotations

from typing import Any

from IPython.display import display as show

from rankroom.cluster.base import AnyCluster
from rankroom.errors import UsageError
from rankroom.notebook.cluster_magic import the_cluster
from rankroom.notebook.options import Options
from rankroom.text.rank_ranges import name_ranks, parse_ranks


def do(shell: Any, line: str) -> None:
    """Do what `%ranks LINE` asks for. Raises UsageError."""
    if not line.strip():
        raise UsageError(f"%ranks needs one of {', '.join(ACTIONS)}")
    options = Options("%ranks")
    options.add_argument("word", choices=list(ACTIONS))
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--ranks", metavar="0,2-3")
    chosen = options.read(line)
    cluster = the_cluster()
    ranks = parse_ranks("all" if chosen.ranks is None else chosen.ranks, cluster.size)
    ACTIONS[chosen.word](shell, cluster, ranks, chosen.names)


def push(shell: Any, cluster: AnyCluster, ranks: list[int], names: list[str]) -> None:
    _demand_names("push", names)
    if missing := [name for name in names if name not in shell.user_ns]:
        raise UsageError(f"%ranks push: no variable {missing[0]!r} in this notebook")
    cluster.push({name: shell.user_ns[name] for name in names}, ranks)
    print(f"pushed {', '.join(names)} to {name_ranks(ranks)}")


def pull(shell: Any, cluster: AnyCluster, ranks: list[int], names: list[str]) -> None:
    _demand_names("pull", names)
    own = {name: name.rpartition(".")[2] for name in names}
    for name in own:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(NO_NAME.format(name=name))
    if len(set(own.values())) < len(own):
        raise UsageError(ONE_NAME.format(names=", ".join(own)))
    for name in own:
        shell.user_ns[own[name]] = cluster.pull(name, ranks)
    print(f"pulled {', '.join(names)} from {name_ranks(ranks)}: a dictionary by rank")


def who(shell: Any, cluster: AnyCluster, ranks: list[int], names: list[str]) -> None:
    from rankroom.display.variable_table import memory_table, table  # it loads NumPy

    found = cluster.variables(ranks)
    missing = set(names) - {name for each in found.values() for name in each}
    if missing:
        raise UsageError(f"%ranks who: no variable {min(missing)!r} on these ranks")
    made = [table(found, names), *([] if names else [memory_table(cluster.memory(ranks))])]
    if not made[0].rows:
        print("no variables on these ranks yet")
        made = made[1:]
    text = "\n\n".join(each.text() for each in made)
    show({"text/plain": text, "text/html": "".join(each.html() for each in made)}, raw=True)


def debug(shell: Any, cluster: AnyCluster, ranks: list[int], names: list[str]) -> None:
    if getattr(shell, "kernel", None) is None:
        raise UsageError(NO_PANEL)
    from rankroom.notebook.rank_in_panel import RankInPanel  # it loads debugpy

    if len(names) != 1:
        raise UsageError("%ranks debug needs a rank, or off")
    chosen = [] if names[0] == "off" else parse_ranks(names[0], cluster.size)
    if len(chosen) > 1:
        raise UsageError("%ranks debug shows one rank at a time")
    if RankInPanel.current is not None:
        RankInPanel.current.leave()
    if not chosen:
        print("JupyterLab's debugger is the notebook's own again")
        return
    RankInPanel(shell, cluster, chosen[0]).show()
    print(IN_PANEL.format(rank=chosen[0]))


def _demand_names(word: str, names: list[str]) -> None:
    if not names:
        raise UsageError(f"%ranks {word} needs a variable's name")


ACTIONS = {"push": push, "pull": pull, "who": who, "debug": debug}
NO_NAME = (
    "%ranks pull takes names, like `a` or `a.b`, not {name}: give it a name in a %%distributed cell"
)
ONE_NAME = (
    "%ranks pull {names}: two of these would have the same name here; pull one at a time, and "
    "rename the first"
)
NO_PANEL = "%ranks debug needs JupyterLab; `%debug --ranks 1` looks around where a cell failed"
IN_PANEL = (
    "JupyterLab's debugger shows rank {rank} now. The bug icon above the notebook switches it on;\n"
    "a click beside a line of a %%distributed cell sets a breakpoint there."
)
