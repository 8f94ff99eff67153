"""Run on each of two ranks by `rankroom horovod check`: test collectives, list what is built in.

`python -m rankroom.horovod_build.prove torch` prints one line of JSON. Two frameworks are used in
one process, where the first one is loaded first.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from rankroom.horovod_build.ranks import PORTS

LINE = "rankroom-proof "
STEPS = 5


def prove(frameworks: list[str]) -> dict[str, Any]:
    """Run the collectives of a few training steps in each. Raises RuntimeError if one is wrong."""
    ports = iter(os.environ[PORTS].split(","))
    loaded = []
    elapsed = 0.0
    gpus = 0
    for framework in frameworks:
        # Each library connects to its peers by itself, at a rendezvous not used before.
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = next(ports)
        hvd = importlib.import_module(f"horovod.{framework}")
        hvd.init()
        with own_device(framework, hvd) as is_gpu:
            start = time.perf_counter()
            average(framework, hvd)
            elapsed += time.perf_counter() - start
        gpus += is_gpu
        loaded.append(hvd)
    for _ in range(STEPS if len(loaded) > 1 else 0):
        for framework, hvd in zip(frameworks, loaded, strict=True):
            with own_device(framework, hvd):
                average(framework, hvd)
    hvd = loaded[0]
    built = {name: bool(getattr(hvd, f"{name}_built")()) for name in ("gloo", "nccl", "mpi")}
    result = {"rank": hvd.rank(), "size": hvd.size(), "ms": elapsed * 1000, "built": built}
    result["gpus"] = gpus
    for hvd in loaded:
        hvd.shutdown()
    return result


@contextlib.contextmanager
def own_device(framework: str, hvd: Any) -> Iterator[bool]:
    """Create tensors on a GPU of this rank's own, if there is one for each rank and Horovod can use
    it, else on the CPU; yield whether it is a GPU."""
    module, own = importlib.import_module(framework), hvd.local_rank()
    if framework == "torch":
        is_gpu = hvd.nccl_built() and module.cuda.device_count() >= hvd.local_size()
        with module.device(f"cuda:{own}" if is_gpu else "cpu"):
            yield is_gpu
        return
    gpus = module.config.list_physical_devices("GPU")
    is_gpu = hvd.nccl_built() and len(gpus) >= hvd.local_size()
    # TensorFlow would take the memory of all that it sees.
    module.config.set_visible_devices([gpus[own]] if is_gpu else [], "GPU")
    yield is_gpu


def average(framework: str, hvd: Any) -> None:
    """Average `rank + 1` over the ranks, in one tensor and in several at once, and broadcast it."""
    module = importlib.import_module(framework)
    make = module.tensor if framework == "torch" else module.constant
    tensors = [make([float(hvd.rank() + 1)] * size) for size in (4, 1, 1000)]
    means = [hvd.allreduce(tensors[0], name="rankroom.proof")]
    means += hvd.grouped_allreduce(tensors, name="rankroom.proofs")
    expected = (hvd.size() + 1) / 2
    for mean in means:
        values = _values(mean)
        if any(value != expected for value in values):
            raise RuntimeError(
                f"horovod.{framework}: allreduce on {hvd.size()} ranks gave {values[:4]}, "
                f"not {expected}"
            )
    got = _values(hvd.broadcast(tensors[2], 0, name="rankroom.broadcast"))
    if any(value != 1.0 for value in got):
        raise RuntimeError(f"horovod.{framework}: broadcast from rank 0 gave {got[:4]}, not 1.0")


def _values(tensor: Any) -> list[float]:
    on_host = tensor.cpu() if hasattr(tensor, "is_cuda") else tensor
    values: list[float] = on_host.numpy().tolist()
    return values


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(LINE + json.dumps(prove(sys.argv[1:])))
