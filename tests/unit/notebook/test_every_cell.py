"""`%distributed on`: which cells run on the ranks, and when IPython takes input as complete."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def shell() -> InteractiveShell:
    made = InteractiveShell()
    made.extension_manager.load_extension("rankroom")
    made.run_line_magic("distributed", "on")
    return made


def on_ranks(shell: InteractiveShell, cell: str) -> bool:
    return "run_cell_magic('distributed'" in shell.transform_cell(cell)


def test_a_complete_line_runs_on_enter_and_an_open_bracket_does_not(shell: InteractiveShell):
    assert on_ranks(shell, "print(1)")
    assert shell.check_complete("print(1)")[0] == "complete"
    assert shell.check_complete("x = (\n\n")[0] == "incomplete"


@pytest.mark.parametrize("silent", [True, False])
def test_only_silent_requests_stay_in_the_kernel(shell: InteractiveShell, silent: bool):
    shell.kernel = SimpleNamespace(get_parent=lambda: {"content": {"silent": silent}})
    assert on_ranks(shell, "x = 1") is not silent


def test_code_that_is_called_many_times_is_measured_on_the_ranks(shell: InteractiveShell):
    assert on_ranks(shell, "%%timeit\nf()") and on_ranks(shell, "%%prun\nf()")
    assert not on_ranks(shell, "%%bash\nls")


def test_the_extension_can_be_unloaded(shell: InteractiveShell):
    assert not on_ranks(shell, "%unload_ext rankroom")
    assert shell.extension_manager.unload_extension("rankroom") is None
    assert not on_ranks(shell, "print(1)")
