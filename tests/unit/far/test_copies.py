"""Copying a record that grows: followed at one end, kept at the other, cut wherever it may be."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from rankroom.far.copies import Copies
from rankroom.far.followed import Followed, Place

from rankroom.errors import RecordError
from rankroom.record.model import RankInfo, RunInfo, event_line
from rankroom.record.owner import this_process
from rankroom.record.store import Store, Writer

START = 1_700_000_000_000_000


class There:
    """A record on a site, and who writes it."""

    def __init__(self, root: Path, state: str = "running") -> None:
        self.store = Store(root)
        self.run = RunInfo(
            "20231114-221320-000000", "far", 1, START, [RankInfo(0, "c1", 7, "cpu")], "running",
            title="x", owner=this_process(),
        )  # fmt: skip
        self.run.owner.host = "c1"
        self.writer: Writer = self.store.create(self.run, "print('é')")
        self.count = 0

    @property
    def events(self) -> Path:
        return self.store.paths(self.run.id).events

    def write(self, lines: int) -> None:
        for _ in range(lines):
            line = event_line("log", 0, self.count, self.count, stream="stdout", text="line é\n")
            self.writer.append(line)
            self.count += 1

    def end(self) -> None:
        self.run.state, self.run.end = "done", START + 1
        self.writer.finish(self.run)


@pytest.fixture
def there(tmp_path: Path) -> There:
    return There(tmp_path / "there")


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


def copies(here: Store) -> Copies:
    """What a keeper that starts now makes of what there is."""
    return Copies(here, "far", START / 1e6 - 1)


def followed(there: There, kept: Copies) -> Followed:
    have = kept.have().get(there.run.id)
    place = Place(have["at"], have["mark"]) if have else None
    return Followed(there.store.paths(there.run.id), place)


def bring(following: Followed, kept: Copies, most: int = 100) -> None:
    for head, body in following.news(most):
        kept.take(json.loads(json.dumps(head)), body)


def same(there: There, here: Store) -> bool:
    one, other = there.store.paths(there.run.id), here.paths(there.run.id)
    return all(
        (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
        for name in ("source.py", "events.jsonl", "run.json")
    )


def test_a_record_that_grows_is_followed_to_its_end(there: There, here: Store):
    kept = copies(here)
    following = followed(there, kept)
    for lines in (0, 1, 40, 0, 3):
        there.write(lines)
        bring(following, kept)
        assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()
        # Live as long as whoever copies it lives, whatever host writes it there.
        assert here.load(there.run.id).state == "running"
        assert kept.live == [there.run.id]
        assert not following.done
    there.end()
    bring(following, kept)
    assert following.done and same(there, here) and kept.live == []
    assert kept.have()[there.run.id]["done"]


def test_the_state_comes_after_all_lines_that_were_there(there: There, here: Store):
    there.write(30)
    there.end()
    said = [head["file"] for head, _ in followed(there, copies(here)).news(100)]
    assert said[0] == "source" and said[-1] == "run"
    assert set(said[1:-1]) == {"events"} and len(said) > 3


def test_whatever_is_lost_on_the_way_every_line_comes_once(there: There, here: Store):
    """The line is cut after any number of messages; keepers and desks begin again."""
    chance = random.Random(5)
    kept = copies(here)
    for round_ in range(60):
        there.write(chance.randrange(5) if round_ <= 58 else 0)
        if round_ == 58:
            there.end()
        if chance.random() < 0.3:
            kept = copies(here)
        for number, (head, body) in enumerate(followed(there, kept).news(60)):
            if number >= chance.randrange(8) and round_ < 58:
                break
            kept.take(head, body)
    assert same(there, here)


def test_what_is_sent_twice_is_kept_once(there: There, here: Store):
    kept = copies(here)
    there.write(5)
    sent = list(followed(there, kept).news(60))
    for head, body in [*sent, *sent]:
        kept.take(head, body)
    assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()


def test_a_gap_is_refused(there: There, here: Store):
    kept = copies(here)
    there.write(9)
    sent = list(followed(there, kept).news(60))
    kept.take(*sent[0])
    with pytest.raises(RecordError, match="has 0 bytes, and what came begins at"):
        kept.take(*sent[3])
    bring(followed(there, kept), kept)
    assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()


@pytest.mark.parametrize("change", ["truncated", "replaced", "shorter and grown"])
def test_a_file_that_is_not_the_same_any_more_is_copied_anew(
    there: There, here: Store, change: str
):
    kept = copies(here)
    following = followed(there, kept)
    there.write(20)
    bring(following, kept)
    if change == "truncated":
        there.events.write_bytes(b"")
        there.write(3)
    elif change == "replaced":
        there.events.write_bytes(b"x" * there.events.stat().st_size)
    else:
        there.events.write_bytes(b"y" * (there.events.stat().st_size + 100))
    bring(following, kept)
    assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()
    # And so it is for a desk that begins again.
    there.events.write_bytes(b"z" * 10)
    bring(followed(there, kept), kept)
    assert here.paths(there.run.id).events.read_bytes() == b"z" * 10


def test_a_run_that_nobody_brings_any_more_says_so(there: There, here: Store):
    kept = copies(here)
    there.write(2)
    bring(followed(there, kept), kept)
    kept.leave("no more of it")
    run = here.load(there.run.id)
    assert run.state == "lost" and run.notes == ["no more of it"]
    # The next keeper goes on with it all the same.
    there.write(2)
    there.end()
    again = copies(here)
    bring(followed(there, again), again)
    assert same(there, here)


def test_other_clusters_runs_are_left_alone(there: There, here: Store):
    here.create(RunInfo("20231114-221320-000001", "another", 1, START), "1").close()
    assert copies(here).have() == {}
