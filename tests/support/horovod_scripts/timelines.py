"""Two ranks, FRAMEWORK torch or tensorflow: each writes its own timeline, repeatedly.

First with HOROVOD_TIMELINE=DYNAMIC, then after Horovod is shut down and re-initialised, then to a
file named in the environment.
"""

import importlib
import json
import os
import time
from pathlib import Path

FRAMEWORK = os.environ["FRAMEWORK"]
FOLDER = Path(os.environ["FOLDER"]) / FRAMEWORK
PORTS = os.environ["MORE_PORTS"].split()
FOLDER.mkdir(parents=True, exist_ok=True)
os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
hvd = importlib.import_module(f"horovod.{FRAMEWORK}")

if FRAMEWORK == "torch":
    import torch

    def reduce(name):
        return hvd.allreduce(torch.full((64,), float(hvd.rank() + 1)), name=name).mean().item()

else:
    import tensorflow as tf

    # Graph mode: the operation is not run by Python code.
    @tf.function
    def in_graph(value, name):
        return tf.reduce_mean(hvd.allreduce(value, name=name))

    def reduce(name):
        return float(in_graph(tf.fill([64], float(hvd.rank() + 1)), name))


def events(path):
    """A timeline's events; the file must be valid JSON."""
    return json.loads(Path(path).read_text())


def assert_timeline(path, names, absent=()):
    found = events(path)
    tensors = {e["args"]["name"] for e in found if e.get("name") == "process_name" and e["pid"]}
    for name in names:
        assert any(name in tensor for tensor in tensors), (path, name, tensors)
    for name in absent:
        assert not any(name in tensor for tensor in tensors), (path, name, tensors)
    operations = {e.get("name") for e in found}
    assert {"ALLREDUCE", "GLOO_ALLREDUCE"} <= operations, (path, operations)
    assert set(depths(found).values()) == {0}, f"{path}: spans do not close: {depths(found)}"
    start = found[0]["args"]["start_time_since_epoch_in_micros"]
    stamps = [start + e["ts"] for e in found if "ts" in e]
    now = time.time() * 1e6
    assert now - 120e6 < min(stamps) <= max(stamps) < now + 1e6, (path, stamps[0], now)


def depths(found):
    """How many spans of each tensor are open at the end; none may end without having begun."""
    depth = {}
    for event in found:
        if event["ph"] in "BE":
            depth[event["pid"]] = depth.get(event["pid"], 0) + (1 if event["ph"] == "B" else -1)
            assert depth[event["pid"]] >= 0, f"an end without a beginning: {event}"
    return depth


def wait_for(name):
    """Wait until all ranks get here, without Horovod, whose operations would be recorded."""
    (FOLDER / f"{name}.{rank}.here").touch()
    while len(list(FOLDER.glob(f"{name}.*.here"))) < size:
        time.sleep(0.002)


def recorded(name, path, *operations):
    """Record `operations` on all ranks, and nothing of what ranks do before and after."""
    hvd.start_timeline(str(FOLDER / path))
    wait_for(f"{name}-started")
    for operation in operations:
        assert reduce(operation) == (size + 1) / 2
    wait_for(f"{name}-done")
    hvd.stop_timeline()
    wait_for(f"{name}-stopped")


def meet_again():
    wait_for(f"again{len(PORTS)}")
    hvd.shutdown()
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = PORTS.pop(0)
    hvd.init()


hvd.init()
rank, size = hvd.rank(), hvd.size()
reduce("warm")


def idle_share():
    """CPU seconds per second while nothing is done."""
    before, begun = time.process_time(), time.perf_counter()
    time.sleep(0.3)
    return (time.process_time() - before) / (time.perf_counter() - begun)


# An idle timeline's thread must sleep, whether it records or waits to be started. A spinning one
# takes a whole core in every measurement, other work of the process only in some.
idle = min(idle_share() for look in range(5))
assert idle < 0.5, f"{idle:.0%} of a core for doing nothing"

recorded("a", "a.{rank}.json", "first", "first", "first")
reduce("between")
recorded("b", "b.{rank}.json", "second")
assert_timeline(FOLDER / f"a.{rank}.json", ["first"], absent=["warm", "between", "second"])
assert_timeline(FOLDER / f"b.{rank}.json", ["second"], absent=["first", "between"])

# Operations in progress when a recording starts or stops leave spans open, but no end without a
# beginning, and do not affect the next recording.
for turn in range(2):
    if rank == 0:
        time.sleep(0.2)
        hvd.start_timeline(str(FOLDER / f"late{turn}.json"))
        reduce("under.way")
        hvd.stop_timeline()
    else:
        reduce("under.way")
    wait_for(f"late{turn}")
    if rank == 0:
        depths(events(FOLDER / f"late{turn}.json"))
recorded("after", "after.{rank}.json", "under.way", "under.way")
assert_timeline(FOLDER / f"after.{rank}.json", ["under.way"])

# One path for all ranks, as in tutorials; and a shutdown while recording, with a non-empty queue.
hvd.start_timeline(str(FOLDER / "one.json"))
wait_for("one")
for i in range(200):
    reduce(f"many{i}" if FRAMEWORK == "torch" else "many")
meet_again()
own = FOLDER / ("one.json" if rank == 0 else f"one.json.rank{rank}")
last = ["many0", "many199"] if FRAMEWORK == "torch" else ["many"]
assert_timeline(own, last)
spans = sum(e.get("name") == "ALLREDUCE" for e in events(own))
assert spans == 200, f"{spans} of 200 operations are in the file"

# The same name again, after a re-initialisation.
recorded("renewed", "one.json", "renewed")
assert_timeline(own, ["renewed"], absent=["many"])

os.environ["HOROVOD_TIMELINE"] = str(FOLDER / "env.json")
meet_again()
reduce("named")
wait_for("named")
hvd.shutdown()
assert_timeline(FOLDER / ("env.json" if rank == 0 else f"env.json.rank{rank}"), ["named"])

os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
meet_again()
for i in range(3):
    hvd.start_timeline(str(FOLDER / f"turn{i}.json"))
    assert reduce("turn") == (size + 1) / 2
    meet_again()
print("RESULT " + json.dumps({"rank": rank, "files": sorted(p.name for p in FOLDER.iterdir())}))
