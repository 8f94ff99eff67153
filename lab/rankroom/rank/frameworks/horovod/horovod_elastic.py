"""`hvd.elastic.run` on ranks that are as many from beginning to end.

Under horovodrun a driver tells workers of hosts that come and go, for which each opens a port and
writes its address into the driver's store. There is no such driver here, and Horovod's store is
closed once ranks have met. What remains works: state that is committed, broadcast and restored, and
Horovod initialised again by all ranks after an error in it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rankroom.rank.import_hooks import when_imported


def install() -> None:
    """Have no driver be looked for; called before the user's `import horovod.…`."""
    when_imported("horovod.common.elastic", _without_driver)


def _without_driver(module: ModuleType) -> None:
    def init(*args: Any, **kwargs: Any) -> None:
        pass

    module.notification_manager.init = init
