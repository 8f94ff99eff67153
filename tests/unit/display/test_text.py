"""A rank's output as it is shown: colours, carriage returns, control characters."""

from __future__ import annotations

import random
import re
import time
from html.parser import HTMLParser

import pytest

from rankroom.display.text import clean, clip, keep_colours, one_line, overprint, to_html

ESC = "\x1b"


class Visible(HTMLParser):
    """Collects text, and rejects markup that is not balanced or not a plain span."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.open = 0

    def handle_starttag(self, tag, attrs):
        assert tag == "span" and [name for name, _ in attrs] == ["style"]
        assert re.fullmatch(r"[a-z-]+:[#a-z0-9. -]+(;[a-z-]+:[#a-z0-9. -]+)*", attrs[0][1])
        self.open += 1

    def handle_endtag(self, tag):
        self.open -= 1

    def handle_data(self, data):
        self.text += data


def visible(html: str) -> str:
    parser = Visible()
    parser.feed(html)
    parser.close()
    assert parser.open == 0
    return parser.text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        (f"{ESC}[31mred{ESC}[0m", "red"),
        (f"{ESC}[38;2;1;2;3mrgb{ESC}[m", "rgb"),
        (f"{ESC}]8;;http://x{ESC}\\link{ESC}]8;;{ESC}\\", "link"),
        (f"{ESC}]0;title\x07text", "text"),
        (f"{ESC}[2J{ESC}[Hhome", "home"),
        (f"{ESC}(Bx", "x"),
        (f"cut {ESC}", "cut "),
        (f"cut {ESC}[3", "cut 3"),
        ("a\x00b\x07c\x7f", "a␀b␇c␡"),
        ("\ud800x", "\ufffdx"),
        ("\u202eevil", "\ufffdevil"),
        ("tab\there", "tab\there"),
        ("✓ 火 🙂", "✓ 火 🙂"),
    ],
)
def test_escape_sequences_and_control_characters_are_cleaned(raw: str, shown: str):
    assert clean(raw) == shown
    assert visible(to_html(raw, 1000)) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("abc", "abc"),
        ("abc\rX", "Xbc"),
        (" 10%\r 50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("\r\r\rx\r", "x"),
        ("long line\rshort", "shortline"),
        (f"long line\r{ESC}[Kshort", f"{ESC}[Kshort"),
        (f"loss 0.98765{ESC}[2K\rloss 1.2", "loss 1.2"),
        (f"step 1000/1000\r{ESC}[2Kdone", "done"),
        (f"step 9\rabc{ESC}[2Kd", "   d"),
        (f"gone{ESC}[2K\r", f"gone{ESC}[2K"),
        ("x" * 6000 + "END\r", "x" * 6000 + "END"),
        ("ab\bc", "ac"),
        ("spin |\b/\b-\b", "spin -"),
        ("abc\b\b", "abc"),
        (f"{ESC}[32m|{ESC}[0m\b/", f"{ESC}[0m/"),
        ("\b\bab", "ab"),
        ("5%\b\b10%", "10%"),
        (f"{ESC}[31mabc{ESC}[0m\rX", "Xbc"),
    ],
)
def test_carriage_returns_and_backspaces_overprint_text(raw: str, shown: str):
    assert overprint(raw) == shown


@pytest.mark.parametrize("raw", ["\ra" * 300_000, "x" * 300_000 + "\ry" * 300_000, "a\b" * 300_000])
def test_overprinting_a_long_line_is_quick(raw: str):
    began = time.process_time()
    overprint(raw)
    assert time.process_time() - began < 2


def test_colors_become_spans():
    html = to_html(f"a {ESC}[1;31mb <c>{ESC}[0m d", 100)
    assert html.startswith("a <span") and "&lt;c&gt;</span> d" in html
    assert "font-weight:bold" in html and "color:#" in html
    assert "<span" not in to_html(f"{ESC}[0m{ESC}[39mx", 100)
    assert to_html(f"{ESC}[38;5;196mx", 9) == '<span style="color:#ff0000">x</span>'
    assert to_html(f"{ESC}[48;5;244mx", 9) == '<span style="background:#808080">x</span>'


@pytest.mark.parametrize(
    ("codes", "style"),
    [
        ("38:2::255:0:0", "color:#ff0000"),
        ("38:2:255:0:0", "color:#ff0000"),
        ("1;48:5:244", "font-weight:bold;background:#808080"),
        ("4:3", "text-decoration:underline"),
        ("1;4;4:0", "font-weight:bold"),
    ],
)
def test_colors_and_underlines_may_be_given_with_colons(codes: str, style: str):
    assert to_html(f"{ESC}[{codes}mx", 9) == f'<span style="{style}">x</span>'


def test_html_is_clipped_by_its_visible_length():
    html = to_html(f"{ESC}[31m" + "x" * 50 + f"{ESC}[32m" + "y" * 50, 60)
    assert visible(html) == "x" * 50 + "y" * 9 + "…"


def test_html_never_lets_markup_through():
    rng = random.Random(7)
    parts = [ESC, "[", "31m", "0m", "38;5;", "38;2;9", "<b>", '"', "'", "&", "\r", "\x9b", ";", ":",
             "m", "999", "]", "\x07", "é", "\ud83d", "K", "<script>"]  # fmt: skip
    for _ in range(3000):
        raw = "".join(rng.choice(parts) for _ in range(rng.randrange(20)))
        assert "\x1b" not in visible(to_html(raw, 30))
        assert len(visible(to_html(raw, 30))) <= 30
        keep_colours(raw).encode()


def test_only_colors_reach_a_terminal():
    raw = f"{ESC}[31mred{ESC}[0m {ESC}]0;title\x07{ESC}[2Jx\r"
    assert keep_colours(raw) == f"{ESC}[31mred{ESC}[0m x␍{ESC}[0m"
    assert keep_colours("plain") == "plain"


def test_text_is_reduced_to_one_line_and_clipped():
    assert one_line("\n  \n  first\nsecond", 80) == "first"
    assert one_line("\n\n", 80) == ""
    assert one_line(f"{ESC}[0m\n{ESC}[31mreal{ESC}[0m text", 80) == "real text"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"
    assert clip("abc", 3) == "abc" and clip("abcd", 3) == "ab…" and clip("ab", 0) == "…"
