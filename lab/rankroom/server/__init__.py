"""The Jupyter server extension: routes over the store and clusters, without logic of their own.

Every handler requires authentication and asks the server's authorizer: a user who may only read
cannot start or end anything. Nothing here blocks the server's event loop: files are read in
threads, as a home directory may be on a slow network file system.
"""

from __future__ import annotations

import os
from typing import Any

from jupyter_server.utils import url_path_join

from rankroom.cluster import repair
from rankroom.record.store import Store
from rankroom.server import (
    cluster_routes,
    question_routes,
    run_routes,
    site_routes,
    workshop_routes,
)
from rankroom.server.metric_routes import MetricCurves
from rankroom.server.profile_routes import Profiles
from rankroom.server.threads import Threads
from rankroom.workshop.workshop_folder import Folder

ROUTES = [
    *run_routes.ROUTES,
    *cluster_routes.ROUTES,
    *site_routes.ROUTES,
    *question_routes.ROUTES,
    *workshop_routes.ROUTES,
]


def _load_jupyter_server_extension(server_app: Any) -> None:
    """Add the routes under the server's base URL; called by Jupyter."""
    web_app = server_app.web_app
    base = web_app.settings["base_url"]
    store = Store()
    repair.begin(store)
    parts = {
        "store": store,
        "threads": Threads(),
        "profiles": Profiles(store),
        "curves": MetricCurves(store),
    }
    routes = [(path, handler, parts) for path, handler in ROUTES]
    if workshop := os.environ.get("RANKROOM_WORKSHOP"):
        routes += workshop_routes.shown_routes(parts, _share(server_app, workshop))
    web_app.add_handlers(".*$", [(url_path_join(base, path), *more) for path, *more in routes])


def _share(server_app: Any, folder: str) -> Folder:
    """Share the state of this server, which is a learner's in a workshop, and end it with the
    workshop. Return the workshop's folder."""
    from rankroom.workshop.sharing import Sharing

    def pages() -> int:
        kernels = server_app.kernel_manager.list_kernels()
        return sum(kernel.get("connections", 0) for kernel in kernels)

    sharing = Sharing(folder, server_app.stop, server_app.log.warning, pages)
    server_app.web_app.settings["rankroom_workshop"] = sharing
    server_app.io_loop.add_callback(sharing.run)
    return sharing.folder
