"""Why a run is stuck, in words, and when its ranks are polled."""

from concurrent.futures import Future

import pytest

from rankroom.record.model import Place
from rankroom.supervisor.stall import StallWatch, explain, main_first, places

WAITS = {
    "state": "waits",
    "what": "allreduce loss",
    "cell_line": 7,
    "code": "hvd.allreduce(loss, name='loss')",
}
SLEEPS = {"state": "still", "cell_line": 9, "code": "time.sleep(60)"}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (
            [WAITS, WAITS, SLEEPS],
            "ranks 0–1 wait in allreduce loss (cell line 7) for 6 s; "
            "rank 2 is stuck at cell line 9: `time.sleep(60)`",
        ),
        (
            [WAITS, {"state": "ended"}],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; rank 1 has finished the cell",
        ),
        (
            [{"state": "busy", "cell_line": 2, "code": "while True:"}, WAITS],
            "rank 1 waits in allreduce loss (cell line 7) for 6 s; "
            "rank 0 is at cell line 2: `while True:`",
        ),
        (
            [WAITS, {"state": "waits", "what": "allgather b", "cell_line": 8, "code": "…"}],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; rank 1 waits in allgather b "
            "(cell line 8): different collectives, so each waits for the other",
        ),
        (
            [WAITS, WAITS | {"cell_line": 8}],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; "
            "rank 1 waits in allreduce loss (cell line 8)",
        ),
        (
            [WAITS, {"state": "silent"}, {"state": "silent"}],
            "rank 0 waits in allreduce loss (cell line 7) for 6 s; "
            "ranks 1–2 do not respond (busy in C code, or suspended)",
        ),
        (
            [WAITS, WAITS, {"state": "asks", "what": "the debugger at cell line 5"}],
            "rank 2 is in the debugger at cell line 5; "
            "ranks 0–1 wait in allreduce loss (cell line 7) for 6 s",
        ),
        (
            [
                {"state": "busy", "cell_line": 2, "beside": "a child process (cc1) is computing"},
                WAITS,
            ],
            "rank 1 waits in allreduce loss (cell line 7) for 6 s; "
            "rank 0 is at cell line 2 while a child process (cc1) is computing",
        ),
        ([SLEEPS], "rank 0 is stuck at cell line 9: `time.sleep(60)` for 6 s"),
        ([{"state": "still"}], "rank 0 is stuck outside the cell for 6 s"),
    ],
)
def test_a_stall_is_explained_in_words(answers, words):
    waited = dict.fromkeys(range(len(answers)), 6.2)
    assert explain(places(dict(enumerate(answers))), waited) == words


def test_the_longest_wait_is_attributed_to_the_rank_that_waited():
    assert explain(places({0: WAITS, 1: SLEEPS, 2: WAITS}), {0: 5.1, 1: 60.2, 2: 4.0}) == (
        "ranks 0,2 wait in allreduce loss (cell line 7); "
        "rank 1 is stuck at cell line 9: `time.sleep(60)` for 60 s"
    )


def test_ranks_at_the_same_place_are_grouped():
    assert places({3: WAITS, 2: SLEEPS, 0: WAITS}) == [
        Place(
            [0, 3], "waits", "wait in allreduce loss (cell line 7)", WAITS["what"], WAITS["code"]
        ),
        Place([2], "still", "is stuck at cell line 9", None, "time.sleep(60)"),
    ]


def test_many_ranks_are_counted_and_the_few_that_differ_are_named():
    late = {17, 300, 301, 302, 303}
    answers = {rank: SLEEPS if rank in late else WAITS for rank in range(1024)}
    assert explain(places(answers), dict.fromkeys(answers, 6.2)) == (
        "1,019 ranks wait in allreduce loss (cell line 7) for 6 s; "
        "ranks 17,300–303 are stuck at cell line 9: `time.sleep(60)`"
    )


def test_a_sentence_names_a_few_places_only():
    answers = {rank: WAITS | {"what": f"receive from rank {rank + 1}"} for rank in range(60)}
    answers |= dict.fromkeys(range(60, 1023), WAITS) | {1023: SLEEPS}
    assert explain(places(answers), dict.fromkeys(answers, 6.2)) == (
        "rank 0 waits in receive from rank 1 (cell line 7) for 6 s; "
        "ranks 60–1022 wait in allreduce loss (cell line 7); "
        "rank 1023 is stuck at cell line 9: `time.sleep(60)`; 59 ranks are in 59 other places"
    )


class FakeRanks:
    """Connections to ranks; scheduled calls run at `turn`."""

    def __init__(self, answers):
        self.answers = answers
        self.ranks = list(range(8))
        self.silent = {}
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
    return StallWatch([0, 1], {0: None, 1: None}, ranks, 0, patience, said.append)


def waits(seconds):
    return {"state": "waits", "what": "barrier", "seconds": seconds, "cell_line": 1, "code": "b()"}


def test_no_rank_is_polled_until_a_stall_watch_begins():
    ranks = FakeRanks({0: waits(2), 1: {"state": "busy", "seconds": 0}})
    watch(ranks, [])
    ranks.turn()
    assert ranks.asked == 0


def test_a_stall_is_reported_after_the_patience_and_cleared_on_progress():
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
    # It can begin again.
    ranks.answers[0] = waits(7)
    watching.begin()
    ranks.turn()
    assert said[2] is not None


def test_a_short_wait_is_not_reported():
    ranks = FakeRanks({0: waits(3), 1: {"state": "busy", "seconds": 0}})
    said = []
    watch(ranks, said).begin()
    for _ in range(5):
        ranks.turn()
    assert said == []


def test_no_stall_is_reported_after_the_end_of_the_run():
    ranks = FakeRanks({0: waits(9), 1: waits(9)})
    said = []
    watching = watch(ranks, said)
    watching.begin()
    watching.end()
    ranks.turn()
    assert said == [] and ranks.asked == 0


def test_the_main_thread_comes_first_in_faulthandler_stacks():
    text = (
        'Thread 0x1 (most recent call first):\n  File "/zmq/devices/basedevice.py", line 1 in x\n\n'
        'Thread 0x2 (most recent call first):\n  File "users.py", line 1 in x\n\n'
        'Current thread 0x3 (most recent call first):\n  File "<frozen runpy>", line 88 in y\n'
    )
    assert [block[:10] for block in main_first(text).split("\n\n")] == ["Current th", "Thread 0x2"]


def test_a_rank_that_does_not_answer_is_not_asked_again():
    class Silent(FakeRanks):
        def request(self, ranks, **content):
            self.asked += len(ranks)
            return [Future() for _ in ranks]

    ranks = Silent({})
    made = watch(ranks, [])
    for _ in range(50):
        made._poll()
    assert ranks.asked == 2


def test_a_rank_that_has_not_begun_the_cell_is_not_said_to_have_finished():
    ranks, said, running = FakeRanks({0: waits(6), 1: {"state": "ended"}}), [], {0: None, 1: None}
    StallWatch([0, 1], running, ranks, 0, 5, said.append).begin()
    ranks.turn()
    del running[1]
    ranks.turn()
    assert [hang.text for hang in said] == [
        "rank 0 waits in barrier (cell line 1) for 6 s; "
        "rank 1 has not begun the cell (busy with something else)",
        "rank 0 waits in barrier (cell line 1) for 6 s; rank 1 has finished the cell",
    ]
    assert [place.state for place in said[0].places] == ["waits", "busy"]
