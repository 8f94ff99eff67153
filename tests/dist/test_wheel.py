"""The wheel, installed where there is no Node.js, no framework and no checkout.

Tested with the oldest supported JupyterLab on the oldest Python of this machine, and with the
newest JupyterLab on the newest Python, among 3.10 to 3.13.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankroom
from checkout import ROOT
from rankroom.rank.environment import free_ports

pytestmark = [pytest.mark.dist, pytest.mark.timeout(1000)]
ENDS = {"oldest": "jupyterlab==4.2.*", "newest": "jupyterlab>=4.5,<5"}
# Uses everything that a cell on ranks needs, without a framework.
CELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "rankroom")
shell.run_line_magic("cluster", "start --ranks 2")
try:
    shell.run_cell_magic("distributed", "-o run", "rank, size")
    print(shell.user_ns["run"].results, shell.user_ns["run"].profile().wall > 0)
finally:
    shell.run_line_magic("cluster", "stop")
"""


def python_of(end: str) -> str:
    """Return the oldest or newest Python from 3.10 to 3.13 that starts and has ensurepip."""
    names = [f"python3.{minor}" for minor in range(10, 14)]
    for name in names if end == "oldest" else reversed(names):
        found = shutil.which(name)
        if (
            found
            and subprocess.run([found, "-c", "import ensurepip"], capture_output=True).returncode
            == 0
        ):
            return found
    return sys.executable


@dataclass
class Bare:
    """An environment with the wheel, and nothing else on PATH."""

    folder: Path

    def environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("LANG", "HOME") if key in os.environ}
        jupyter = {
            f"JUPYTER_{name}_DIR": f"{self.folder}/{name}" for name in ("CONFIG", "DATA", "RUNTIME")
        }
        home = {"RANKROOM_HOME": f"{self.folder}/home", "IPYTHONDIR": f"{self.folder}/ipython"}
        return {**kept, **jupyter, **home, "PATH": f"{self.folder}/bin"}

    def run(self, command: str, *words: str) -> str:
        """Return what a command of this environment prints, on both streams."""
        done = subprocess.run(
            [self.folder / "bin" / command, *words], env=self.environment(), cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        # `jupyter … list` prints in colours.
        return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from this checkout."""
    built = ROOT / "lab" / "rankroom" / "labextension" / "package.json"
    assert built.exists(), "the extension is not built: run `make lab` or `make test`"
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(
    scope="module", params=[pytest.param(end, marks=pytest.mark.thorough) for end in ENDS]
)
def bare(request, wheel, tmp_path_factory):
    """The wheel and a JupyterLab, in an environment of their own."""
    folder = tmp_path_factory.mktemp(request.param)
    subprocess.run([python_of(request.param), "-m", "venv", folder], check=True)
    subprocess.run(
        [folder / "bin" / "pip", "install", "-q", wheel, ENDS[request.param]], check=True
    )
    return Bare(folder)


def test_the_wheel_contains_all_data_files_and_no_build_leftovers(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "rankroom/record/record.schema.json",
        "rankroom/notebooks/quickstart.ipynb",
        "rankroom/slurm/README.md",
        "rankroom/horovod_build/edits/added/keras3.py",
        "rankroom/labextension/package.json",
    } <= names
    data = f"rankroom-{rankroom.__version__}.data/data/"
    assert f"{data}etc/jupyter/jupyter_server_config.d/rankroom.json" in names
    extension = f"{data}share/jupyter/labextensions/rankroom/"
    assert {f"{extension}install.json", f"{extension}package.json"} <= names
    assert any(re.fullmatch(rf"{extension}static/remoteEntry\.\w+\.js", name) for name in names)
    left_out = (".map", ".pyc", ".ipynb_checkpoints")
    assert not [name for name in names if any(each in name for each in left_out)]


def test_the_environment_has_neither_nodejs_nor_a_framework(bare):
    path = bare.environment()["PATH"]
    assert shutil.which("node", path=path) is None
    packages = bare.run("pip", "list", "--format=freeze")
    assert f"rankroom=={rankroom.__version__}" in packages
    assert not re.search(r"^(torch|tensorflow|horovod)==", packages, re.M)


def test_the_server_extension_is_enabled(bare):
    said = bare.run("jupyter", "server", "extension", "list")
    assert re.search(r"rankroom +enabled", said)
    assert re.search(rf"rankroom {re.escape(rankroom.__version__)} +OK", said)


def test_the_lab_extension_is_enabled(bare):
    said = bare.run("jupyter", "labextension", "list")
    assert re.search(rf"rankroom v{re.escape(rankroom.__version__)} +enabled +OK", said), said


def test_the_rankroom_command_is_installed(bare):
    said = bare.run("rankroom", "--help")
    for word in ("demo", "horovod", "runs"):
        assert re.search(rf"^  {word} ", said, re.M)
    assert bare.run("rankroom", "--version").strip() == f"rankroom, version {rankroom.__version__}"


def test_the_magics_run_a_cell_on_ranks(bare):
    assert "{0: '(0, 2)', 1: '(1, 2)'} True" in bare.run("python", "-c", CELL)


def test_the_demo_finds_the_notebook(bare):
    said = bare.run(
        "python", "-c", "from rankroom.cli.demo_command import quickstart; print(quickstart())"
    )
    assert Path(said.strip()).is_relative_to(bare.folder)


def test_jupyterlab_serves_extension_and_routes(bare):
    # A port that the system does not give to another program while the server starts.
    [port] = free_ports(1)
    options = [f"--port={port}", "--no-browser", "--IdentityProvider.token=t", "--allow-root"]
    server = subprocess.Popen(
        [bare.folder / "bin" / "jupyter", "lab", *options], env=bare.environment(),
        cwd=bare.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        version = json.loads(get(port, "rankroom/version"))
        assert version == {"version": rankroom.__version__, "record": 1}
        page = get(port, "lab")
        config = json.loads(
            re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.S)[1]
        )
        (entry,) = [e for e in config["federated_extensions"] if e["name"] == "rankroom"]
        assert len(get(port, f"lab/extensions/rankroom/{entry['load']}")) > 1000
    finally:
        server.terminate()
        server.wait(60)


def get(port: int, path: str) -> str:
    """Return the answer of a server that may still be starting."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}", headers={"Authorization": "token t"}
    )
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.read().decode()
        except (ConnectionError, TimeoutError):  # a server that listens may not answer yet
            assert time.monotonic() < deadline, "JupyterLab does not answer"
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
