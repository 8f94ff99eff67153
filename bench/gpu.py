"""Check and measure all that ranks do with GPUs, within ten minutes: `bench/gpu.sh`.

Prints a table of the checks that passed, failed, were measured or left out, with figures. Exits
with 1 if a check failed, and with 2 if there is no GPU. `--rehearse` runs the same cells on the
CPU, with Gloo: it tests this script, but nothing about GPUs. `--share 2` puts two ranks on each
GPU, for the checks that need more than one rank on a machine with one GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

import gpu_checks
from gpu_checks import CHECKS, Failed, LeftOut, Machine
from rankroom.errors import RankroomError
from rankroom.horovod_build.toolchain import find_frameworks
from rankroom.system.gpus import visible_gpus
from sides import workplace

LIMIT_S = 560.0  # no check begins after this, and one in progress does not take much longer
NO_GPU = (
    "no GPU: NVIDIA's driver has none here that may be used (nvidia-smi, CUDA_VISIBLE_DEVICES); "
    "`bench/gpu.sh --rehearse` runs the same on the CPU"
)
NO_CUDA = "PyTorch {version} is built without CUDA: `make set-up TORCH=cuda`, then run this again"


def main() -> int:
    """Run the checks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, as far as that goes")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="ranks of each GPU")
    chosen = parser.parse_args()
    if chosen.list:
        for name, check in CHECKS.items():
            print(f"{name:<12}{(check.__doc__ or '').splitlines()[0]}")
        return 0
    unknown = [name for name in chosen.names if name not in CHECKS]
    if unknown:
        parser.error(f"no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    gpus = 0 if chosen.rehearse else visible_gpus()
    if not chosen.rehearse and (missing := why_not(gpus)):
        print(missing, file=sys.stderr)
        return 2
    if chosen.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # SIGTERM must not leave ranks behind: it raises an exception, so that cleanup runs.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows: list[Row] = []
    with workplace() as folder:
        os.environ["RANKROOM_HOME"] = str(folder / "home")
        machine = Machine(folder, gpus, chosen.share)
        try:
            for name in chosen.names or CHECKS:
                rows.append(row(machine, name))
                print(table(rows[-1:]), flush=True)  # the next check may never end
        finally:
            machine.close()
    print(title(machine))
    counts = {how: sum(each[0] == how for each in rows) for how in HOW}
    print(", ".join(f"{count} {how}" for how, count in counts.items() if count))
    return int(counts["failed"] > 0)


HOW = ("passed", "measured", "failed", "left out")
Row = tuple[str, str, str, float]


def why_not(gpus: int) -> str:
    """Return why nothing can be checked here; empty if it can."""
    if not gpus:
        return NO_GPU
    torch = [each for each in find_frameworks() if each.name == "torch"]
    return "" if torch and torch[0].cuda else NO_CUDA.format(version=torch[0].version)


def row(machine: Machine, name: str) -> Row:
    """Run a check; return its line of the table."""
    begun = time.monotonic()
    try:
        if begun - machine.begun > LIMIT_S:
            raise LeftOut("the ten minutes were over")
        words = CHECKS[name](machine)
        how = "measured" if name in gpu_checks.MEASURED else "passed"
    except LeftOut as reason:
        how, words = "left out", str(reason)
    except (Failed, RankroomError) as error:
        how, words = "failed", str(error)
        machine.close()  # the next check starts new ranks
    except Exception as error:
        traceback.print_exc()
        how, words = "failed", f"{type(error).__name__}: {error}"
        machine.close()
    return how, name, words, time.monotonic() - begun


def title(machine: Machine) -> str:
    """Return a line about the machine: its GPUs, the software, and the load."""
    what = f"{machine.gpus} GPUs" if machine.gpus > 1 else "1 GPU"
    if machine.share > 1:
        what += f", {machine.share} ranks on each"
    if not machine.gpus:
        what = "REHEARSAL on the CPU: nothing here is about GPUs"
    return " · ".join([what, *filter(None, [machine.about]), f"load {os.getloadavg()[0]:.1f}"])


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text; further lines of a result follow below the first."""
    lines = []
    for how, name, words, seconds in rows:
        first, *more = words.splitlines() or [""]
        lines.append(f"{how:<9} {name:<12} {seconds:6.1f} s  {first}")
        lines += [" " * 33 + line for line in more]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
