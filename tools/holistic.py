"""Check that HolisticTraceAnalysis finds the same in traces and in our export of them.

`python tools/holistic.py` makes traces of two ranks as PyTorch's profiler writes them on GPUs,
imports them, exports the record with `--format pytorch`, has HolisticTraceAnalysis read both, and
compares its tables. HolisticTraceAnalysis is fetched into the cache, at the version named here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from foreign import packages
from rankroom.analysis.importers import import_files
from rankroom.record.store import Store

HOLISTIC = "HolisticTraceAnalysis==0.5.0"
STEPS = 20
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
TABLES = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1])
kinds, kernels = found.get_gpu_kernel_breakdown(visualize=False)
tables = {
    "temporal breakdown": found.get_temporal_breakdown(visualize=False),
    "overlap": found.get_comm_comp_overlap(visualize=False),
    "kinds of kernels": kinds,
    "kernels": kernels,
}
said = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
print(json.dumps(said))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        raw, ours = Path(scratch, "raw"), Path(scratch, "ours")
        raw.mkdir()
        for rank in range(2):
            Path(raw, f"rank{rank}.json").write_text(json.dumps(trace(rank)))
        home = Path(scratch, "home")
        made = import_files(sorted(raw.iterdir()), Store(home))
        command = ["export", made.run.id, "--format", "pytorch", "-o", str(ours)]
        subprocess.run(
            [sys.executable, "-m", "rankroom", "runs", *command],
            env={**os.environ, "RANKROOM_HOME": str(home)}, check=True,
        )  # fmt: skip
        before, after = tables(raw), tables(ours)
    for name, table in after.items():
        print(f"{name}: {'the same' if table == before[name] else 'ANOTHER'}")
        for row in table:
            print(f"    {row}")
        if table != before[name]:
            print(f"  of the traces themselves: {before[name]}")
    return 0 if after == before else 1


def tables(folder: Path) -> dict[str, Any]:
    """Return HolisticTraceAnalysis's tables for the traces in a folder."""
    path = os.pathsep.join(map(str, (packages([HOLISTIC]), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-c", TABLES, folder],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not all(found.values()):
        sys.exit(f"an empty table: {found}")
    return found


def trace(rank: int) -> dict[str, Any]:
    """Return a trace of steps: a copy, two kernels, and an allreduce that overlaps the second."""
    events: list[dict[str, Any]] = []
    nccl = {"Collective name": "allreduce", "In msg nelems": 4096, "dtype": "Float",
            "Process Group Ranks": "[0, 1]"}  # fmt: skip
    for step in range(STEPS):
        at, late = 10_000 * step, 500 * rank
        for name, start, length, stream, cat, args in (
            ("Memcpy HtoD (Pageable -> Device)", at + 100, 400, 7, "gpu_memcpy", {}),
            ("ampere_sgemm_128x64_tn", at + 600, 3000 + late, 7, "kernel", {}),
            ("vectorized_elementwise_kernel", at + 4300 + late, 900 - 40 * rank, 7, "kernel", {}),
            (NCCL, at + 5000, 3000 - late, 20, "kernel", nccl),
        ):
            events.append(
                {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": stream, "ts": start,
                 "dur": length, "args": {"device": rank, "stream": stream,
                                         "correlation": len(events) + 1, **args}}
            )  # fmt: skip
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 900 + rank,
                       "tid": 900 + rank, "ts": at + 50, "dur": 300, "args": {}})  # fmt: skip
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "traceEvents": events,
    }


if __name__ == "__main__":
    sys.exit(main())
