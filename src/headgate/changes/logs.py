"""Which log a change goes to.   a room's routes ──reach──► ChangeLogs ──► OwnBook, SharedBook"""

from __future__ import annotations

from typing import NamedTuple

from headgate.changes.book import ChangeBook
from headgate.changes.exchange import Exchange
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Reach, parse_reach
from headgate.errors import InvalidRequest

REACH = "reach"
NO_FLEET = (
    "this agent belongs to no fleet: set the endpoints of the fleet's etcd in [fleet] of its "
    "settings file, and restart it"
)


class ChangeLogs(NamedTuple):
    own: OwnBook | None = None
    fleet: ChangeBook | None = None
    exchange: Exchange | None = None

    async def reach(self, given: Reach | None, database: object = "") -> Reach:
        """How far a change reaches: an agent that leads a shard sets it for the shard by default
        (exchange.own_reach). InvalidRequest where another agent has to make it."""
        if self.exchange is None:
            return given or HERE
        named = [database] if isinstance(database, str) and database else ()
        return await self.exchange.lead.reach(given, named)

    def is_shared(self, reach: Reach) -> bool:
        """Whether the agents of a shard exchange it."""
        return self.exchange is not None and self.exchange.lead.shares(reach)

    def book(self, reach: Reach) -> ChangeBook:
        book = self.own if reach == HERE or self.is_shared(reach) else self.fleet
        if book is None:
            raise InvalidRequest(NO_FLEET, status=409, field=REACH)
        return book


NO_LOGS = ChangeLogs()


def parsed_reach(given: str) -> Reach:
    try:
        return parse_reach(given)
    except ValueError as error:
        raise InvalidRequest(f"{REACH} {error}", field=REACH) from None
