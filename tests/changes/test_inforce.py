"""Changes are put in force in every room, whatever becomes of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from headgate.base.keyvalue import Entry
from headgate.changes.follower import LogFollower
from headgate.changes.inforce import OwnInForce, SharedInForce
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import EVERYWHERE, HERE, Place
from headgate.changes.state import item_bytes
from tests.changes import verbs
from tests.changes.own_world import OwnLog, set_here
from tests.fixtures.fakes import HandClock
from tests.fixtures.memory_store import MemoryStore

PLACES = (Place(database="main"),)


class Room:
    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.known: dict[str, Change] = {}

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        if self.breaks:
            raise KeyError("a defect")
        self.known |= {item.id: item for item in items}


def peer(name: str, n: int = 1) -> Change:
    return set_here(ChangeKind.PEER, name, {"url": "https://b:8087", "database": "main"}, n)


async def test_a_room_that_fails_keeps_no_other_from_a_change_and_gets_it_later() -> None:
    broken, well = Room(breaks=True), Room()
    in_force = OwnInForce((broken, well), lambda: PLACES, HandClock())
    (told,) = await in_force.changed([peer("s a")])
    assert "Room failed" in told and "a defect" in told and in_force.faults == [told]
    assert well.known.keys() == {"s a"}
    broken.breaks = False
    assert await in_force.changed([peer("s b", 2)]) == []
    assert broken.known.keys() == {"s a", "s b"} and in_force.faults == []


async def test_what_is_not_in_force_everywhere_is_reported_with_the_acknowledgment() -> None:
    store = MemoryStore()
    await store.open()
    log = OwnLog(store, HandClock())
    room = Room(breaks=True)
    log.attach(room)
    made = await verbs.put_rule(log.book, {"target": "etl", "ratio": 0.5}, reach=HERE, who="ops")
    assert [advice.code for advice in made.advice][-1] == "not-in-force"
    assert len(log.rules.book.rules) == 1


class StubFollower:
    """What was received of the fleet's log."""

    def __init__(self, *items: Change) -> None:
        self.mirror = self
        self.n, self.known = 3, True
        self._entries = [Entry(item.key, item_bytes(item), 1) for item in items]

    def entries(self) -> list[Entry]:
        return self._entries

    def watch(self, note: Any) -> None: ...


async def test_what_a_fleet_set_reaches_the_other_rooms_and_is_tried_again() -> None:
    broken, well = Room(breaks=True), Room()
    item = Change(ChangeKind.METRIC, "main/lag@fleet", EVERYWHERE, {"removed": True}, 3, 1.0, "ops")
    follower = cast(LogFollower, StubFollower(item))
    shared = SharedInForce(
        follower, HandClock(), (broken, well), places=lambda: PLACES, found=lambda members: None
    )
    with pytest.raises(KeyError):
        await shared.apply()
    assert well.known.keys() == {item.id} and shared.n == 0 and len(shared.failures) == 1
    broken.breaks = False
    await shared.apply()
    assert broken.known.keys() == {item.id} and shared.n == 3 and shared.failures == []
