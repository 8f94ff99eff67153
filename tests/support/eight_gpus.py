"""A simulated machine with 8 GPUs, for this process and all that it starts."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from rankroom.reporting import samples

FOLDER = Path(__file__).with_name("gpus")


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None = None) -> None:
    """Have `pynvml` find 8 GPUs, of which CUDA_VISIBLE_DEVICES names `visible`, if anything."""
    spec = importlib.util.spec_from_file_location("pynvml", FOLDER / "pynvml.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(samples, "_visible", {})  # values cached by earlier tests
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(FOLDER), before))))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
