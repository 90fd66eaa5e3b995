"""What operators changed, over HTTP: one list, file, history and way back for both logs.

Control ──► ChangeRoutes ──log=agent──► OwnBook: what was set at this agent
                       └──log=fleet──► ChangeBook: what reaches further
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import structlog
from starlette.responses import Response

from headgate.base.keyvalue import Entry
from headgate.base.ports import Clock
from headgate.changes.api import (
    ChangeExportDoc,
    ChangeMadeDoc,
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
from headgate.changes.book import ChangeBook
from headgate.changes.exchange import Exchange
from headgate.changes.exchange_api import ExchangedDoc, OfferDoc, decode_offer, encode_answer
from headgate.changes.file_format import SECTIONS
from headgate.changes.logs import NO_FLEET
from headgate.changes.model import Change, ChangeKind
from headgate.changes.own import OwnBook
from headgate.changes.state import ChangeMade, LogState, read_item_at
from headgate.check.questions import about
from headgate.errors import InvalidRequest, StoreUnavailable
from headgate.fleet.routes import LOOK_TIMEOUT_S, LOOKS_AT_ONCE, Fleet
from headgate.history.looking import SharedLook, encoded_in_thread, json_in_thread
from headgate.http.documents import etag, json_response
from headgate.http.routes import Call, Caller, DryRun, Plain, Route, SettingsBody, Unread

T = TypeVar("T")
MAX_REPLAYED = 5
log = structlog.get_logger()

_NAMED = {Log.AGENT: "this agent's state file", Log.FLEET: "the fleet's store"}


_Which = Annotated[Log, about("`fleet`: the log that the fleet shares, not the agent's own.")]


class LogQuery(msgspec.Struct, frozen=True):
    log: _Which = Log.AGENT


class ListQuery(LogQuery, frozen=True):
    all: Annotated[bool, about("`true` also lists what ended or was removed recently.")] = False


class RevisionsQuery(LogQuery, frozen=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50


class LogChange(DryRun, frozen=True):
    log: _Which = Log.AGENT


class ApplyQuery(LogChange, frozen=True):
    prune: Annotated[bool, about("`true` removes what the document does not name.")] = False


class RestoreQuery(DryRun, frozen=True, kw_only=True):
    log: Annotated[Literal["fleet"], about("Restore is for the fleet's log: `log=fleet`.")]


class ChangeRoutes:
    """Handlers, as Control's."""

    def __init__(
        self,
        own: OwnBook | None,
        fleet: Fleet | None,
        clock: Clock,
        replay: Callable[[Change], Awaitable[str]],
    ) -> None:
        """`replay`: what a change would have done to the last hour, in words; empty: not known."""
        self._replay = replay
        self._own = own
        self._fleet = fleet
        self._clock = clock
        self._turns = {which: asyncio.Semaphore(LOOKS_AT_ONCE) for which in Log}
        self._lists = {
            (which, ended): self._shared(which, self._listing(which, ended=ended))
            for which in Log
            for ended in (False, True)
        }
        self._exports = {which: self._shared(which, self._exporting(which)) for which in Log}

    # --- looking ---------------------------------------------------------------------------

    async def changes(self, call: Call[ListQuery, None]) -> Response:
        """What is set; `all=true`: also what ended or was removed recently."""
        which = call.query.log
        return (await _in_time(which, self._lists[which, call.query.all].look)).response()

    async def export(self, call: Call[LogQuery, None]) -> Response:
        which = call.query.log
        return (await _in_time(which, self._exports[which].look)).response()

    async def history(self, call: Call[RevisionsQuery, None]) -> Response:
        which, limit = call.query.log, call.query.limit
        revisions = await self._look(which, lambda: self._book(which).history(limit))
        n = revisions[0].n if revisions else 0
        docs = [revision_doc(revision, n) for revision in revisions]
        return json_response(ChangeRevisionsDoc(which, n, docs), headers=etag(n))

    async def revision(self, call: Call[LogQuery, None]) -> Response:
        which, n = call.query.log, call.number("n")
        kept = await self._look(which, lambda: self._book(which).revision(n))
        (newest, *_) = await self._look(which, lambda: self._book(which).history(1)) or [kept]

        def whole() -> ChangeRevisionWholeDoc:
            about, found = revision_doc(kept, newest.n), difference_docs(kept.changes)
            return ChangeRevisionWholeDoc(which, about, found, len(kept.changes))

        return await json_in_thread(whole)

    # --- changing --------------------------------------------------------------------------

    async def apply(self, call: Call[ApplyQuery, dict[str, Any]]) -> Response:
        return await self._changed(
            call.query.log,
            self._book(call.query.log).apply(
                call.body,
                who=call.who,
                expect_n=call.expected_revision,
                prune=call.query.prune,
                dry_run=call.query.dry_run,
            ),
        )

    async def rollback(self, call: Call[LogChange, ChangeRollbackBody]) -> Response:
        return await self._changed(
            call.query.log,
            self._book(call.query.log).rollback(
                call.body.n,
                only=call.body.only,
                who=call.who,
                expect_n=call.expected_revision,
                dry_run=call.query.dry_run,
            ),
        )

    async def restore(self, call: Call[RestoreQuery, None]) -> Response:
        """Puts back what this agent still knows and the fleet's store has lost."""
        book, mirror = self._book(Log.FLEET), self._member.mirror
        kept = readable(mirror.kept())
        restoring = book.restore(kept, who=call.who, known_n=mirror.n, dry_run=call.query.dry_run)
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

    async def _changed(self, which: Log, making: Awaitable[ChangeMade]) -> Response:
        change = await making
        replayed = await self._replayed(change) if change.dry_run else []
        response = await json_in_thread(lambda: change_made_doc(change, which, replayed))
        response.headers.update(etag(change.after_n))
        return response

    async def _replayed(self, change: ChangeMade) -> list[str]:
        """Of the first few: each reads an hour of history."""
        items = [one for one in change.items if one.kind in (ChangeKind.RULE, ChangeKind.METRIC)]
        found = [(item, await self._replay(item)) for item in items[:MAX_REPLAYED]]
        return [f"{item.kind} {item.id}: {told}" for item, told in found if told]

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
            raise InvalidRequest("this agent has no log of changes", status=404)
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
            f"{_NAMED[which]} did not answer in {LOOK_TIMEOUT_S:g} s; `headgate rules` shows the "
            "rules that are in force here meanwhile"
        ) from None


class Made(NamedTuple):
    """A document that several are answered with."""

    n: int
    """The log's revision of this document."""
    body: bytes

    def response(self) -> Response:
        return json_response(msgspec.Raw(self.body), headers=etag(self.n))


_CHANGES = "/v1/changes"
_FILE = {
    "type": "object",
    "description": "What is set, by kind, as GET /v1/changes/export has it.",
    "additionalProperties": False,
    "properties": {section: {"type": "array", "items": {"type": "object"}} for section in SECTIONS},
}
_MADE = "`If-Match` with the log's `n` rejects (412) a change that was built on an older one."
CHANGE_ROUTES = (
    Route(
        "GET", _CHANGES, "changes", "What operators have set", ChangesDoc,
        query=ListQuery, errors=(404, 503), example={"all": "true"},
        about="With reach, revision, and who set it. The log's revision `n` as `ETag`.",
    ),
    Route(
        "GET", f"{_CHANGES}/export", "export", "What is set, as a file", ChangeExportDoc,
        query=LogQuery, errors=(404, 503), example={"log": "agent"},
        about="`left_out` names what a [file](../howto/changes.md) cannot hold.",
    ),
    Route(
        "POST", f"{_CHANGES}/apply", "apply", "Make the changes of a file", ChangeMadeDoc,
        role=Caller.OPERATOR, query=ApplyQuery, body=SettingsBody(lambda: _FILE),
        rejects="entries with faults, all of which are listed",
        example={"dry_run": "true"},
        sends={"rules": [{"id": "slow-etl", "target": "etl", "ratio": 0.5, "for": "2h"}]},
        about=f"Answers with the differences; for a fleet with the places they reach, for a shard "
        f"with the agents that have a copy. {_MADE}",
    ),
    Route(
        "GET", f"{_CHANGES}/history", "history", "Revisions of the log, newest first",
        ChangeRevisionsDoc, query=RevisionsQuery, errors=(404, 503), example={"limit": "50"},
    ),
    Route(
        "GET", f"{_CHANGES}/history/{{n}}", "revision", "What a revision did",
        ChangeRevisionWholeDoc, query=LogQuery, errors=(503,),
    ),
    Route(
        "POST", f"{_CHANGES}/rollback", "rollback", "Set everything as it was after a revision",
        ChangeMadeDoc, role=Caller.OPERATOR, query=LogChange, body=ChangeRollbackBody,
        rejects="what can no longer be set", example={"dry_run": "true"},
        sends={"n": 12, "only": ["budgets"]},
        about=f"`only`: a part, of `rules`, `budgets`, `metrics`, `members`. {_MADE}",
    ),
    Route(
        "POST", f"{_CHANGES}/restore", "restore", "Write changes back to etcd that it has lost",
        ChangeMadeDoc, role=Caller.OPERATOR, query=RestoreQuery,
        rejects="what can no longer be set",
        example={"log": "fleet", "dry_run": "true"}, about="As far as this agent still has it.",
    ),
)  # fmt: skip


def readable(entries: Iterable[Entry]) -> list[Change]:
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
    chosen = [item for item in holdings.items.values() if ended or holdings.stands(item, wall_s)]
    chosen.sort(key=lambda item: (_ORDER.get(item.kind, len(_ORDER)), item.reach.rank, item.id))
    docs = [change_doc(item, wall_s if holdings.stands(item, wall_s) else inf) for item in chosen]
    return ChangesDoc(which, holdings.n, docs, holdings.rejected)


class Exchanging:
    """Handlers, as Control's."""

    def __init__(self, exchange: Exchange | None) -> None:
        self._given = exchange

    async def exchange(self, call: Plain) -> Response:
        """Held for as long as the offer allows; cancelled when the other agent hangs up."""
        if self._given is None:
            raise InvalidRequest("no database of this agent belongs to a shard", status=404)
        answer = await self._given.answer(decode_offer(await call.request.body()))
        return Response(encode_answer(answer), media_type="application/json")


EXCHANGE_ROUTES = (
    Route(
        "POST", "/v1/changes/exchange", "exchange", "Exchange a shard's changes", ExchangedDoc,
        role=Caller.PEER, body=Unread(OfferDoc),
        about="An agent sends its shard's changes to another one, and gets those that it lacks.",
    ),
)  # fmt: skip
