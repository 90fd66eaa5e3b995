"""Keys: whole, cut at every byte, and an Escape that was only the beginning of an arrow."""

from __future__ import annotations

import pytest

from headgate.tui.terminal import ESCAPE_WAIT_S, KeyReader

TYPED = (
    "\x1b[<0;12;5M\x1b[<0;12;5m\x1b[<65;1;1Mj\x1b[A\x1bOBé\x1b[5~\r\x7f7\x1b[Z/\x1b[1;5C?".encode()
)
NAMES = [
    *("click 11 4", "wheeldown", "j", "up", "down", "é", "pageup", "enter", "backspace", "7"),
    *("backtab", "/", "?"),
]


@pytest.mark.parametrize("cut", range(len(TYPED) + 1))
def test_a_stream_cut_anywhere_gives_the_same_keys(cut: int) -> None:
    reader = KeyReader()
    assert reader.feed(TYPED[:cut], 0.0) + reader.feed(TYPED[cut:], 0.1) == NAMES


def test_escape_is_a_key_once_nothing_followed_it() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b", 10.0) == []
    assert reader.settle(10.0 + ESCAPE_WAIT_S / 2) == [], "an arrow may still be on its way"
    assert reader.settle(10.0 + ESCAPE_WAIT_S) == ["esc"]
    assert reader.settle(20.0) == []


def test_escape_before_another_key_is_both() -> None:
    assert KeyReader().feed(b"\x1bq", 0.0) == ["esc", "q"]
    assert KeyReader().feed(b"\x1b\x1b[A", 0.0) == ["esc", "up"]


def test_what_no_keyboard_sends_is_no_key() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b[200~\xff\x00\x1b[999999999999999999999", 0.0) == []
    assert reader.settle(9.0) == [] and reader.feed(b"q", 10.0) == ["q"]
