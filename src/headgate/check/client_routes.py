"""Clients over HTTP, and who changed what.   Control ──► ClientRoutes ──► Views, Store"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from headgate.base.declared import iso
from headgate.base.redaction import redacted
from headgate.check.answers import answer_doc
from headgate.check.api import (
    AuditDoc,
    AuditsDoc,
    ClientsDoc,
    HistoryDoc,
    RejectionDoc,
    RejectionsDoc,
    TallyDoc,
)
from headgate.check.questions import ExplainQuery, about, check_of
from headgate.check.views import Views, is_of
from headgate.history.api import PastDoc
from headgate.history.looking import json_in_thread
from headgate.history.routes import SinceQuery, Watching
from headgate.http.documents import json_response, seconds
from headgate.http.routes import Call, Plain, Route, Thousand
from headgate.rules.api import ExplainDoc, explain_doc

MAX_TALLIES_SHOWN = 10_000


class NewestQuery(msgspec.Struct, frozen=True):
    limit: Annotated[Thousand, about("At most this many.")] = 100


class RejectionsQuery(NewestQuery, frozen=True):
    app: Annotated[str, about("A client, or a level of its name.")] | None = None


class ClientRoutes:
    """Handlers, as Control's."""

    def __init__(self, views: Views, watching: Watching) -> None:
        self._views = views
        self._watching = watching

    async def explain(self, call: Call[ExplainQuery, None]) -> Response:
        if call.query.at:
            return await self._watching.explain_at(call, call.query.at)
        check, checker = check_of(call.query), self._views.parts.checker
        decision = checker.explain(check)
        idle = self._views.idles(check.database, decision.at)
        doc = explain_doc(decision, checker.rules, idle=idle)
        return json_response(msgspec.structs.replace(doc, pace=self._views.pace(check.database)))

    async def clients(self, call: Plain) -> Response:
        return json_response(self._views.clients())

    async def history(self, call: Call[SinceQuery, None]) -> Response:
        async with self._watching.turns.look(call.request):
            found = await self._history(seconds(call.query.since), call.query.app)
            return await json_in_thread(lambda: found)

    async def _history(self, since_s: float, app: str | None) -> HistoryDoc:
        parts, without = self._views.parts, self._views.parts.watchers.unthrottled
        now_s = parts.clock.now().wall_s
        await parts.keeper.flush()
        tallies = await parts.store.history.tallies(
            () if app is None else (app,),
            since_minute=int((now_s - since_s) // 60),
            until_minute=int(now_s // 60),
            limit=MAX_TALLIES_SHOWN + 1,
        )
        told = tallies[-MAX_TALLIES_SHOWN:]

        def docs() -> list[TallyDoc]:
            return [
                TallyDoc(iso(t.minute * 60), t.database, t.client, t.verdict, t.metric, t.count)
                for t in told
            ]

        return HistoryDoc(
            await to_thread(docs),
            [] if without is None else self._views.unthrottled(without, since_s, app),
            whole=len(told) == len(tallies),
        )

    async def rejections(self, call: Call[RejectionsQuery, None]) -> Response:
        recent, app = self._views.parts.recorder.recent(), call.query.app
        chosen = (d for d in recent if is_of(d.check.identity.text, app))
        docs = [
            RejectionDoc(iso(d.at.wall_s), answer_doc(d)) for d in islice(chosen, call.query.limit)
        ]
        return json_response(RejectionsDoc(docs))

    async def audit(self, call: Call[NewestQuery, None]) -> Response:
        entries = await self._views.parts.store.audit(limit=call.query.limit)
        docs = [
            AuditDoc(iso(e.wall_s), e.who, e.action, e.target, _shown(e.before), _shown(e.after))
            for e in entries
        ]
        return json_response(AuditsDoc(docs))


def _shown(settings: Any) -> Any:
    return redacted(settings) if isinstance(settings, Mapping) else settings


CLIENT_ROUTES = (
    Route(
        "GET", "/v1/explain", "explain", "What the answer to a check would be, and why",
        (ExplainDoc, PastDoc), query=ExplainQuery, errors=(404, 429, 503),
        rejects="an `at` that is not in the past, or comes with more than app and database; only "
        "one of `budget` and `cpu_s`",
        example={"app": "etl:nightly", "database": "main"},
        about="Not counted, and without chance: `odds` is the probability that a ratio rule lets "
        "the check reach the metrics. With `at`: what is known of a past minute.",
    ),
    Route("GET", "/v1/clients", "clients", "Recent clients with their counts", ClientsDoc),
    Route(
        "GET", "/v1/history", "history", "Decisions per minute", HistoryDoc,
        query=SinceQuery, errors=(429, 503), example={"since": "1h"},
    ),
    Route(
        "GET", "/v1/rejections", "rejections", "Recent rejections in full", RejectionsDoc,
        query=RejectionsQuery, example={"limit": "100", "app": "etl"},
        about="Newest first: each metric with value, threshold and age, the rule, the reason. At "
        "most one a second per client, 512 in all; counts in history are exact.",
    ),
    Route(
        "GET", "/v1/audit", "audit", "Who changed what, newest first", AuditsDoc,
        query=NewestQuery, errors=(503,), example={"limit": "100"},
    ),
)  # fmt: skip
