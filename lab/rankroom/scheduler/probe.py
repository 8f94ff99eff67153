"""Report which Python this is; run by `rankroom site check` in the site's environment.

It is sent as text, since Rankroom may not be installed there, and runs on Python 3.6 or newer.
"""

import importlib
import json
import socket
import sys

MARK = "rankroom-probe "


def look() -> "dict[str, object]":
    """Return the findings as a JSON object; `error` is why Rankroom could not be imported."""
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
