"""Adapt libraries that behave differently in a notebook, which they detect by IPython's shell.

A rank's shell is IPython's as well, but it shows text, and each of several ranks has one.

- tqdm (`tqdm.auto`, which Hugging Face's libraries use): with ipywidgets, its notebook bar would
  stay at 0 %; without, each import would warn about that. It is replaced by a text bar.
- transformers' `Trainer`: would show an HTML table for each rank, repeated with each new line, and
  nothing in a terminal. It writes its first rank's bar and metrics as text, as in a script.
- Hydra: recognizes a notebook by the exact class of its shell; otherwise, it looks for its
  configuration beside the file of the cell, which does not exist.
- Accelerate: keeps its state across cells. If the process group is gone or has another size by the
  time an Accelerator is made, the state is reset, as in a new process.
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
        """tqdm's text bar, which also accepts the arguments of its notebook bar."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("display", None)
            if isinstance(kwargs.get("ncols"), str):  # a width in CSS
                del kwargs["ncols"]
            super().__init__(*args, **kwargs)

    module.tqdm = module.tqdm_notebook = TextBar
    if module.IProgress is None:
        module.IProgress = TextBar  # if it is None, `tqdm.autonotebook` warns


def _write_progress(module: Any) -> None:
    if hasattr(module, "ProgressCallback"):
        module.DEFAULT_PROGRESS_CALLBACK = module.ProgressCallback


def _be_a_notebook(module: Any) -> None:
    module.is_notebook = lambda: True  # Hydra also checks that the caller is a cell


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
    """Return whether Accelerate's process group is gone, or has another size now."""
    try:
        state = sys.modules["accelerate.state"].PartialState._shared_state
        dist: Any = sys.modules["torch.distributed"]
        if not state.get("backend") or not hasattr(module.AcceleratorState, "_reset_state"):
            return False
        return not dist.is_initialized() or dist.get_world_size() != state["num_processes"]
    except (AttributeError, KeyError):  # this release keeps its state elsewhere
        return False
