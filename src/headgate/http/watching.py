"""Looking back and watching over HTTP.   Control ──► Watching ──► Store, Watch, Rogues

Nothing here changes anything: a replay is arithmetic on what was kept.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.knownmetrics import metrics_known_to
from headgate.agent.ports import Store
from headgate.agent.rulekeeper import RuleKeeper
from headgate.agent.schedules import windows_of
from headgate.core.names import parse_identity
from headgate.core.records import Asked, Tally, in_steps
from headgate.core.rule_settings import RuleSpec, parse_rule
from headgate.core.rules import EVERYONE, Rule
from headgate.core.runs import Runs, runs_of
from headgate.core.timeline import Stretch, Timeline, most_telling, stretches, timeline
from headgate.errors import InvalidRequest
from headgate.http.documents import expect_json, json_response, parse_duration
from headgate.http.looking import Turns, iso, json_in_thread
from headgate.http.past import find_past, minute_at
from headgate.http.replaying import Replayer
from headgate.http.views import Views
from headgate.wire.history import (
    ReplayBody,
    clients_sums_doc,
    minutes_doc,
    replay_doc,
    timeline_doc,
)
from headgate.wire.past import past_doc
from headgate.wire.starvation import (
    RogueFaultDoc,
    RoguesDoc,
    StarvationDoc,
    starved_doc,
    suspect_doc,
)

MAX_SINCE_S = 366 * 86_400.0
MAX_CLIENT_ROWS = 20_000
"""Clients by what became of their checks; beyond it they are summed up as `other`."""
MAX_METRIC_ROWS = 25_000
"""A fortnight of one metric."""
MAX_BINS = 2000
PROPOSED = "proposed"
RUNS_BACK_MINUTES = 14 * 1440
_LEVELS = frozenset("12345678")
_TIMELINE = frozenset({"app", "database", "since", "until", "step", "level"})
_CLIENTS = frozenset({"app", "database", "since", "until"})
_PAST = frozenset({"app", "database", "at"})
_METRICS = frozenset({"database", "metric", "since", "until", "step"})
_decode_replay = msgspec.json.Decoder(ReplayBody).decode


class Watching:
    """Handlers, as Control's."""

    def __init__(
        self, views: Views, rules: RuleKeeper | None = None, turns: Turns | None = None
    ) -> None:
        self._views = views
        self._rules = rules
        self.turns = turns or Turns()

    async def explain_at(self, request: Request) -> Response:
        """/v1/explain, of a minute that is over."""
        _only(request, _PAST)
        params, parts = request.query_params, self._views.parts
        minute = minute_at(params["at"], parts.clock.now().wall_s)
        if not params.get("app"):
            raise InvalidRequest("app is missing: the client, or a level of it", field="app")
        identity, database = parse_identity(params["app"]), params.get("database", "")
        if database not in parts.board.healths:
            known = ", ".join(sorted(parts.board.healths)) or "none"
            message = f"no database {database!r} is configured on this agent; there are: {known}"
            raise InvalidRequest(message, status=404, field="database")
        async with self.turns.look(request):
            past = await find_past(parts, identity, database, minute, self._present())
            return await json_in_thread(lambda: past_doc(past, iso))

    async def timeline(self, request: Request) -> Response:
        _only(request, _TIMELINE)
        app, (since, until) = _app(request), self._span(request)
        step, level = _step(request, until - since + 1), _level(request)
        tokens = () if app == EVERYONE else parse_identity(app).tokens
        scope = _Scope(tokens, request.query_params.get("database", ""), since, until)
        async with self.turns.look(request):
            await self._flushed()
            asked = await self._asked(scope)
            found = await self._timeline(scope, asked, step, level)
            runs = await self._runs(scope, asked)
            return await json_in_thread(lambda: timeline_doc(found(), app, step, iso, runs))

    async def client_sums(self, request: Request) -> Response:
        """Of every client at once, by database: what lists and rates are made of."""
        _only(request, _CLIENTS)
        app, (since, until) = _app(request), self._span(request)
        now_s = self._views.parts.clock.now().wall_s
        until_s = min((until + 1) * 60.0, now_s)
        async with self.turns.look(request):
            store = await self._flushed()
            found = await store.client_sums(
                () if app == EVERYONE else parse_identity(app).tokens,
                since_minute=since,
                until_minute=until,
                database=request.query_params.get("database", ""),
                limit=MAX_CLIENT_ROWS + 1,
            )
            whole = len(found) <= MAX_CLIENT_ROWS
            span, told = (since * 60.0, until_s), found[:MAX_CLIENT_ROWS]
            return await json_in_thread(lambda: clients_sums_doc(told, span, iso, whole=whole))

    async def metric_minutes(self, request: Request) -> Response:
        _only(request, _METRICS)
        since, until = self._span(request)
        params = request.query_params
        step = _step(request, until - since + 1) if "step" in params else 1
        async with self.turns.look(request):
            store = await self._flushed()
            minutes = await store.metric_minutes(
                since_minute=since,
                until_minute=until,
                database=params.get("database", ""),
                metric=params.get("metric", ""),
                limit=MAX_METRIC_ROWS + 1,
            )
            whole = len(minutes) <= MAX_METRIC_ROWS
            told = minutes[-MAX_METRIC_ROWS:]
            return await json_in_thread(
                lambda: minutes_doc(in_steps(told, step), iso, whole=whole, step_minutes=step)
            )

    async def replay(self, request: Request) -> Response:
        _only(request, frozenset())
        body = await _replay_body(request)
        now = self._views.parts.clock.now()
        until = int(now.wall_s // 60)
        since = until - int(_since(body.since) // 60)
        rule = self._rule(body, since * 60.0, now.wall_s)
        async with self.turns.look(request):
            await self._flushed()
            replayer = Replayer(self._views.parts, rule)
            found = await replayer.replay(since, until, self._present())
            span = (iso(found.since_minute * 60), iso((until + 1) * 60))
            return await json_in_thread(
                lambda: replay_doc(
                    found.changes, rule, span, whole=found.whole, when=iso, notes=found.notes
                )
            )

    async def starvation(self, request: Request) -> Response:
        watch = self._views.parts.watch
        if watch is None:
            raise InvalidRequest("this agent does not watch for starvation", status=404)
        policy = watch.policy
        starved = [starved_doc(finding) for finding in watch.findings]
        return json_response(StarvationDoc(policy.window_s, policy.waterline, starved))

    async def rogues(self, request: Request) -> Response:
        rogues = self._views.parts.rogues
        if rogues is None:
            raise InvalidRequest("this agent lists no sessions", status=404)
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

    def _span(self, request: Request) -> tuple[int, int]:
        """Minutes, both included. `since` and `until` are times ago."""
        params, now_s = request.query_params, self._views.parts.clock.now().wall_s
        since_s = _since(params.get("since", "1h"))
        until_s = parse_duration(params.get("until", "0s"), "until")
        if until_s >= since_s:
            message = "until must be less long ago than since, such as since=2h&until=1h"
            raise InvalidRequest(message, field="until")
        return int((now_s - since_s) // 60), int((now_s - until_s) // 60)

    def _present(self) -> list[RuleSpec]:
        return [entry.spec for entry, _ in self._rules.entries()] if self._rules else []

    async def _asked(self, scope: _Scope) -> Sequence[Asked]:
        return await self._views.parts.store.minutes_asked(
            scope.tokens,
            since_minute=scope.since,
            until_minute=scope.until,
            database=scope.database,
        )

    async def _timeline(
        self, scope: _Scope, asked: Sequence[Asked], step: int, level: int | None
    ) -> Callable[[], Timeline]:
        """What is needed of the store; the rest is for a thread."""
        by_step = await self._sums(scope, step)
        all_stretches = await to_thread(stretches, asked)
        told = most_telling(all_stretches)
        spans = [(one, await self._sums(scope.within(one), None)) for one in told]
        by_client = await self._views.parts.store.client_sums(
            scope.tokens,
            since_minute=scope.since,
            until_minute=scope.until,
            database=scope.database,
            limit=MAX_CLIENT_ROWS + 1,
        )
        return lambda: timeline(
            by_step,
            spans,
            by_client[:MAX_CLIENT_ROWS],
            since_minute=scope.since,
            until_minute=scope.until,
            step_minutes=step,
            level=level,
            whole=len(by_client) <= MAX_CLIENT_ROWS,
            more_spans=len(all_stretches) - len(told),
        )

    async def _sums(self, scope: _Scope, step: int | None) -> Sequence[Tally]:
        return await self._views.parts.store.sums(
            scope.tokens,
            since_minute=scope.since,
            until_minute=scope.until,
            database=scope.database,
            step_minutes=step,
            by_client=False,
        )

    async def _runs(self, scope: _Scope, asked: Sequence[Asked]) -> Runs | None:
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
            body.rule,
            rule_id=PROPOSED,
            author="replay",
            wall_s=now_s,
            known_metrics=metrics_known_to(self._views.parts.book),
        )
        if spec.schedule is None:
            return spec.rule
        windows = windows_of(spec.schedule, since_s, ahead_s=now_s - since_s)
        return replace(spec.rule, windows=windows)


WATCHING_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/v1/history/timeline", "timeline"),
    ("GET", "/v1/history/clients", "client_sums"),
    ("GET", "/v1/history/metrics", "metric_minutes"),
    ("POST", "/v1/replay", "replay"),
    ("GET", "/v1/starvation", "starvation"),
    ("GET", "/v1/rogues", "rogues"),
)


class _Scope(NamedTuple):
    """Whose history, where, and of which minutes (both included)."""

    tokens: Sequence[str]
    database: str
    since: int
    until: int

    def within(self, stretch: Stretch) -> _Scope:
        return self._replace(since=stretch.from_minute, until=stretch.until_minute - 1)


def _only(request: Request, known: frozenset[str]) -> None:
    if unknown := sorted(set(request.query_params) - known):
        told = ", ".join(sorted(known)) or "none"
        raise InvalidRequest(f"unknown parameter {unknown[0]!r}; known: {told}", field=unknown[0])


def _app(request: Request) -> str:
    app = request.query_params.get("app", EVERYONE)
    return app if app == EVERYONE else parse_identity(app).text


def _since(text: str) -> float:
    since_s = parse_duration(text, "since")
    if not 60 <= since_s <= MAX_SINCE_S:
        raise InvalidRequest(f"since is {text!r}, must be from 1m to 366d", field="since")
    return since_s


def _step(request: Request, minutes: int) -> int:
    given = request.query_params.get("step")
    if given is None:
        return max(1, -(-minutes // 60))
    step = int(parse_duration(given, "step") // 60)
    if step < 1 or minutes / step > MAX_BINS:
        message = f"step is {given!r}, must be at least 1m and make at most {MAX_BINS} steps"
        raise InvalidRequest(message, field="step")
    return step


def _level(request: Request) -> int | None:
    given = request.query_params.get("level")
    if given is None:
        return None
    if given not in _LEVELS:
        raise InvalidRequest(f"level is {given!r}, must be from 1 to 8", field="level")
    return int(given)


async def _replay_body(request: Request) -> ReplayBody:
    expect_json(request)
    try:
        return _decode_replay(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the body cannot be taken: {error}; send a rule, and since if not 1h"
        raise InvalidRequest(message) from None
