"""What `Store` promises of records, such as members set aside and peers, of every store alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from headgate.agent.ports import Store
from headgate.core.records import AuditEntry, MetricChange, Record
from headgate.errors import Conflict, InvalidSettings, StoreUnavailable
from headgate.stores.entries import MAX_KEY_CHARS, MAX_KIND_CHARS, MAX_VALUE_BYTES

ENTRY = AuditEntry(1_700_000_000.5, "ann", "skip.set", "commerce/-80 db-b", None, {"why": "disk"})
SKIP = Record("skip", "commerce/-80 db-b", {"why": "disk"}, 0)
PEER = Record("peer", "commerce/-80 db-c", {"url": "https://db-c:8087"}, 0)

HARD_TEXTS = ["", "naïve", "名前", "🐘", "a\x00b", "'; --", "%_", "x" * 32]


# --- kept and listed -----------------------------------------------------------------------


async def test_a_new_store_has_no_records(store: Store) -> None:
    assert list(await store.records("skip")) == []
    assert list(await store.salvage_records("skip")) == []


async def test_a_record_comes_back_with_its_new_revision(store: Store) -> None:
    kept = await store.put_record(SKIP, ENTRY)
    assert kept == replace(SKIP, revision=kept.revision)
    assert kept.revision > 0
    assert list(await store.records("skip")) == [kept]
    assert list(await store.salvage_records("skip")) == [kept]


async def test_a_record_is_there_after_close_and_open(store: Store) -> None:
    """R141."""
    kept = await store.put_record(SKIP, ENTRY)
    await store.close()
    await store.open()
    assert list(await store.records("skip")) == [kept]


async def test_kinds_are_kept_apart(store: Store) -> None:
    skip = await store.put_record(SKIP, ENTRY)
    peer = await store.put_record(replace(PEER, key=SKIP.key), ENTRY)
    assert list(await store.records("skip")) == [skip]
    assert list(await store.records("peer")) == [peer]
    assert list(await store.records("rule")) == []


async def test_records_are_ordered_by_key(store: Store) -> None:
    keys = ["", "Z", "a", "a b", "aa", "é", "名", "🐘"]
    for key in keys[::-1]:
        await store.put_record(replace(SKIP, key=key), ENTRY)
    assert [record.key for record in await store.records("skip")] == keys


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    for attempt in (store.records("skip"), store.put_record(SKIP, ENTRY)):
        with pytest.raises(StoreUnavailable, match="not open"):
            await attempt


# --- revisions -----------------------------------------------------------------------------


async def test_revisions_rise_over_records_and_metrics_together(store: Store) -> None:
    first = await store.put_record(SKIP, ENTRY)
    metric = await store.put_metric(MetricChange("main", "lag", {}, 0), ENTRY)
    other = await store.put_record(PEER, ENTRY)
    again = await store.put_record(replace(first, value={"why": "fan"}), ENTRY)
    assert first.revision < metric.revision < other.revision < again.revision
    assert list(await store.records("skip")) == [again]


async def test_forgetting_history_keeps_records_and_revisions_rise(store: Store) -> None:
    first = await store.put_record(SKIP, ENTRY)
    await store.forget_before(10**8)
    await store.close()
    await store.open()
    assert list(await store.audit()) == []
    assert list(await store.records("skip")) == [first]
    assert (await store.put_record(first, ENTRY)).revision > first.revision


async def test_a_late_record_gets_a_conflict_that_names_who_when_and_what(store: Store) -> None:
    first = await store.put_record(SKIP, ENTRY)
    later = replace(ENTRY, who="bob", action="skip.change", wall_s=1_700_000_060.0)
    second = await store.put_record(replace(first, value={"why": "fan"}), later)
    with pytest.raises(Conflict) as caught:
        await store.put_record(first, ENTRY)
    named = ("skip commerce/-80 db-b", "bob", "2023-11-14T22:14:20Z", "skip.change")
    for part in (*named, str(second.revision)):
        assert part in str(caught.value)
    assert list(await store.records("skip")) == [second]
    assert len(await store.audit()) == 2


@pytest.mark.parametrize("revision", [0, 7, -1])
async def test_a_conflict_names_its_author_after_the_audit_was_forgotten(
    store: Store, revision: int
) -> None:
    await store.put_record(SKIP, ENTRY)
    await store.forget_before(10**8)
    with pytest.raises(Conflict, match="ann"):
        await store.put_record(replace(SKIP, revision=revision), ENTRY)


async def test_a_record_built_on_what_was_never_there_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict, match=r"skip commerce/-80 db-b: nothing .* revision 3; look"):
        await store.put_record(replace(SKIP, revision=3), ENTRY)
    assert list(await store.records("skip")) == []
    assert list(await store.audit()) == []


async def test_of_many_at_once_one_wins(store: Store) -> None:
    attempts = [store.put_record(replace(SKIP, value={"n": n}), ENTRY) for n in range(10)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    won = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    assert list(await store.records("skip")) == won
    assert [type(outcome) for outcome in outcomes].count(Conflict) == 9
    assert len(await store.audit()) == 1


# --- several at once -----------------------------------------------------------------------


async def test_several_are_kept_in_one_transaction_each_with_its_audit(store: Store) -> None:
    """R76: two rules that only make sense together."""
    kept = await store.put_records([(SKIP, ENTRY), (PEER, replace(ENTRY, action="peer.set"))])
    assert [record.key for record in kept] == [SKIP.key, PEER.key]
    assert kept[0].revision < kept[1].revision
    assert [*await store.records("skip"), *await store.records("peer")] == list(kept)
    assert [entry.action for entry in await store.audit()] == ["peer.set", "skip.set"]
    assert list(await store.put_records([])) == []


@pytest.mark.parametrize("first", [True, False])
async def test_of_several_a_conflict_on_one_keeps_none(store: Store, first: bool) -> None:
    standing = await store.put_record(PEER, ENTRY)
    puts = [(SKIP, ENTRY), (replace(PEER, value={"url": "http://x"}), ENTRY)]
    with pytest.raises(Conflict, match="peer commerce/-80 db-c"):
        await store.put_records(puts[::-1] if first else puts)
    assert list(await store.records("skip")) == []
    assert list(await store.records("peer")) == [standing]
    assert len(await store.audit()) == 1
    assert (await store.put_record(SKIP, ENTRY)).revision > standing.revision


@pytest.mark.parametrize("bad", [replace(PEER, key="k" * 513), replace(PEER, value={"names": {1}})])
async def test_of_several_one_that_cannot_be_kept_keeps_none(store: Store, bad: Record) -> None:
    with pytest.raises((InvalidSettings, TypeError)):
        await store.put_records([(SKIP, ENTRY), (bad, ENTRY)])
    assert list(await store.records("skip")) == []
    assert list(await store.audit()) == []


async def test_the_second_on_one_key_must_know_the_first(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.put_records([(SKIP, ENTRY), (replace(SKIP, value={"n": 2}), ENTRY)])
    assert list(await store.records("skip")) == []


# --- removed -------------------------------------------------------------------------------


async def removed(store: Store, record: Record) -> Record:
    entry = replace(ENTRY, who="bob", action="skip.remove")
    return await store.put_record(replace(record, value=None), entry)


async def test_a_removed_record_is_not_listed(store: Store) -> None:
    first = await store.put_record(SKIP, ENTRY)
    gone = await removed(store, first)
    assert gone == replace(SKIP, value=None, revision=gone.revision)
    assert gone.revision > first.revision
    assert list(await store.records("skip")) == []
    assert list(await store.salvage_records("skip")) == []
    assert [entry.action for entry in await store.audit()] == ["skip.remove", "skip.set"]


@pytest.mark.parametrize("knows_the_removal", [True, False])
async def test_over_a_removed_record_the_revision_goes_on_growing(
    store: Store, knows_the_removal: bool
) -> None:
    """Who looks after a removal finds nothing, and so puts it as new."""
    gone = await removed(store, await store.put_record(SKIP, ENTRY))
    back = replace(SKIP, revision=gone.revision if knows_the_removal else 0)
    kept = await store.put_record(back, ENTRY)
    assert kept.revision > gone.revision
    assert list(await store.records("skip")) == [kept]


async def test_a_change_of_what_another_removed_is_a_conflict_that_names_them(
    store: Store,
) -> None:
    first = await store.put_record(SKIP, ENTRY)
    await removed(store, first)
    with pytest.raises(Conflict, match=r"bob made revision .*skip\.remove"):
        await store.put_record(first, ENTRY)
    assert list(await store.records("skip")) == []


async def test_a_removal_twice_over_is_a_conflict(store: Store) -> None:
    first = await store.put_record(SKIP, ENTRY)
    await removed(store, first)
    with pytest.raises(Conflict, match="bob"):
        await removed(store, first)
    assert len(await store.audit()) == 2


# --- values --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HARD_TEXTS)
async def test_any_text_is_kept_as_it_is(store: Store, text: str) -> None:
    value = {"why": text, text: [text, {"deep": text}]}
    kept = await store.put_record(Record(text, text, value, 0), ENTRY)
    assert kept.value == value
    assert list(await store.records(text)) == [kept]


@pytest.mark.parametrize("value", [{}, {"v": None}, {"v": [1, {"a": 1e308}]}, {"v": "\ud800"}])
async def test_any_json_is_kept_as_it_is(store: Store, value: dict[str, Any]) -> None:
    await store.put_record(replace(SKIP, value=MappingProxyType(value)), ENTRY)
    assert [record.value for record in await store.records("skip")] == [value]


async def test_nobody_can_edit_what_is_kept(store: Store) -> None:
    value = {"names": ["a"]}
    kept = await store.put_record(replace(SKIP, value=value), ENTRY)
    value["names"].append("b")
    assert kept.value is not None
    kept.value["names"].append("c")
    assert [record.value for record in await store.records("skip")] == [{"names": ["a"]}]


async def test_a_record_that_is_no_json_leaves_nothing_behind(store: Store) -> None:
    with pytest.raises(TypeError, match="set"):
        await store.put_record(SKIP, replace(ENTRY, after={1, 2}))
    with pytest.raises(TypeError, match="set"):
        await store.put_record(replace(SKIP, value={"names": {1}}), ENTRY)
    assert list(await store.records("skip")) == []
    assert list(await store.audit()) == []


# --- bounds --------------------------------------------------------------------------------

ROOM_IN_VALUE = MAX_VALUE_BYTES - len('{"v":""}')


async def test_the_longest_there_may_be_is_kept(store: Store) -> None:
    value = {"v": "x" * ROOM_IN_VALUE}
    kept = await store.put_record(
        Record("k" * MAX_KIND_CHARS, "é" * MAX_KEY_CHARS, value, 0), ENTRY
    )
    assert list(await store.records(kept.kind)) == [kept]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (replace(SKIP, kind="k" * 33), r"kind: 'kkk.* has 33 characters, may have 32"),
        (replace(SKIP, key="k" * 513), r"skip key: 'kkk.* has 513 characters, may have 512"),
        (
            replace(SKIP, value={"v": "x" * (ROOM_IN_VALUE + 1)}),
            r"skip commerce/-80 db-b: its value takes 65537 bytes as JSON, may take 65536",
        ),
        (replace(SKIP, kind="\ud800"), r"kind: '\\ud800' holds half of a surrogate pair"),
        (replace(SKIP, key="\ud800"), r"skip key: '\\ud800' holds half of a surrogate pair"),
    ],
)
async def test_what_is_too_long_or_no_text_is_refused_by_name(
    store: Store, record: Record, message: str
) -> None:
    with pytest.raises(InvalidSettings, match=message) as caught:
        await store.put_record(record, ENTRY)
    assert len(str(caught.value)) < 200
    assert list(await store.audit()) == []


# --- noted by the agent itself -------------------------------------------------------------


async def test_a_note_replaces_the_value_and_nothing_else(store: Store) -> None:
    kept = await store.put_record(SKIP, ENTRY)
    await store.note_record(replace(kept, value={"why": "disk", "seen": 7}))
    await store.close()
    await store.open()
    assert list(await store.records("skip")) == [replace(kept, value={"why": "disk", "seen": 7})]
    assert len(await store.audit()) == 1
    await store.put_record(replace(kept, value={"why": "other"}), ENTRY)


async def test_a_note_is_on_what_stands_or_on_nothing(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.note_record(SKIP)
    kept = await store.put_record(SKIP, ENTRY)
    newer = await store.put_record(replace(kept, value={"why": "new"}), ENTRY)
    with pytest.raises(Conflict):
        await store.note_record(replace(kept, value={"why": "late"}))
    with pytest.raises(InvalidSettings):
        await store.note_record(replace(newer, value={"why": "x" * MAX_VALUE_BYTES}))
    gone = await store.put_record(replace(newer, value=None), ENTRY)
    with pytest.raises(Conflict):
        await store.note_record(replace(gone, value={"why": "back"}))
    assert list(await store.records("skip")) == []
