"""The fleet over HTTP: whom a reach meets, and the feed to other agents.

Control ──► FleetRoutes ──► Mirror (what this agent follows) ──pages, changes──► a replica's agent
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.changebook import ChangeBook
from headgate.agent.logmirror import Mirror
from headgate.agent.picture import FleetView
from headgate.agent.ports import Clock
from headgate.core.keyvalue import Listing
from headgate.core.reach import HERE, parse_reach
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.http.auth import Gatekeeper
from headgate.http.changes import only_known
from headgate.http.documents import json_response
from headgate.http.looking import json_in_thread
from headgate.wire.fleet_feed import (
    FEED,
    FEED_CHANGES,
    MAX_KEY_CHARS,
    MAX_PREFIXES,
    MAX_REVISION,
    MAX_STORE_ID_CHARS,
    MAX_WAIT_S,
    encode_changes,
    feed_page,
)
from headgate.wire.fleet_reach import reached_doc

LOOK_TIMEOUT_S = 12.0
"""A little less than the command line waits, so that it is told why."""
LOOKS_AT_ONCE = 4
HELD_LISTINGS = 8
HELD_S = 30.0
"""Who takes longer for its pages lists anew."""
NO_FLEET = (
    "this agent belongs to no fleet: name the store that its agents share in [fleet] of its "
    "settings file (endpoints of etcd), and restart it"
)
_NUMBER = re.compile(r"[0-9]{1,19}")
_WAIT = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parts of an agent that belongs to a fleet."""

    book: ChangeBook
    mirror: Mirror
    view: FleetView | None = None
    """Where this agent watches the whole fleet."""


class FleetRoutes:
    """Handlers, as Control's."""

    def __init__(self, fleet: Fleet | None, clock: Clock, gatekeeper: Gatekeeper) -> None:
        self._given = fleet
        self._clock = clock
        self._gatekeeper = gatekeeper
        self._held = HeldListings(clock)
        self._turns = asyncio.Semaphore(LOOKS_AT_ONCE)

    # --- for other agents ------------------------------------------------------------------

    async def feed(self, request: Request) -> Response:
        """All that is followed under some prefixes, page by page, at one revision."""
        self._admit(request)
        given = only_known(request, "prefix", "revision", "from", repeated="prefix")
        prefixes, mark = self._prefixes(request), 0
        if "revision" not in given:
            listing, mark = self._fleet.mirror.listing(prefixes), self._fleet.mirror.mark
        else:
            listing = self._held.get(prefixes, _whole(given["revision"], "revision"))
        start = given.get("from", "")[: MAX_KEY_CHARS + 1]
        page = await asyncio.to_thread(feed_page, listing, start=start, mark=mark)
        if page.next is not None:
            self._held.keep(prefixes, listing)
        return await json_in_thread(lambda: page)

    async def feed_changes(self, request: Request) -> Response:
        """Held while there are none, for as long as was asked."""
        self._admit(request)
        given = only_known(
            request, "prefix", "after", "wait_s", "store_id", "mark", repeated="prefix"
        )
        prefixes, mirror = self._prefixes(request), self._fleet.mirror
        after, wait_s = _whole(given.get("after", ""), "after"), _wait(given.get("wait_s", "0"))
        known = given.get("store_id", "")[:MAX_STORE_ID_CHARS]
        mark = _whole(given.get("mark", "0"), "mark")
        changes = await mirror.changes_after(after, prefixes, wait_s, store_id=known, mark=mark)
        body = encode_changes(changes, mirror.store_id, mark=mirror.mark)
        if body is None:
            raise InvalidRequest(_TOO_MUCH, status=410)
        return json_response(msgspec.Raw(body))

    def _admit(self, request: Request) -> None:
        self._gatekeeper.who_pulls(request.state.peer, request.headers.get("authorization"))

    def _prefixes(self, request: Request) -> tuple[str, ...]:
        """Those that are followed here: of others nothing is known, which is not nothing there."""
        asked = tuple(request.query_params.getlist("prefix"))
        if not 1 <= len(asked) <= MAX_PREFIXES:
            message = f"{len(asked)} prefixes are asked for, must be 1 to {MAX_PREFIXES}"
            raise InvalidRequest(message, field="prefix")
        mirror = self._fleet.mirror
        for prefix in asked:
            if mirror.known and not mirror.covers((prefix,)):
                message = f"this agent does not follow {prefix[:100]!r}; it follows "
                told = ", ".join(mirror.prefixes)
                raise InvalidRequest(message + told, status=409, field="prefix")
        return asked

    # --- for everybody ---------------------------------------------------------------------

    async def reach(self, request: Request) -> Response:
        given = only_known(request, "reach").get("reach", "")
        try:
            reach = parse_reach(given)
        except ValueError as error:
            raise InvalidRequest(f"reach {error}", field="reach") from None
        if reach == HERE:
            message = "reach is 'host', this agent alone; name other agents: host:db-1"
            raise InvalidRequest(message, field="reach")
        try:
            # A few at a time: who looks may be anybody, and the store is the whole fleet's.
            async with asyncio.timeout(LOOK_TIMEOUT_S), self._turns:
                found = await self._fleet.book.reached(reach)
        except TimeoutError:
            message = f"the fleet's store gave no answer in {LOOK_TIMEOUT_S:g} s"
            raise StoreUnavailable(message) from None
        return json_response(reached_doc(found))

    @property
    def _fleet(self) -> Fleet:
        if self._given is None:
            raise InvalidRequest(NO_FLEET, status=404)
        return self._given


_FLEET = "/v1/fleet"
FLEET_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", f"{_FLEET}/reach", "reach"),
    ("GET", FEED, "feed"),
    ("GET", FEED_CHANGES, "feed_changes"),
)


class HeldListings:
    """Listings of which somebody has read a page: the next ones are to be of the same revision.

    They share their entries with the mirror, and are few.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[tuple[str, ...], int], tuple[float, Listing]] = OrderedDict()

    def keep(self, prefixes: tuple[str, ...], listing: Listing) -> None:
        self._kept[prefixes, listing.revision] = (self._clock.now().mono_s, listing)
        self._kept.move_to_end((prefixes, listing.revision))
        while len(self._kept) > HELD_LISTINGS:
            self._kept.popitem(last=False)

    def get(self, prefixes: tuple[str, ...], revision: int) -> Listing:
        kept_at, listing = self._kept.get((prefixes, revision), (0.0, None))
        if listing is None or self._clock.now().mono_s - kept_at > HELD_S:
            self._kept.pop((prefixes, revision), None)
            raise InvalidRequest(_NOT_HELD.format(revision), status=410)
        return listing


_NOT_HELD = "the listing of revision {} is not kept any more: list anew"
_TOO_MUCH = "one commit changed more than is told at once: list anew"


# --- requests --------------------------------------------------------------------------------


def _whole(text: str, field: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > MAX_REVISION:
        raise InvalidRequest(f"{field} is {text[:100]!r}, must be a revision", field=field)
    return int(text)


def _wait(text: str) -> float:
    if not _WAIT.fullmatch(text) or float(text) > MAX_WAIT_S:
        message = f"wait_s is {text[:100]!r}, must be from 0 to {MAX_WAIT_S:g}"
        raise InvalidRequest(message, field="wait_s")
    return float(text)
