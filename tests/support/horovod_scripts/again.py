"""Two ranks that restart Horovod after events that used to end the process or to hang.

FRAMEWORK is `torch` or `tensorflow`; FOLDER is one in which the ranks can signal each other.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

FRAMEWORK = os.environ["FRAMEWORK"]
hvd = importlib.import_module(f"horovod.{FRAMEWORK}")
framework = importlib.import_module(FRAMEWORK)
basics = importlib.import_module(f"horovod.{FRAMEWORK}.mpi_ops")._basics
PORTS = iter(os.environ["MORE_PORTS"].split())
ones = framework.ones(4)


def start():
    """Start Horovod with a rendezvous that has not been used before."""
    hvd.shutdown()
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = next(PORTS)
    hvd.init()


def works():
    return hvd.allreduce(ones, op=hvd.Sum).numpy().tolist() == [2.0] * 4


def gave_up():
    asked = basics.MPI_LIB_CTYPES.horovod_gave_up
    asked.restype = ctypes.c_char_p
    return asked().decode()


def objects_of_different_types():
    mine = {"from": "root"} if hvd.rank() == 0 else None
    assert hvd.broadcast_object(mine, root_rank=0) == {"from": "root"}
    gathered = hvd.allgather_object([1] if hvd.rank() == 0 else "text")
    assert gathered == [[1], "text"]


def parameters_that_are_fixed_are_fixed_again():
    for cycle, threshold in (("2", "1048576"), ("3", "0"), ("1", None), (None, "4096")):
        for name, value in (("CYCLE_TIME", cycle), ("FUSION_THRESHOLD", threshold)):
            os.environ.pop(f"HOROVOD_{name}", None)
            if value is not None:
                os.environ[f"HOROVOD_{name}"] = value
        start()
        assert works()
    os.environ.pop("HOROVOD_FUSION_THRESHOLD")


def an_init_that_nobody_else_comes_to_raises():
    rank = hvd.rank()
    hvd.shutdown()
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = next(PORTS)
    if rank == 0:
        os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "1"
        for _ in range(2):
            try:
                hvd.init()
            except ValueError as error:
                assert "initialization failed" in str(error)
            else:
                raise AssertionError("it came up alone")
            assert not hvd.is_initialized()
        del os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"]
    start()
    assert works()


def a_thread_that_has_given_up_is_told():
    """Rank 1 is stopped until rank 0 has given up on it; then rank 1 must give up, too."""
    left = Path(os.environ["FOLDER"]) / "left"
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "5"
    start()
    assert works() and gave_up() == ""
    if hvd.rank() == 1:
        me = os.getpid()
        # Repeatedly, as rank 0 may give up before this process is stopped.
        wake = 'until [ -e "$0" ]; do sleep 0.1; done; while kill -CONT "$1"; do sleep 0.1; done'
        waker = subprocess.Popen(["sh", "-c", wake, str(left), str(me)])
        os.kill(me, signal.SIGSTOP)
        waker.kill()
        waker.wait()
    deadline = time.monotonic() + 60
    while not gave_up():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left.touch()
    del os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"]
    start()
    assert works() and gave_up() == ""


def waiting_leaves_the_core_to_others():
    hvd.allreduce(ones, name="both are here")
    if hvd.rank() == 1:
        time.sleep(2)
    wall, processor = time.monotonic(), time.process_time()
    hvd.allreduce(ones, name="late")
    wall, processor = time.monotonic() - wall, time.process_time() - processor
    # Rank 0 may itself arrive late, and then hardly wait.
    assert hvd.rank() == 1 or processor < max(wall, 2) / 2, (processor, wall)


def a_thread_without_work_rests():
    assert works()
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(4)
    spent = time.process_time() - before
    assert spent < 0.2, spent  # a thousand cycles a second take more than three times as much


def what_is_handed_over_as_it_ends_is_refused():
    """Whenever Horovod shuts down, no caller waits forever for an operation handed over then."""
    for turn in range(20):
        hvd.allreduce(ones, name=f"meet {turn}")
        if hvd.rank() == 0:
            ended = threading.Event()

            def hand_over(ended=ended):
                with contextlib.suppress(Exception):
                    for number in range(10**6):
                        hvd.allreduce(ones, name=f"alone {number}")
                ended.set()

            threading.Thread(target=hand_over, daemon=True).start()
            time.sleep(0.0003 * turn)
            hvd.shutdown()
            assert ended.wait(30), f"turn {turn} waits for ever"
        start()


hvd.init()
for check in [
    objects_of_different_types,
    parameters_that_are_fixed_are_fixed_again,
    an_init_that_nobody_else_comes_to_raises,
    a_thread_that_has_given_up_is_told,
    waiting_leaves_the_core_to_others,
    a_thread_without_work_rests,
    what_is_handed_over_as_it_ends_is_refused,
]:
    print(f"-- {check.__name__}", flush=True)
    check()
    print("RESULT " + json.dumps({check.__name__: True}), flush=True)
