"""The environment in which cells run on a real rank: variables, modules, command line."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cells import finish, values
from rankroom.cluster.local import Cluster


@pytest.mark.cluster
def test_frameworks_work_on_a_cluster_of_one_rank(home, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    cluster = Cluster.local(ranks=1)
    try:
        source = """
        import os, torch, torch.distributed as dist, horovod.torch as hvd
        hvd.init(); hvd.init()
        dist.init_process_group("gloo")
        dist.all_reduce(x := torch.ones(1))
        [hvd.size(), hvd.allreduce(x, op=hvd.Sum).item(), torch.get_num_threads(),
         "TF_NUM_INTRAOP_THREADS" in os.environ]
        """
        assert values(cluster, source) == [[1, 1.0, 1, False]]
        finish(cluster, "raise ValueError")
        assert values(cluster, "hvd.allreduce(x, op=hvd.Sum).item()") == [1.0]
    finally:
        cluster.stop()


@pytest.mark.cluster
def test_modules_beside_the_notebook_are_for_cells_only(home: Path, monkeypatch, tmp_path: Path):
    """A file in the notebook's folder with the name of a module must not run as ranks start."""
    beside, ran = tmp_path / "project", tmp_path / "ran"
    beside.mkdir()
    # Only modules that exist on this system: packages try to import the others, and a notebook's
    # kernel would find them in this folder, too.
    here = filter(find_spec, sys.stdlib_module_names)
    for name in (*here, "psutil", "zmq", "ipykernel", "rankroom"):
        (beside / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')")
    (beside / "mine.py").write_text("answer = 42")
    monkeypatch.chdir(beside)
    cluster = Cluster.local(ranks=1)
    try:
        assert values(cluster, "import mine\nmine.answer") == [42]
        # As in a notebook's kernel, these files do not shadow the standard library.
        assert values(cluster, "import wave\nhasattr(wave, 'Wave_read')") == [True]
        assert values(cluster, "import sys\nsys.path.count('')") == [1]
        assert not ran.exists(), ran.read_text()
    finally:
        cluster.stop()


@pytest.mark.cluster
@pytest.mark.parametrize("preload", ["", "none"])
def test_cells_see_an_empty_command_line_and_no_interactive_prompt(home: Path, preload: str):
    """A script pasted into a cell must not see the engine's options; and if `sys.ps1` exists,
    Lightning does not train on several ranks."""
    cluster = Cluster.local(ranks=1, preload=preload)
    try:
        source = """
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=3)
        [parser.parse_args().epochs, len(sys.argv), hasattr(sys, "ps1")]
        """
        assert values(cluster, source) == [[3, 1, False]]
    finally:
        cluster.stop()
