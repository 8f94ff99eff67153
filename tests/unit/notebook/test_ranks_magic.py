"""`%ranks` with fake ranks: which variables it sets in the notebook, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cluster.base import AnyCluster
from rankroom.errors import UsageError
from rankroom.notebook import cluster_magic
from rankroom.notebook.rank_in_panel import RankInPanel
from rankroom.notebook.ranks_magic import do


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on which the value of each name is the name itself."""

    def pull(name: str, ranks: list[int]) -> dict[int, str]:
        return dict.fromkeys(ranks, name)

    made = SimpleNamespace(size=2, pull=pull, push=lambda names, ranks: None)
    monkeypatch.setattr(AnyCluster, "current", made)


@pytest.fixture
def shell() -> Any:
    return SimpleNamespace(user_ns={"x": 1})


def test_a_dotted_name_is_pulled_into_a_variable_named_by_its_last_part(
    shell: Any, capsys: pytest.CaptureFixture[str]
):
    do(shell, "pull net.weight loss --ranks 1")
    assert shell.user_ns == {"x": 1, "weight": {1: "net.weight"}, "loss": {1: "loss"}}
    assert "pulled net.weight, loss from rank 1: a dictionary by rank" in capsys.readouterr().out
    do(shell, "push x")
    assert capsys.readouterr().out == "pushed x to ranks 0–1\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("pull losses[-1]", r"takes names, like `a` or `a\.b`, not losses\[-1\]"),
        ("pull x len(x)", r"not len\(x\)"),
        ("pull a.weight b.weight", "two of these would have the same name here"),
        ('push x --ranks ""', "cannot read '' as ranks"),
        ("debug 1", "needs JupyterLab"),
    ],
)
def test_invalid_or_ambiguous_arguments_are_refused(shell: Any, line: str, why: str):
    with pytest.raises(UsageError, match=why):
        do(shell, line)
    assert shell.user_ns == {"x": 1}


def test_an_empty_list_of_ranks_does_not_mean_all_ranks():
    with pytest.raises(UsageError, match="cannot read '' as ranks"):
        cluster_magic.stacks('--ranks ""')


def test_the_debugger_panel_can_leave_a_rank_that_no_longer_exists():
    """The cluster now has fewer ranks, and refuses debug requests to a rank that is gone."""

    def debug(rank: int, message: Any) -> Any:
        raise UsageError(f"no rank {rank}")

    kernel = SimpleNamespace(do_debug_request=lambda message: None)
    own = kernel.do_debug_request
    shell = SimpleNamespace(kernel=kernel)
    panel = RankInPanel(shell, SimpleNamespace(debug=debug), 3)  # type: ignore[arg-type]
    kernel.do_debug_request = panel._answer
    panel.leave()
    assert kernel.do_debug_request is own
