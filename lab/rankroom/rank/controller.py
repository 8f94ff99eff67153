"""The controller of a cluster: ipyparallel's, which ends when the cluster's keeper is gone."""

from __future__ import annotations

import os
import threading

from ipyparallel.controller.app import main as control

from rankroom.rank import tree


def follow(keeper: int) -> None:
    """End this process with its children when `keeper` has ended."""
    tree.first_ended(keeper)
    tree.end(tree.descendants([os.getpid()]))
    os._exit(1)


def main() -> None:
    """Control the cluster that the options name, as child of its keeper."""
    threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
    control()


if __name__ == "__main__":
    main()
