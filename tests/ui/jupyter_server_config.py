"""A JupyterLab for the browser tests, with golden records, and Rankroom from this checkout."""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

from jupyterlab.galata import configure_jupyter_server

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ["RANKROOM_HOME"])
ENABLED = bool(os.environ["RANKROOM_UI_ENABLED"])

# Kernels that the tests start must find the package as well.
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "tests" / "support")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT / "lab"), os.environ.get("PYTHONPATH")])
)
Path(os.environ["JUPYTERLAB_GALATA_ROOT_DIR"]).mkdir(parents=True, exist_ok=True)
c = get_config()  # noqa: F821 - Jupyter defines it
configure_jupyter_server(c)
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = int(os.environ["RANKROOM_TEST_PORT"])
c.ServerApp.allow_root = True
# Otherwise, each page starts Node to check whether JupyterLab needs a build.
c.ServerApp.tornado_settings = {"page_config_data": {"buildAvailable": False, "buildCheck": False}}
c.ServerApp.jpserver_extensions = {"jupyterlab": True, "rankroom": ENABLED}

# The built extension, whether installed or not. Jupyter requires a folder with its name.
extensions = HOME.parent / ("with" if ENABLED else "without")
extensions.mkdir(parents=True, exist_ok=True)
link = extensions / "rankroom"
if not link.exists():
    link.symlink_to(ROOT / "lab" / "rankroom" / "labextension")
c.LabServerApp.extra_labextensions_path = [
    c.LabServerApp.extra_labextensions_path,
    str(extensions),
]

if ENABLED:
    # Workshop seats belong to accounts that do not exist on this machine.
    made_up_seats = importlib.import_module("made_up_seats")
    made_up_seats.name_accounts()
# A learner's server starts without records.
if ENABLED and "RANKROOM_WORKSHOP" not in os.environ:
    for folder in ("records", "traces"):
        for record in (ROOT / "tests" / "support" / folder).iterdir():
            if record.is_dir():
                run = json.loads((record / "run.json").read_text())["id"]
                shutil.copytree(record, HOME / "runs" / run, dirs_exist_ok=True)
