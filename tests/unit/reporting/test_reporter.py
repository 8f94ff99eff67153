"""A rank's events: ordered, numbered, and on disk before they are sent."""

import json
import subprocess
import sys
import textwrap

import pytest


def report(tmp_path, code):
    """Run `code` in a process with an installed Reporter `r`; returns (events, batches)."""
    script = textwrap.dedent(
        """
        import json, os, sys, time
        from pathlib import Path
        from rankroom.reporting.reporter import Reporter
        spool = Path(sys.argv[1])
        keep = os.dup(1)
        batches = []
        def send(header, lines):
            batches.append([header, lines.decode()])
        r = Reporter(3, spool, send)
        r.install()
        def done():
            os.write(keep, json.dumps(batches).encode())
        """
    ) + textwrap.dedent(code)
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, timeout=120
    )
    batches = json.loads(out.stdout) if out.stdout else []
    lines = "".join(text for _, text in batches).splitlines()
    return [json.loads(line) for line in lines], batches


def test_events_are_ordered_and_numbered(tmp_path):
    events, batches = report(
        tmp_path,
        """
        r.begin("a", time.time_ns() // 1000)
        print("before")
        r.emit("display", data={"text/plain": "1"})
        print("after")
        r.end("ok")
        done()
        """,
    )
    assert [e["kind"] for e in events] == ["status", "log", "display", "log", "status"]
    assert [e["seq"] for e in events] == [0, 1, 2, 3, 4]
    assert {e["rank"] for e in events} == {3}
    assert events[-1]["state"] == "ok"
    assert batches[-1][0]["ended"] is True


@pytest.mark.parametrize("broken", [
    "time.sleep = time.time = time.monotonic = fail", "r.sampler = Sampler()",
])  # fmt: skip
def test_output_is_still_reported_after_an_error_on_the_reporting_thread(tmp_path, broken):
    events, _ = report(
        tmp_path,
        f"""
        own_sleep = time.sleep
        def fail(*given):
            raise TimeoutError
        class Sampler:
            seconds = 9.0
            start = sample = fail
        r.begin("a", time.time_ns() // 1000)
        {broken}
        os.write(1, b"line\\n")
        for _ in range(200):
            if any("line" in text for _, text in batches):
                break
            own_sleep(0.05)
        done()
        """,
    )
    assert [e["text"] for e in events if e["kind"] == "log"] == ["line\n"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_spool_file_that_was_made_before_its_run_is_as_any_other(tmp_path, gone):
    events, batches = report(
        tmp_path,
        f"""
        r.begin("a", time.time_ns() // 1000)
        r.end("ok")
        r.prepare()
        r.prepare()
        names = sorted(os.listdir(spool))
        if {gone}:
            (spool / "blank").unlink()
        batches.clear()
        r.begin("b", time.time_ns() // 1000)
        print("hello", names.count("blank"))
        r.end("ok")
        done()
        """,
    )
    assert [e["kind"] for e in events] == ["status", "log", "status"]
    assert events[1]["text"] == "hello 1\n"
    assert (tmp_path / "b.jsonl").read_text() == "".join(text for _, text in batches)
    assert not (tmp_path / "blank").exists()


def test_batches_carry_their_offset_in_the_spool_file(tmp_path):
    _, batches = report(
        tmp_path,
        """
        r.begin("a", 0)
        i = 0
        while len(batches) < 3:
            print(i)
            i += 1
            time.sleep(0.01)
        r.end("ok")
        done()
        """,
    )
    assert len(batches) > 2
    whole = b""
    for header, lines in batches:
        assert header["at"] == len(whole)
        whole += lines.encode()
    assert (tmp_path / "a.jsonl").read_bytes() == whole


def test_output_between_runs_is_reported_first_in_the_next_run(tmp_path):
    events, _ = report(
        tmp_path,
        """
        r.begin("a", time.time_ns() // 1000)
        r.end("ok")
        print("late")
        time.sleep(0.02)
        r.begin("b", time.time_ns() // 1000)
        print("now")
        r.end("ok")
        done()
        """,
    )
    logs = [e for e in events if e["kind"] == "log"]
    assert [e["text"] for e in logs] == ["late\n", "now\n"]
    assert logs[0]["t"] < 0 <= logs[1]["t"]


def test_c_stdio_is_flushed_at_the_end(tmp_path):
    events, _ = report(
        tmp_path,
        """
        import ctypes
        libc = ctypes.CDLL(None)
        r.begin("a", 0)
        libc.printf(b"from C without an end")
        r.end("ok")
        done()
        """,
    )
    assert [e["text"] for e in events if e["kind"] == "log"] == ["from C without an end"]


def test_a_killed_rank_leaves_its_last_line_and_its_events(tmp_path):
    report(
        tmp_path,
        """
        r.begin("a", 0)
        r.emit("mark", name="here")
        print("last words")
        os.kill(os.getpid(), 9)
        """,
    )
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert kinds[0] == "status" and "mark" in kinds
    assert (tmp_path / "stdout").read_text() == "last words\n"


@pytest.mark.parametrize("count", [50_000])
def test_a_flood_is_complete(tmp_path, count):
    events, _ = report(
        tmp_path,
        f"""
        r.begin("a", 0)
        for i in range({count}):
            print("line", i)
        r.end("ok")
        done()
        """,
    )
    text = "".join(e["text"] for e in events if e["kind"] == "log")
    assert text == "".join(f"line {i}\n" for i in range(count))


@pytest.mark.parametrize("said", ["print('x')", "r.emit('mark', name='m')"])
def test_an_interrupt_at_any_moment_of_a_report_leaves_no_lock_behind(tmp_path, said):
    """Python raises KeyboardInterrupt where functions begin or end, also within the reporter."""
    events, _ = report(
        tmp_path,
        f"""
        import faulthandler, threading
        faulthandler.dump_traceback_later(60, exit=True)
        r.begin("a", time.time_ns() // 1000)
        broken = 0

        class AtStep:
            def __init__(self, step):
                self.left = step
            def __call__(self, frame, event, arg):
                self.left -= event in ("call", "return")
                if self.left == 0:
                    raise KeyboardInterrupt
                return self

        for step in range(1, 100):
            time.sleep(0.002)  # the stream wakes the thread of reports once in a while only
            try:
                sys.settrace(AtStep(step))
                {said}
            except KeyboardInterrupt:
                broken += 1
            finally:
                sys.settrace(None)
            others = threading.Thread(target=r.emit, args=("mark",), kwargs={{"name": "after"}})
            others.start()
            others.join(10)
            if others.is_alive():
                os._exit(1)
        r.emit("mark", name=f"{{broken}}")
        r.end("ok")
        done()
        """,
    )
    marks = [event["name"] for event in events if event["kind"] == "mark"]
    assert marks.count("after") == 99
    assert int(marks[-1]) > 5


def test_an_interrupt_during_a_report_is_raised_after_it(tmp_path):
    """Otherwise, an event could be in the spool but not be sent, or the reverse."""
    events, batches = report(
        tmp_path,
        """
        import signal, threading
        signal.signal(signal.SIGINT, r.interrupt)
        r.begin("a", time.time_ns() // 1000)
        interrupted, over, count = 0, [], 0

        def press():
            while not over:
                time.sleep(0.003)
                os.kill(os.getpid(), signal.SIGINT)
        presses = threading.Thread(target=press)
        presses.start()
        until = time.monotonic() + 1
        while True:
            try:
                while time.monotonic() < until:
                    r.emit_now("mark", name="m")
                    print("x" * 100)
                break
            except KeyboardInterrupt:
                interrupted += 1
        while True:
            try:
                over.append(1)
                presses.join()
                time.sleep(0.1)
                break
            except KeyboardInterrupt:
                pass
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        r.emit("mark", name=f"{interrupted}")
        r.end("ok")
        done()
        """,
    )
    assert [each["seq"] for each in events] == list(range(len(events)))
    places = [header["at"] for header, _ in batches]
    sizes = [len(text.encode()) for _, text in batches]
    assert places == [sum(sizes[:n]) for n in range(len(sizes))]
    spooled = (tmp_path / "a.jsonl").read_bytes()
    assert spooled == "".join(text for _, text in batches).encode()
    assert int(events[-2]["name"]) > 50


@pytest.mark.parametrize("said", ["print('x')", "r.emit('mark', name='m')"])
def test_a_task_interrupted_in_the_middle_of_a_report_is_cancelled_after_it(tmp_path, said):
    """Otherwise, tasks that print much could be cancelled only between two reports."""
    events, _ = report(
        tmp_path,
        f"""
        import asyncio
        asked = []

        def trace(frame, event, arg):
            if r._is_reporting() and not asked:
                asked.append(True)
                r.interrupt(2, frame, asyncio.CancelledError)
            return trace

        r.begin("a", time.time_ns() // 1000)
        came = "nothing"
        sys.settrace(trace)
        try:
            {said}
        except BaseException as error:
            came = type(error).__name__
        sys.settrace(None)
        print("then")
        r.emit("mark", name=f"{{came}} {{len(asked)}}")
        r.end("ok")
        done()
        """,
    )
    assert [each["name"] for each in events if each["kind"] == "mark"][-1] == "CancelledError 1"
    assert "then" in "".join(each["text"] for each in events if each["kind"] == "log")


@pytest.mark.parametrize(
    ("handler", "ended", "came"),
    [
        ("r.interrupt", True, "ValueError"),
        ("signal.default_int_handler", True, "KeyboardInterrupt"),
        ("lambda number, frame: users.append(number)", False, "nothing"),
        ("signal.SIG_IGN", True, "nothing"),  # the cell is over
    ],
)
def test_a_cell_is_ended_unless_it_takes_interrupts_itself(tmp_path, handler, ended, came):
    events, _ = report(
        tmp_path,
        f"""
        import signal, threading
        users = []
        signal.signal(signal.SIGINT, {handler})
        r.begin("a", time.time_ns() // 1000)

        def end_and_look():
            found = "nothing"
            try:
                answers.append(r.end_cell(ValueError("mine")))
                time.sleep(0.2)
            except BaseException as error:
                found = type(error).__name__
            return found

        answers = []
        came = end_and_look()
        # What the user does then is an interrupt.
        signal.signal(signal.SIGINT, r.interrupt)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        except BaseException as error:
            then = type(error).__name__
        r.emit("mark", name=f"{{answers or [True]}} {{users}} {{came}} {{then}}")
        r.end("ok")
        done()
        """,
    )
    [said] = [each["name"] for each in events if each["kind"] == "mark"]
    assert said == f"[{ended}] [] {came} KeyboardInterrupt"


AWAITS = """
        import asyncio, signal
        from types import SimpleNamespace
        from rankroom.rank.kernel import RankKernel
        r.begin("a", time.time_ns() // 1000)
        shell = SimpleNamespace(cells=set, interrupted=False, ended_by=None)
        kernel = SimpleNamespace(shell=shell, reporter=r)

        async def cell():
            task = asyncio.ensure_future(asyncio.sleep(60))
            with RankKernel._interrupts(kernel, task):
                await asyncio.sleep(0.1)
                {interrupts}
                try:
                    await task
                except asyncio.CancelledError:
                    return "cancelled"

        said = asyncio.run(cell())
        after = r._ends_cell, r.handles_interrupt == r.interrupt
        r.emit("mark", name=f"{{shell.interrupted}} {{shell.ended_by!r}} {{said}} {{after}}")
        r.end("ok")
        done()
"""


@pytest.mark.parametrize(
    ("interrupts", "expected"),
    [
        ("r.end_cell(ValueError('mine'))", "False ValueError('mine') cancelled (None, True)"),
        ("os.kill(os.getpid(), signal.SIGINT)", "True None cancelled (None, True)"),
    ],
    ids=["ended", "interrupted"],
)
def test_ending_an_awaiting_cell_is_not_reported_as_an_interrupt(tmp_path, interrupts, expected):
    events, _ = report(tmp_path, AWAITS.format(interrupts=interrupts))
    [said] = [each["name"] for each in events if each["kind"] == "mark"]
    assert said == expected


def test_spans_whose_details_cannot_be_written_are_there_without_them(tmp_path):
    events, _ = report(
        tmp_path,
        """
        from rankroom.reporting.spans import recorder
        r.begin("a", time.time_ns() // 1000)
        number = recorder.number("x", lambda: {"name": "all_reduce #1", "shape": [object()]})
        recorder.add("collective", number, time.time_ns() // 1000, 5)
        time.sleep(2.5)
        print("the thread that reports is there")
        r.end("ok")
        done()
        """,
    )
    [spans] = [each for each in events if each["kind"] == "spans"]
    assert spans["define"] == [{"name": "all_reduce #1"}] and len(spans["dur"]) == 1
    [mark] = [each for each in events if each["kind"] == "mark"]
    assert "details of spans are missing from rank 3: Object of type object" in mark["args"]["text"]
    assert events.index(mark) < [each["kind"] for each in events].index("log")


def test_an_event_emitted_after_a_flood_follows_its_output(tmp_path):
    events, _ = report(
        tmp_path,
        """
        from rankroom.reporting import streams
        streams.MAX_READ_BYTES = 1 << 16
        r.begin("a", time.time_ns() // 1000)
        r._lock.acquire()  # nothing is reported meanwhile
        os.write(1, b"x" * 99 + b"\\n")
        os.write(1, (b"y" * 99 + b"\\n") * 10_000)
        r.emit("display", data={"text/plain": "1"})
        r._lock.release()
        r.end("ok")
        done()
        """,
    )
    assert [e["kind"] for e in events][-2:] == ["display", "status"]
    assert sum(len(e["text"]) for e in events if e["kind"] == "log") == 100 * 10_001


def test_a_forked_process_reports_nothing_and_ends_no_run(tmp_path):
    events, _ = report(
        tmp_path,
        """
        r.begin("a", time.time_ns() // 1000)
        if not (child := os.fork()):
            r.emit("display", data={"text/plain": "1"})
            r.end("error")
            os._exit(0)
        os.waitpid(child, 0)
        r.end("ok")
        done()
        """,
    )
    assert [e["kind"] for e in events] == ["status", "status"] and events[-1]["state"] == "ok"
    spooled = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in spooled] == events
