"""Whether this machine is a site's own login node: then there is no connection, and none needed."""

from __future__ import annotations

import socket

from rankroom.scheduler.site import Site
from rankroom.system.network import interfaces


def is_here(site: Site) -> bool:
    """Return whether the site's login host has an address of this machine, or the site has none."""
    if not site.login:
        return True
    host = site.login.rpartition("@")[2]
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, 22, socket.AF_INET)}
    except OSError:
        return False  # a name that only ssh's configuration knows
    return bool(found & set(interfaces().values()))
