"""Libraries that act otherwise in a notebook, where they find IPython's shell: as ranks want it.

A rank's shell is IPython's, but it shows text, and there are several of it.

- tqdm (`tqdm.auto`, which Hugging Face's libraries use): its bar for notebooks would stay at 0 %
  with ipywidgets; without, each import would warn of it. It is a bar of text.
- transformers' `Trainer`: would show a table in HTML for each rank, again with each line, and
  nothing in a terminal. It writes its first rank's bar and metrics as text, as in a script.
- Hydra: knows a notebook by the exact class of its shell; else it looks for its configuration
  beside the file of the cell, of which there is none.
- Accelerate: keeps its state over cells. What is made after the process group is gone, or with
  other ranks, is set up again, as it would be in a new process.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from rankroom.rank.import_hooks import when_imported


def install() -> None:
    """Prepare for the user's imports; nothing is imported now."""
    when_imported("tqdm.notebook", _use_text)
    when_imported("transformers.trainer", _write_progress)
    when_imported("hydra._internal.utils", _be_a_notebook)
    when_imported("accelerate.accelerator", _set_up_again)


def _use_text(module: Any) -> None:
    class TextBar(module.std_tqdm):
        """tqdm's bar of text, with the arguments of its bar for notebooks."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("display", None)
            if isinstance(kwargs.get("ncols"), str):  # a width in CSS
                del kwargs["ncols"]
            super().__init__(*args, **kwargs)

    module.tqdm = module.tqdm_notebook = TextBar
    if module.IProgress is None:
        module.IProgress = TextBar  # `tqdm.autonotebook` looks whether there is one


def _write_progress(module: Any) -> None:
    if hasattr(module, "ProgressCallback"):
        module.DEFAULT_PROGRESS_CALLBACK = module.ProgressCallback


def _be_a_notebook(module: Any) -> None:
    module.is_notebook = lambda: True  # it looks as well whether a cell has called it


def _set_up_again(module: Any) -> None:
    accelerator = module.Accelerator
    begin = accelerator.__init__

    @functools.wraps(begin)
    def set_up_again(self: Any, *args: Any, **kwargs: Any) -> None:
        if _is_outdated(module):
            module.AcceleratorState._reset_state(reset_partial_state=True)
        begin(self, *args, **kwargs)

    accelerator.__init__ = set_up_again


def _is_outdated(module: Any) -> bool:
    """Whether Accelerate takes for given a process group that is gone, or has other ranks now."""
    try:
        state = sys.modules["accelerate.state"].PartialState._shared_state
        dist: Any = sys.modules["torch.distributed"]
        if not state.get("backend") or not hasattr(module.AcceleratorState, "_reset_state"):
            return False
        return not dist.is_initialized() or dist.get_world_size() != state["num_processes"]
    except (AttributeError, KeyError):  # one that keeps it otherwise
        return False
