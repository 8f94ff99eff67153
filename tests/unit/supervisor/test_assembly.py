"""Reports of ranks are assembled in order, each byte once, even if their disk was full."""

import pytest

from rankroom.record.model import event_line
from rankroom.supervisor.assembly import Assembly

LINES = [event_line("log", 0, i, i, stream="stdout", text=f"line {i}\n") for i in range(6)]
WHOLE = b"".join(LINES)
AT = [len(b"".join(LINES[:i])) for i in range(7)]


def assembled(tmp_path, spooled):
    (tmp_path / "a.jsonl").write_bytes(spooled)
    notes: list[str] = []
    return Assembly("a", [0], lambda rank: tmp_path, notes.append, pytest.fail), notes


def with_hole(first, last):
    """Return a spool whose disk had no room for lines `first` to `last`, except part of one."""
    torn = LINES[first][:20].ljust(AT[last + 1] - AT[first], b"\0")
    return WHOLE[: AT[first]] + torn + WHOLE[AT[last + 1] :]


def test_a_gap_is_filled_from_the_spool(tmp_path):
    assembly, notes = assembled(tmp_path, WHOLE)
    assert assembly.take(0, 0, LINES[0]) == LINES[0]
    assert assembly.take(0, AT[3], LINES[3]) == b"".join(LINES[1:4])
    assert assembly.take(0, AT[2], b"".join(LINES[2:5])) == LINES[4]
    assert assembly.rest(0) == LINES[5]
    assert notes == []


def test_bytes_missing_from_both_spool_and_messages_are_noted_as_lost(tmp_path):
    assembly, notes = assembled(tmp_path, with_hole(2, 3))
    assert assembly.take(0, 0, LINES[0]) == LINES[0]
    assert assembly.take(0, AT[5], LINES[5]) == LINES[1] + LINES[4] + LINES[5]
    assert notes == [f"{AT[4] - AT[2]} bytes of events from rank 0 were lost"]


def test_a_spool_hole_whose_lines_were_received_loses_nothing(tmp_path):
    assembly, notes = assembled(tmp_path, with_hole(2, 3))
    assert assembly.take(0, 0, b"".join(LINES[:4])) == b"".join(LINES[:4])
    assert assembly.rest(0) == LINES[4] + LINES[5]
    assert notes == []


def test_the_rest_of_a_spool_ends_with_a_complete_line(tmp_path):
    assembly, notes = assembled(tmp_path, WHOLE[:-5])
    assert assembly.rest(0) == b"".join(LINES[:5])
    assert notes == []


def test_a_resumed_assembly_continues_where_the_record_ends(tmp_path):
    for seq in range(7):
        assembly, notes = assembled(tmp_path, WHOLE)
        assembly.resume(0, seq)
        assert assembly.rest(0) == b"".join(LINES[seq:])
    assert notes == []


def test_a_resumed_assembly_continues_after_a_hole_in_the_spool(tmp_path):
    assembly, notes = assembled(tmp_path, with_hole(2, 3))
    assembly.resume(0, 5)
    assert assembly.rest(0) == LINES[5]
    assert notes == []
    assembly, notes = assembled(tmp_path, with_hole(2, 3))
    assembly.resume(0, 2)
    assert assembly.rest(0) == LINES[4] + LINES[5]
    assert notes == [f"{AT[4] - AT[2]} bytes of events from rank 0 were lost"]


def test_last_output_is_read_in_pieces_that_split_no_character(tmp_path):
    assembly, notes = assembled(tmp_path, b"")
    data = ("€" * 500_000 + "\n").encode() + b"\xe2\x82"  # ends within a character
    (tmp_path / "stdout").write_bytes(b"known" + data)
    words = list(assembly.last_words(0, {"stdout": 5, "stderr": 0}))
    assert len(words) == 3
    assert "".join(text for _, text, _ in words) == "€" * 500_000 + "\n" + r"\xe2\x82"
    assert [to for _, _, to in words][-1] == 5 + len(data)
    assert max(len(text.encode()) for _, text, _ in words) <= 1 << 20
    assert {stream for stream, _, _ in words} == {"stdout"} and notes == []


def test_long_lines_beside_a_hole_are_read_as_quickly_as_short_ones(tmp_path):
    long = event_line("log", 0, 6, 6, stream="stdout", text="x" * 4_000_000)
    assembly, notes = assembled(tmp_path, with_hole(2, 3) + long)
    assert assembly.take(0, 0, b"".join(LINES[:4])) == b"".join(LINES[:4])
    assert assembly.rest(0) == LINES[4] + LINES[5] + long
    assert notes == []


def test_the_spool_of_a_dead_process_is_not_read_as_that_of_the_next(tmp_path):
    assembly, notes = assembled(tmp_path, WHOLE)
    assert assembly.take(0, 0, WHOLE) == WHOLE
    assembly.restart(0)
    assert assembly.rest(0) == b"" and notes == []
