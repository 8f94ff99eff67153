"""Rank 3 exits while its peers are in a collective: how long it takes each of them to fail.

With PROCESS_SETS, ranks 0 and 1 have one, and rank 1 arrives only when the others have failed.
"""

import json
import os
import threading
import time

import horovod.torch as hvd
import torch

LIMIT_S = 30.0
hvd.init(process_sets=[hvd.ProcessSet([0, 1])] if "PROCESS_SETS" in os.environ else [])
rank = hvd.rank()
hvd.allreduce(torch.ones(4), name="first")
begun = time.monotonic()
if rank == 3:
    time.sleep(0.3)
    print("RESULT {}", flush=True)
    os._exit(0)


def give_up():
    os.write(1, b"it waits for a rank that has gone\n")
    os._exit(1)


patience = threading.Timer(LIMIT_S, give_up)
patience.daemon = True
patience.start()
turns = 0


def turn():
    global turns
    while True:
        time.sleep(0.1)
        turns += 1


threading.Thread(target=turn, daemon=True).start()
if "PROCESS_SETS" in os.environ and rank == 1:
    time.sleep(1.5)
called = time.monotonic()
try:
    hvd.allreduce(torch.ones(4), name="second")
except hvd.HorovodInternalError:
    waited = time.monotonic() - called
patience.cancel()
# Stay alive, as this process's connections are closed when it ends.
time.sleep(max(0.0, begun + 8.0 - time.monotonic()))
print("RESULT " + json.dumps({"waited": waited, "turns": turns}), flush=True)
os._exit(0)
