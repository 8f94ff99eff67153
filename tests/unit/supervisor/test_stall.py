"""Why a run is stuck, in words; and when the ranks are asked."""

from concurrent.futures import Future

import pytest

from rankroom.record.model import Standing
from rankroom.supervisor.stall import StallWatch, explain, main_first

WAITS = Standing(0, "waits", "allreduce loss", 7, "hvd.allreduce(loss, name='loss')")
SLEEPS = Standing(2, "still", None, 9, "time.sleep(60)")


@pytest.mark.parametrize(
    ("standings", "words"),
    [
        (
            [WAITS, Standing(1, "waits", "allreduce loss", 7, WAITS.code), SLEEPS],
            "ranks 0–1 wait in allreduce loss (cell line 7) for 6 s; "
            "rank 2 stands at cell line 9: `time.sleep(60)`",
        ),
        (
            [WAITS, Standing(1, "ended")],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; rank 1 has finished the cell",
        ),
        (
            [WAITS, Standing(1, "busy", None, 2, "while True:")],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; "
            "rank 1 is at cell line 2: `while True:`",
        ),
        (
            [WAITS, Standing(1, "waits", "allgather b", 8, "…")],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; rank 1 waits in allgather b "
            "(cell line 8): different collectives, so each waits for the other",
        ),
        (
            [WAITS, Standing(1, "silent")],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; "
            "rank 1 does not answer (busy in C code, or stopped)",
        ),
        ([SLEEPS], "rank 2 stands at cell line 9: `time.sleep(60)` for 6 s"),
        ([Standing(0, "still")], "rank 0 stands outside the cell for 6 s"),
    ],
)
def test_words(standings, words):
    assert explain(standings, 6.2) == words


class FakeRanks:
    """Connections to ranks, whose time is turned by hand."""

    def __init__(self, answers):
        self.answers = answers
        self.ranks = list(range(8))
        self.calls = []
        self.asked = 0

    def later(self, seconds, call):
        self.calls.append(call)

    def request(self, ranks, **content):
        assert content == {"do": "status"}
        self.asked += 1
        futures = []
        for rank in ranks:
            future = Future()
            future.set_result({"stands": self.answers[rank]})
            futures.append(future)
        return futures

    def turn(self):
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def watch(ranks, said, patience=5):
    return StallWatch([0, 1], ranks, 0, patience, said.append)


def waits(seconds):
    return {"state": "waits", "what": "barrier", "seconds": seconds, "cell_line": 1, "code": "b()"}


def test_nothing_is_asked_until_a_rank_says_that_it_stands():
    ranks = FakeRanks({0: waits(2), 1: {"state": "busy", "seconds": 0}})
    watch(ranks, [])
    ranks.turn()
    assert ranks.asked == 0


def test_it_is_said_when_patience_is_over_and_taken_back_when_it_moves():
    ranks = FakeRanks({0: waits(2), 1: {"state": "busy", "seconds": 0}})
    said = []
    watching = watch(ranks, said)
    watching.begin()
    watching.begin()
    ranks.turn()
    assert said == [] and len(ranks.calls) == 1
    ranks.answers[0] = waits(5.5)
    ranks.turn()
    assert said[0].text.startswith("rank 0 waits in barrier (cell line 1) for 6 s; rank 1 is")
    ranks.answers[0] = {"state": "busy", "seconds": 0}
    ranks.turn()
    assert said[1:] == [None] and ranks.calls == []
    # And it can begin again.
    ranks.answers[0] = waits(7)
    watching.begin()
    ranks.turn()
    assert said[2] is not None


def test_a_short_wait_is_never_said():
    ranks = FakeRanks({0: waits(3), 1: {"state": "busy", "seconds": 0}})
    said = []
    watch(ranks, said).begin()
    for _ in range(5):
        ranks.turn()
    assert said == []


def test_after_the_end_nothing_is_said():
    ranks = FakeRanks({0: waits(9), 1: waits(9)})
    said = []
    watching = watch(ranks, said)
    watching.begin()
    watching.end()
    ranks.turn()
    assert said == [] and ranks.asked == 0


def test_of_faulthandlers_stacks_the_main_thread_comes_first():
    text = (
        'Thread 0x1 (most recent call first):\n  File "/zmq/devices/basedevice.py", line 1 in x\n\n'
        'Thread 0x2 (most recent call first):\n  File "users.py", line 1 in x\n\n'
        'Current thread 0x3 (most recent call first):\n  File "<frozen runpy>", line 88 in y\n'
    )
    assert [block[:10] for block in main_first(text).split("\n\n")] == ["Current th", "Thread 0x2"]
