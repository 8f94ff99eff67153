"""Run on each of two ranks by `rankroom horovod check`: collectives, and what is built in.

`python -m rankroom.horovod_build.prove torch` prints one line of JSON. With two frameworks, both
work in one process, the first one being loaded first.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from rankroom.horovod_build.ranks import PORTS

LINE = "rankroom-proof "
STEPS = 5


def prove(frameworks: list[str]) -> dict[str, Any]:
    """Train a few steps' worth of collectives in each. Raises RuntimeError when one is wrong."""
    ports = iter(os.environ[PORTS].split(","))
    loaded = []
    elapsed = 0.0
    for framework in frameworks:
        # Each library meets its peers by itself, and at a rendezvous that was not used before.
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = next(ports)
        hvd = importlib.import_module(f"horovod.{framework}")
        hvd.init()
        start = time.perf_counter()
        average(framework, hvd)
        elapsed += time.perf_counter() - start
        loaded.append(hvd)
    for _ in range(STEPS if len(loaded) > 1 else 0):
        for framework, hvd in zip(frameworks, loaded, strict=True):
            average(framework, hvd)
    hvd = loaded[0]
    built = {name: bool(getattr(hvd, f"{name}_built")()) for name in ("gloo", "nccl", "mpi")}
    result = {"rank": hvd.rank(), "size": hvd.size(), "ms": elapsed * 1000, "built": built}
    for hvd in loaded:
        hvd.shutdown()
    return result


def average(framework: str, hvd: Any) -> None:
    """Average `rank + 1` over the ranks, in one tensor and in several at once, and broadcast it."""
    module = importlib.import_module(framework)
    make = module.tensor if framework == "torch" else module.constant
    tensors = [make([float(hvd.rank() + 1)] * size) for size in (4, 1, 1000)]
    means = [hvd.allreduce(tensors[0], name="rankroom.proof")]
    means += hvd.grouped_allreduce(tensors, name="rankroom.proofs")
    expected = (hvd.size() + 1) / 2
    for mean in means:
        values = mean.numpy().tolist()
        if any(value != expected for value in values):
            raise RuntimeError(
                f"horovod.{framework}: allreduce on {hvd.size()} ranks gave {values[:4]}, "
                f"not {expected}"
            )
    got = hvd.broadcast(tensors[2], 0, name="rankroom.broadcast").numpy().tolist()
    if any(value != 1.0 for value in got):
        raise RuntimeError(f"horovod.{framework}: broadcast from rank 0 gave {got[:4]}, not 1.0")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(LINE + json.dumps(prove(sys.argv[1:])))
