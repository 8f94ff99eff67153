"""The cause of a failed build and the remedy for it, from its output."""

from __future__ import annotations

import re


def cause(output: str) -> str:
    """Return the first error of the compiler or CMake, in one line; empty if there is none."""
    found = _ERROR.search(output)
    if not found:
        return ""
    text = " ".join((found["cmake"] or found["compiler"] or found["python"]).split())
    return text if len(text) <= MAX_CAUSE_CHARS else text[:MAX_CAUSE_CHARS] + " …"


def explain(output: str) -> str:
    """Return the remedy for a failed build, from its output."""
    for pattern, remedy in REMEDIES:
        if re.search(pattern, output):
            return remedy
    return UNKNOWN


MAX_CAUSE_CHARS = 300
# CMake's message is the indented paragraph below its title.
_ERROR = re.compile(
    r"^CMake Error.*:\s*\n(?P<cmake>(?:[ \t]+\S.*\n)+)"
    r"|^(?P<compiler>.*\b(?:fatal )?error: .+)$"
    r"|^(?P<python>(?:\w+\.)*\w+Error: .+)$",
    re.M,
)
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
    (
        r"does not support.*C\+\+20|unrecognized command[- ]line option .-std=(c|gnu)\+\+(20|2a)",
        "this PyTorch needs a compiler for C++20 (g++ 10 or newer): set CXX to one, or "
        "`pip install 'torch<2.14'`",
    ),
    (
        r"C\+\+\d+ or later compatible compiler is required",
        "this PyTorch is newer than this version of Rankroom can build Horovod for: upgrade "
        "Rankroom, or install the PyTorch that docs/pythons.md has",
    ),
    (r"Compatibility with CMake < ", "this CMake is too new: `pip install 'cmake<4'`"),
    (
        r"Could NOT find NCCL|nccl\.h: No such file",
        "NCCL was not found: set NCCL_HOME, or build without it (`--no-gpu`)",
    ),
    (
        r"unsupported GNU version|nvcc fatal",
        "this CUDA does not support this compiler: set CXX to an older g++, or use `--no-gpu`",
    ),
    (
        r"Could NOT find CUDAToolkit|Could not find nvcc|CMAKE_CUDA_COMPILER",
        "the CUDA toolkit is incomplete: set CUDA_HOME to another one, or build for the CPU "
        "(`--no-gpu`)",
    ),
)
UNKNOWN = "none is known for this error; please report it with the log"
