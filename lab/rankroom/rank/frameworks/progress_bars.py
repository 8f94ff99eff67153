"""tqdm's bars for notebooks, as bars of text: ranks have no widgets.

`tqdm.auto`, which Hugging Face's libraries use, takes the bar for notebooks on a rank, as a rank's
shell is IPython's. With ipywidgets it would stay at 0 %; without, each import would warn of it.
"""

from __future__ import annotations

from typing import Any

from rankroom.rank.import_hooks import when_imported


def install() -> None:
    """Prepare for the user's import of tqdm; nothing is imported now."""
    when_imported("tqdm.notebook", _use_text)


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
