"""The JupyterLab that the browser tests drive: on loopback, with files and records of its own."""

import os
import tempfile

from jupyterlab.galata import configure_jupyter_server

configure_jupyter_server(c)  # noqa: F821 - `c` is given by Jupyter's configuration loader

c.ServerApp.ip = "127.0.0.1"  # noqa: F821
c.ServerApp.port = int(os.environ.get("RANKROOM_TEST_PORT", "8899"))  # noqa: F821
c.ServerApp.port_retries = 0  # noqa: F821
c.ServerApp.allow_root = True  # noqa: F821
os.environ.setdefault("RANKROOM_HOME", tempfile.mkdtemp(prefix="rankroom-ui-"))
