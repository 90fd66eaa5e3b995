"""What `ChangeLog` of base/ports.py promises, tested with every log: SQLite's, etcd's, memory's.

What only a fleet's log has (watches, leases, several clients) is in test_change_log_shared.py, what
only an agent's own has (its audit, its file, its bounds) in test_change_log_own.py.
"""

from __future__ import annotations

import asyncio

import pytest

from headgate.base.keyvalue import Compare, Entry, Put
from headgate.base.ports import ChangeLog
from headgate.errors import Conflict, StoreUnavailable
from headgate.history.records import AuditEntry
from tests.contracts.logs import KeptLog
from tests.fixtures.eventually import aeventually

HARD_VALUES = [b"", b"\x00", b"\xff\xfe", "🐘".encode(), b"x" * 50_000]
HARD_KEYS = ["a/é", "a/名前", "a/%2F", "a/*", "a/'; --", "a/🐘", "a/" + "k" * 500]
ENTRY = AuditEntry(1_700_000_000.5, "ann", "rule.set", "r-1", None, {"kind": "hold"})


async def under(log: ChangeLog, *prefixes: str) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await log.list(prefixes)).entries}


async def test_a_new_log_is_empty_and_has_a_name(log: ChangeLog) -> None:
    listing = await log.list(["a/", "head"])
    assert (listing.entries, await log.count("")) == ((), 0)
    assert listing.store_id
    assert log.name


async def test_what_was_committed_is_listed_by_key_at_its_revision(log: ChangeLog) -> None:
    first = await log.commit([], [Put("a/2", b"two"), Put("a/1", b"one"), Put("b", b"")])
    second = await log.commit([], [Put("a/2", b"again")])
    listing = await log.list(["a/"])
    assert listing.entries == (Entry("a/1", b"one", first), Entry("a/2", b"again", second))
    assert listing.revision >= second > first
    assert await log.count("a/") == 2


async def test_what_may_be_stale_is_the_same_while_all_is_well(log: ChangeLog) -> None:
    await log.commit([], [Put("a", b"1"), Put("b", b"1")])
    assert await log.list(["a"], allow_stale=True) == await log.list(["a"])


async def test_prefixes_are_of_characters_and_may_overlap(log: ChangeLog) -> None:
    await log.commit([], [Put(key, b"") for key in ("a", "a/1", "a0", "ab/1", "b", "beat")])
    assert list(await under(log, "a/")) == ["a/1"]
    assert list(await under(log, "a", "a/", "be")) == ["a", "a/1", "a0", "ab/1", "beat"]
    assert list(await under(log, "c")) == []
    assert [await log.count(prefix) for prefix in ("", "a", "a/", "b", "c")] == [6, 4, 1, 2, 0]


async def test_any_value_comes_back_as_it_was(log: ChangeLog) -> None:
    wanted = {f"a/{place}": value for place, value in enumerate(HARD_VALUES)}
    await log.commit([], [Put(key, value) for key, value in wanted.items()])
    assert await under(log, "a/") == wanted


async def test_any_key_comes_back_as_it_was(log: ChangeLog) -> None:
    await log.commit([], [Put(key, key.encode()) for key in HARD_KEYS])
    assert await under(log, "a/") == {key: key.encode() for key in HARD_KEYS}
    assert list(await under(log, "a/")) == sorted(HARD_KEYS)


# --- taking out ----------------------------------------------------------------------------


async def test_what_is_taken_out_is_gone_in_the_same_commit(log: ChangeLog) -> None:
    await log.commit([], [Put("a", b"1"), Put("b", b"1")])
    await log.commit([], [Put("a", None), Put("c", b"1")])
    assert list(await under(log, "")) == ["b", "c"]


async def test_what_is_not_there_may_be_taken_out(log: ChangeLog) -> None:
    await log.commit([], [Put("a", b"1")])
    await log.commit([], [Put("nothing", None)])
    assert await under(log, "") == {"a": b"1"}


async def test_an_entry_that_was_taken_out_can_be_recreated(log: ChangeLog) -> None:
    await log.commit([Compare("a", 0)], [Put("a", b"1")])
    await log.commit([], [Put("a", None)])
    await log.commit([Compare("a", 0)], [Put("a", b"2")])
    assert await under(log, "a") == {"a": b"2"}


# --- compares ------------------------------------------------------------------------------


async def test_a_commit_goes_through_while_every_compare_holds(log: ChangeLog) -> None:
    first = await log.commit([Compare("a", 0), Compare("head", 0)], [Put("head", b"1")])
    await log.commit([Compare("head", first), Compare("b", 0)], [Put("head", b"2")], audit=[ENTRY])
    assert await under(log, "") == {"head": b"2"}


@pytest.mark.parametrize(
    "off_by", [{"head": -1}, {"head": 1}, {"other": 1}, {"other": 0, "head": -1}]
)
async def test_of_what_was_built_on_something_else_nothing_is_kept(
    log: ChangeLog, off_by: dict[str, int]
) -> None:
    revision = await log.commit([], [Put("head", b"1")])
    before = await log.list([""])
    stood = {"head": revision, "other": 0}
    compares = [Compare(key, stood[key] + off) for key, off in off_by.items()]
    with pytest.raises(Conflict):
        await log.commit(compares, [Put("head", b"2"), Put("other", b"x")], audit=[ENTRY])
    assert (await log.list([""])).entries == before.entries


async def test_a_compare_with_an_entry_that_is_gone_fails(log: ChangeLog) -> None:
    revision = await log.commit([], [Put("head", b"1")])
    await log.commit([], [Put("head", None)])
    with pytest.raises(Conflict):
        await log.commit([Compare("head", revision)], [Put("head", b"2")])


async def test_of_many_at_once_one_wins(log: ChangeLog) -> None:
    attempts = [log.commit([Compare("head", 0)], [Put("head", b"%d" % n)]) for n in range(10)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9


@pytest.mark.parametrize("puts", [[Put("", b"x")], [Put("a", b"1"), Put("a", b"2")]])
async def test_an_empty_key_or_one_twice_is_the_callers_fault(
    log: ChangeLog, puts: list[Put]
) -> None:
    for compares, given in (([], puts), ([Compare("", 0)], [])):
        with pytest.raises(ValueError, match="commit"):
            await log.commit(compares, given)
    assert await log.count("") == 0


# --- faults, and the end -------------------------------------------------------------------


async def test_a_log_that_is_cut_off_says_so_and_has_done_nothing(kept: KeptLog) -> None:
    log = kept.log
    first = await log.commit([], [Put("head", b"1")])
    async with kept.cut_off():
        with pytest.raises(StoreUnavailable):
            await log.commit([Compare("head", first)], [Put("head", b"lost"), Put("a", b"lost")])

    async def goes_on() -> bool:
        try:
            await log.commit([Compare("head", first)], [Put("head", b"2")])
        except StoreUnavailable:
            return False
        return True

    await aeventually(goes_on)  # type: ignore[arg-type]
    assert await under(log, "") == {"head": b"2"}


async def test_who_gives_up_waiting_leaves_the_log_well(log: ChangeLog) -> None:
    for call in (lambda: log.list([""]), lambda: log.commit([], [Put("a", b"1")])):
        waiting = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    await log.commit([], [Put("b", b"1")])
    assert (await under(log, "b")) == {"b": b"1"}


async def test_a_closed_log_says_so(log: ChangeLog) -> None:
    await log.commit([], [Put("a", b"1")])
    await log.close()
    await log.close()
    for attempt in (log.list(["a"]), log.count("a"), log.commit([], [Put("a", b"2")])):
        with pytest.raises(StoreUnavailable):
            await attempt
