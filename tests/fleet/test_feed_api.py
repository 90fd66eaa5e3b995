"""The feed between agents: any listing comes over in pages, any commits in whole ones, bounded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.keyvalue import Changes, Entry, KeyEvent, Listing
from headgate.changes.state import MAX_ITEM_BYTES
from headgate.errors import StoreUnavailable
from headgate.fleet.feed_api import (
    MAX_PAGE_ENTRIES,
    changes_target,
    decode_changes,
    decode_page,
    encode_changes,
    feed_page,
    feed_target,
    whole,
)
from headgate.shard.peers import MAX_ANSWER_BYTES

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=40)
SIZES = st.sampled_from([0, 1, 500, 30_000, MAX_ITEM_BYTES])


def page_bytes(listing: Listing, *, start: str = "") -> bytes:
    return msgspec.json.encode(feed_page(listing, start=start))


def page_by_page(listing: Listing) -> Listing:
    pages = [decode_page(first := page_bytes(listing))]
    assert len(first) < MAX_ANSWER_BYTES
    while (start := pages[-1].next) is not None:
        body = page_bytes(listing, start=start)
        assert len(body) < MAX_ANSWER_BYTES
        pages.append(decode_page(body))
    return whole(pages)


@given(st.dictionaries(KEYS, st.tuples(SIZES, st.integers(0, 2**63 - 1)), max_size=12))
def test_pages_are_the_listing_and_none_is_too_long(
    given: dict[str, tuple[int, int]],
) -> None:
    entries = [Entry(key, b"\xff" * size, revision) for key, (size, revision) in given.items()]
    listing = Listing(tuple(sorted(entries, key=lambda one: one.key)), 7, "store")
    assert page_by_page(listing) == listing


def test_many_small_entries_are_paged_too() -> None:
    count = 2 * MAX_PAGE_ENTRIES + 1
    entries = tuple(Entry(f"items/wide/rule/{n:05d}", b"{}", n) for n in range(count))
    listing = Listing(entries, count, "store")
    assert page_by_page(listing) == listing
    assert 900 < len(decode_page(page_bytes(listing)).entries) <= MAX_PAGE_ENTRIES


@given(st.lists(st.lists(st.one_of(SIZES, st.none()), min_size=1, max_size=4), max_size=6))
def test_commits_come_whole_and_in_order_or_are_listed_again(
    commits: list[list[int | None]],
) -> None:
    events = tuple(
        KeyEvent(f"k{place}", None if size is None else bytes(size), revision)
        for revision, commit in enumerate(commits, start=1)
        for place, size in enumerate(commit)
    )
    changes = Changes(events, len(commits) + 3)
    body = encode_changes(changes, "store")
    if body is None:
        assert sum(size or 0 for size in commits[0]) > MAX_ITEM_BYTES
        return
    assert len(body) < MAX_ANSWER_BYTES
    told, store_id, _ = decode_changes(body)
    assert store_id == "store"
    assert told.events == events[: len(told.events)]
    rest = events[len(told.events) :]
    assert all(event.revision > told.revision for event in rest)
    assert told.revision == (told.events[-1].revision if rest else changes.revision)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"version": 1, "store_id": "s", "revision": -1}',
        b'{"version": 1, "store_id": "s", "revision": 1, "entries": [{"key": "a", "revision": 1}]}',
        b'{"version":1,"store_id":"s","revision":1,"entries":[{"key":"a","revision":1,"value":"?"}]}',
    ],
)
def test_what_is_no_page_is_never_an_empty_one(body: bytes) -> None:
    with pytest.raises(StoreUnavailable):
        decode_page(body)


def test_a_newer_agent_may_say_more() -> None:
    """R156"""
    body = b'{"version": 9, "store_id": "s", "revision": 4, "mood": "fine", "events": []}'
    assert decode_changes(body) == (Changes((), 4), "s", 0)


def test_pages_of_two_revisions_are_no_listing() -> None:
    entry = Entry("a", b"", 1)
    one, other = (decode_page(page_bytes(Listing((entry,), r, "s"))) for r in (1, 2))
    with pytest.raises(StoreUnavailable):
        whole([one, other])


def test_targets_carry_prefixes_as_they_are() -> None:
    """Keys hold quoted names: `items/shard/commerce%2F-80/`."""
    asked = feed_target(["items/shard/commerce%2F-80/"], revision=3, start="a b")
    assert asked == "/v1/fleet/feed?prefix=items%2Fshard%2Fcommerce%252F-80%2F&revision=3&from=a+b"
    asked = changes_target(["beat"], after_revision=3, wait_s=5.0, store_id="s")
    assert asked == "/v1/fleet/feed/changes?prefix=beat&after=3&wait_s=5&store_id=s"
