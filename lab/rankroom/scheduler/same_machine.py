"""Whether this machine is a site's own login node: then there is no connection, and none needed."""

from __future__ import annotations

from rankroom.scheduler.site import Site
from rankroom.system import network


def is_here(site: Site) -> bool:
    """Return whether the site's login host has an address of this machine, or the site has none."""
    # A name that only ssh's configuration knows is of another machine.
    return not site.login or network.is_this_machine(site.login.rpartition("@")[2])
