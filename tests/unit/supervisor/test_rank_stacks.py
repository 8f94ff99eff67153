"""Stacks of ranks that do not reply: they dump them on a signal, which must not end a rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankroom.supervisor import rank_stacks
from rankroom.supervisor.rank_stacks import stacks

PIECES = [f'Thread 0x{number}:\n  File "users.py", line {number} in x\n\n' for number in range(5)]
MAIN = 'Thread 0x9:\n  File "cell.py", line 3 in <module>\n  File "<frozen runpy>", line 88 in y\n'


class Ranks:
    """Ranks that react to a signal only, and write their stacks piece by piece."""

    def __init__(self, folder: Path, ranks: list[int]) -> None:
        self.ranks = ranks
        self.silent: dict[int, Any] = {}
        self.signals: list[int] = []
        self._folder = folder

    def request(self, ranks: Sequence[int], **question: Any) -> list[Future[Any]]:
        return [Future() for _ in ranks]

    def signal(self, ranks: Collection[int], name: str) -> list[Future[None]]:
        self.signals += ranks
        threading.Thread(target=self._write, args=(list(ranks),)).start()
        return []

    def _write(self, ranks: list[int]) -> None:
        for piece in (*PIECES, MAIN):
            for rank in ranks:
                with (self._folder / f"{rank}" / "stacks").open("a") as file:
                    file.write(piece)
            time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rank_stacks, "REPLY_TIMEOUT_S", 0.01)
    for rank in range(3):
        (tmp_path / f"{rank}").mkdir()
    return tmp_path


def test_no_signal_is_sent_to_a_rank_that_is_starting(folder: Path):
    ranks = Ranks(folder, [0, 2])
    found = stacks(ranks, [0, 1, 2], lambda rank: folder / f"{rank}")  # type: ignore[arg-type]
    assert ranks.signals == [0, 2]
    assert list(found) == [0, 1, 2] and found[1] == "the rank is starting or down"


def test_stacks_are_read_when_they_are_whole(folder: Path):
    ranks = Ranks(folder, [0, 1])
    found = stacks(ranks, [0, 1], lambda rank: folder / f"{rank}")  # type: ignore[arg-type]
    for text in found.values():
        assert text.startswith(MAIN.strip()) and text.count("users.py") == len(PIECES)
