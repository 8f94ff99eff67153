"""What keeper and desk say to each other, as bytes: whole messages, cut ones, and what is none."""

from __future__ import annotations

import io

import pytest

from rankroom.far import frames


def test_messages_come_out_as_they_went_in():
    sent = [({"do": "run", "source": "print('é\n')"}, b""), ({"id": 1}, b"\n{}\0\xff" * 1000)]
    stream = io.BytesIO(b"".join(frames.frame(*each) for each in sent))
    for head, body in sent:
        found = frames.read(stream)
        assert found is not None
        assert {**found[0], **head} == found[0]
        assert found[1] == body
    assert frames.read(stream) is None


def test_a_line_that_is_cut_ends_at_any_byte():
    whole = frames.frame({"do": "push"}, b"some bytes")
    for end in range(len(whole)):
        assert frames.read(io.BytesIO(whole[:end])) is None


@pytest.mark.parametrize("line", [b"hello\n", b"[1]\n", b'{"bytes": -1}\n', b'{"bytes": "1"}\n'])
def test_what_is_no_message_is_refused(line: bytes):
    with pytest.raises(ValueError):
        frames.read(io.BytesIO(line))


def test_only_a_greeting_is_one():
    assert frames.greeting(b"Welcome to the login node\n") is None
    assert frames.greeting(b'{"do": "run"}\n') is None
    found = frames.greeting(frames.frame({frames.GREETING: "0.1.0"}))
    assert found == {"rankroom": "0.1.0"}
