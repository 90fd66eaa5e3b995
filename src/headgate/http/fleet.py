"""The fleet over HTTP: what is set for it, changed, gone back to; and its feed to other agents.

Control ──► FleetRoutes ──► ChangeBook (judges, commits to the fleet's store)
                       └──► Mirror (what this agent follows) ──pages, changes──► a replica's agent
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.fleetbook import ChangeBook
from headgate.agent.fleetmirror import Mirror
from headgate.agent.fleetview import FleetView
from headgate.agent.ports import Clock
from headgate.core.fleet import Item, ItemKind
from headgate.core.fleet_change import FleetChange, Holdings, stands
from headgate.core.fleet_items import read_item_at
from headgate.core.keyvalue import Entry, Listing
from headgate.core.reach import parse_reach
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.http.auth import Gatekeeper
from headgate.http.changes import etag, expected_revision
from headgate.http.documents import UnderWay, expect_json, json_response, strict_object
from headgate.http.looking import SharedLook, encoded_in_thread, json_in_thread
from headgate.wire.fleet import (
    MAX_N,
    FleetExportDoc,
    FleetItemsDoc,
    FleetRevisionsDoc,
    FleetRevisionWholeDoc,
    FleetRollbackBody,
    difference_docs,
    fleet_change_doc,
    fleet_revision_doc,
    item_doc,
)
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

T = TypeVar("T")
log = structlog.get_logger()

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
_LIMIT = re.compile(r"[0-9]{1,3}")
_NUMBER = re.compile(r"[0-9]{1,19}")
_WAIT = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_FLAGS = {"true": True, "false": False}


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
        self._under_way = UnderWay()
        self._held = HeldListings(clock)
        self._turns = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._items = SharedLook(lambda: self._look(lambda: self._listed(ended=False)))
        self._all_items = SharedLook(lambda: self._look(lambda: self._listed(ended=True)))
        self._export = SharedLook(lambda: self._look(self._exported))

    # --- for other agents ------------------------------------------------------------------

    async def feed(self, request: Request) -> Response:
        """All that is followed under some prefixes, page by page, at one revision."""
        self._admit(request)
        given = _only(request, "prefix", "revision", "from")
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
        given = _only(request, "prefix", "after", "wait_s", "store_id", "mark")
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

    # --- looking ---------------------------------------------------------------------------

    async def items(self, request: Request) -> Response:
        """What stands; `all=true`: what has ended or was taken out lately, too."""
        shared = self._all_items if _flag(_only(request, "all"), "all") else self._items
        return (await _in_time(shared.look)).response()

    async def export(self, request: Request) -> Response:
        _only(request)
        return (await _in_time(self._export.look)).response()

    async def _listed(self, *, ended: bool) -> Made:
        holdings = await self._fleet.book.items()
        wall_s = self._clock.now().wall_s
        body = await encoded_in_thread(lambda: _items_doc(holdings, wall_s, ended=ended))
        return Made(holdings.n, body)

    async def _exported(self) -> Made:
        found = await self._fleet.book.export()
        body = await encoded_in_thread(lambda: FleetExportDoc(found.n, found.document))
        return Made(found.n, body)

    async def history(self, request: Request) -> Response:
        limit = _limit(_only(request, "limit").get("limit", "50"))
        revisions = await self._look(lambda: self._fleet.book.history(limit))
        n = revisions[0].n if revisions else 0
        docs = [fleet_revision_doc(revision, n) for revision in revisions]
        return json_response(FleetRevisionsDoc(n, docs), headers=etag(n))

    async def revision(self, request: Request) -> Response:
        _only(request)
        n = _n(request.path_params["n"])
        kept = await self._look(lambda: self._fleet.book.revision(n))
        (newest, *_) = await self._look(lambda: self._fleet.book.history(1)) or [kept]

        def whole() -> FleetRevisionWholeDoc:
            about, told = fleet_revision_doc(kept, newest.n), difference_docs(kept.changes)
            return FleetRevisionWholeDoc(about, told, len(kept.changes))

        return await json_in_thread(whole)

    async def reach(self, request: Request) -> Response:
        given = _only(request, "reach").get("reach", "")
        try:
            reach = parse_reach(given)
        except ValueError as error:
            raise InvalidRequest(f"reach {error}", field="reach") from None
        found = await self._look(lambda: self._fleet.book.reached(reach))
        return json_response(reached_doc(found))

    # --- changing --------------------------------------------------------------------------

    async def apply(self, request: Request) -> Response:
        who, given = self._operator(request), _only(request, "dry_run", "prune")
        dry_run, prune = _flag(given, "dry_run"), _flag(given, "prune")
        expect_n, document = expected_revision(request), await strict_object(request)
        return await self._changed(
            self._fleet.book.apply(
                document, who=who, expect_n=expect_n, prune=prune, dry_run=dry_run
            )
        )

    async def rollback(self, request: Request) -> Response:
        who, given = self._operator(request), _only(request, "dry_run")
        n, expect_n = (await _rollback_body(request)).n, expected_revision(request)
        return await self._changed(
            self._fleet.book.rollback(
                n, who=who, expect_n=expect_n, dry_run=_flag(given, "dry_run")
            )
        )

    async def restore(self, request: Request) -> Response:
        """Puts back what this agent still knows and the store has lost."""
        who, given = self._operator(request), _only(request, "dry_run")
        mirror, dry_run = self._fleet.mirror, _flag(given, "dry_run")
        return await self._changed(
            self._fleet.book.restore(
                readable(mirror.kept()), who=who, known_n=mirror.n, dry_run=dry_run
            )
        )

    # --- steps -----------------------------------------------------------------------------

    def _operator(self, request: Request) -> str:
        return self._gatekeeper.who_changes(
            request.state.peer, request.headers.get("authorization")
        )

    async def _changed(self, making: Awaitable[FleetChange]) -> Response:
        change = await self._under_way.finish(making)
        response = await json_in_thread(lambda: fleet_change_doc(change))
        response.headers.update(etag(change.after_n))
        return response

    async def _look(self, ask: Callable[[], Awaitable[T]]) -> T:
        """A few at a time: who looks may be anybody, and the store is the whole fleet's."""

        async def in_turn() -> T:
            async with self._turns:
                return await ask()

        return await _in_time(in_turn)

    @property
    def _fleet(self) -> Fleet:
        if self._given is None:
            raise InvalidRequest(NO_FLEET, status=404)
        return self._given


async def _in_time(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await ask()
    except TimeoutError:
        raise StoreUnavailable(
            f"the fleet's store gave no answer in {LOOK_TIMEOUT_S:g} s; `headgate rules` "
            "shows what is in force here meanwhile"
        ) from None


class Made(NamedTuple):
    """A document that several are answered with."""

    n: int
    """The fleet's revision that it is of."""
    body: bytes

    def response(self) -> Response:
        return json_response(msgspec.Raw(self.body), headers=etag(self.n))


_FLEET = "/v1/fleet"
FLEET_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", f"{_FLEET}/items", "items"),
    ("GET", f"{_FLEET}/export", "export"),
    ("POST", f"{_FLEET}/apply", "apply"),
    ("GET", f"{_FLEET}/history", "history"),
    ("GET", f"{_FLEET}/history/{{n}}", "revision"),
    ("POST", f"{_FLEET}/rollback", "rollback"),
    ("POST", f"{_FLEET}/restore", "restore"),
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


def readable(entries: Iterable[Entry]) -> list[Item]:
    """What this agent cannot read it could not judge, either: one that can has to put it back."""
    items = []
    for entry in entries:
        try:
            items.append(read_item_at(entry.key, entry.value))
        except ValueError as error:
            log.warning("fleet.not_restored", key=entry.key, detail=str(error))
    return items


_KINDS = tuple(ItemKind)


# --- documents -------------------------------------------------------------------------------


def _items_doc(holdings: Holdings, wall_s: float, *, ended: bool) -> FleetItemsDoc:
    chosen = [item for item in holdings.items.values() if ended or stands(item, wall_s)]
    chosen.sort(key=lambda item: (_KINDS.index(item.kind), item.reach.rank, item.id))
    return FleetItemsDoc(holdings.n, [item_doc(i, wall_s) for i in chosen], holdings.refused)


# --- requests --------------------------------------------------------------------------------


def _only(request: Request, *known: str) -> Mapping[str, str]:
    """Its parameters, read strictly: a misspelt wish for a dry run must not become a change."""
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in known:
            told = f"known: {', '.join(known)}" if known else "this route takes none"
            raise InvalidRequest(f"unknown parameter {name[:100]!r}; {told}", field=name[:100])
    single = [name for name, _ in given if name != "prefix"]
    if len(single) > len(set(single)):
        raise InvalidRequest("a parameter is given twice; say it once")
    return dict(given)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text not in _FLAGS:
        raise InvalidRequest(f"{name} is {text[:100]!r}, must be true or false", field=name)
    return _FLAGS[text]


def _limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= 500:
        raise InvalidRequest(f"limit is {text[:100]!r}, must be from 1 to 500", field="limit")
    return int(text)


def _n(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > MAX_N:
        message = f"n is {text[:100]!r}, must be a revision of the fleet, such as 12"
        raise InvalidRequest(message, field="n")
    return int(text)


def _whole(text: str, field: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > MAX_REVISION:
        raise InvalidRequest(f"{field} is {text[:100]!r}, must be a revision", field=field)
    return int(text)


def _wait(text: str) -> float:
    if not _WAIT.fullmatch(text) or float(text) > MAX_WAIT_S:
        message = f"wait_s is {text[:100]!r}, must be from 0 to {MAX_WAIT_S:g}"
        raise InvalidRequest(message, field="wait_s")
    return float(text)


async def _rollback_body(request: Request) -> FleetRollbackBody:
    expect_json(request)
    try:
        return msgspec.json.decode(await request.body(), type=FleetRollbackBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f'the body must read like {{"n": 12}}: {error}') from None
