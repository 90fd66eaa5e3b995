"""Several who change at once, answers that are lost, a store that goes away in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from headgate.base.keyvalue import Compare, Lease, Listing, Put
from headgate.changes.book import (
    MAX_CAUGHT_UP,
    MAX_DRAFTS,
    MAX_LOOKS,
    WITHIN_S,
    NoSuchItem,
    StoppedMidway,
)
from headgate.changes.model import ITEMS, LOG
from headgate.changes.state import MAX_PART_KEYS
from headgate.errors import (
    Conflict,
    InvalidSettings,
    LeaseLost,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from tests.changes import verbs
from tests.changes.changebook_world import (
    FLEET,
    HALF,
    BookWorld,
    Deed,
    FaultyStore,
    book_on,
    file_of,
)
from tests.fixtures.memory_log import KeptInMemory, MemoryLog


@pytest.fixture
def world() -> BookWorld:
    return BookWorld()


def rule(name: str) -> dict[str, object]:
    return {**HALF, "id": name}


def rival(world: BookWorld, name: str) -> Deed:
    """Another one, who is first."""
    return lambda: verbs.put_rule(world.other, rule(name), reach=FLEET, who="eve")


class SlowStore(MemoryLog):
    """Lets others in between reading and writing."""

    async def commit(self, compares: Sequence[Compare], puts: Sequence[Put], **more: Any) -> int:
        await asyncio.sleep(0)
        return await super().commit(compares, puts)


# --- at the same time ------------------------------------------------------------------------


async def test_of_many_who_change_at_once_nobody_is_lost(world: BookWorld) -> None:
    books = [book_on(SlowStore(world.kept), world.clock, f"b{at}") for at in range(6)]
    changes = [
        verbs.put_rule(book, rule(f"r{at}"), reach=FLEET, who=f"w{at}")
        for at, book in enumerate(books)
    ]
    made = await asyncio.gather(*changes)
    assert sorted(change.after_n for change in made) == [1, 2, 3, 4, 5, 6]
    assert set(await world.standing()) == {f"r{at}" for at in range(6)}
    told = await world.book.history()
    assert len({revision.op for revision in told}) == 6


async def test_of_two_that_set_the_same_id_one_gets_a_conflict(world: BookWorld) -> None:
    books = [book_on(SlowStore(world.kept), world.clock, f"b{at}") for at in range(2)]
    made = await asyncio.gather(
        *(verbs.put_rule(book, HALF, reach=FLEET, who="ada") for book in books),
        return_exceptions=True,
    )
    (rejected,) = [one for one in made if isinstance(one, Conflict)]
    assert "half already exists" in str(rejected)
    assert (await world.book.items()).n == 1


async def test_what_another_writer_did_meanwhile_is_validated_again(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    world.store.fates = [lambda: verbs.lift_rule(world.other, "half", who="eve")]
    with pytest.raises(InvalidSettings, match="has ended"):
        await verbs.patch_rule(world.book, "half", {"ratio": 0.9}, who="ada")
    assert await world.standing() == {}


async def test_a_writer_that_is_never_first_fails_after_a_while(world: BookWorld) -> None:
    world.store.fates = [rival(world, f"r{at}") for at in range(100)]
    with pytest.raises(Conflict, match="the log was changed by others at the same time, 12 times"):
        await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert world.store.commits == MAX_DRAFTS
    assert sum(world.clock.slept_s) < WITHIN_S
    assert "half" not in await world.standing()


async def test_a_change_of_the_fleet_as_it_was_is_rejected_if_it_is_no_longer(
    world: BookWorld,
) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    for change in (
        world.book.apply(file_of(1), who="bob", expect_n=0),
        world.book.rollback(0, who="bob", expect_n=0),
    ):
        with pytest.raises(Conflict, match="the log is at revision 1, not 0"):
            await change


async def test_who_expects_a_revision_does_not_build_on_a_rivals(world: BookWorld) -> None:
    """Between reading and writing, too."""
    world.store.fates = [rival(world, "first")]
    with pytest.raises(Conflict):
        await world.book.apply(file_of(1), who="ada", expect_n=0)
    assert set(await world.standing()) == {"first"}


# --- answers that are lost -------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["made, answer lost", "made later", "not made"])
async def test_a_change_whose_answer_was_lost_is_made_once(world: BookWorld, fate: str) -> None:
    world.store.fates = [fate]
    unnamed = {key: value for key, value in HALF.items() if key != "id"}
    change = await verbs.put_rule(world.book, unnamed, reach=FLEET, who="ada")
    assert (change.before_n, change.after_n) == (0, 1)
    assert list(await world.standing()) == [change.items[0].id]
    assert await world.store.count(LOG) == 1


@pytest.mark.parametrize("fate", ["made, answer lost", "made later", "not made"])
async def test_nor_twice_when_others_went_on_meanwhile(world: BookWorld, fate: str) -> None:
    world.store.fates = [fate, rival(world, "other")]
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert set(await world.standing()) == {"half", "other"}
    told = await world.book.history()
    assert sorted(revision.who for revision in told) == ["ada", "eve"]


async def test_a_lost_answer_is_looked_for_until_the_store_answers(world: BookWorld) -> None:
    world.store.fates, world.store.blind = ["made, answer lost", "away"], 2
    change = await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert change.after_n == 1
    assert len(await world.book.history()) == 1


async def test_an_outcome_that_stays_unknown_is_reported_as_such(world: BookWorld) -> None:
    """It may have been made: who repeats it without looking may have it twice."""
    world.store.fates = ["not made", *["away"] * 100]
    with pytest.raises(OutcomeUnknown, match=r"whether rule\.set was made as revision 1") as told:
        await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert "etcd 10.0.0.1:2379 did not answer" in str(told.value)
    assert "headgate changes history --fleet" in str(told.value)
    assert world.store.commits == MAX_LOOKS


async def test_a_store_that_is_away_is_reported_at_once(world: BookWorld) -> None:
    world.store.fates = ["away"]
    with pytest.raises(StoreUnavailable, match="no endpoint answers") as told:
        await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert not isinstance(told.value, OutcomeUnknown)
    assert world.store.commits == 1


async def test_a_store_that_lets_nobody_in_says_so(world: BookWorld) -> None:
    async def reject() -> None:
        raise StoreRejected("wrong password for headgate; see [fleet] password_file")

    world.store.fates = [reject]
    with pytest.raises(StoreRejected, match="password_file"):
        await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")


async def test_a_lease_that_is_lost_before_it_was_used_is_requested_again(world: BookWorld) -> None:
    async def lose() -> None:
        raise LeaseLost("lease 1 has run out")

    world.store.fates = [lose]
    change = await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert change.after_n == 1


async def test_a_lease_whose_answer_was_lost_leaves_nothing_unknown(world: BookWorld) -> None:
    class Leaseless(MemoryLog):
        async def grant(self, ttl_s: float) -> Lease:
            raise OutcomeUnknown("no answer in 2 s")

    with pytest.raises(StoreUnavailable, match=r"rule\.set was not made: no answer") as told:
        await verbs.put_rule(
            book_on(Leaseless(world.kept), world.clock), HALF, reach=FLEET, who="ada"
        )
    assert not isinstance(told.value, OutcomeUnknown)


class Leases(FaultyStore):
    """Counts what is granted and given back, and what is read."""

    def __init__(self, kept: KeptInMemory) -> None:
        super().__init__(kept)
        self.granted: list[int] = []
        self.revoked: list[int] = []
        self.listed: list[str] = []

    async def grant(self, ttl_s: float) -> Lease:
        lease = await super().grant(ttl_s)
        self.granted.append(lease.id)
        return lease

    async def revoke(self, lease_id: int) -> None:
        self.revoked.append(lease_id)
        await super().revoke(lease_id)

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        self.listed += prefixes
        return await super().list(prefixes, allow_stale=allow_stale)


async def test_a_change_that_others_were_ahead_of_reads_no_more_than_what_they_did(
    world: BookWorld,
) -> None:
    """A fleet has ten thousand items, and etcd just tells every agent what came first."""
    await verbs.put_rule(world.book, rule("there"), reach=FLEET, who="ada")
    store = Leases(world.kept)

    async def several() -> None:
        await verbs.put_rule(world.other, rule("other"), reach=FLEET, who="eve")
        await verbs.lift_rule(world.other, "there", who="eve")

    store.fates = [several]
    made = await verbs.put_rule(book_on(store, world.clock), HALF, reach=FLEET, who="ada")
    assert (made.before_n, made.after_n) == (1, 4)
    assert store.listed.count(ITEMS) == 1
    assert (len(store.granted), store.revoked) == (1, []), "the first lease is as good"
    assert set(await world.standing()) == {"half", "other"}
    with pytest.raises(Conflict, match="already exists"):
        await verbs.put_rule(book_on(store, world.clock), HALF, reach=FLEET, who="ada")


async def test_after_more_than_a_few_changes_of_others_all_of_it_is_read(world: BookWorld) -> None:
    store = Leases(world.kept)

    async def many() -> None:
        for at in range(MAX_CAUGHT_UP + 1):
            await verbs.put_rule(world.other, rule(f"r{at}"), reach=FLEET, who="eve")

    store.fates = [many]
    await verbs.put_rule(book_on(store, world.clock), HALF, reach=FLEET, who="ada")
    assert store.listed.count(ITEMS) == 2
    assert len(await world.standing()) == MAX_CAUGHT_UP + 2


async def test_a_store_that_went_back_meanwhile_is_read_as_a_whole(world: BookWorld) -> None:
    """The same number, by another change than the one that was read."""
    await verbs.put_rule(world.book, rule("there"), reach=FLEET, who="ada")
    before = world.kept.listing(("",)).entries
    await verbs.put_rule(world.book, rule("lost"), reach=FLEET, who="ada")
    store = Leases(world.kept)

    async def restored() -> None:
        gone = [Put(entry.key, None) for entry in world.kept.listing(("",)).entries]
        world.kept.commit((), gone)
        world.kept.commit((), [Put(entry.key, entry.value) for entry in before])
        await verbs.put_rule(world.other, rule("other"), reach=FLEET, who="eve")

    store.fates = [restored]
    with pytest.raises(NoSuchItem, match="there is no rule 'lost'"):
        await verbs.patch_rule(book_on(store, world.clock), "lost", {"ratio": 0.9}, who="ada")
    assert set(await world.standing()) == {"there", "other"}


async def test_leases_of_changes_that_were_not_made_do_not_stay(world: BookWorld) -> None:
    store = Leases(world.kept)
    store.fates = [lambda: verbs.put_rule(world.other, HALF, reach=FLEET, who="eve")]
    with pytest.raises(Conflict, match="half already exists"):
        await verbs.put_rule(book_on(store, world.clock), HALF, reach=FLEET, who="ada")
    assert store.revoked == store.granted
    assert len(store.granted) == 1


# --- in several revisions --------------------------------------------------------------------


async def test_a_large_change_is_made_in_several_revisions_that_say_so(world: BookWorld) -> None:
    change = await world.book.apply(file_of(2 * MAX_PART_KEYS + 1), who="ada")
    assert (change.after_n, change.revisions, len(change.changes)) == (3, 3, 201)
    told = [revision.summary[:4] for revision in await world.book.history()]
    assert told == ["3/3:", "2/3:", "1/3:"]
    assert len(await world.standing()) == 201


async def test_a_large_change_that_stops_midway_says_where_and_goes_on_when_repeated(
    world: BookWorld,
) -> None:
    file = file_of(2 * MAX_PART_KEYS + 1)
    world.store.fates = ["ok", *["away"] * MAX_DRAFTS]
    with pytest.raises(StoppedMidway) as stopped, capture_logs() as logged:
        await world.book.apply(file, who="ada")
    assert [line["event"] for line in logged if line["log_level"] == "error"] == [
        "fleet.stopped_midway"
    ], "whoever asked may have hung up"
    message = str(stopped.value)
    assert "apply stopped after 1 of 3 revisions (n 1 to 1), 101 items are not changed" in message
    assert "no endpoint answers" in message
    assert "`headgate changes rollback 0 --fleet`" in message
    assert (stopped.value.left, stopped.value.done.after_n) == (101, 1)
    assert len(await world.standing()) == 100
    change = await world.book.apply(file_of(201), who="ada")
    assert change.after_n >= 3
    assert len(await world.standing()) == 201


async def test_a_store_that_is_away_for_a_moment_stops_no_change_that_has_begun(
    world: BookWorld,
) -> None:
    world.store.fates = ["ok", "away", "away", "ok"]
    await world.book.apply(file_of(2 * MAX_PART_KEYS + 1), who="ada")
    assert len(await world.standing()) == 201
    world.store.fates = ["away"]
    with pytest.raises(StoreUnavailable, match="no endpoint answers"):
        await verbs.put_rule(world.book, {**HALF, "id": "other"}, reach=FLEET, who="ada")


async def test_a_lost_answer_in_the_middle_of_a_large_change_is_no_stop(world: BookWorld) -> None:
    world.store.fates = ["ok", "made, answer lost", "not made", rival(world, "other")]
    change = await world.book.apply(file_of(250), who="ada")
    assert len(await world.standing()) == 251
    assert len(change.changes) == 250
    assert [revision.n for revision in await world.book.history()] == [4, 3, 2, 1]


async def test_a_rival_in_the_middle_is_built_on_unless_a_revision_was_expected(
    world: BookWorld,
) -> None:
    world.store.fates = ["ok", rival(world, "other")]
    await world.book.apply(file_of(150), who="ada")
    assert len(await world.standing()) == 151
    n = (await world.book.items()).n
    world.store.fates = ["ok", rival(world, "third")]
    with pytest.raises(StoppedMidway, match="another change came first"):
        await world.book.apply(file_of(150, ratio=0.7), who="ada", expect_n=n)


async def test_a_pair_is_never_parted(world: BookWorld) -> None:
    """R76: half of a favor rejects everybody, or nobody."""
    file = file_of(MAX_PART_KEYS - 1)
    shared = {"reach": "fleet", "for": "1h"}
    file["rules"] += [
        {**shared, "id": "a", "target": "etl", "ratio": 0.0, "pair": "b"},
        {**shared, "id": "b", "target": "all", "ratio": 0.9, "pair": "a"},
    ]
    world.store.fates = ["ok", *["away"] * MAX_DRAFTS]
    with pytest.raises(StoppedMidway):
        await world.book.apply(file, who="ada")
    assert not {"a", "b"} & set(await world.standing())
