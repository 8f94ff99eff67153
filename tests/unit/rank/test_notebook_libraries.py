"""Libraries that take a rank's IPython shell for a notebook, and would behave differently."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# As on a rank: ipykernel's shell is imported, and widgets are not displayed.
RANK = """
import sys, types
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = object
{widgets}
from rankroom.rank.frameworks import notebook_libraries
notebook_libraries.install()
"""
WITHOUT = 'sys.modules["ipywidgets"] = None'
# tqdm would make a bar of these widgets, which would not be displayed.
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
def test_tqdm_shows_a_text_progress_bar(name: str, widgets: str) -> None:
    shown = out(f"from {name} import tqdm\nfor _ in tqdm(range(4), desc='load'): pass", widgets)
    assert "load: 100%" in shown and "4/4" in shown and "Warning" not in shown


@pytest.mark.parametrize("name", ["tqdm.auto", "tqdm.notebook"])
def test_tqdm_accepts_the_arguments_of_notebook_bars(name: str) -> None:
    bar = "tqdm(total=2, display=True, ncols='80%', colour='green')"
    shown = out(f"from {name} import tqdm, trange\nwith {bar} as bar: bar.update(2)", WITH)
    assert "100%" in shown and "2/2" in shown
    assert "3/3" in out(f"from {name} import trange\nlist(trange(3))", WITH)


# Fake modules of the libraries, with the names that Rankroom replaces or reads.
TRANSFORMERS = """
class ProgressCallback: pass
class NotebookProgressCallback: pass
DEFAULT_PROGRESS_CALLBACK = NotebookProgressCallback
"""
HYDRA = """
def is_notebook(): return False
def folder(names): return names["_dh"][0] if is_notebook() and "_dh" in names else None
"""
ACCELERATE = """
class PartialState:
    _shared_state = {}
class AcceleratorState:
    def _reset_state(reset_partial_state=False):
        if reset_partial_state: PartialState._shared_state.clear()
"""
ACCELERATOR = """
from accelerate.state import AcceleratorState, PartialState
class Accelerator:
    def __init__(self, cpu=False):
        self.is_new = not PartialState._shared_state
        PartialState._shared_state.update(backend="gloo", num_processes=2)
"""
GROUP = """
import sys, types
dist = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
dist.size = 2
dist.is_initialized = lambda: dist.size > 0
dist.get_world_size = lambda: dist.size
"""


def printed(tmp_path: Path, code: str, **modules: str) -> str:
    for name, source in modules.items():
        file = tmp_path / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    program += f"{RANK.format(widgets=WITHOUT)}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_a_trainer_writes_its_progress_as_text(tmp_path: Path) -> None:
    code = "from transformers import trainer\nprint(trainer.DEFAULT_PROGRESS_CALLBACK.__name__)"
    assert printed(tmp_path, code, transformers__trainer=TRANSFORMERS) == "ProgressCallback\n"


def test_hydra_looks_beside_the_notebook_in_a_cell(tmp_path: Path) -> None:
    code = (
        "from hydra._internal import utils\n"
        "print(utils.folder({'_dh': ['/mine']}), utils.folder({'__file__': '/a/train.py'}))"
    )
    assert printed(tmp_path, code, hydra___internal__utils=HYDRA) == "/mine None\n"


def test_accelerate_is_reset_when_its_group_is_gone_or_has_changed(tmp_path: Path) -> None:
    code = f"""{GROUP}
from accelerate.accelerator import Accelerator
print(Accelerator(cpu=True).is_new, Accelerator(True).is_new)
for dist.size in (0, 1, 2, 2):
    print(Accelerator().is_new)
"""
    modules = {"accelerate__state": ACCELERATE, "accelerate__accelerator": ACCELERATOR}
    assert printed(tmp_path, code, **modules).split() == [
        "True", "False", "True", "True", "False", "False"
    ]  # fmt: skip


MPI = """
class COMM_WORLD:
    Get_size = staticmethod(lambda: SIZE)
Is_initialized = lambda: True
"""


@pytest.mark.parametrize(("size", "processes", "notes"), [(2, 1, 1), (2, 2, 0), (1, 1, 0)])
def test_a_note_is_added_if_mpi4py_does_not_see_the_ranks(
    tmp_path: Path, size: int, processes: int, notes: int
) -> None:
    code = f"""
from rankroom.rank.frameworks import mpi
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder
said = []
recorder.note = said.append
mpi.install(World(size={size}))
from mpi4py import MPI
print(len(said))
"""
    found = printed(tmp_path, code, mpi4py__MPI=MPI.replace("SIZE", str(processes)))
    assert found == f"{notes}\n"
