"""What an agent knows of the fleet: late, twice, out of order, of another store, handed down."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headgate.base.declared import iso
from headgate.base.keyvalue import Changes, Entry, KeyEvent, Listing
from headgate.changes.mirror import KEPT, Mirror
from headgate.changes.model import BEAT, HEAD, shard_items
from headgate.changes.state import head_bytes, item_bytes
from headgate.errors import Compacted, StoreUnavailable
from tests.builders import NOW
from tests.changes.fleetfakes import PREFIXES, item, set_items, wide, write_beat
from tests.fixtures.eventually import DEADLINE_S
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_log import KeptInMemory

ALL = (HEAD, *PREFIXES)
LATER = NOW.wall_s + 60.0


def mirror(**limits: int) -> Mirror:
    return Mirror(HandClock(), **limits)


def listed(kept: KeptInMemory, *, store_id: str | None = None) -> Listing:
    listing = kept.listing(ALL)
    return Listing(listing.entries, listing.revision, store_id or listing.store_id)


def without(kept: KeptInMemory, *keys: str) -> Listing:
    listing = listed(kept)
    entries = tuple(entry for entry in listing.entries if entry.key not in keys)
    return Listing(entries, listing.revision, listing.store_id)


def put(key: str, revision: int, value: bytes = b"{}") -> Changes:
    return Changes((KeyEvent(key, value, revision),), revision)


def gone(key: str, revision: int) -> Changes:
    return Changes((KeyEvent(key, None, revision),), revision)


def filled(*names: str, **limits: int) -> tuple[Mirror, KeptInMemory]:
    kept = KeptInMemory()
    for name in names:
        set_items(kept, item(name))
    known = mirror(**limits)
    known.adopt(listed(kept), PREFIXES)
    return known, kept


# --- taking in -------------------------------------------------------------------------------


def test_a_listing_is_taken_whole_and_reported_by_key() -> None:
    known, kept = filled("f-1", "f-2")
    assert {entry.key for entry in known.entries()} == {wide("f-1"), wide("f-2")}
    assert (known.revision, known.store_id, known.n) == (2, kept.store_id, 2)


def test_changes_that_come_twice_change_nothing() -> None:
    known, _ = filled()
    change = put(wide("f-1"), 5, item_bytes(item("f-1", n=3)))
    assert known.apply(change) == {wide("f-1")}
    assert known.apply(change) == frozenset()
    assert known.n == 3


def test_a_change_from_before_the_listing_is_no_news() -> None:
    known, _ = filled("f-1")
    assert known.apply(put(wide("f-1"), 1, b"old")) == frozenset()
    assert known.get(wide("f-1")) is not None
    assert known.revision == 1


def test_changes_out_of_order_end_at_the_newest_of_each_key() -> None:
    known, _ = filled()
    known.apply(put(wide("f-1"), 9, b"new"))
    assert known.apply(put(wide("f-1"), 8, b"old")) == frozenset()
    assert known.apply(put(wide("f-2"), 7, b"other")) == {wide("f-2")}
    assert known.get(wide("f-1")) == Entry(wide("f-1"), b"new", 9)
    assert known.revision == 9


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), unique_by=lambda p: p[1]),
    st.randoms(use_true_random=False),
)
def test_any_order_and_any_repetition_end_in_the_same(
    given_: list[tuple[str, int]], dice: object
) -> None:
    events = [put(wide(name), revision, str(revision).encode()) for name, revision in given_]
    shuffled = events * 2
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    known, other = mirror(), mirror()
    for one in (known, other):
        one.adopt(Listing((), 0, "s"), PREFIXES)
    for change in sorted(events, key=lambda one: one.revision):
        known.apply(change)
    for change in shuffled:
        other.apply(change)
    assert {e.key: e for e in known.entries()} == {e.key: e for e in other.entries()}
    assert known.revision == other.revision


def test_keys_of_other_shards_are_passed_by() -> None:
    known, _ = filled()
    key = f"{shard_items('commerce/80-')}rule/f-1"
    assert known.apply(put(key, 3)) == frozenset()
    assert known.revision == 3


def test_a_late_listing_of_another_agent_changes_nothing() -> None:
    known, kept = filled("f-1")
    early = listed(kept)
    set_items(kept, item("f-2"))
    known.adopt(listed(kept), PREFIXES)
    assert known.adopt(early, PREFIXES, authoritative=False) == frozenset()
    assert known.get(wide("f-2")) is not None


def test_what_was_collected_while_we_were_away_is_gone() -> None:
    """Taken out, and its key collected a day later: the same store's next listing lacks it."""
    known, kept = filled("f-1", "f-2")
    set_items(kept, item("f-1", value=None))
    assert known.adopt(without(kept, wide("f-1")), PREFIXES) == {wide("f-1")}
    assert known.get(wide("f-1")) is None
    assert known.went_back is None


def test_a_new_prefix_is_listed_and_an_old_one_let_go() -> None:
    known, kept = filled("f-1")
    changed = known.adopt(Listing((), 5, kept.store_id), (BEAT, shard_items("other")))
    # No head in it: the store has lost it. But nobody here follows those items any more.
    assert changed == {wide("f-1")}
    assert len(known) == 0


def test_the_beat_reports_how_far_and_how_large_the_fleet_is() -> None:
    known, kept = filled("f-1")
    set_items(kept, item("f-9", reach=item().reach))
    write_beat(kept, shards=10_000)
    known.adopt(listed(kept), PREFIXES)
    assert known.beat is not None
    assert known.beat.shards == 10_000
    assert known.n == 2


def test_a_beat_that_cannot_be_read_is_no_beat() -> None:
    known, _ = filled()
    assert known.apply(put(BEAT, 4, b"\xff")) == {BEAT}
    assert known.beat is None


# --- a store that went back ------------------------------------------------------------------


def test_a_recreated_store_takes_nothing_away() -> None:
    known, _ = filled("f-1", "f-2")
    assert known.adopt(Listing((), 1, "new"), PREFIXES) == {wide("f-1"), wide("f-2")}
    assert [entry.revision for entry in known.kept()] == [KEPT, KEPT]
    back = known.went_back
    assert back is not None
    assert (back.from_n, back.to_n, back.kept) == (2, 0, 2)
    assert known.revision == 1


def test_what_is_set_in_a_recreated_store_is_in_force_at_once() -> None:
    known, _ = filled("f-1")
    fresh = KeptInMemory()
    set_items(fresh, item("f-9", set_at=LATER))
    set_items(fresh, item("f-8", set_at=LATER))
    known.adopt(Listing((), 0, fresh.store_id), PREFIXES)
    known.adopt(listed(fresh), PREFIXES)
    assert {entry.key for entry in known.entries()} == {wide("f-1"), wide("f-8"), wide("f-9")}
    assert known.went_back is not None
    assert known.n == 2


def test_a_restore_ends_it() -> None:
    known, _ = filled("f-1")
    known.adopt(Listing((), 1, "new"), PREFIXES)
    known.apply(put(wide("f-1"), 2, item_bytes(item("f-1", n=1))))
    assert known.went_back is None
    assert known.kept() == []


def test_what_was_kept_survives_the_next_listing_and_the_disk() -> None:
    known, _ = filled("f-1")
    known.adopt(Listing((), 1, "new"), PREFIXES)
    known.adopt(Listing((), 2, "new"), PREFIXES)
    again = mirror()
    again.recall(known.copy(NOW.wall_s))
    again.adopt(Listing((), 3, "new"), PREFIXES)
    assert again.went_back is not None
    assert again.get(wide("f-1")) is not None


def test_of_a_backup_and_of_us_the_later_set_counts() -> None:
    """The backup has the rule as it was; we know that it was lifted since."""
    known, kept = filled("f-1", "f-2")
    backup = listed(kept)
    set_items(kept, item("f-1", value=None, set_at=LATER))
    known.adopt(listed(kept), PREFIXES)
    known.adopt(backup, PREFIXES)
    lifted = known.get(wide("f-1"))
    assert lifted is not None
    assert b'"value":null' in lifted.value
    assert [entry.key for entry in known.kept()] == [wide("f-1")]


def test_the_same_store_at_a_lower_revision_went_back_too() -> None:
    """Restored from a backup, etcd keeps its ids."""
    known, kept = filled("f-1", "f-2")
    entries = tuple(entry for entry in kept.listing(PREFIXES).entries if entry.key == wide("f-1"))
    head = Entry(HEAD, head_bytes(1), 1)
    known.adopt(Listing((head, *entries), 1, kept.store_id), PREFIXES)
    assert known.get(wide("f-2")) is not None
    assert known.went_back is not None
    assert known.revision == 1


def test_rules_that_are_over_are_not_kept() -> None:
    over = {"expires_at": "2020-01-01T00:00:00Z"}
    kept = KeptInMemory()
    set_items(kept, item("f-1", value=over), item("f-2", value=None))
    known = mirror()
    known.adopt(listed(kept), PREFIXES)
    known.adopt(Listing((), 1, "new"), PREFIXES)
    assert len(known) == 0
    assert known.went_back is None


def test_an_item_deleted_by_hand_stays_in_force_and_is_reported() -> None:
    """Nothing is meant by a key that vanishes."""
    known, _ = filled("f-1")
    assert known.apply(gone(wide("f-1"), 5)) == frozenset()
    assert known.get(wide("f-1")) is not None
    assert known.went_back is not None


@pytest.mark.parametrize("watched", [True, False])
def test_an_item_deleted_by_hand_stays_whether_or_not_anybody_saw_it(watched: bool) -> None:
    """Else a fleet would differ by who was connected: n is as it was, so nobody took it out."""
    known, kept = filled("f-1", "f-2")
    if watched:
        known.apply(gone(wide("f-1"), 5))
    known.adopt(without(kept, wide("f-1")), PREFIXES)
    assert [entry.key for entry in known.kept()] == [wide("f-1")]
    back = known.went_back
    assert back is not None
    assert (back.from_n, back.to_n, back.kept) == (2, 2, 1)


def test_ten_thousand_items_deleted_by_hand_are_reported_once() -> None:
    names = [f"f-{number}" for number in range(10_000)]
    known = mirror()
    entries = [Entry(wide(name), item_bytes(item(name)), 1) for name in names]
    known.adopt(Listing((*entries, Entry(HEAD, head_bytes(1), 1)), 1, "s"), PREFIXES)
    with capture_logs() as told:
        known.apply(Changes(tuple(KeyEvent(wide(name), None, 5) for name in names), 5))
    assert [(line["event"], line["kept"]) for line in told] == [("fleet.store_behind", 10_000)]
    assert len(known.kept()) == 10_000


async def test_what_is_put_back_or_ends_is_no_longer_missed() -> None:
    kept, clock = KeptInMemory(), HandClock()
    soon = {"expires_at": iso(NOW.wall_s + 30.0)}
    set_items(kept, item("f-1"), item("f-2"), item("f-3", value=soon))
    known = Mirror(clock)
    known.adopt(listed(kept), PREFIXES)
    known.apply(Changes(tuple(KeyEvent(wide(f"f-{at}"), None, 5) for at in (1, 2, 3)), 5))
    assert missed(known) == 3
    known.apply(put(wide("f-1"), 6, item_bytes(item("f-1"))))
    assert missed(known) == 2
    await clock.advance(31.0)
    assert missed(known) == 1
    assert [entry.key for entry in known.kept()] == [wide("f-2")]


def missed(known: Mirror) -> int:
    return known.went_back.kept if known.went_back is not None else 0


@pytest.mark.parametrize("watched", [True, False])
def test_what_cannot_be_read_and_vanishes_is_no_alarm(watched: bool) -> None:
    """It was not in force here; a newer version took it out in words that we do not know."""
    known, kept = filled("f-1")
    known.apply(put(wide("f-9"), 4, b"oops"))
    if watched:
        assert known.apply(gone(wide("f-9"), 5)) == {wide("f-9")}
    else:
        known.adopt(Listing(listed(kept).entries, 6, kept.store_id), PREFIXES)
    assert known.get(wide("f-9")) is None
    assert known.went_back is None


def test_what_cannot_be_read_outlives_a_recreated_store_without_an_alarm() -> None:
    """What it said before, while it could be read, may be in force."""
    known, _ = filled("f-1")
    known.apply(put(wide("f-9"), 4, b"of a newer version"))
    known.adopt(Listing((), 1, "new"), PREFIXES)
    known.adopt(Listing((), 2, "new"), PREFIXES)
    assert known.get(wide("f-9")) is not None
    assert [entry.key for entry in known.kept()] == [wide("f-1")]


def test_an_item_under_the_key_of_another_says_nothing_of_the_fleet() -> None:
    known, _ = filled("f-1")
    known.apply(put(wide("stray"), 5, item_bytes(item("f-9", n=77))))
    assert known.n == 1


def test_a_tombstone_that_is_collected_is_just_gone() -> None:
    kept = KeptInMemory()
    set_items(kept, item("f-1", value=None))
    known = mirror()
    known.adopt(listed(kept), PREFIXES)
    assert known.apply(gone(wide("f-1"), 5)) == {wide("f-1")}
    assert known.went_back is None


def test_a_member_that_leaves_is_gone() -> None:
    known, _ = filled()
    key = f"{PREFIXES[-1]}a"
    known.apply(put(key, 3))
    assert known.apply(gone(key, 4)) == {key}


# --- handing down ----------------------------------------------------------------------------


async def test_changes_are_handed_down_as_they_came() -> None:
    known, kept = filled("f-1")
    set_items(kept, item("f-2"))
    known.apply(put(wide("f-2"), 2))
    known.apply(put(wide("f-3"), 3))
    changes = await known.changes_after(1, PREFIXES, 0.0)
    assert [event.key for event in changes.events] == [wide("f-2"), wide("f-3")]
    assert changes.revision == 3
    assert (await known.changes_after(3, PREFIXES, 0.0)).events == ()


async def test_a_waiting_caller_is_answered_at_once() -> None:
    known, _ = filled()
    asked = asyncio.ensure_future(known.changes_after(0, PREFIXES, 60.0))
    await settle()
    known.apply(put(wide("f-1"), 3))
    assert [event.key for event in (await asked).events] == [wide("f-1")]


async def test_a_caller_that_waits_in_vain_learns_how_far_we_are() -> None:
    known, _ = filled("f-1")
    assert await known.changes_after(1, PREFIXES, 0.001) == Changes((), 1)


async def test_too_many_who_wait_are_rejected() -> None:
    known, _ = filled("f-1", max_waiters=2)
    waiting = [asyncio.ensure_future(known.changes_after(1, PREFIXES, 60.0)) for _ in "ab"]
    await settle()
    with pytest.raises(StoreUnavailable, match="2 clients already wait"):
        await known.changes_after(1, PREFIXES, 60.0)
    waiting[0].cancel()
    await settle()
    third = asyncio.ensure_future(known.changes_after(1, PREFIXES, 60.0))
    await settle()
    known.apply(put(wide("f-2"), 2))
    assert (await waiting[1]).revision == (await third).revision == 2


async def test_the_log_is_bounded_and_says_so() -> None:
    known, _ = filled(max_log_records=3)
    for revision in range(1, 9):
        known.apply(put(wide(f"f-{revision}"), revision))
    with pytest.raises(Compacted):
        await known.changes_after(2, PREFIXES, 0.0)
    assert len((await known.changes_after(5, PREFIXES, 0.0)).events) == 3


async def test_large_values_do_not_fill_the_log() -> None:
    known, _ = filled(max_log_bytes=1000)
    for revision in range(1, 9):
        known.apply(put(wide(f"f-{revision}"), revision, b"x" * 400))
    with pytest.raises(Compacted):
        await known.changes_after(1, PREFIXES, 0.0)


async def test_beats_take_one_place_in_the_log() -> None:
    known, _ = filled(max_log_records=3)
    known.apply(put(wide("f-1"), 1))
    for revision in range(2, 100):
        known.apply(put(BEAT, revision))
    changes = await known.changes_after(0, PREFIXES, 0.0)
    assert [(event.key, event.revision) for event in changes.events] == [
        (wide("f-1"), 1),
        (BEAT, 99),
    ]


async def test_a_listing_of_the_same_store_is_handed_down_as_changes() -> None:
    known, kept = filled("f-1")
    set_items(kept, item("f-2"))
    known.adopt(listed(kept), PREFIXES)
    changes = await known.changes_after(1, PREFIXES, 0.0)
    assert [event.key for event in changes.events] == [wide("f-2")]


# Half of a commit: the rest may come late, or with the next listing only.
HALF = Changes((KeyEvent(wide("f-1"), item_bytes(item("f-1", n=2)), 10),), 9)
REST = Changes((KeyEvent(wide("f-2"), item_bytes(item("f-2", n=2)), 10),), 9)


@pytest.mark.parametrize("relisted", [True, False])
async def test_the_rest_of_a_commit_reaches_who_was_handed_a_part_of_it(relisted: bool) -> None:
    """R84: also anyone who comes back from elsewhere, or from the disk."""
    known, other, recalled = mirror(), mirror(), mirror()
    known.adopt(Listing((), 5, "s"), PREFIXES)
    other.adopt(known.listing(ALL), PREFIXES, authoritative=False)
    mark = known.feed.mark
    known.apply(HALF)
    other.apply(await known.changes_after(5, PREFIXES, 0.0, mark=mark))
    assert (other.revision, other.newest) == (9, 10)
    recalled.recall(other.copy(NOW.wall_s))
    mark = known.feed.mark
    if relisted:
        entries = [Entry(e.key, e.value or b"", e.revision) for e in HALF.events + REST.events]
        known.adopt(Listing((*entries, Entry(HEAD, head_bytes(2), 10)), 10, "s"), PREFIXES)
    else:
        known.apply(REST)
    told = await known.changes_after(other.revision, PREFIXES, 0.0, mark=mark)
    assert [event.key for event in told.events] == [wide("f-2")]
    for one in (other, recalled):
        one.apply(await known.changes_after(one.revision, PREFIXES, 0.0))
        assert {entry.key for entry in one.entries()} == {wide("f-1"), wide("f-2")}


async def test_a_part_of_a_commit_is_reported_at_once_but_not_again_and_again() -> None:
    known, _ = filled("f-1")
    known.apply(Changes((KeyEvent(wide("f-2"), b"{}", 2),), 1))
    first = await asyncio.wait_for(known.changes_after(1, PREFIXES, 3600.0), DEADLINE_S)
    assert [event.key for event in first.events] == [wide("f-2")]
    mark = known.feed.mark
    assert await known.changes_after(1, PREFIXES, 0.001, mark=mark) == Changes((), 1)


async def test_a_listing_that_has_more_than_was_thought_whole_makes_everybody_list_again() -> None:
    """A member that could not keep up: what was handed down as all was not all."""
    known, other = mirror(), mirror()
    known.adopt(Listing((), 5, "s"), PREFIXES)
    known.apply(Changes(HALF.events, 10))
    other.adopt(known.listing(ALL), PREFIXES, authoritative=False)
    mark = known.feed.mark
    entries = tuple(Entry(e.key, e.value or b"", e.revision) for e in HALF.events + REST.events)
    known.adopt(Listing((*entries, Entry(HEAD, head_bytes(2), 10)), 10, "s"), PREFIXES)
    for given_mark in (0, mark):
        with pytest.raises(Compacted):
            await known.changes_after(10, PREFIXES, 0.0, mark=given_mark)
    other.adopt(known.listing(ALL), PREFIXES, authoritative=False)
    assert other.get(wide("f-2")) is not None
    assert (await known.changes_after(10, PREFIXES, 0.0, mark=known.feed.mark)).events == ()


async def test_a_mark_of_before_a_restart_is_not_believed() -> None:
    known, _ = filled("f-1")
    for mark in (1, known.feed.mark + 1):
        with pytest.raises(Compacted):
            await known.changes_after(1, PREFIXES, 0.0, mark=mark)


def test_a_listing_of_a_member_that_lacks_the_newest_commit_is_late() -> None:
    known = mirror()
    known.adopt(Listing((), 5, "s"), PREFIXES)
    known.apply(HALF)
    assert known.adopt(Listing((), 9, "s"), PREFIXES, authoritative=False) == frozenset()
    assert known.get(wide("f-1")) is not None


@pytest.mark.parametrize("store_id", ["", "known"])
async def test_a_follower_of_an_agent_that_changed_stores_lists_again(store_id: str) -> None:
    known = mirror()
    known.adopt(Listing((), 5, "known"), PREFIXES)
    asked = asyncio.ensure_future(known.changes_after(5, PREFIXES, 60.0, store_id=store_id))
    await settle()
    known.adopt(Listing((), 9, "new"), PREFIXES)
    with pytest.raises(Compacted):
        await asked


async def test_new_prefixes_make_followers_list_again() -> None:
    known, kept = filled("f-1")
    known.adopt(listed(kept), (*PREFIXES, shard_items("other")))
    set_items(kept, item("f-2"))
    known.adopt(listed(kept), PREFIXES)
    with pytest.raises(Compacted):
        await known.changes_after(1, PREFIXES, 0.0)


async def test_nothing_is_sent_of_what_is_not_followed() -> None:
    known, _ = filled("f-1")
    with pytest.raises(StoreUnavailable, match="does not follow"):
        known.listing([shard_items("other")])
    with pytest.raises(StoreUnavailable, match="does not follow"):
        await known.changes_after(1, [""], 0.0)
    with pytest.raises(StoreUnavailable, match="no data of the fleet"):
        mirror().listing(PREFIXES)


def test_the_head_is_handed_down_as_far_as_it_is_known_here() -> None:
    known, _ = filled("f-1")
    known.apply(put(wide("f-2"), 7, item_bytes(item("f-2", n=57))))
    assert known.listing([HEAD]).entries == (Entry(HEAD, head_bytes(57), 7),)


def test_who_follows_an_agent_knows_what_was_kept_as_kept() -> None:
    known, _ = filled("f-1")
    known.adopt(Listing((), 1, "new"), PREFIXES)
    other = mirror()
    other.adopt(known.listing(ALL), PREFIXES, authoritative=False)
    assert [entry.key for entry in other.kept()] == [wide("f-1")]
    assert other.went_back is not None
