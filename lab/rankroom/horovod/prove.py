"""Run on each of two ranks by `rankroom horovod check`: an allreduce, and what is built in.

`python -m rankroom.horovod.prove torch` prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

LINE = "rankroom-proof "


def prove(framework: str) -> dict[str, Any]:
    """Average `rank + 1` over the ranks. Raises RuntimeError when the result is wrong."""
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    module = importlib.import_module(framework)
    make = module.tensor if framework == "torch" else module.constant
    start = time.perf_counter()
    mean = hvd.allreduce(make([float(hvd.rank() + 1)] * 4), name="rankroom.proof").numpy().tolist()
    elapsed = time.perf_counter() - start
    expected = [(hvd.size() + 1) / 2] * 4
    if mean != expected:
        raise RuntimeError(f"allreduce on {hvd.size()} ranks gave {mean}, not {expected}")
    built = {name: bool(getattr(hvd, f"{name}_built")()) for name in ("gloo", "nccl", "mpi")}
    result = {"rank": hvd.rank(), "size": hvd.size(), "ms": elapsed * 1000, "built": built}
    hvd.shutdown()
    return result


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(LINE + json.dumps(prove(sys.argv[1])))
