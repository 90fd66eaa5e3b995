"""The fleet over HTTP: which agents a reach matches, the feed to other agents, and its pages.

Control ──► FleetRoutes ──► Mirror (what this agent follows) ──pages, changes──► a replica's agent
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.responses import Response

from headgate.base.keyvalue import Listing
from headgate.base.ports import Clock
from headgate.changes.book import ChangeBook
from headgate.changes.logs import NO_FLEET
from headgate.changes.mirror import Mirror
from headgate.changes.reach import parse_reach
from headgate.check.questions import about
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.fleet.api import ReachedDoc, reached_doc
from headgate.fleet.feed_api import (
    FEED,
    FEED_CHANGES,
    MAX_PREFIXES,
    MAX_WAIT_S,
    FeedChangesDoc,
    FeedPageDoc,
    Key,
    Revision,
    StoreId,
    encode_changes,
    feed_page,
)
from headgate.fleet.picture import FleetView, Looked
from headgate.fleet.view_api import FleetDoc, FleetQuery, fleet_doc
from headgate.history.looking import json_in_thread
from headgate.http.documents import json_response
from headgate.http.routes import WIDE, Call, Caller, Route

LOOK_TIMEOUT_S = 12.0
"""A little less than the command line waits, so that it still gets the reason."""
LOOKS_AT_ONCE = 4
HELD_LISTINGS = 8
HELD_S = 30.0
"""A reader that takes longer for its pages has to list again."""
_Prefixes = Annotated[
    list[str], msgspec.Meta(min_length=1, max_length=MAX_PREFIXES, description="Of keys.")
]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parts of an agent that belongs to a fleet."""

    book: ChangeBook
    mirror: Mirror
    view: FleetView | None = None
    """Set if this agent watches the whole fleet."""


class FeedQuery(msgspec.Struct, frozen=True, rename={"start": "from"}):
    prefix: _Prefixes
    revision: Annotated[Revision, about("Revision of the page before.")] | None = None
    start: Annotated[Key, about("`next` of the page before.")] | None = None


class FeedChangesQuery(msgspec.Struct, frozen=True):
    prefix: _Prefixes
    after: Annotated[Revision, about("Last known revision.")]
    wait_s: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=MAX_WAIT_S, description="How long to delay the answer while nothing changes."
        ),
    ] = 0.0
    store_id: Annotated[StoreId, about("Last known store; 410 if it is another one.")] = ""
    mark: Annotated[Revision, about("`mark` of the last answer: nothing is sent twice.")] = 0


class ReachQuery(msgspec.Struct, frozen=True):
    reach: Annotated[
        str,
        msgspec.Meta(
            pattern=f"^(fleet|{WIDE})$",
            description="`fleet`, or for example `shard:commerce/*`.",
            examples=["fleet", "shard:commerce/*", "host:db-1"],
        ),
    ]


class FleetRoutes:
    """Handlers, as Control's."""

    def __init__(self, fleet: Fleet | None, clock: Clock) -> None:
        self._given = fleet
        self._clock = clock
        self._held = HeldListings(clock)
        self._turns = asyncio.Semaphore(LOOKS_AT_ONCE)

    # --- for other agents ------------------------------------------------------------------

    async def feed(self, call: Call[FeedQuery, None]) -> Response:
        """All that is followed under some prefixes, page by page, at one revision."""
        prefixes, mark, revision = self._prefixes(call.query.prefix), 0, call.query.revision
        if revision is None:
            listing, mark = self._fleet.mirror.listing(prefixes), self._fleet.mirror.feed.mark
        else:
            listing = self._held.get(prefixes, revision)
        start = call.query.start or ""
        page = await asyncio.to_thread(feed_page, listing, start=start, mark=mark)
        if page.next is not None:
            self._held.keep(prefixes, listing)
        return await json_in_thread(lambda: page)

    async def feed_changes(self, call: Call[FeedChangesQuery, None]) -> Response:
        """Delayed while there are none, up to the requested time."""
        asked, mirror = call.query, self._fleet.mirror
        changes = await mirror.changes_after(
            asked.after,
            self._prefixes(asked.prefix),
            min(asked.wait_s, MAX_WAIT_S),  # NaN is no wait.
            store_id=asked.store_id,
            mark=asked.mark,
        )
        body = encode_changes(changes, mirror.store_id, mark=mirror.feed.mark)
        if body is None:
            raise InvalidRequest(_TOO_MUCH, status=410)
        return json_response(msgspec.Raw(body))

    def _prefixes(self, asked: list[str]) -> tuple[str, ...]:
        """Those that are followed here: of others nothing is known, which is not nothing there."""
        mirror = self._fleet.mirror
        for prefix in asked:
            if mirror.known and not mirror.covers((prefix,)):
                message = f"this agent does not follow {prefix[:100]!r}; it follows "
                told = ", ".join(mirror.prefixes)
                raise InvalidRequest(message + told, status=409, field="prefix")
        return tuple(asked)

    # --- for everybody ---------------------------------------------------------------------

    async def reach(self, call: Call[ReachQuery, None]) -> Response:
        reach = parse_reach(call.query.reach)
        try:
            # A few at a time: who looks may be anybody, and the store is the whole fleet's.
            async with asyncio.timeout(LOOK_TIMEOUT_S), self._turns:
                found = await self._fleet.book.reached(reach)
        except TimeoutError:
            message = f"the fleet's store did not answer in {LOOK_TIMEOUT_S:g} s"
            raise StoreUnavailable(message) from None
        return json_response(reached_doc(found))

    @property
    def _fleet(self) -> Fleet:
        if self._given is None:
            raise InvalidRequest(NO_FLEET, status=404)
        return self._given


FLEET_ROUTES = (
    Route(
        "GET", "/v1/fleet/reach", "reach", "Which shards and agents a reach matches", ReachedDoc,
        query=ReachQuery, errors=(404, 503), example={"reach": "shard:commerce/*"},
    ),
    Route(
        "GET", FEED, "feed", "What this agent follows of the fleet, page by page", FeedPageDoc,
        role=Caller.PEER, query=FeedQuery, errors=(410,), example={"prefix": "items/wide/"},
        about="For the agents of a shard's replicas. The next page with `revision` and `from` of "
        "the page before.",
    ),
    Route(
        "GET", FEED_CHANGES, "feed_changes", "Changes of these entries", FeedChangesDoc,
        role=Caller.PEER, query=FeedChangesQuery, errors=(410,),
        example={"prefix": "items/wide/", "after": "12", "wait_s": "5"},
        about="Delayed for up to 30 s while nothing changes; 410: list again from the start.",
    ),
)  # fmt: skip


class HeldListings:
    """Listings that a client reads page by page: all pages must be of the same revision.

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


_NOT_HELD = "the listing of revision {} is not available any more: list again from the start"
_TOO_MUCH = "one commit has more changes than fit into one answer: list again from the start"


# --- the fleet page by page ----------------------------------------------------------------------

# The fleet over HTTP, page by page.   Control ──► FleetViewing ──► FleetView
#
# People look at the same document: page/fleet.py shows it.

MAX_AT_ONCE = 4
WITHIN_S = 10.0


class FleetViewing:
    """Handlers, as Control's. `view`: None where this agent has not been given the role."""

    def __init__(self, view: FleetView | None, clock: Clock, *, agent: str) -> None:
        self._view = view
        self._clock = clock
        self._agent = agent
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def document(self, call: Call[FleetQuery, None]) -> Response:
        return json_response(msgspec.Raw(await self._made(call.query)))

    async def _made(self, asked: FleetQuery) -> bytes:
        """Beside the loop: it may be ten thousand shards."""
        view = self._view
        if view is None:
            raise InvalidRequest(_NO_ROLE, status=404)
        try:
            async with asyncio.timeout(WITHIN_S), self._free:
                looked = await view.look()
                return await asyncio.to_thread(self._make, looked, asked)
        except TimeoutError:
            message = f"no data of the fleet within {WITHIN_S:g} s: this agent is very busy"
            raise InvalidRequest(message, status=503) from None

    def _make(self, looked: Looked, asked: FleetQuery) -> bytes:
        picture, holders, link = looked.picture, looked.holders, looked.link
        wall_s = looked.at.wall_s
        try:
            doc = fleet_doc(picture, holders, link, asked, agent=self._agent, wall_s=wall_s)
        except ValueError as error:
            raise InvalidRequest(f"a pattern {error}") from None
        return msgspec.json.encode(doc)


_NO_ROLE = (
    "this agent does not show the fleet: set `view = true` in [fleet] of its settings and restart "
    "it, or use an agent that does"
)
FLEET_VIEW_ROUTES = (
    Route(
        "GET", "/v1/fleet", "document", "The whole fleet, unhealthy shards first", FleetDoc,
        query=FleetQuery, errors=(404, 503), example={"unhealthy": "true", "region": "eu-*"},
        about="In pages, at an agent with `view = true`.",
    ),
)  # fmt: skip
