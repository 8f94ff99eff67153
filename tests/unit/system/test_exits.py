"""A rank that crashes in native code: the library it crashed in, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankroom.system.exits import describe_crash, describe_exit, status_of, where

LIBRARY = "/env/lib/python3.13/site-packages/horovod/tensorflow/mpi_lib.cpython-313-x86_64.so"
NATIVE = f"""\
last words
terminate called after throwing an instance of 'std::bad_array_new_length'
Native stack (most recent call first):
/lib/x86_64-linux-gnu/libc.so.6(+0x8aeec)[0x7f2c1a88aeec]
/lib/x86_64-linux-gnu/libc.so.6(abort+0xd3)[0x7f2c1a825472]
/lib/x86_64-linux-gnu/libstdc++.so.6(_ZSt9terminatev+0x17)[0x7f2c0f8b02f7]
{LIBRARY}(horovod_rank+0x12)[0x7f2b00000000]
python(_PyEval_EvalFrameDefault+0x1)[0x4f2b00]
Fatal Python error: Aborted

Thread 0x00007f2708132b80 (most recent call first):
  File "/cell.py", line 3 in <module>
"""
PYTHON = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f2708132b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/cell.py", line 2 in <module>

Extension modules: numpy.core (total: 1)
"""
THREAD = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f2708132b80 (most recent call first):
  <no Python frame>

Thread 0x00007f2708132b81 (most recent call first):
  File "/tmp/cell.py", line 2 in <module>
"""


@pytest.mark.parametrize(
    ("stderr", "place"),
    [
        (NATIVE, " in horovod/tensorflow/mpi_lib.cpython-313-x86_64.so"),
        (PYTHON, " in native code called by ctypes/__init__.py, line 519"),
        (THREAD, " in a thread of native code"),
        # A crash that surfaces in a system library originates elsewhere.
        (NATIVE.replace(f"{LIBRARY}(", "/lib/libm.so.6("), " in a thread of native code"),
        ("last words\n", ""),
        ("", ""),
    ],
)
def test_the_place_of_a_crash_is_read_from_stderr(stderr: str, place: str) -> None:
    assert where(stderr) == place


def test_only_signals_raised_by_native_code_count_as_crashes(tmp_path: Path) -> None:
    said = tmp_path / "stderr"
    said.write_text(PYTHON)
    assert describe_crash(-9, said) == describe_crash(1, said) == ""
    for code in (-11, -6, -7):
        assert describe_crash(code, said).startswith("it crashed in native code called by ctypes/")
    assert describe_crash(-11, tmp_path / "nothing").startswith("it crashed; if it uses Horovod")
    assert describe_exit(-11) == "was killed by SIGSEGV"
    assert describe_exit(3) == "ended with status 3"


@pytest.mark.parametrize(("code", "status"), [(7, 7), (-9, 137), (-11, 139), (-64, 192)])
def test_a_described_exit_maps_to_the_status_of_a_shell(code: int, status: int) -> None:
    assert status_of(f"rank 1 {describe_exit(code)}; it had no memory left") == status
    assert status_of("rank 1 was given up") == 1
