"""What became of a fleet is told also where some of it cannot be read, or was never there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.base.keyvalue import Compare, Put
from headgate.changes.model import log_key
from headgate.changes.state import NoSuchItem
from headgate.errors import Conflict
from tests.changes import verbs
from tests.changes.changebook_world import FLEET, HALF, BookWorld
from tests.fixtures.memory_log import MemoryLog


@pytest.fixture
def world() -> BookWorld:
    return BookWorld()


async def put_raw(world: BookWorld, key: str, raw: bytes) -> None:
    await MemoryLog(world.kept).commit([], [Put(key, raw)])


async def make_newer(world: BookWorld, n: int) -> None:
    """As a version would that knows more reaches than this one."""
    store = MemoryLog(world.kept)
    (entry,) = (await store.list((log_key(n),))).entries
    document: dict[str, Any] = json.loads(entry.value)
    document["changes"][0]["after"]["reach"] = "galaxy:andromeda"
    await put_raw(world, log_key(n), json.dumps(document).encode())


async def ratios(world: BookWorld, *values: float) -> None:
    for value in values:
        await verbs.patch_rule(world.book, "half", {"ratio": value}, who="ada")


async def test_one_revision_that_cannot_be_read_takes_no_other_away(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await ratios(world, 0.6, 0.7, 0.8)
    await make_newer(world, 3)
    await put_raw(world, log_key(2), b"\xff no JSON")
    await put_raw(world, f"{log_key(1)}x", b"copied by hand")
    told = await world.book.history()
    assert [(one.n, bool(one.unread)) for one in told] == [
        (4, False), (3, True), (2, True), (1, False),
    ]  # fmt: skip
    assert (told[1].who, told[1].action) == ("ada", "rule.changed"), "as much as can be read"
    assert "galaxy" in told[1].unread and "not JSON" in told[2].unread
    assert (await world.book.revision(3)).unread and not (await world.book.revision(1)).unread


async def test_back_over_one_that_cannot_be_read_goes_who_can_read_it(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await ratios(world, 0.6, 0.7, 0.8)
    await make_newer(world, 3)
    with pytest.raises(Conflict, match="this version cannot read revision 3, by ada"):
        await world.book.rollback(2, who="ada")
    await world.book.rollback(3, who="ada")
    assert (await world.standing())["half"]["ratio"] == 0.7


async def test_who_lost_a_race_to_a_newer_version_tries_again(world: BookWorld) -> None:
    """It reads the winner's revision only to see whether it is its own."""

    async def newer() -> None:
        await verbs.put_rule(world.other, {**HALF, "id": "new"}, reach=FLEET, who="bob")
        await make_newer(world, 1)

    world.store.fates = [newer]
    change = await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    assert change.after_n == 2


async def test_numbers_that_a_restore_skipped_are_no_end_of_history(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await ratios(world, 0.6)
    await world.book.restore([], who="ada", known_n=1000)
    await ratios(world, 0.7)
    assert [one.n for one in await world.book.history(20)] == [1002, 1001, 2, 1]
    with pytest.raises(NoSuchItem, match=r"has no revision 700: .* from 2 to 1,001"):
        await world.book.rollback(700, who="ada")
    await world.book.rollback(1, who="ada")
    assert (await world.standing())["half"]["ratio"] == 0.5
    await world.book.rollback(2, who="ada")
    assert (await world.standing())["half"]["ratio"] == 0.6


async def test_history_ends_where_it_is_no_longer_kept(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HALF, reach=FLEET, who="ada")
    await ratios(world, 0.6, 0.7)
    store = MemoryLog(world.kept)
    (entry,) = (await store.list((log_key(1),))).entries
    await store.commit([Compare(entry.key, entry.revision)], [Put(entry.key, None)])
    assert [one.n for one in await world.book.history()] == [3, 2]
    with pytest.raises(NoSuchItem, match="oldest revision to go back to is 1"):
        await world.book.rollback(0, who="ada")
