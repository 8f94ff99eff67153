"""tqdm on a rank, whose shell is IPython's: bars of text, whichever tqdm the code imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As on a rank: IPython's shell for kernels is imported, and nobody shows widgets.
RANK = """
import sys, types
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = object
{widgets}
from rankroom.rank.frameworks import progress_bars
progress_bars.install()
"""
WITHOUT = 'sys.modules["ipywidgets"] = None'
# A bar of widgets would be made of these, and nobody would see it.
WITH = """
widgets = sys.modules["ipywidgets"] = types.ModuleType("ipywidgets")
widgets.HTML = widgets.FloatProgress = widgets.HBox = type("Widget", (), {})
"""


def out(code: str, widgets: str) -> str:
    program = RANK.format(widgets=widgets) + code
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr


@pytest.mark.parametrize("widgets", [WITHOUT, WITH], ids=["without widgets", "with widgets"])
@pytest.mark.parametrize("name", ["tqdm.auto", "tqdm.notebook", "tqdm"])
def test_a_bar_is_text(name: str, widgets: str) -> None:
    shown = out(f"from {name} import tqdm\nfor _ in tqdm(range(4), desc='load'): pass", widgets)
    assert "load: 100%" in shown and "4/4" in shown and "Warning" not in shown


@pytest.mark.parametrize("name", ["tqdm.auto", "tqdm.notebook"])
def test_a_notebooks_arguments_are_taken(name: str) -> None:
    bar = "tqdm(total=2, display=True, ncols='80%', colour='green')"
    shown = out(f"from {name} import tqdm, trange\nwith {bar} as bar: bar.update(2)", WITH)
    assert "100%" in shown and "2/2" in shown
    assert "3/3" in out(f"from {name} import trange\nlist(trange(3))", WITH)
