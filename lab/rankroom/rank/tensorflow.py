"""tf.distribute on a rank: the cluster description TensorFlow reads from its environment."""

from __future__ import annotations

import json
import os


def environment(rank: int, workers: list[str]) -> dict[str, str]:
    """TF_CONFIG for MultiWorkerMirroredStrategy; `workers` are host:port, one per rank."""
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return {
        "TF_CONFIG": json.dumps(config),
        # Hardware hints at import, on every rank, would bury what the cell says.
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
    }


def threads(count: int) -> dict[str, str]:
    """TensorFlow's own thread pools, which ignore OMP_NUM_THREADS."""
    return {
        "TF_NUM_INTRAOP_THREADS": str(count),
        "TF_NUM_INTEROP_THREADS": str(max(1, min(2, count))),
    }
