"""What a shard's speaker tells: as bytes and back, and when it is news."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fleet.members import (
    MAX_DETAIL_CHARS,
    MAX_MEMBERS_TOLD,
    MAX_TOLD_BYTES,
    ShardTold,
    read_told,
    told_bytes,
)
from tests.fixtures.fleet_sights import member_told, metric_told, shard_told

TOLD = shard_told(
    "commerce/-80",
    member_told("db-a", "primary", n=7, source="etcd"),
    member_told("db-b", stale_since=1.5, problem="unreachable"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def test_what_is_told_comes_back() -> None:
    assert read_told(told_bytes(TOLD)) == TOLD


def test_readers_of_the_preview_find_their_fields() -> None:
    document = json.loads(told_bytes(TOLD))
    assert document["hosts"] == ["db-a", "db-b"]
    assert (document["shard"], document["region"], document["cluster"], document["healthy"]) == (
        "commerce/-80",
        "eu-west",
        "commerce",
        True,
    )
    assert json.loads(told_bytes(replace(TOLD, state="unhealthy")))["healthy"] is False


def test_a_newer_speakers_fields_are_left_aside() -> None:
    document = json.loads(told_bytes(TOLD)) | {"weather": "fine"}
    document["members"][0]["mood"] = 3
    assert read_told(json.dumps(document).encode()) == TOLD


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"[]", b"{}", b'{"shard":"a"}', b'{"shard":"a","state":"odd"}',
     b'{"shard":"","state":"healthy"}', b" " * (MAX_TOLD_BYTES + 1), b"[" * 60_000],
)  # fmt: skip
def test_what_tells_of_no_shard_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_told(raw)


@given(st.dictionaries(st.sampled_from(list(ShardTold.__slots__)), JSON))
def test_no_document_of_somebody_elses_breaks_a_reader(document: dict[str, object]) -> None:
    try:
        told = read_told(json.dumps(document).encode())
    except ValueError:
        return
    assert told.shard
    assert read_told(told_bytes(told)).shard == told.shard


def test_a_number_that_is_none_is_not_zero() -> None:
    document = json.loads(told_bytes(TOLD))
    document["metrics"][0]["value"] = float("nan")
    document["members"][1]["lag_s"] = "much"
    told = read_told(json.dumps(document).encode())
    assert told.metrics[0].value is None
    assert told.members[1].lag_s is None


def test_a_shard_of_hundreds_and_a_page_of_an_error_stay_small() -> None:
    detail = "x" * 10_000
    many = tuple(member_told(f"db-{i}", problem=detail[:MAX_DETAIL_CHARS]) for i in range(300))
    raw = told_bytes(replace(TOLD, members=many))
    assert len(raw) < MAX_TOLD_BYTES
    assert len(read_told(raw).members) == MAX_MEMBERS_TOLD


@pytest.mark.parametrize(
    "changed",
    [
        {"at": 5.0},
        {"n": 9},
        {"rules": 40},
        {"checks": 3},
        {"refused": 0.0},
        {"metrics": (metric_told(0.9),)},
        {"members": (replace(TOLD.members[0], lag_s=0.9, n=8), TOLD.members[1])},
    ],
)
def test_a_value_that_moves_is_no_news(changed: dict[str, object]) -> None:
    assert replace(TOLD, **changed).sign() == TOLD.sign()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "unhealthy"},
        {"problem": "two primaries"},
        {"url": "https://elsewhere:1"},
        {"hosts": ("db-a",)},
        {"refused": 0.4},
        {"metrics": (metric_told(7.0),)},
        {"members": (replace(TOLD.members[0], role="replica"), TOLD.members[1])},
        {"members": (TOLD.members[0], replace(TOLD.members[1], stale_since=None))},
    ],
)
def test_what_an_operator_wants_to_know_is_news(changed: dict[str, object]) -> None:
    assert replace(TOLD, **changed).sign() != TOLD.sign()  # type: ignore[arg-type]
