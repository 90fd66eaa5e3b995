"""An agent whose clock is wrong is asked to change what others have in force."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.book import ChangeBook
from headgate.changes.model import BEAT
from headgate.errors import Conflict, InvalidSettings
from headgate.fleet.beat import Beat, beat_bytes
from headgate.metrics.samples import Instant
from tests.changes import verbs
from tests.changes.changebook_world import FLEET, HALF, BookWorld, QuickClock, book_on
from tests.fixtures.memory_log import MemoryLog

HOURS_S = 3600.0
HOLD = {"id": "stop", "target": "etl", "kind": "hold", "reason": "x", "for": "1h"}


@dataclass
class Shifted:
    """Another host's clock."""

    clock: QuickClock
    by_s: float

    def now(self) -> Instant:
        now = self.clock.now()
        return Instant(now.mono_s, now.wall_s + self.by_s)

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


@pytest.fixture
def world() -> BookWorld:
    return BookWorld()


def book_ahead(world: BookWorld, by_s: float = 2 * HOURS_S) -> ChangeBook:
    return book_on(MemoryLog(world.kept), Shifted(world.clock, by_s), "h")


async def test_what_others_have_in_force_can_be_lifted_by_a_clock_that_is_ahead(
    world: BookWorld,
) -> None:
    ahead = book_ahead(world)
    await verbs.put_rule(world.book, HOLD, reach=FLEET, who="ann")
    pair = await verbs.favor(world.book, "web", reach=FLEET, who="ann")
    change = await verbs.lift_rule(ahead, "stop", who="bob")
    assert [one.code for one in change.advice] == ["over"]
    assert "by this agent's clock" in change.advice[0].message
    await verbs.lift_rule(ahead, pair.items[0].id, who="bob")
    assert not await world.standing(), "both of the pair, too"
    with pytest.raises(InvalidSettings, match="rule stop: was already lifted by bob"):
        await verbs.lift_rule(ahead, "stop", who="bob")


async def test_the_id_of_one_that_has_ended_is_for_the_same_rule_alone(world: BookWorld) -> None:
    """By a clock that is ahead everything has: nobody's hold becomes one on another client."""
    ahead = book_ahead(world)
    await verbs.put_rule(world.book, HOLD, reach=FLEET, who="ann")
    with pytest.raises(Conflict, match=r"rule stop ended .* ago by this agent's clock"):
        await verbs.put_rule(ahead, {**HOLD, "target": "other"}, reach=FLEET, who="bob")
    again = await verbs.put_rule(ahead, HOLD, reach=FLEET, who="bob")
    assert [one.code for one in again.advice] == ["anew"]
    await verbs.lift_rule(ahead, "stop", who="bob")
    await verbs.put_rule(ahead, {**HOLD, "target": "other"}, reach=FLEET, who="bob")


async def test_one_that_ended_a_day_ago_is_in_nobodys_way(world: BookWorld) -> None:
    await verbs.put_rule(world.book, HOLD, reach=FLEET, who="ann")
    later = book_ahead(world, 26 * HOURS_S)
    await verbs.put_rule(later, {**HOLD, "target": "other"}, reach=FLEET, who="bob")


@pytest.mark.parametrize(
    ("by_s", "told"),
    [
        (2 * HOURS_S, "the fleet's last beat, by db-7, is 2 h old by this agent's clock. Either"),
        (-2 * HOURS_S, "this agent's clock is 2 h behind the clock of db-7"),
        (30.0, ""),
        (-30.0, ""),
    ],
)
async def test_a_clock_that_differs_from_the_fleets_is_reported(
    world: BookWorld, by_s: float, told: str
) -> None:
    beat = beat_bytes(Beat("db-7", world.wall_s))
    await MemoryLog(world.kept).commit([], [Put(BEAT, beat)])
    change = await verbs.put_rule(
        book_ahead(world, by_s), HALF, reach=FLEET, who="ann", dry_run=True
    )
    clocks = [one.message for one in change.advice if one.code == "clock"]
    assert len(clocks) == bool(told) and all(told in one for one in clocks)
    back = await book_ahead(world, by_s).rollback(0, who="ann", dry_run=True)
    assert ("clock" in {one.code for one in back.advice}) is bool(told)
