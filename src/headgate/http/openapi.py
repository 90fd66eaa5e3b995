"""The API for programs: an OpenAPI 3.1 document derived from the wire's own types."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from headgate.core.decision import VERDICT_MEANINGS
from headgate.core.rule_settings import FIXED, RULE_SETTINGS
from headgate.core.settings import Table
from headgate.http.fleet_page import MAX_PAGE
from headgate.http.fleet_ruling import REACH_SETTINGS
from headgate.http.peering import HandoverBody, PeerBody, SkipBody, WakeBody, WokenDoc
from headgate.http.reloading import AcknowledgeBody, ReloadBody
from headgate.http.reporting import ReportsBody, ReportsDoc
from headgate.http.ruling import FAVOR_SETTINGS, FAVOR_SHARED, REST_SETTINGS
from headgate.traffic.limits import BUDGET_SETTINGS
from headgate.version import VERSION
from headgate.wire.answers import STATUS, AnswerDoc, BatchDoc, FrenoDoc
from headgate.wire.budget_replay import BudgetReplayBody, BudgetReplayDoc
from headgate.wire.budgets import (
    BudgetDoc,
    CapBody,
    ExplainStatementBody,
    LintDoc,
    PoliciesDoc,
    PolicyChangeDoc,
    PolicyDoc,
    PublishedPolicyDoc,
    RevisionsDoc,
    RevisionWholeDoc,
    RollbackBody,
    StateDoc,
    StatementExplainDoc,
    ViolationsDoc,
)
from headgate.wire.changes import (
    ChangeExportDoc,
    ChangeMadeDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
    ChangeRollbackBody,
    ChangesDoc,
    Log,
)
from headgate.wire.debug import DebugDoc
from headgate.wire.exchange import ExchangedDoc, OfferDoc
from headgate.wire.fleet_feed import (
    FEED,
    FEED_CHANGES,
    MAX_WAIT_S,
    FeedChangesDoc,
    FeedPageDoc,
)
from headgate.wire.fleet_reach import ReachedDoc
from headgate.wire.fleet_view import MAX_PER_PAGE, FleetDoc
from headgate.wire.history import (
    ClientsSumsDoc,
    MetricMinutesDoc,
    ReplayBody,
    ReplayDoc,
    TimelineDoc,
)
from headgate.wire.page import LinkDoc
from headgate.wire.past import PastDoc
from headgate.wire.peers import PullDoc, ReportDoc, WakeDoc
from headgate.wire.problems import CONTENT_TYPE, Problem
from headgate.wire.questions import (
    APP_SCHEMA,
    DATABASE_SCHEMA,
    MAX_BUDGET_CHARS,
    MAX_COST,
    MAX_CPU_S,
    MAX_METRICS,
    METRIC_PATTERN,
    METRIC_SCHEMA,
    SCOPE_SCHEMA,
    CheckBody,
)
from headgate.wire.rules import ExplainDoc, RuleDoc, RulesDoc
from headgate.wire.shard import ShardDoc
from headgate.wire.starvation import RoguesDoc, StarvationDoc
from headgate.wire.status import (
    AcknowledgedDoc,
    AuditsDoc,
    ClientsDoc,
    HistoryDoc,
    MetricsDoc,
    MetricView,
    ReadyDoc,
    RefusalsDoc,
    ReloadedDoc,
    RemovedDoc,
    StatusDoc,
    WideMetricDoc,
)
from headgate.wire.unthrottled import TakenDoc, UnthrottledBody, UnthrottledsDoc

_STRING = {"type": "string"}
_APP = _STRING | APP_SCHEMA
_DATABASE = _STRING | DATABASE_SCHEMA
_METRIC = _STRING | METRIC_SCHEMA
_METRICS = _STRING | {"pattern": f"^({METRIC_PATTERN}(,{METRIC_PATTERN}){{0,{MAX_METRICS - 1}}})?$"}
_SCOPE = _STRING | SCOPE_SCHEMA
_FLAG = _STRING | {"enum": ["true", "false"]}
_COST = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_COST}
_BUDGET = _STRING | {"minLength": 1, "maxLength": MAX_BUDGET_CHARS}
_CPU_S = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_CPU_S}
_THRESHOLD = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e12}
_SINCE = _STRING | {"pattern": "^[0-9]{1,6}[smhd]$"}
_INSTANT = _STRING | {
    "pattern": "^([0-9]{1,6}[smhd]|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z)$"
}
_NULL = {"type": "null"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 1000}

_REF = "#/components/schemas/{name}"
_DOCS = (
    AnswerDoc,
    BatchDoc,
    CheckBody,
    FrenoDoc,
    MetricView,
    MetricsDoc,
    StatusDoc,
    ClientsDoc,
    HistoryDoc,
    TimelineDoc,
    ClientsSumsDoc,
    MetricMinutesDoc,
    ReplayBody,
    ReplayDoc,
    StarvationDoc,
    RoguesDoc,
    AuditsDoc,
    ReadyDoc,
    RefusalsDoc,
    RemovedDoc,
    WideMetricDoc,
    RuleDoc,
    RulesDoc,
    PoliciesDoc,
    PolicyDoc,
    PolicyChangeDoc,
    PublishedPolicyDoc,
    BudgetDoc,
    RevisionsDoc,
    RevisionWholeDoc,
    StateDoc,
    ViolationsDoc,
    LintDoc,
    StatementExplainDoc,
    ExplainStatementBody,
    CapBody,
    RollbackBody,
    BudgetReplayBody,
    BudgetReplayDoc,
    ExplainDoc,
    PastDoc,
    ShardDoc,
    SkipBody,
    HandoverBody,
    WakeBody,
    ReloadBody,
    ReloadedDoc,
    AcknowledgeBody,
    AcknowledgedDoc,
    PeerBody,
    WokenDoc,
    PullDoc,
    ReportDoc,
    WakeDoc,
    OfferDoc,
    ExchangedDoc,
    UnthrottledBody,
    TakenDoc,
    UnthrottledsDoc,
    ReportsBody,
    ReportsDoc,
    ChangesDoc,
    ChangeExportDoc,
    ChangeMadeDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
    ChangeRollbackBody,
    ReachedDoc,
    FeedPageDoc,
    FeedChangesDoc,
    FleetDoc,
    LinkDoc,
    DebugDoc,
    Problem,
)


@cache
def document() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(_DOCS, ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate agent", "version": VERSION},
        "paths": {
            **_check_paths(),
            **_local_paths(),
            **_look_paths(),
            **_watch_paths(),
            **_change_paths(),
            **_rule_paths(),
            **_budget_paths(),
            **_shard_paths(),
            **_peer_paths(),
            **_unthrottled_paths(),
            **_log_paths(),
            **_fleet_paths(),
            **_fleet_view_paths(),
            **_feed_paths(),
            **_page_paths(),
            **_reload_paths(),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _check_paths() -> dict[str, Any]:
    app = _param("app", _APP, "Client name, `etl:nightly`; may be empty only where allowed.")
    database = _param("database", _DATABASE, "Database to ask about.", required=True)
    metrics = _param("metrics", _METRICS, "Comma-separated; default: the database's own set.")
    scope = _param("scope", _SCOPE, "`host` or `shard`; outranks that in a metric's name.")
    cost = _param("cost", _COST, "How much work is to start, where a metric is paced; default 1.")
    budget = [
        _param("budget", _BUDGET, "Budget of the database to charge; needs `cpu_s`."),
        _param("cpu_s", _CPU_S, "CPU that the work will take on the server; needs `budget`."),
    ]
    detail = _param("detail", _FLAG, "`true` lists the metrics of an admission, too.")
    read = [
        app,
        database,
        _param("metric", _METRIC, "Metric to read, default `lag`."),
        _param("threshold", _THRESHOLD, "The caller's own threshold.", required=True),
        detail,
    ]
    ask = [app, database, metrics, scope, cost, *budget, detail]
    native = _answers(_either(AnswerDoc, BatchDoc))
    body = {"required": True, "content": {"application/json": {"schema": _one_or_many()}}}
    freno = _answers(_schema(FrenoDoc))
    paths: dict[str, Any] = {
        "/v1/check": {
            "get": _operation("Ask", native, ask),
            "post": {**_operation("Ask, once or several at once", native), "requestBody": body},
        },
        "/v1/check-read": {"get": _operation("Ask before a read", native, read)},
    }
    for route in ("check", "check-if-exists"):
        path = f"/{route}/{{app}}/{{type}}/{{database}}"
        paths[path] = {"get": _operation("Ask as freno is asked", freno, [*_FRENO_PLACES, cost])}
    for route in ("check-read", "check-read-if-exists"):
        path = f"/{route}/{{app}}/{{type}}/{{database}}/{{threshold}}"
        places = [*_FRENO_PLACES, _place("threshold", _THRESHOLD)]
        paths[path] = {"get": _operation("Ask before a read, as freno is asked", freno, places)}
    return paths


def _local_paths() -> dict[str, Any]:
    """For clients that decide by themselves."""
    listen = [
        _param("database", _DATABASE, "Database to listen to.", required=True),
        _param("app", _APP, "Client name."),
    ]
    stream = {"description": "Events: hello, snapshot, beat", "content": {"text/event-stream": {}}}
    taken = {"200": _content(_schema(ReportsDoc)), **_errors(400, 413, 415)}
    reports = {**_operation("What was decided elsewhere", taken), "requestBody": _body(ReportsBody)}
    streamed = {"200": stream, **_errors(400, 404, 503)}
    return {
        "/v1/snapshot": {
            "get": _operation("What decisions rest on, as it changes", streamed, listen)
        },
        "/v1/reports": {"post": reports},
    }


def _look_paths() -> dict[str, Any]:
    database = _param("database", _STRING, "Only this database.")
    explain = [
        _param("app", _APP, "Client name."),
        _param("database", _DATABASE, "Database to ask about.", required=True),
        _param("metrics", _METRICS, "Comma-separated."),
        _param("scope", _SCOPE, "`host` or `shard`."),
        _param("cost", _COST, "As for /v1/check."),
        _param("budget", _BUDGET, "As for /v1/check."),
        _param("cpu_s", _CPU_S, "As for /v1/check."),
        _param("detail", _FLAG, "Accepted as for /v1/check; explain always lists the metrics."),
        _param("at", _INSTANT, "A minute in the past instead; only with app and database."),
    ]
    history = [
        _param("since", _SINCE, "Such as 30m, 1h, 7d."),
        _param("app", _STRING, "A client, or a level of it."),
    ]
    limit = [_param("limit", _LIMIT, "1 to 1000.")]
    rows: tuple[tuple[str, str, Any, list[Any]], ...] = (
        ("/v1/status", "The agent and its databases", _schema(StatusDoc), []),
        ("/v1/metrics", "Metrics with settings and values", _schema(MetricsDoc), [database]),
        ("/v1/explain", "What a check would be answered", _either(ExplainDoc, PastDoc), explain),
        ("/v1/clients", "Recent clients", _schema(ClientsDoc), []),
        ("/v1/history", "Decisions per minute", _schema(HistoryDoc), history),
        (
            "/v1/refusals",
            "Recent refusals in full",
            _schema(RefusalsDoc),
            [*limit, _param("app", _STRING, "A client, or a level of it.")],
        ),
        ("/v1/audit", "Who changed what", _schema(AuditsDoc), limit),
        ("/healthz", "Whether the process serves", {"type": "object"}, []),
        ("/readyz", "Whether it can judge", _schema(ReadyDoc), []),
        ("/openapi.json", "This document", {"type": "object"}, []),
    )
    paths: dict[str, Any] = {}
    for path, summary, schema, parameters in rows:
        responses = {"200": _content(schema), **_errors(400, 404, 429, 503)}
        if path == "/readyz":
            responses["503"] = _content(schema)
        paths[path] = {"get": _operation(summary, responses, parameters)}
    debug = {"200": _content(_schema(DebugDoc)), **_errors(401, 403)}
    operators: list[dict[str, list[str]]] = [{"token": []}]
    looked = _operation("The process: memory, loop, stacks, servers; for operators", debug)
    paths["/v1/debug"] = {"get": {**looked, "security": operators}}
    text = {"description": "Prometheus text", "content": {"text/plain": {}}}
    paths["/metrics"] = {"get": _operation("Counters and gauges", {"200": text})}
    return paths


def _watch_paths() -> dict[str, Any]:
    until = _param("until", _SINCE, "So long ago it ends; default: now.")
    since = _param("since", _SINCE, "So long ago it begins, such as 30m, 1h, 7d.")
    timeline = [
        _param("app", _APP, "A client, or a level of its name; default: all."),
        _param("database", _STRING, "Only there."),
        since,
        until,
        _param("step", _SINCE, "One bin for so long."),
        _param("level", {"type": "integer", "minimum": 1, "maximum": 8}, "Break down by it."),
    ]
    sums = [*timeline[:2], since, until]
    minutes = [
        _param("database", _STRING, "Only there."),
        _param("metric", _STRING, "Only this one; `shard/lag` for the shard's."),
        since,
        until,
        _param("step", _SINCE, "One row for so long; default: a minute."),
    ]
    rows: tuple[tuple[str, str, Any, list[Any]], ...] = (
        ("/v1/history/timeline", "When a client or level was refused", TimelineDoc, timeline),
        ("/v1/history/clients", "What became of each client's checks", ClientsSumsDoc, sums),
        ("/v1/history/metrics", "Metrics by the minute", MetricMinutesDoc, minutes),
        ("/v1/starvation", "Who is starved, and why", StarvationDoc, []),
        ("/v1/rogues", "Who works in a database and never asks", RoguesDoc, []),
    )
    paths: dict[str, Any] = {
        path: {
            "get": _operation(
                summary, {"200": _content(_schema(doc)), **_errors(400, 404, 429, 503)}, parameters
            )
        }
        for path, summary, doc, parameters in rows
    }
    replayed = {"200": _content(_schema(ReplayDoc)), **_errors(400, 413, 415, 422, 429, 503)}
    replay = _operation("What a proposed rule would have changed", replayed)
    paths["/v1/replay"] = {"post": {**replay, "requestBody": _body(ReplayBody)}}
    return paths


_FOR_TOLD = (
    "How long: 90s, 30m, 2h, 7d, or never; then the settings file decides again. Default: 1h for "
    "what is looser than the file, else never."
)


_METRIC_REACH_TOLD = (
    "How far: `fleet`, `region:eu-*`, `cluster:x`, `shard:commerce/*` or `host:db-1`; then the "
    "database is that of each agent it reaches, `*` for all of them. Default: this agent alone."
)


def _change_paths() -> dict[str, Any]:
    places = [_place("database", _STRING), _place("metric", _STRING)]
    dry_run = _param("dry_run", _FLAG, "`true` validates and tries, and changes nothing.")
    reach = _param("reach", _REACH, _METRIC_REACH_TOLD)
    change = [*places, dry_run, reach]
    responses = {"200": _content(_either(MetricView, WideMetricDoc))}
    responses |= _errors(400, 401, 403, 404, 409, 412, 413, 415, 422, 503)
    seen = {"200": _content(_schema(MetricView)), **_errors(400, 404)}
    removed = {**responses, "200": _content(_either(RemovedDoc, WideMetricDoc))}
    reverted = {**responses, "200": _content(_either(MetricView, RemovedDoc, WideMetricDoc))}
    ends = {
        "for": {"type": ["string", "number", "null"], "description": _FOR_TOLD},
        "expires_at": {
            "type": ["string", "null"],
            "description": "Instead of for: until when, such as 2024-05-17T16:00:00Z.",
        },
    }
    content = {"application/json": {"schema": {"type": "object", "properties": ends}}}
    body = {"required": True, "content": content}
    security: list[dict[str, list[str]]] = [{"token": []}]

    def changing(
        summary: str, answers: dict[str, Any], *more: dict[str, Any], **extra: Any
    ) -> dict[str, Any]:
        operation = _operation(summary, answers, [*change, *more])
        return {**operation, "security": security, **extra}

    return {
        "/v1/databases/{database}/metrics/{metric}": {
            "get": _operation("One metric", seen, places),
            "put": changing("Add or replace a metric", responses, requestBody=body),
            "patch": changing("Change a metric", responses, requestBody=body),
            "delete": changing("Remove a metric", removed, _param("for", _STRING, _FOR_TOLD)),
        },
        "/v1/databases/{database}/metrics/{metric}/revert": {
            "post": changing("Drop runtime changes: the file's settings hold again", reverted),
        },
    }


def _rule_paths() -> dict[str, Any]:
    rule = [_place("rule", _STRING)]
    dry_run = _param("dry_run", _FLAG, "`true` validates and shows, and changes nothing.")
    ended = _param("all", _FLAG, "`true` lists what ended within the last day, too.")
    one, many = _content(_schema(RuleDoc)), _content(_schema(RulesDoc))
    errors = _errors(400, 401, 403, 404, 409, 412, 413, 415, 422, 503)
    security: list[dict[str, list[str]]] = [{"token": []}]
    shared = {key: RULE_SETTINGS[key] for key in sorted(FAVOR_SHARED)}
    favor = {**FAVOR_SETTINGS, **shared, **REACH_SETTINGS}
    whole = {**RULE_SETTINGS, **REACH_SETTINGS}
    some = {key: row for key, row in RULE_SETTINGS.items() if key not in FIXED}

    def changing(
        summary: str, places: list[Any], answers: dict[str, Any], rows: Table | None = None
    ) -> dict[str, Any]:
        operation = _operation(summary, {**answers, **errors}, [*places, dry_run])
        body = {} if rows is None else {"requestBody": _body_of(rows, _REACH_SAID)}
        return {**operation, "security": security, **body}

    made_one, made_many = {"200": one, "201": one}, {"200": many, "201": many}
    return {
        "/v1/rules": {
            "get": _operation("Rules in force", {"200": many, **_errors(400, 404)}, [ended]),
            "post": changing("Set a rule", [], made_one, whole),
        },
        "/v1/rules/favor": {
            "post": changing("Favor one client over others: two rules", [], made_many, favor),
        },
        "/v1/rules/{rule}": {
            "get": _operation("One rule", {"200": one, **_errors(400, 404, 422, 503)}, rule),
            "patch": changing("Change some of a rule, or extend it", rule, {"200": one}, some),
            "delete": changing("Lift a rule before its end", rule, {"200": many}),
        },
        "/v1/rules/{rule}/rest": {
            "put": changing(
                "Have a rule of the fleet rest at this agent", rule, {"200": many}, REST_SETTINGS
            ),
            "delete": changing("End that rest", rule, {"200": many}),
        },
    }


def _budget_paths() -> dict[str, Any]:
    database = [_place("database", _STRING)]
    name = [*database, _place("name", _STRING)]
    revision = [*database, _place("revision", {"type": "integer"})]
    since = _param("since", _SINCE, "So long ago it begins, such as 30m, 1h, 7d.")
    only = _param("budget", _STRING, "Only of this one.")
    some = [
        _param(
            "most",
            {"type": "integer", "minimum": 0, "maximum": 1000},
            "So many budgets alone, the most urgent, and no document.",
        ),
        _param("find", _STRING, "With `most`: of those with this in their name or limits."),
    ]
    statements = _param(
        "statements", {"enum": ["true", "false"]}, "`false` leaves out the statements: cheaper."
    )
    changed = {"200": _content(_schema(PolicyChangeDoc))}
    made = {**changed, "201": _content(_schema(PolicyChangeDoc))}
    one = _body_of({**BUDGET_SETTINGS, **REACH_SETTINGS})
    reach = _param("reach", _REACH, REACH_SETTINGS["reach"].about)
    whole = _object("policy and budgets, as a policy file has them")
    policy = "/v1/budgets/{database}"
    return {
        "/v1/policies/{database}": {
            "get": _budget_look("A policy as servers are told it", PublishedPolicyDoc, database)
        },
        "/v1/budgets": {"get": _budget_look("Every policy", PoliciesDoc, some)},
        policy: {
            "get": _budget_look("A database's policy, whole", PolicyDoc, [*database, *some]),
            "put": _budget_change("Replace the policy", database, changed, whole),
            "patch": _budget_change("Cap every budget's mode", database, changed, _body(CapBody)),
        },
        f"{policy}/history": {
            "get": _budget_look(
                "Its revisions", RevisionsDoc, [*database, _param("limit", _LIMIT, "1 to 1000.")]
            )
        },
        f"{policy}/history/{{revision}}": {
            "get": _budget_look("One of them, whole", RevisionWholeDoc, revision)
        },
        f"{policy}/rollback": {
            "post": _budget_change("Go back to a revision", database, changed, _body(RollbackBody))
        },
        f"{policy}/violations": {
            "get": _budget_look("Violations by the minute", ViolationsDoc, [*database, since, only])
        },
        f"{policy}/state": {
            "get": _budget_look("What the server counts", StateDoc, [*database, statements])
        },
        f"{policy}/explain": {
            "post": _budget_ask(
                "Why a statement would run or not", StatementExplainDoc, _body(ExplainStatementBody)
            )
        },
        f"{policy}/replay": {
            "post": _budget_ask(
                "What another policy would have changed", BudgetReplayDoc, _body(BudgetReplayBody)
            )
        },
        f"{policy}/lint": {"post": _budget_ask("Judge a policy; change nothing", LintDoc, whole)},
        f"{policy}/{{name}}": {
            "get": _budget_look("One budget", BudgetDoc, [*name, reach]),
            "put": _budget_change("Add or replace a budget", [*name, reach], made, one),
            "patch": _budget_change("Change some of a budget", [*name, reach], changed, one),
            "delete": _budget_change("Remove a budget", [*name, reach], changed),
        },
        f"{policy}/{{name}}/forgive": {
            "post": _budget_change("Forgive what a budget owes", name, changed)
        },
    }


def _budget_look(summary: str, doc: type, parameters: list[Any]) -> dict[str, Any]:
    errors = _errors(400, 404, 409, 422, 429, 503)
    return _operation(summary, {"200": _content(_schema(doc)), **errors}, parameters)


def _budget_ask(summary: str, doc: type, body: dict[str, Any]) -> dict[str, Any]:
    answers = {"200": _content(_schema(doc)), **_errors(400, 404, 413, 415, 422, 503)}
    return {**_operation(summary, answers, [_place("database", _STRING)]), "requestBody": body}


def _budget_change(
    summary: str, places: list[Any], answers: dict[str, Any], body: dict[str, Any] | None = None
) -> dict[str, Any]:
    dry_run = _param("dry_run", _FLAG, "`true` validates and shows, and changes nothing.")
    errors = _errors(400, 401, 403, 404, 409, 412, 413, 415, 422, 503)
    operation = _operation(summary, {**answers, **errors}, [*places, dry_run])
    security: list[dict[str, list[str]]] = [{"token": []}]
    return {**operation, "security": security, **({} if body is None else {"requestBody": body})}


def _object(about: str) -> dict[str, Any]:
    schema = {"type": "object", "description": about}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


_NAME_PATTERN = "[A-Za-z0-9_*][A-Za-z0-9_.:/*-]{0,126}"
"""As core/reach.py has it."""
_REACH = _STRING | {"pattern": f"^(fleet|(region|cluster|shard|host):{_NAME_PATTERN})$"}
_REACH_SAID = {"reach": {"description": "For a fleet: how far, such as `shard:commerce/*`."}}


def _body_of(rows: Table, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Described by its table; whether values fit is judged with the place of each fault."""
    properties = {name: {"description": row.about} for name, row in rows.items()} | (more or {})
    schema = {"type": "object", "properties": properties}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _shard_paths() -> dict[str, Any]:
    database = [_place("database", _STRING)]
    places = [*database, _place("member", _STRING)]
    shard = {"200": _content(_schema(ShardDoc)), **_errors(400, 404)}
    changed = {**shard, **_errors(400, 401, 403, 404, 409, 412, 413, 415, 503)}
    woken = {"200": _content(_schema(WokenDoc)), **_errors(400, 404, 413, 415)}
    waking = _operation("Have it measured, as a check would", woken, database)
    security: list[dict[str, list[str]]] = [{"token": []}]

    def changing(
        summary: str, body: type | None = None, at: list[dict[str, Any]] = places
    ) -> dict[str, Any]:
        operation = {**_operation(summary, changed, at), "security": security}
        return operation if body is None else {**operation, "requestBody": _body(body)}

    return {
        "/v1/databases/{database}/shard": {
            "get": _operation("The shard, as this agent sees it", shard, database)
        },
        "/v1/databases/{database}/shard/skips/{member}": {
            "put": changing("Set a member aside for a while", SkipBody),
            "delete": changing("Count it again"),
        },
        "/v1/databases/{database}/shard/handover": {
            "post": changing(
                "Announce a planned switchover: shard scope is refused from now on",
                HandoverBody,
                at=database,
            ),
            "delete": changing("Take the announcement back", at=database),
        },
        "/v1/databases/{database}/shard/peers/{member}": {
            "put": changing("Add a member behind another agent", PeerBody),
            "delete": changing("Remove one that was added at run time"),
        },
        "/v1/databases/{database}/wake": {"post": {**waking, "requestBody": _body(WakeBody)}},
    }


def _peer_paths() -> dict[str, Any]:
    """Between agents. One of another version may send fields that are not described here."""
    errors = _errors(400, 401, 403, 404, 409, 413, 415)
    security: list[dict[str, list[str]]] = [{"token": []}, {"certificate": []}]

    def between(summary: str, asked: type, answered: type) -> dict[str, Any]:
        responses = {"200": _content(_schema(answered)), **errors}
        operation = {**_operation(summary, responses), "security": security}
        return {"post": {**operation, "requestBody": _body(asked)}}

    return {
        "/v1/peer/pull": between("A member of a shard reports", PullDoc, ReportDoc),
        "/v1/peer/wake": between("A member of a shard is woken", WakeDoc, WokenDoc),
        "/v1/changes/exchange": between(
            "Agents of a shard exchange its changes", OfferDoc, ExchangedDoc
        ),
    }


def _unthrottled_paths() -> dict[str, Any]:
    seen = {"200": _content(_schema(UnthrottledsDoc)), **_errors(400)}
    taken = {"200": _content(_schema(TakenDoc)), **_errors(400, 413, 415, 429, 503)}
    span = [
        _param("since", _SINCE, "Such as 30m, 1h, 7d."),
        _param("app", _STRING, "A client, or a level of it."),
    ]
    told = _operation("A client tells how long it went without a throttler", taken)
    return {
        "/v1/unthrottled": {
            "get": _operation("Who went without a throttler", seen, span),
            "post": {**told, "requestBody": _body(UnthrottledBody)},
        }
    }


def _log_paths() -> dict[str, Any]:
    """What operators changed: at this agent, or for its fleet."""
    log = _param("log", {"enum": [one.value for one in Log]}, "`fleet`: the fleet's, not its own.")
    ended = _param("all", _FLAG, "`true` lists what ended or was taken out lately, too.")
    limit = _param("limit", {"type": "integer", "minimum": 1, "maximum": 500}, "1 to 500.")
    prune = _param("prune", _FLAG, "`true` takes out what the document does not name.")
    n = _place("n", {"type": "integer"})
    document = _object("what is set, by kind, as GET /v1/changes/export has it")
    only_fleet = _param("log", {"const": Log.FLEET.value}, "The fleet's.", required=True)
    return {
        "/v1/changes": {"get": _fleet_look("What is set", ChangesDoc, log, ended)},
        "/v1/changes/export": {"get": _fleet_look("As a file has it", ChangeExportDoc, log)},
        "/v1/changes/apply": {"post": _change("Set what a file says", document, log, prune)},
        "/v1/changes/history": {
            "get": _fleet_look("Revisions, newest first", ChangeRevisionsDoc, log, limit)
        },
        "/v1/changes/history/{n}": {
            "get": _fleet_look("What one of them did", ChangeRevisionWholeDoc, n, log)
        },
        "/v1/changes/rollback": {
            "post": _change("Go back to a revision", _body(ChangeRollbackBody), log)
        },
        "/v1/changes/restore": {
            "post": _change(
                "Put back what the fleet's store has lost and this agent knows", None, only_fleet
            )
        },
    }


def _fleet_paths() -> dict[str, Any]:
    reach = _param("reach", _REACH, "`fleet`, or such as `shard:commerce/*`.", required=True)
    return {"/v1/fleet/reach": {"get": _fleet_look("Whom a reach meets", ReachedDoc, reach)}}


def _fleet_view_paths() -> dict[str, Any]:
    """Of an agent that watches the whole fleet."""
    whole = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
    pattern = _STRING | {"pattern": f"^{_NAME_PATTERN}$"}
    asked = [
        _param("unhealthy", _FLAG, "`true`: only shards that are unhealthy or silent."),
        _param("behind", _FLAG, "`true`: only shards with agents that lag behind."),
        *(_param(name, pattern, "A pattern.") for name in ("region", "cluster", "shard")),
        _param("page", whole, "Of the shards."),
        _param("rules_page", whole, "Of what is set for the fleet."),
        _param("per_page", {**whole, "maximum": MAX_PER_PAGE}, "Shards on a page."),
    ]
    return {"/v1/fleet": {"get": _fleet_look("The whole fleet", FleetDoc, *asked)}}


def _fleet_look(summary: str, doc: type, *parameters: dict[str, Any]) -> dict[str, Any]:
    answers = {"200": _content(_schema(doc)), **_errors(400, 404, 503)}
    return _operation(summary, answers, [*parameters])


def _change(
    summary: str, body: dict[str, Any] | None = None, *parameters: dict[str, Any]
) -> dict[str, Any]:
    dry_run = _param("dry_run", _FLAG, "`true` validates and shows, and changes nothing.")
    answers = {"200": _content(_schema(ChangeMadeDoc))}
    answers |= _errors(400, 401, 403, 404, 409, 412, 413, 415, 422, 503)
    security: list[dict[str, list[str]]] = [{"token": []}]
    operation = {**_operation(summary, answers, [*parameters, dry_run]), "security": security}
    return operation if body is None else {**operation, "requestBody": body}


def _feed_paths() -> dict[str, Any]:
    """From the agent of a shard's primary to those of its replicas."""
    prefix = _param("prefix", _STRING, "Of keys; may be repeated.", required=True)
    revision = {"type": "integer", "minimum": 0}
    wait = {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}
    listing = [
        prefix,
        _param("revision", revision, "Of the page before."),
        _param("from", _STRING, "`next` of the page before."),
    ]
    changes = [
        prefix,
        _param("after", revision, "What is known already.", required=True),
        _param("wait_s", wait, "How long to hold the answer while nothing changes."),
        _param("store_id", _STRING, "Of what is known already; 410 where it is another."),
        _param("mark", revision, "Of the last answer: what was told is not told again."),
    ]
    security: list[dict[str, list[str]]] = [{"token": []}, {"certificate": []}]

    def between(summary: str, doc: type, parameters: list[Any]) -> dict[str, Any]:
        answers = {"200": _content(_schema(doc)), **_errors(400, 401, 403, 404, 409, 410, 503)}
        return {"get": {**_operation(summary, answers, parameters), "security": security}}

    return {
        FEED: between("What this agent follows of the fleet", FeedPageDoc, listing),
        FEED_CHANGES: between("What changed of it since", FeedChangesDoc, changes),
    }


def _page_paths() -> dict[str, Any]:
    """The page itself is for people, and not described here."""
    made = {"201": _content(_schema(LinkDoc)), **_errors(400, 401, 403, 404)}
    operation = _operation("A link that signs in at the page, once", made)
    return {"/v1/page/links": {"post": {**operation, "security": [{"token": []}]}}}


def _reload_paths() -> dict[str, Any]:
    done = {"200": _content(_schema(ReloadedDoc)), **_errors(400, 401, 403, 404, 413, 415, 422)}
    operation = _operation("Follow the settings file, as SIGHUP does", done)
    lost = {"200": _content(_schema(AcknowledgedDoc))}
    lost |= _errors(400, 401, 403, 404, 412, 413, 415, 503)
    going_on = _operation("Go on without a state that is lost", lost)
    secured: dict[str, Any] = {"security": [{"token": []}]}
    return {
        "/v1/reload": {"post": {**operation, **secured, "requestBody": _body(ReloadBody)}},
        "/v1/state/acknowledge": {
            "post": {**going_on, **secured, "requestBody": _body(AcknowledgeBody)}
        },
    }


def _body(doc: type) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _schema(doc)}}}


def _answers(schema: Any) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for verdict, code in STATUS.items():
        told = f"{verdict.value}: {VERDICT_MEANINGS[verdict]}"
        known = answers.setdefault(str(code), _content(schema, told))
        if told not in known["description"]:
            known["description"] += f"; or {told}"
    for status, error in _errors(400, 404, 405, 413, 414, 415, 431).items():
        if status in answers:
            answers[status]["content"] |= error["content"]
        else:
            answers[status] = error
    return answers


def _one_or_many() -> dict[str, Any]:
    """A database, or a list of checks with everything inside."""
    one = {"required": ["database"], "properties": {"database": _STRING, "checks": _NULL}}
    inside = {"database": _NULL, "metrics": {"maxItems": 0}, "scope": _NULL, "cost": _NULL}
    inside |= {"budget": _NULL, "cpu_s": _NULL}
    many = {
        "required": ["checks"],
        "properties": {"checks": {"type": "array", "minItems": 1}, **inside},
    }
    return {"allOf": [_schema(CheckBody), {"oneOf": [one, many]}]}


def _either(*docs: type) -> dict[str, Any]:
    return {"anyOf": [_schema(doc) for doc in docs]}


def _errors(*statuses: int) -> dict[str, Any]:
    content = {CONTENT_TYPE: {"schema": _schema(Problem)}}
    return {str(s): {"description": "RFC 9457 problem", "content": dict(content)} for s in statuses}


def _content(schema: Any, description: str = "As asked") -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _schema(doc: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=doc.__name__)}


def _operation(
    summary: str, responses: dict[str, Any], parameters: list[Any] | None = None
) -> dict[str, Any]:
    return {"summary": summary, "parameters": parameters or [], "responses": responses}


def _param(
    name: str, schema: dict[str, Any], about: str, *, required: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": about,
        "schema": schema,
    }


def _place(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_FRENO_PLACES = [
    _place("app", _APP | {"minLength": 1}),
    _place("type", _STRING),
    _place("database", _DATABASE),
]
