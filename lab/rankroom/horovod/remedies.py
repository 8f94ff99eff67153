"""What to do about a build that failed, read from what it printed."""

from __future__ import annotations

import re


def explain(output: str) -> str:
    """What to do about a failed build, from what it printed."""
    for pattern, remedy in REMEDIES:
        if re.search(pattern, output):
            return remedy
    return UNKNOWN


REMEDIES = (
    (r"Python\.h: No such file", "install Python's headers (Debian: `apt install python3-dev`)"),
    (
        r"Killed signal terminated program|internal compiler error: Killed|std::bad_alloc",
        "the compiler ran out of memory: build with `--jobs 1`",
    ),
    (r"No space left on device", "the disk is full: free some, or set RANKROOM_CACHE elsewhere"),
    (
        r"No CMAKE_CXX_COMPILER could be found|is not able to compile a simple test",
        "the C++ compiler does not work: install g++ (Debian: `apt install g++`) or set CXX",
    ),
    (r"Compatibility with CMake < ", "this CMake is too new: `pip install 'cmake<4'`"),
    (
        r"Could NOT find NCCL|nccl\.h: No such file",
        "NCCL was not found: set NCCL_HOME, or build without it (`--no-gpu`)",
    ),
    (
        r"unsupported GNU version|nvcc fatal",
        "this CUDA does not take this compiler: set CXX to an older g++, or use `--no-gpu`",
    ),
)
UNKNOWN = "if PyTorch or TensorFlow is newer than Rankroom, install an earlier one"
