"""Looking back and watching over HTTP.   Control ──► Watching ──► Store, Watch, Rogues

A replay is arithmetic on what was kept. The only thing that is written are clients' reports of
periods without a throttler.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import msgspec
from starlette.responses import Response

from headgate.base.declared import iso
from headgate.base.names import Identity, parse_database, parse_identity
from headgate.base.ports import Store
from headgate.check.answers import answer_doc
from headgate.check.api import RejectionDoc
from headgate.check.questions import App, ExplainQuery, Span, about
from headgate.check.views import Parts, Views
from headgate.errors import InvalidRequest
from headgate.history.api import (
    BY_MINUTE,
    NAMED_IN_PAST,
    SAMPLED,
    ClientsSumsDoc,
    MetricMinutesDoc,
    Past,
    ReplayBody,
    ReplayDoc,
    RogueFaultDoc,
    RoguesDoc,
    StarvationDoc,
    TimelineDoc,
    clients_sums_doc,
    minutes_doc,
    past_doc,
    replay_doc,
    suspect_doc,
    timeline_doc,
)
from headgate.history.looking import Turns, json_in_thread
from headgate.history.past_rules import RulesThen, original_id, rules_at, rules_between
from headgate.history.records import AuditEntry, CheckedMinute, MetricMinute, Tally, in_steps
from headgate.history.replay import ReplayContext, ReplayedHour, replay
from headgate.history.replay_outcomes import gate_of
from headgate.history.timeline import (
    Runs,
    ThrottledMinutes,
    Timeline,
    most_telling,
    runs_of,
    stretches,
    timeline,
)
from headgate.history.unthrottled import ReportedPeriod, UnthrottledBook
from headgate.history.unthrottled_api import TakenDoc, UnthrottledBody, UnthrottledsDoc
from headgate.http.documents import json_response, past_instant, seconds
from headgate.http.routes import Call, NoQuery, Plain, Route
from headgate.metrics.service import metrics_known_to
from headgate.rules.api import explain_rules, match_doc
from headgate.rules.matching import EVERYONE, Rule
from headgate.rules.schedules import windows_of
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import RuleSpec, parse_rule, without_nulls

MAX_SINCE_S = 366 * 86_400.0
MAX_CLIENT_ROWS = 20_000
"""Clients by the results of their checks; further ones are summed up as `other`."""
MAX_METRIC_ROWS = 25_000
"""Two weeks of one metric."""
MAX_BINS = 2000
PROPOSED = "proposed"
RUNS_BACK_MINUTES = 14 * 1440


class SpanQuery(msgspec.Struct, frozen=True, kw_only=True):
    since: Annotated[Span, about("How long ago it begins: 1m to 366d.")] = "1h"
    until: Annotated[Span, about("How long ago it ends; default: now.")] = "0s"
    database: Annotated[str, about("Only this database.")] = ""


class ClientsQuery(SpanQuery, frozen=True, kw_only=True):
    app: Annotated[App, about("A client, or a level of its name; default: all.")] = EVERYONE


class TimelineQuery(ClientsQuery, frozen=True, kw_only=True):
    step: Annotated[Span, about("Length of a bin; default: a 60th of the time.")] | None = None
    level: Annotated[int, msgspec.Meta(ge=1, le=8, description="Break down by it.")] | None = None


class MinutesQuery(SpanQuery, frozen=True, kw_only=True):
    metric: Annotated[str, about("Only this one; `shard/lag` for the shard's.")] = ""
    step: Annotated[Span, about("Length of a row; default: a minute.")] | None = None


class Watching:
    """Handlers, as Control's."""

    def __init__(
        self, views: Views, rules: RuleKeeper | None = None, turns: Turns | None = None
    ) -> None:
        self._views = views
        self._rules = rules
        self.turns = turns or Turns()

    async def explain_at(self, call: Call[ExplainQuery, None], at: str) -> Response:
        """/v1/explain, of a minute that is over."""
        asked, parts = call.query, self._views.parts
        if asked != ExplainQuery(app=asked.app, database=asked.database, at=at):
            message = "with at, a past minute, give only app and database"
            raise InvalidRequest(message, status=422, field="at")
        minute = int(past_instant(at, parts.clock.now().wall_s) // 60)
        if not asked.app:
            message = "app is missing: with at, give the client, or a level of it"
            raise InvalidRequest(message, status=422, field="app")
        identity, database = parse_identity(asked.app), asked.database
        if database not in parts.board.healths:
            known = ", ".join(sorted(parts.board.healths)) or "none"
            message = f"no database {database!r} is configured on this agent; configured: {known}"
            raise InvalidRequest(message, status=404, field="database")
        async with self.turns.look(call.request):
            past = await find_past(parts, identity, database, minute, self._present())
            return await json_in_thread(lambda: past_doc(past, iso))

    async def timeline(self, call: Call[TimelineQuery, None]) -> Response:
        scope = self._scope(call.query, call.query.app)
        app = ":".join(scope.tokens) or EVERYONE
        step = _step(call.query.step, scope) or max(1, -(-scope.minutes // 60))
        async with self.turns.look(call.request):
            await self._flushed()
            asked = await self._asked(scope)
            found = await self._timeline(scope, asked, step, call.query.level)
            runs = await self._runs(scope, asked)
            return await json_in_thread(lambda: timeline_doc(found(), app, step, iso, runs))

    async def client_sums(self, call: Call[ClientsQuery, None]) -> Response:
        """Of every client at once, by database: what lists and rates are made of."""
        scope = self._scope(call.query, call.query.app)
        now_s = self._views.parts.clock.now().wall_s
        until_s = min((scope.until + 1) * 60.0, now_s)
        async with self.turns.look(call.request):
            store = await self._flushed()
            found = await store.history.client_sums(
                scope.tokens,
                since_minute=scope.since,
                until_minute=scope.until,
                database=scope.database,
                limit=MAX_CLIENT_ROWS + 1,
            )
            whole = len(found) <= MAX_CLIENT_ROWS
            span, told = (scope.since * 60.0, until_s), found[:MAX_CLIENT_ROWS]
            return await json_in_thread(lambda: clients_sums_doc(told, span, iso, whole=whole))

    async def metric_minutes(self, call: Call[MinutesQuery, None]) -> Response:
        scope = self._scope(call.query)
        step = _step(call.query.step, scope) or 1
        async with self.turns.look(call.request):
            store = await self._flushed()
            minutes = await store.history.metric_minutes(
                since_minute=scope.since,
                until_minute=scope.until,
                database=scope.database,
                metric=call.query.metric,
                limit=MAX_METRIC_ROWS + 1,
            )
            whole = len(minutes) <= MAX_METRIC_ROWS
            told = minutes[-MAX_METRIC_ROWS:]
            return await json_in_thread(
                lambda: minutes_doc(in_steps(told, step), iso, whole=whole, step_minutes=step)
            )

    async def replay(self, call: Call[NoQuery, ReplayBody]) -> Response:
        now = self._views.parts.clock.now()
        until = int(now.wall_s // 60)
        since = until - int(_since(call.body.since) // 60)
        rule = self._rule(call.body, since * 60.0, now.wall_s)
        async with self.turns.look(call.request):
            await self._flushed()
            replayer = Replayer(self._views.parts, rule)
            found = await replayer.replay(since, until, self._present())
            span = (iso(found.since_minute * 60), iso((until + 1) * 60))
            return await json_in_thread(
                lambda: replay_doc(
                    found.changes, rule, span, whole=found.whole, when=iso, notes=found.notes
                )
            )

    async def starvation(self, call: Plain) -> Response:
        watch = self._views.parts.watchers.watch
        if watch is None:
            raise InvalidRequest("this agent does not watch for starvation", status=404)
        policy = watch.policy
        return json_response(StarvationDoc(policy.window_s, policy.waterline, watch.findings))

    async def rogues(self, call: Plain) -> Response:
        rogues = self._views.parts.watchers.rogues
        if rogues is None:
            raise InvalidRequest("this agent does not list sessions", status=404)
        found = [
            suspect_doc(database, suspect)
            for database in rogues.databases
            for suspect in rogues.suspects(database)
        ]
        faults = [RogueFaultDoc(name, detail) for name, detail in sorted(rogues.faults.items())]
        return json_response(RoguesDoc(found, faults))

    # --- steps -----------------------------------------------------------------------------

    async def _flushed(self) -> Store:
        """With what was decided up to now."""
        await self._views.parts.keeper.flush()
        return self._views.parts.store

    def _scope(self, asked: SpanQuery, app: str = EVERYONE) -> _Scope:
        """`since` and `until` are times ago."""
        now_s, since_s, until_s = (
            self._views.parts.clock.now().wall_s,
            _since(asked.since),
            seconds(asked.until),
        )
        if until_s >= since_s:
            message = "until must be later than since, for example since=2h&until=1h"
            raise InvalidRequest(message, status=422, field="until")
        tokens = () if app == EVERYONE else parse_identity(app).tokens
        since, until = int((now_s - since_s) // 60), int((now_s - until_s) // 60)
        return _Scope(tokens, asked.database, since, until)

    def _present(self) -> list[RuleSpec]:
        return [entry.spec for entry, _ in self._rules.entries()] if self._rules else []

    async def _asked(self, scope: _Scope) -> Sequence[CheckedMinute]:
        return await self._views.parts.store.history.minutes_asked(
            scope.tokens,
            since_minute=scope.since,
            until_minute=scope.until,
            database=scope.database,
        )

    async def _timeline(
        self, scope: _Scope, asked: Sequence[CheckedMinute], step: int, level: int | None
    ) -> Callable[[], Timeline]:
        """What is needed of the store; the rest is for a thread."""
        by_step = await self._sums(scope, step)
        all_stretches = await to_thread(stretches, asked)
        told = most_telling(all_stretches)
        spans = [(one, await self._sums(scope.within(one), None)) for one in told]
        by_client = await self._views.parts.store.history.client_sums(
            scope.tokens,
            since_minute=scope.since,
            until_minute=scope.until,
            database=scope.database,
            limit=MAX_CLIENT_ROWS + 1,
        )

        def drawn() -> Timeline:
            found = timeline(
                by_step,
                spans,
                by_client[:MAX_CLIENT_ROWS],
                since_minute=scope.since,
                until_minute=scope.until,
                step_minutes=step,
                level=level,
                whole=len(by_client) <= MAX_CLIENT_ROWS,
            )
            return replace(found, more_spans=len(all_stretches) - len(told))

        return drawn

    async def _sums(self, scope: _Scope, step: int | None) -> Sequence[Tally]:
        return await self._views.parts.store.history.sums(
            scope.tokens,
            since_minute=scope.since,
            until_minute=scope.until,
            database=scope.database,
            step_minutes=step,
            by_client=False,
        )

    async def _runs(self, scope: _Scope, asked: Sequence[CheckedMinute]) -> Runs | None:
        """Of a fortnight: what its own past runs were like. Not of everybody at once."""
        if not scope.tokens:
            return None
        until = scope.until
        since = until - RUNS_BACK_MINUTES
        if scope.since > since or scope.database:
            asked = await self._asked(_Scope(scope.tokens, "", since, until))
        kept = max(since, self._views.parts.keeper.kept_from(until * 60.0))
        minutes = (one.minute for one in asked if one.minute >= since)
        return await to_thread(lambda: runs_of(minutes, since_minute=kept, now_minute=until))

    def _rule(self, body: ReplayBody, since_s: float, now_s: float) -> Rule:
        spec = parse_rule(
            without_nulls(body.rule),
            rule_id=PROPOSED,
            author="replay",
            wall_s=now_s,
            known_metrics=metrics_known_to(self._views.parts.book),
        )
        return _in_windows(spec, since_s, now_s)

    async def replayed(self, spec: RuleSpec) -> str:
        """What a rule that is only proposed would have changed in the last hour, in a line."""
        now_s = self._views.parts.clock.now().wall_s
        until = int(now_s // 60)
        since = until - 60
        rule = replace(_in_windows(spec, since * 60.0, now_s), id=PROPOSED)
        await self._flushed()
        found = await Replayer(self._views.parts, rule).replay(since, until, self._present())
        before = sum(change.admitted_before for change in found.changes)
        low = sum(change.after.low for change in found.changes)
        high = sum(change.after.high for change in found.changes)
        told = f"of its clients' checks of the last hour {before:,} were admitted"
        return f"{told}; with it {low:,.0f} to {high:,.0f} would have been"


def _in_windows(spec: RuleSpec, since_s: float, now_s: float) -> Rule:
    if spec.schedule is None:
        return spec.rule
    windows = windows_of(spec.schedule, since_s, ahead_s=now_s - since_s)
    return replace(spec.rule, windows=windows)


_SPAN = "an `until` that is not after `since`, a `since` that is not from 1m to 366d"
WATCHING_ROUTES = (
    Route(
        "GET", "/v1/history/timeline", "timeline", "When a client was mostly rejected, and by what",
        TimelineDoc, query=TimelineQuery, rejects=f"{_SPAN}, more than {MAX_BINS} steps",
        errors=(429, 503), example={"app": "etl", "since": "2h", "step": "5m"},
        about="For a client or a level of its name: bins, spans, and its most rejected clients.",
    ),
    Route(
        "GET", "/v1/history/clients", "client_sums", "Results of each client's checks",
        ClientsSumsDoc, query=ClientsQuery, rejects=_SPAN, errors=(429, 503),
        example={"since": "1h", "database": "main"},
        about="By client and database, with the number of seconds, to compute rates.",
    ),
    Route(
        "GET", "/v1/history/metrics", "metric_minutes", "Metrics by the minute",
        MetricMinutesDoc, query=MinutesQuery, rejects=f"{_SPAN}, more than {MAX_BINS} steps",
        errors=(429, 503), example={"metric": "lag", "since": "6h", "step": "5m"},
        about="Or by `step`: lowest, mean, highest, share of the time breached.",
    ),
    Route(
        "POST", "/v1/replay", "replay", "What a rule would have changed",
        ReplayDoc, query=NoQuery, body=ReplayBody, errors=(429, 503),
        rejects="a rule that POST /v1/rules would reject, a `since` that is not from 1m to 366d",
        sends={"rule": {"target": "etl", "ratio": 0.9}, "since": "1h"},
        about="By client and hour. Changes nothing.",
    ),
    Route(
        "GET", "/v1/starvation", "starvation", "Starved clients, and why", StarvationDoc,
        errors=(404,),
        about="Since when, by what, because of which clients, and what would end it: "
        "[starvation](../howto/starvation.md).",
    ),
    Route(
        "GET", "/v1/rogues", "rogues", "Rogue clients: they work in a database and never check",
        RoguesDoc, errors=(404,),
    ),
)  # fmt: skip


class _Scope(NamedTuple):
    """Whose history, where, and of which minutes (both included)."""

    tokens: Sequence[str]
    database: str
    since: int
    until: int

    @property
    def minutes(self) -> int:
        return self.until - self.since + 1

    def within(self, stretch: ThrottledMinutes) -> _Scope:
        return self._replace(since=stretch.from_minute, until=stretch.until_minute - 1)


def _since(text: str) -> float:
    since_s = seconds(text)
    if not 60 <= since_s <= MAX_SINCE_S:
        message = f"since is {text!r}, must be from 1m to 366d"
        raise InvalidRequest(message, status=422, field="since")
    return since_s


def _step(given: str | None, scope: _Scope) -> int | None:
    """In minutes."""
    if given is None:
        return None
    step = int(seconds(given) // 60)
    if step < 1 or scope.minutes / step > MAX_BINS:
        message = f"step is {given!r}, must be at least 1m and make at most {MAX_BINS} steps"
        raise InvalidRequest(message, status=422, field="step")
    return step


# --- the past ------------------------------------------------------------------------------------

# Explain a minute of the past.   Watching ──► explain_at ──► Store, audit, Recorder

AROUND_MINUTES = 60
LAST_INSTANT_S = 59.999
MAX_AUDIT = 10_000
MAX_ROWS = 10_000
MAX_REJECTIONS = 10


async def find_past(
    parts: Parts, identity: Identity, database: str, minute: int, present: Iterable[RuleSpec]
) -> Past:
    await parts.keeper.flush()
    store = parts.store
    around = await store.history.minutes_asked(
        identity.tokens,
        since_minute=minute - AROUND_MINUTES,
        until_minute=minute + AROUND_MINUTES,
        database=database,
    )
    total = await store.history.sums(
        identity.tokens,
        since_minute=minute,
        until_minute=minute,
        database=database,
        by_client=False,
    )
    mine = await store.history.client_sums(
        identity.tokens,
        since_minute=minute,
        until_minute=minute,
        database=database,
        limit=MAX_ROWS,
    )
    metrics = await store.history.metric_minutes(
        since_minute=minute, until_minute=minute, database=database
    )
    audit = await store.audit(limit=MAX_AUDIT)
    # As the minute ended: what was set or ended within it is shown as well.
    wall_s = min(parts.clock.now().wall_s, minute * 60.0 + LAST_INSTANT_S)
    then = await to_thread(rules_at, audit, list(present), wall_s)
    matches = explain_rules(then.book, identity, database, wall_s)
    return Past(
        app=identity.text,
        database=database,
        minute=minute,
        found=timeline(
            total,
            (),
            mine,
            since_minute=minute,
            until_minute=minute,
            step_minutes=1,
            whole=len(mine) < MAX_ROWS,
        ),
        asked=[one.minute for one in around],
        metrics=metrics,
        matched=[match_doc(match, wall_s) for match in matches],
        rejections=_rejections(parts, identity, database, minute),
        unknown=_unknown(parts, minute, metrics, audit, then),
    )


def _rejections(parts: Parts, identity: Identity, database: str, minute: int) -> list[RejectionDoc]:
    wanted = frozenset(identity.tokens)
    found = (
        decision
        for decision in parts.recorder.recent()
        if int(decision.at.wall_s // 60) == minute
        and decision.check.database == database
        and wanted <= frozenset(decision.check.identity.tokens)
    )
    return [
        RejectionDoc(iso(d.at.wall_s), answer_doc(d))
        for d, _ in zip(found, range(MAX_REJECTIONS), strict=False)
    ]


def _unknown(
    parts: Parts,
    minute: int,
    metrics: Sequence[MetricMinute],
    audit: Sequence[AuditEntry],
    then: RulesThen,
) -> list[str]:
    told = [BY_MINUTE, NAMED_IN_PAST, SAMPLED]
    now_s = parts.clock.now().wall_s
    if minute == int(now_s // 60):
        told.append("metrics of a minute are stored once it is over; try again in a minute")
    elif not metrics:
        told.append("no metric of that minute is stored: the agent did not run, or it expired")
    kept_from = parts.keeper.kept_from(now_s)
    if minute < kept_from:
        told.append(f"history and audit before {iso(kept_from * 60)} have expired")
    if len(audit) >= MAX_AUDIT and audit[-1].wall_s > minute * 60:
        told.append(f"changes of rules before {iso(audit[-1].wall_s)} were not read")
    if then.unreadable:
        told.append(f"rules that this version cannot read: {', '.join(then.unreadable)}")
    return told


# --- replay --------------------------------------------------------------------------------------

# Replay history against a proposed rule, some hours at a time.   Watching ──► Replayer ──► Store
#
# From the newest hours back, so that where there is more than can be replayed at once it is the
# oldest that is left out, and said so. Between two slices the loop answers checks.

SLICE_MINUTES = 120
MAX_TALLIES = 300_000
"""Pairs of minute and client; about ten microseconds each."""
MAX_REPLAY_S = 10.0
AHEAD_S = 60.0
"""The current minute is not over."""


class Replayed(NamedTuple):
    changes: Sequence[ReplayedHour]
    since_minute: int
    """Start of the replayed history."""
    until_minute: int
    whole: bool
    notes: Sequence[str]


class Replayer:
    def __init__(self, parts: Parts, rule: Rule) -> None:
        self._parts = parts
        self._rule = rule
        self._left = MAX_TALLIES

    async def replay(
        self, since_minute: int, until_minute: int, present: Iterable[RuleSpec]
    ) -> Replayed:
        audit = await self._parts.store.audit(limit=MAX_AUDIT)
        span_s = (since_minute * 60.0, (until_minute + 1) * 60.0 + AHEAD_S)
        then = await to_thread(rules_between, audit, list(present), *span_s)
        known_from_s = audit[-1].wall_s if len(audit) >= MAX_AUDIT else float("-inf")
        gates = {name: gate_of(health) for name, health in self._parts.board.healths.items()}
        fair = self._parts.checker.fairness is not None
        setting = ReplayContext(then.book, gates, known_from_s, fair)
        began_s, changes = self._parts.clock.now().mono_s, list[ReplayedHour]()
        first, whole = until_minute + 1, True
        while first > since_minute and whole:
            last = first - 1
            begin = max(since_minute, last - last % SLICE_MINUTES)
            found, first = await self._slice(begin, last, setting)
            changes = [*found, *changes]
            late = self._parts.clock.now().mono_s - began_s > MAX_REPLAY_S
            whole = first == begin and (not late or begin == since_minute)
        notes = _notes(setting, then, since_minute)
        return Replayed(changes, first, until_minute, whole, notes)

    async def _slice(
        self, begin: int, last: int, setting: ReplayContext
    ) -> tuple[list[ReplayedHour], int]:
        """What changed, and from which minute on it was replayed."""
        store, rule = self._parts.store, self._rule
        tokens = () if rule.target == EVERYONE else rule.tokens
        tallies = await store.history.sums(
            tokens,
            since_minute=begin,
            until_minute=last,
            database=rule.database,
            limit=self._left,
        )
        minutes: Sequence[MetricMinute] = ()
        if tallies:
            minutes = await store.history.metric_minutes(
                since_minute=begin, until_minute=last, database=rule.database
            )
        if len(tallies) >= self._left:
            begin = tallies[0].minute + 1  # Of one that was cut off, not the first.
        self._left -= len(tallies)

        def replayed() -> list[ReplayedHour]:
            changes = replay((t for t in tallies if t.minute >= begin), minutes, rule, setting)
            return [replace(c, shadowed_by=original_id(c.shadowed_by)) for c in changes]

        return await to_thread(replayed), begin


def _notes(setting: ReplayContext, then: RulesThen, since_minute: int) -> list[str]:
    notes = []
    if setting.known_from_s > since_minute * 60.0:
        notes.append("Rules of older minutes were not read: their result is unknown.")
    if then.unreadable:
        notes.append(f"Rules of that time that cannot be read: {', '.join(then.unreadable)}.")
    return notes


# --- unthrottled periods -------------------------------------------------------------------------

# Clients report how long they worked without an agent.   POST /v1/unthrottled ──► UnthrottledBook
#
# A client that may check may report: both use a name that is not verified. So reports are limited,
# by address and in all, and are no part of the audit.


class SinceQuery(msgspec.Struct, frozen=True):
    since: Annotated[Span, about("How long ago it begins.")] = "1h"
    app: Annotated[str, about("A client, or a level of its name.")] | None = None


class Unthrottling:
    """Handlers, as Control's."""

    def __init__(self, views: Views, book: UnthrottledBook) -> None:
        self._views = views
        self._book = book

    async def report(self, call: Call[None, UnthrottledBody]) -> Response:
        body = call.body
        if not body.app:
            raise InvalidRequest("app is empty: give the client's name", field="app")
        databases = sorted({parse_database(name) for name in body.databases})
        told = [
            ReportedPeriod(one.id, one.ended_ago_ms / 1000, one.duration_ms / 1000, int(one.pieces))
            for one in body.periods
        ]
        origin, client = call.request.state.peer.address, parse_identity(body.app).text
        taken = await self._book.take(client, databases, told, origin=origin)
        return json_response(TakenDoc(taken))

    async def periods(self, call: Call[SinceQuery, None]) -> Response:
        since_s, app = seconds(call.query.since), call.query.app
        return json_response(UnthrottledsDoc(self._views.unthrottled(self._book, since_s, app)))


UNTHROTTLING_ROUTES = (
    Route(
        "POST", "/v1/unthrottled", "report", "Report work without a throttler", TakenDoc,
        body=UnthrottledBody, stores=True, errors=(429, 503),
        sends={
            "app": "etl:nightly", "databases": ["main"],
            "periods": [
                {"id": "0" * 32, "ended_ago_ms": 1200, "duration_ms": 53000, "pieces": 421}
            ],
        },
        about="At most 100 periods. An `id` that was reported before counts once. 429 with "
        "`Retry-After` beyond 5 reports a second of one address, or 10 of all; 503 while the store "
        "is unavailable: report again later.",
    ),
    Route(
        "GET", "/v1/unthrottled", "periods", "Work without a throttler, by client", UnthrottledsDoc,
        query=SinceQuery, example={"since": "1h"},
        about="From when, for how long, and how many pieces of work the client started, as the "
        "clients reported. Also in `/v1/history` and, for the last hour, in the advice of "
        "`/v1/status`.",
    ),
)  # fmt: skip
