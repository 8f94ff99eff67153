"""Run there by `rankroom site check`, within the site's environment: which Python this is.

It is sent as text, since there may be no Rankroom yet, and runs on any Python from 3.6 on.
"""

import importlib
import json
import socket
import sys

MARK = "rankroom-probe "


def look() -> "dict[str, object]":
    """What is found, as one object of JSON; `error` is what went wrong first."""
    found: dict[str, object] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "host": socket.gethostname(),
    }
    try:
        found["rankroom"] = importlib.import_module("rankroom").__version__
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
        return found
    try:
        here = importlib.import_module("rankroom.horovod_build.features").features()
        if here is not None:
            found["horovod"] = here.version
            found["ours"] = here.patched
            found["frameworks"] = sorted(here.frameworks)
            modules = [importlib.import_module("horovod." + name) for name in here.frameworks]
            found["nccl"] = all(module.nccl_built() for module in modules)
    except Exception as error:
        found["horovod_error"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print(MARK + json.dumps(look()))
