"""What others put into a store is rejected by its reader, not by anyone who shows it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import read_object
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import parse_reach
from headgate.changes.state import item_bytes, read_item
from headgate.fleet.members import read_member, read_told

HALVES = [b"\\ud800", b"\\uDFFF", b"\xed\xa0\x80"]
VALUE = {"kind": "hold", "target": "x", "reason": "REASON"}
ITEM = item_bytes(
    Change(
        ChangeKind.RULE, "f-1", parse_reach("fleet"), value=VALUE, n=1, set_by="WHO", set_at=1.8e9
    )
)
MEMBER = b'{"host":"HOST","url":"","database":"","role":"primary","rejected":["REJECTED"]}'
TOLD = b'{"shard":"s","state":"healthy","problem":"PROBLEM","hosts":["HOST"]}'


def _member(raw: bytes) -> object:
    return read_member("members/s/a", raw)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("read", "raw", "word"),
    [
        (read_item, ITEM, b"REASON"),
        (read_item, ITEM, b"WHO"),
        (_member, MEMBER, b"HOST"),
        (_member, MEMBER, b"REJECTED"),
        (read_told, TOLD, b"PROBLEM"),
        (read_told, TOLD, b"HOST"),
    ],
)
def test_half_a_character_is_rejected_by_every_reader(
    read: Callable[[bytes], object], raw: bytes, word: bytes, half: bytes
) -> None:
    """One such key would have the page of the whole fleet fail, for everybody."""
    assert read(raw)
    with pytest.raises(ValueError, match="is not JSON"):
        read(raw.replace(word, half))


def test_whole_characters_are_read_escaped_or_not() -> None:
    assert read_object(b'{"a":"\\ud83d\\ude00 \\\\ud800"}') == {"a": "😀 \\ud800"}
    assert read_object('{"a":"😀"}'.encode()) == {"a": "😀"}


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, '{"a":1}'.encode("utf-16")]
)
def test_what_is_no_object_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not (a )?JSON"):
        read_object(raw)


@given(st.binary(max_size=30), st.sampled_from([b"%s", b'{"a":"%s"}', b'{"%s":1}']))
def test_whatever_is_read_can_be_written(raw: bytes, around: bytes) -> None:
    try:
        document = read_object(around % raw)
    except ValueError:
        return
    assert json.dumps(document, ensure_ascii=False).encode()
