"""What operators changed, over HTTP: one list, file, history and way back for both logs.

Control ──► ChangeRoutes ──log=agent──► OwnBook: what was set at this agent
                       └──log=fleet──► ChangeBook: what reaches further
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.changebook import ChangeBook, OwnBook
from headgate.agent.ports import Clock
from headgate.core.change import ChangeKind, Item
from headgate.core.change_codec import read_item_at
from headgate.core.change_log import ChangeMade, LogState, stands
from headgate.core.keyvalue import Entry
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.http.auth import Gatekeeper
from headgate.http.changes import etag, expected_revision, flag, only_known
from headgate.http.documents import UnderWay, expect_json, json_response, strict_object
from headgate.http.fleet import LOOK_TIMEOUT_S, LOOKS_AT_ONCE, NO_FLEET, Fleet
from headgate.http.looking import SharedLook, encoded_in_thread, json_in_thread
from headgate.wire.changes import (
    MAX_N,
    ChangeExportDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
    ChangeRollbackBody,
    ChangesDoc,
    Log,
    change_doc,
    change_made_doc,
    difference_docs,
    revision_doc,
)

T = TypeVar("T")
log = structlog.get_logger()

_LIMIT = re.compile(r"[0-9]{1,3}")
_NUMBER = re.compile(r"[0-9]{1,19}")
_NAMED = {Log.AGENT: "this agent's state file", Log.FLEET: "the fleet's store"}


class ChangeRoutes:
    """Handlers, as Control's."""

    def __init__(
        self, own: OwnBook | None, fleet: Fleet | None, clock: Clock, gatekeeper: Gatekeeper
    ) -> None:
        self._own = own
        self._fleet = fleet
        self._clock = clock
        self._gatekeeper = gatekeeper
        self._under_way = UnderWay()
        self._turns = {which: asyncio.Semaphore(LOOKS_AT_ONCE) for which in Log}
        self._lists = {
            (which, ended): self._shared(which, self._listing(which, ended=ended))
            for which in Log
            for ended in (False, True)
        }
        self._exports = {which: self._shared(which, self._exporting(which)) for which in Log}

    # --- looking ---------------------------------------------------------------------------

    async def changes(self, request: Request) -> Response:
        """What stands; `all=true`: what has ended or was taken out lately, too."""
        given = only_known(request, "log", "all")
        which = _log(given)
        shared = self._lists[which, flag(given, "all")]
        return (await _in_time(which, shared.look)).response()

    async def export(self, request: Request) -> Response:
        which = _log(only_known(request, "log"))
        return (await _in_time(which, self._exports[which].look)).response()

    async def history(self, request: Request) -> Response:
        given = only_known(request, "log", "limit")
        which, limit = _log(given), _limit(given.get("limit", "50"))
        revisions = await self._look(which, lambda: self._book(which).history(limit))
        n = revisions[0].n if revisions else 0
        docs = [revision_doc(revision, n) for revision in revisions]
        return json_response(ChangeRevisionsDoc(which, n, docs), headers=etag(n))

    async def revision(self, request: Request) -> Response:
        which, n = _log(only_known(request, "log")), _n(request.path_params["n"])
        kept = await self._look(which, lambda: self._book(which).revision(n))
        (newest, *_) = await self._look(which, lambda: self._book(which).history(1)) or [kept]

        def whole() -> ChangeRevisionWholeDoc:
            about, found = revision_doc(kept, newest.n), difference_docs(kept.changes)
            return ChangeRevisionWholeDoc(which, about, found, len(kept.changes))

        return await json_in_thread(whole)

    # --- changing --------------------------------------------------------------------------

    async def apply(self, request: Request) -> Response:
        who, given = self._operator(request), only_known(request, "log", "dry_run", "prune")
        which, dry_run, prune = _log(given), flag(given, "dry_run"), flag(given, "prune")
        expect_n, document = expected_revision(request), await strict_object(request)
        return await self._changed(
            which,
            self._book(which).apply(
                document, who=who, expect_n=expect_n, prune=prune, dry_run=dry_run
            ),
        )

    async def rollback(self, request: Request) -> Response:
        who, given = self._operator(request), only_known(request, "log", "dry_run")
        which, dry_run = _log(given), flag(given, "dry_run")
        body, expect_n = await _rollback_body(request), expected_revision(request)
        return await self._changed(
            which,
            self._book(which).rollback(
                body.n, only=body.only, who=who, expect_n=expect_n, dry_run=dry_run
            ),
        )

    async def restore(self, request: Request) -> Response:
        """Puts back what this agent still knows and the fleet's store has lost."""
        who, given = self._operator(request), only_known(request, "log", "dry_run")
        dry_run = flag(given, "dry_run")
        if _log(given) is not Log.FLEET:
            message = "restore is for the fleet's log: say log=fleet; nothing was changed"
            raise InvalidRequest(message, field="log")
        book, mirror = self._book(Log.FLEET), self._member.mirror
        kept = readable(mirror.kept())
        restoring = book.restore(kept, who=who, known_n=mirror.n, dry_run=dry_run)
        return await self._changed(Log.FLEET, restoring)

    # --- steps -----------------------------------------------------------------------------

    def _shared(self, which: Log, made: Callable[[], Awaitable[Made]]) -> SharedLook[Made]:
        return SharedLook(lambda: self._look(which, made))

    def _listing(self, which: Log, *, ended: bool) -> Callable[[], Awaitable[Made]]:
        async def listed() -> Made:
            holdings = await self._book(which).items()
            wall_s = self._clock.now().wall_s
            body = await encoded_in_thread(
                lambda: _changes_doc(which, holdings, wall_s, ended=ended)
            )
            return Made(holdings.n, body)

        return listed

    def _exporting(self, which: Log) -> Callable[[], Awaitable[Made]]:
        async def exported() -> Made:
            found = await self._book(which).export()
            body = await encoded_in_thread(lambda: ChangeExportDoc(which, *found))
            return Made(found.n, body)

        return exported

    def _operator(self, request: Request) -> str:
        return self._gatekeeper.who_changes(
            request.state.peer, request.headers.get("authorization")
        )

    async def _changed(self, which: Log, making: Awaitable[ChangeMade]) -> Response:
        change = await self._under_way.finish(making)
        response = await json_in_thread(lambda: change_made_doc(change, which))
        response.headers.update(etag(change.after_n))
        return response

    async def _look(self, which: Log, ask: Callable[[], Awaitable[T]]) -> T:
        """A few at a time: who looks may be anybody, and the store is the whole fleet's."""

        async def in_turn() -> T:
            async with self._turns[which]:
                return await ask()

        return await _in_time(which, in_turn)

    def _book(self, which: Log) -> ChangeBook:
        if which is Log.FLEET:
            return self._member.book
        if self._own is None:
            raise InvalidRequest("this agent keeps no log of changes", status=404)
        return self._own

    @property
    def _member(self) -> Fleet:
        if self._fleet is None:
            raise InvalidRequest(NO_FLEET, status=404)
        return self._fleet


async def _in_time(which: Log, ask: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await ask()
    except TimeoutError:
        raise StoreUnavailable(
            f"{_NAMED[which]} gave no answer in {LOOK_TIMEOUT_S:g} s; `headgate rules` shows the "
            "rules that are in force here meanwhile"
        ) from None


class Made(NamedTuple):
    """A document that several are answered with."""

    n: int
    """The log's revision that it is of."""
    body: bytes

    def response(self) -> Response:
        return json_response(msgspec.Raw(self.body), headers=etag(self.n))


_CHANGES = "/v1/changes"
CHANGE_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", _CHANGES, "changes"),
    ("GET", f"{_CHANGES}/export", "export"),
    ("POST", f"{_CHANGES}/apply", "apply"),
    ("GET", f"{_CHANGES}/history", "history"),
    ("GET", f"{_CHANGES}/history/{{n}}", "revision"),
    ("POST", f"{_CHANGES}/rollback", "rollback"),
    ("POST", f"{_CHANGES}/restore", "restore"),
)


def readable(entries: Iterable[Entry]) -> list[Item]:
    """What this agent cannot read it could not validate, either: one that can has to put it
    back."""
    items = []
    for entry in entries:
        try:
            items.append(read_item_at(entry.key, entry.value))
        except ValueError as error:
            log.warning("fleet.not_restored", key=entry.key, detail=str(error))
    return items


_ORDER: Mapping[str, int] = {kind: at for at, kind in enumerate(ChangeKind)}


def _changes_doc(which: Log, holdings: LogState, wall_s: float, *, ended: bool) -> ChangesDoc:
    chosen = [item for item in holdings.items.values() if ended or stands(item, wall_s)]
    chosen.sort(key=lambda item: (_ORDER.get(item.kind, len(_ORDER)), item.reach.rank, item.id))
    docs = [change_doc(item, wall_s) for item in chosen]
    return ChangesDoc(which, holdings.n, docs, holdings.refused)


# --- requests --------------------------------------------------------------------------------


def _log(given: Mapping[str, str]) -> Log:
    text = given.get("log", Log.AGENT.value)
    try:
        return Log(text)
    except ValueError:
        message = f"log is {text[:100]!r}, must be {' or '.join(Log)}"
        raise InvalidRequest(message, field="log") from None


def _limit(text: str) -> int:
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= 500:
        raise InvalidRequest(f"limit is {text[:100]!r}, must be from 1 to 500", field="limit")
    return int(text)


def _n(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > MAX_N:
        message = f"n is {text[:100]!r}, must be a revision of the log, such as 12"
        raise InvalidRequest(message, field="n")
    return int(text)


async def _rollback_body(request: Request) -> ChangeRollbackBody:
    expect_json(request)
    try:
        return msgspec.json.decode(await request.body(), type=ChangeRollbackBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f'the body must read like {{"n": 12}} or {{"n": 12, "only": ["rules"]}}: {error}'
        raise InvalidRequest(message) from None
