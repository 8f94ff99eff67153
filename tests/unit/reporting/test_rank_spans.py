"""Spans as a rank records them, its waits, and profilers that fail, without starting ranks."""

import os
import sys
import threading
import time
import types

import pytest

from rankroom.rank import profiler
from rankroom.rank.frameworks.torch import torch_calls, torch_spans
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import World
from rankroom.reporting import spans
from rankroom.reporting.spans import SpanRecorder, span


def named(made, name):
    return made.number(name, lambda: {"name": name})


def test_columns_hold_each_name_once_and_times_as_differences():
    made = SpanRecorder()
    made.begin()
    for start in (1_000_500, 1_000_700, 1_000_600):
        made.add("step", named(made, "batch"), start, 10)
    (first,) = made.take(1_000_000)
    assert first == {
        "cat": "step", "from": 0, "define": [{"name": "batch"}],
        "name": (0, 0, 0), "start": [500, 200, -100], "dur": (10, 10, 10),
    }  # fmt: skip
    made.add("step", named(made, "epoch"), 1_000_900, 5)
    (second,) = made.take(1_000_000)
    assert (second["from"], second["define"]) == (1, [{"name": "epoch"}])
    assert (second["name"], second["start"]) == ((1,), [900])
    assert not list(made.take(0))


def test_names_beyond_the_limit_share_one_number(monkeypatch):
    monkeypatch.setattr(spans, "MAX_NAMES", 3)
    made = SpanRecorder()
    made.begin()
    assert [named(made, f"n{i}") for i in range(6)] == [0, 1, 2, 3, 3, 3]
    made.add("user", 3, 1, 1)
    (event,) = made.take(0)
    assert len(event["define"]) == 4


def test_threads_that_define_names_concurrently_get_the_same_numbers():
    made = SpanRecorder()
    made.begin()
    found = []

    def work():
        for i in range(300):
            found.append((f"n{i}", named(made, f"n{i}")))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    assert len(set(found)) == 300
    assert all(made._defined[number] == {"name": name} for name, number in found)


def test_a_forked_process_records_no_spans(monkeypatch):
    monkeypatch.setattr(spans.recorder, "on", False)
    spans.recorder.begin()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with span("in a loader's process"):
            pass
        os.write(write, b"%d" % (len(spans.recorder._waiting) + spans.recorder.on))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"0"
    assert spans.recorder.on
    spans.recorder.leave()


def test_a_span_outside_a_rank_records_nothing():
    assert not spans.recorder.on

    @span("unseen")
    def work():
        return 3

    assert work() == 3
    with pytest.raises(ValueError, match="mine"), span("unseen"):
        raise ValueError("mine")
    assert not spans.recorder._waiting


def test_span_arguments_may_have_any_name_and_are_shortened():
    spans.recorder.begin()
    try:
        with span("load", name="a", text="x" * 1000):
            pass
        (fields,) = spans.recorder.take(0)
    finally:
        spans.recorder.leave()
    assert fields["define"] == [
        {"name_": "a", "text": "x" * spans.MAX_ARGUMENT_LENGTH, "name": "load"}
    ]


def test_deferred_spans_are_added_when_spans_are_taken():
    made = SpanRecorder()
    made.begin()
    made.late((made.waited, "hvd.allreduce #7", 1_002_000_000, 0.0005))
    made.add("wait", named(made, "now"), 1_003_000, 10)
    (fields,) = made.take(1_000_000)
    assert [each["name"] for each in fields["define"]] == ["now", "hvd.allreduce"]
    assert (fields["name"], fields["start"], fields["dur"]) == ((0, 1), [3000, -1500], (10, 500))
    assert list(made.take(1_000_000)) == []
    for forget in (made.begin, made.leave):
        made.late((pytest.fail, "it was of another run, or of another process"))
        forget()
        assert list(made.take(0)) == []


@pytest.fixture
def waits(monkeypatch):
    """The waits that were recorded."""
    kept = []
    monkeypatch.setattr(spans.recorder, "on", True)
    monkeypatch.setattr(spans.recorder, "late", lambda call: kept.append(call[1]))
    monkeypatch.setattr(Waiting, "current", None)
    return kept


def test_a_wait_within_another_is_part_of_it(waits):
    with Waiting("outer") as outer:
        with Waiting("inner") as inner:
            assert Waiting.current is inner
            time.sleep(0.001)
        assert Waiting.current is outer
    assert Waiting.current is None
    assert waits == ["outer"]


def test_a_wait_in_another_thread_is_not_recorded(waits):
    def work():
        with Waiting("elsewhere"):
            assert Waiting.current is None
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert waits == []


@pytest.fixture
def operation(monkeypatch):
    """A collective of a fake torch.distributed, while spans are recorded."""
    monkeypatch.setattr(torch_spans, "_run", "")
    spans.recorder.begin()
    world = types.SimpleNamespace(pg_names={"some": "1"})
    kind = types.SimpleNamespace(NON_GROUP_MEMBER=object(), WORLD="all")
    c10d = types.SimpleNamespace(
        GroupMember=kind, _world=world, Work=int, get_process_group_ranks=lambda group: [0, 2],
        _resolve_process_group=lambda name: name,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    parameters = ["tensor", "op", "group", "async_op"]
    yield torch_spans.Operation("all_reduce", parameters, c10d, World(run="r"))
    spans.recorder.leave()


def collected():
    table = spans.recorder._defined
    return [table[number] for number, _, _ in spans.recorder._waiting.get(("collective", ""), [])]


def test_collectives_are_counted_by_group(operation):
    for group in (None, "some", None, "all", "some"):
        operation(lambda *args, **kwargs: None, (1,), {"group": group})
    assert [(each["tensor"], each.get("group")) for each in collected()] == [
        ("#1", None), ("#1", "1"), ("#2", None), ("#3", None), ("#2", "1"),
    ]  # fmt: skip
    assert collected()[1]["ranks"] == [0, 2]


class Symbol:
    """A symbolic size in code that is being compiled; as an int, it would become a constant."""

    def __mul__(self, other):
        return self

    def __int__(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("count", "size"), [(6, {"bytes": 24, "shape": [3, 2]}), (Symbol(), {"bytes": 0})]
)
def test_only_sizes_that_are_numbers_are_described(count, size):
    tensor = types.SimpleNamespace(
        element_size=lambda: 4,
        dtype="torch.float32",
        numel=lambda: count,
        shape=(3, 2) if count == 6 else (Symbol(), 2),
    )
    assert torch_spans.described(tensor) == {"dtype": "float32"} | size


def test_collectives_are_not_recorded_while_a_function_is_traced(operation):
    module = types.ModuleType("functional")
    code = "def all_reduce(self, op, group): return self\ndef wait_tensor(tensor): pass"
    exec(code, vars(module))
    is_tracing = True
    module._are_we_tracing = lambda: is_tracing
    torch_calls._guard_functional(module, World(present=(0,), run="r"))
    module.all_reduce("t", "sum", None)
    module.wait_tensor("t")
    assert collected() == []
    is_tracing = False
    module.all_reduce("t", "sum", None)
    assert [each["name"] for each in collected()] == ["all_reduce #1"]


def test_a_collective_made_of_others_counts_once(operation):
    def made_of(*args, **kwargs):
        return operation(lambda *args, **kwargs: None, args, kwargs)

    operation(made_of, (1,), {})
    assert [each["name"] for each in collected()] == ["all_reduce #1"]


def test_a_collective_that_raises_is_seen_and_the_next_one_too(operation):
    def broken(*args, **kwargs):
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed"):
        operation(broken, (1,), {})
    operation(lambda *args, **kwargs: None, (1,), {})
    assert [each["name"] for each in collected()] == ["all_reduce #1", "all_reduce #2"]


class Framework:
    """A profiler that fails in the method that `fails` names."""

    fails = ""

    def start(self):
        self._may("start")

    def stop(self):
        self._may("stop")

    def ops(self, most):
        self._may("ops")
        return [("op", "x" * 500, 1_000, 2_000, "thread 1"), ("kernel", "k", 2_000, 1, "GPU 0")], 7

    def _may(self, what):
        if self.fails == what:
            raise RuntimeError(f"no {what}")


@pytest.mark.parametrize("fails", ["", "start", "stop", "ops"])
def test_a_profiler_that_fails_says_so_and_nothing_else_fails(monkeypatch, capsys, fails):
    monkeypatch.setattr(Framework, "fails", fails)
    monkeypatch.setattr(profiler, "_KINDS", {"sys": Framework, "not imported": Framework})
    spans.recorder.begin()
    try:
        with profiler.profiled(True):
            done = True
        kept = {cat: len(rows) for (cat, _), rows in spans.recorder._waiting.items()}
        names = [each["name"] for each in spans.recorder._defined]
    finally:
        spans.recorder.leave()
    said = capsys.readouterr().err
    assert done
    if fails:
        assert said == f"--profile: sys could not be profiled (RuntimeError: no {fails})\n"
    else:
        assert kept == {"op": 1, "kernel": 1} and names == ["x" * 200, "k"]
        assert "the 2 longest of 7 operations of sys were kept" in said


def test_what_the_cell_raises_passes_through_its_profile(monkeypatch, capsys):
    monkeypatch.setattr(profiler, "_KINDS", {})
    with pytest.raises(ValueError, match="mine"), profiler.profiled(True):
        raise ValueError("mine")
    assert "neither torch nor tensorflow" in capsys.readouterr().err


def test_an_interrupt_while_profilers_start_stops_all_of_them(monkeypatch, capsys):
    done = []

    class First(Framework):
        def stop(self):
            done.append("stop")

    class Slow(First):
        def start(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(profiler, "_KINDS", {"sys": First, "os": Slow})
    spans.recorder.begin()
    try:
        with pytest.raises(KeyboardInterrupt), profiler.profiled(True):
            raise AssertionError("the cell does not begin")
    finally:
        spans.recorder.leave()
    assert done == ["stop", "stop"] and profiler.Profile.present is None
    assert "neither torch nor" not in capsys.readouterr().err
