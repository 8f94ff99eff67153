"""How a process ended, in words; for a rank that crashed in native code, also in which library.

Every rank enables Python's faulthandler, which writes the Python stack to stderr. Before that,
Rankroom's Horovod, once initialized, writes the native stack (added/crash.cc in
horovod_build/edits).
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
STDERR_TAIL_BYTES = 65_536  # bytes at the end of stderr
_NATIVE = "Native stack (most recent call first):\n"
_FRAME = re.compile(r"^([^\n(]+)\([^()\n]*\) ?\[0x[0-9a-f]+\]$", re.M)
# Libraries in which a crash surfaces that began elsewhere.
_SYSTEM = re.compile(
    r"(libc|libc-[\d.]+|libpthread|libstdc\+\+|libgcc_s|libm|ld-linux.*|libpython.*)\.so\b"
    r"|python[\d.]*$"
)
_ENDED = re.compile(r"\bended with status (\d+)")
_KILLED = re.compile(r"\bwas killed by (?:(SIG\w+)|signal (\d+))")
_CURRENT = re.compile(r"^Current thread .*\n", re.M)
_CALLED_BY = re.compile(r'  File "([^"\n]+)", line (\d+)')


def describe_exit(code: int) -> str:
    """Describe a return code in words: `ended with status 1`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def status_of(words: str) -> int:
    """Return the exit status, as in a shell, of an end in `describe_exit`'s words; 1 of others."""
    if found := _ENDED.search(words):
        return int(found[1])
    if found := _KILLED.search(words):
        return 128 + (signal.Signals[found[1]] if found[1] else int(found[2]))
    return 1


def describe_crash(code: int, stderr: Path) -> str:
    """Describe a crash in native code, and where by `stderr` it happened; empty for other exits."""
    if -code not in CRASH_SIGNALS:
        return ""
    try:
        with stderr.open("rb") as file:
            file.seek(max(0, stderr.stat().st_size - STDERR_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        text = ""
    return CRASHED.format(where=where(text))


def where(stderr: str) -> str:
    """Return the library in which a process crashed, or its caller, by its last output."""
    native = stderr.rfind(_NATIVE)
    if native >= 0:
        for frame in _FRAME.finditer(stderr, native):
            path = Path(frame[1])
            if not _SYSTEM.match(path.name):
                return f" in {short(path)}"
    fatal = stderr.rfind("Fatal Python error: ")
    if fatal < 0:
        return ""
    current = _CURRENT.search(stderr, fatal)
    if current is None:
        return " in a thread of native code"
    called = _CALLED_BY.match(stderr, current.end())
    if called is None:
        return " in a thread of native code"
    return f" in native code called by {short(Path(called[1]))}, line {called[2]}"


def short(path: Path) -> str:
    """Return a path relative to site-packages or, elsewhere, as its last folder and name."""
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            return "/".join(path.parts[path.parts.index(folder) + 1 :])
    return "/".join(path.parts[-2:])


CRASHED = (
    "it crashed{where}; if it uses Horovod, run `rankroom horovod check` to see whether Horovod "
    "matches the installed frameworks"
)
