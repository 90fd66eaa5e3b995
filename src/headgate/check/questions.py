"""Checks as they arrive: URLs and JSON bodies, parsed into core values or rejected with a place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from headgate.base.names import (
    MAX_IDENTITY_CHARS,
    MetricRef,
    Scope,
    parse_database,
    parse_identity,
    parse_metric_ref,
    parse_scope,
)
from headgate.check.model import Check
from headgate.errors import InvalidName, InvalidRequest

MAX_METRICS = 32
MAX_CHECKS = 64
MAX_COST = 1e9
MAX_CPU_S = 10_000.0
MAX_BUDGET_CHARS = 63
LAG = (MetricRef("lag"),)


def about(text: str, schema: dict[str, Any] | None = None) -> msgspec.Meta:
    """A parameter, as its description says it."""
    return msgspec.Meta(description=text, extra_json_schema=schema)


Span = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,6}[smhd]$", examples=["30m", "1h", "7d"])]
"""A time ago, or how long."""

# Names as the API's description shows them; base/names.py parses, and says what is wrong.
_LEVEL = r"[\w.@+=/~%-]{1,128}"
APP_SCHEMA = {"pattern": f"^({_LEVEL}(:{_LEVEL}){{0,7}})?$", "maxLength": MAX_IDENTITY_CHARS}
DATABASE_SCHEMA = {"pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$"}
METRIC_PATTERN = r"((host|self|shard)/)?[a-z][a-z0-9_-]{0,62}"
METRIC_SCHEMA = {"pattern": f"^{METRIC_PATTERN}$"}
SCOPE_SCHEMA = {"enum": ["host", "self", "shard"]}

App = Annotated[str, msgspec.Meta(extra_json_schema=APP_SCHEMA)]
Database = Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]
MetricName = Annotated[str, msgspec.Meta(extra_json_schema=METRIC_SCHEMA)]
_Metrics = Annotated[list[MetricName], msgspec.Meta(max_length=MAX_METRICS)]
_Cost = Annotated[float, msgspec.Meta(gt=0, le=MAX_COST)]
_Scope = Annotated[str, msgspec.Meta(extra_json_schema=SCOPE_SCHEMA)]
_Budget = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_BUDGET_CHARS)]
_CpuS = Annotated[float, msgspec.Meta(gt=0, le=MAX_CPU_S)]


class CheckPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    database: Database
    metrics: _Metrics = []
    """Names of metrics; empty: the database's own set."""
    scope: _Scope | None = None
    cost: _Cost = 1.0


class CheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    app: App = ""
    database: Database | None = None
    """Database to check; null: `checks` has them."""
    metrics: _Metrics = []
    """Names of metrics; empty: the database's own set."""
    scope: _Scope | None = None
    cost: _Cost | None = None
    budget: _Budget | None = None
    """Budget to charge; needs `cpu_s`."""
    cpu_s: _CpuS | None = None
    """CPU that the work will take on the server; needs `budget`."""
    checks: Annotated[list[CheckPart], msgspec.Meta(max_length=MAX_CHECKS)] | None = None
    """Instead of `database`: several checks, one for each database."""
    detail: bool = False
    """Lists the metrics of an admission, too."""


_decode_body = msgspec.json.Decoder(CheckBody).decode


_METRICS_SCHEMA = {"pattern": f"^({METRIC_PATTERN}(,{METRIC_PATTERN}){{0,{MAX_METRICS - 1}}})?$"}
_DETAIL = "`true` lists the metrics of an admission, too."


class CheckQuery(msgspec.Struct, frozen=True, kw_only=True):
    """As parse_check_query reads it."""

    app: Annotated[App, about("Client name, `etl:nightly`; empty only where allowed.")] = ""
    database: Annotated[Database, about("Database to check.")]
    metrics: Annotated[
        str,
        msgspec.Meta(
            extra_json_schema=_METRICS_SCHEMA,
            description="Comma-separated; default: the database's own set.",
        ),
    ] = ""
    scope: (
        Annotated[_Scope, about("`host` or `shard`; overrides that in a metric's name.")] | None
    ) = None
    cost: Annotated[_Cost, about("How much work will start, if a metric is paced.")] = 1.0
    detail: Annotated[bool, about(_DETAIL)] = False
    budget: Annotated[_Budget, about("Budget to charge; needs `cpu_s`.")] | None = None
    cpu_s: (
        Annotated[_CpuS, about("CPU that the work will take on the server; needs `budget`.")] | None
    ) = None


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """As parse_read_query reads it."""

    app: Annotated[App, about("Client name.")] = ""
    database: Annotated[Database, about("Database to read from.")]
    metric: Annotated[MetricName, about("Metric to read.")] = "lag"
    threshold: Annotated[
        float, msgspec.Meta(gt=0, lt=1e12, description="The caller's own threshold.")
    ]
    detail: Annotated[bool, about(_DETAIL)] = False


class CostQuery(msgspec.Struct, frozen=True):
    """Of freno's parameters the only one that is ours."""

    cost: Annotated[_Cost, about("How much work will start, if a metric is paced.")] = 1.0


_AT_SCHEMA = {
    "pattern": "^([0-9]{1,6}[smhd]|[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    "T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?Z)$",
    "examples": ["2026-03-01T07:10Z", "90m"],
}


class ExplainQuery(CheckQuery, frozen=True, kw_only=True):
    at: Annotated[
        str,
        msgspec.Meta(
            extra_json_schema=_AT_SCHEMA,
            description="A past minute; only with app and database.",
        ),
    ] = ""


def parse_check_body(body: bytes) -> tuple[list[Check], bool, bool]:
    """(checks, whether they came as a batch, whether detail is wanted)."""
    try:
        asked = _decode_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not a check: {error}", field=_place(error)) from None
    if asked.checks is None:
        if asked.database is None:
            raise InvalidRequest("give a database, or a list of checks", field="database")
        cost = 1.0 if asked.cost is None else asked.cost
        parts = [CheckPart(asked.database, asked.metrics, asked.scope, cost)]
    else:
        if asked.budget is not None or asked.cpu_s is not None:
            message = "a budget belongs to one database: check it alone, not in a list"
            raise InvalidRequest(message, field="budget")
        outside = (asked.database, asked.scope, asked.cost)
        if asked.metrics or any(given is not None for given in outside):
            message = "give database, metrics, scope and cost inside each of the checks"
            raise InvalidRequest(message, field="checks")
        if not asked.checks:
            raise InvalidRequest("the list of checks is empty", field="checks")
        parts = asked.checks
    checks = [
        build_check(asked.app, p.database, p.metrics, scope=p.scope)._replace(cost=p.cost)
        for p in parts
    ]
    if asked.checks is None:
        checks = [_with_budget(checks[0], asked.budget, asked.cpu_s, status=400)]
    return checks, asked.checks is not None, asked.detail


def _with_budget(check: Check, budget: str | None, cpu_s: float | None, status: int = 422) -> Check:
    if (budget is None) is not (cpu_s is None):
        missing, given = ("budget", "cpu_s") if budget is None else ("cpu_s", "budget")
        message = f"{given} needs {missing}: which budget, and how much CPU to charge"
        raise InvalidRequest(message, status=status, field=missing)
    if budget is None or cpu_s is None:
        return check
    return check._replace(budget=budget, cpu_s=cpu_s)


def _place(error: Exception) -> str | None:
    """`checks[1].cost`, as the decoder says it."""
    found = re.search(r" - at `\$\.?([^`]+)`$", str(error))
    return found[1] if found else None


def build_check(app: str, database: str, metrics: list[str], *, scope: str | None = None) -> Check:
    try:
        refs = tuple(dict.fromkeys(parse_metric_ref(name) for name in metrics))
        wanted = parse_scope(scope) if scope is not None else None
        if wanted is not None:
            refs = _in_scope(refs, wanted)
        return Check(parse_identity(app), parse_database(database), refs, wanted)
    except InvalidName as error:
        raise InvalidRequest(str(error)) from None


def _in_scope(refs: tuple[MetricRef, ...], scope: Scope) -> tuple[MetricRef, ...]:
    """As in Vitess, a scope on the request outranks the one in a metric's name."""
    return tuple(dict.fromkeys(MetricRef(ref.metric, scope) for ref in refs))


_CHECK_PARAMETERS = frozenset(CheckQuery.__struct_fields__)
_READ_PARAMETERS = frozenset(ReadQuery.__struct_fields__)


def parse_check_query(query: str) -> tuple[Check, bool]:
    given = _query(query, _CHECK_PARAMETERS)
    metrics = [name for name in given.get("metrics", "").split(",") if name]
    if len(metrics) > MAX_METRICS:
        raise InvalidRequest(f"{len(metrics)} metrics, at most {MAX_METRICS}", field="metrics")
    check = build_check(given.get("app", ""), _database(given), metrics, scope=given.get("scope"))
    if "cost" in given:
        check = check._replace(cost=parse_cost(given["cost"]))
    if "budget" in given or "cpu_s" in given:
        check = _with_budget(check, *_parse_debit(given))
    return check, _detail(given)


def check_of(asked: CheckQuery) -> Check:
    metrics = [name for name in asked.metrics.split(",") if name]
    check = build_check(asked.app, asked.database, metrics, scope=asked.scope)
    return _with_budget(check._replace(cost=asked.cost), asked.budget, asked.cpu_s)


def _parse_debit(given: Mapping[str, str]) -> tuple[str | None, float | None]:
    budget, text = given.get("budget"), given.get("cpu_s")
    if budget is not None and not 1 <= len(budget) <= MAX_BUDGET_CHARS:
        message = f"budget is {budget[:80]!r}, must be a name of 1 to {MAX_BUDGET_CHARS} characters"
        raise InvalidRequest(message, field="budget")
    if text is None:
        return budget, None
    try:
        cpu_s = float(text)
    except ValueError:
        cpu_s = 0.0
    if not 0 < cpu_s <= MAX_CPU_S:
        message = f"cpu_s {text!r} must be seconds of CPU above 0, at most {MAX_CPU_S:g}"
        raise InvalidRequest(message, field="cpu_s")
    return budget, cpu_s


def parse_cost(text: str) -> float:
    try:
        cost = float(text)
    except ValueError:
        cost = 0.0
    if not 0 < cost <= MAX_COST:
        message = f"cost {text!r} must be a number above 0, at most {MAX_COST:g}"
        raise InvalidRequest(message, field="cost")
    return cost


def parse_read_query(query: str) -> tuple[Check, bool]:
    given = _query(query, _READ_PARAMETERS)
    if "threshold" not in given:
        raise InvalidRequest("give the threshold to compare with, in seconds", field="threshold")
    check = build_check(given.get("app", ""), _database(given), [given.get("metric", "lag")])
    check = check._replace(read_threshold=parse_read_threshold(given["threshold"]))
    return check, _detail(given)


def parse_read_threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e12:
        message = f"threshold {text!r} must be a number of seconds above 0"
        raise InvalidRequest(message, field="threshold")
    return value


FRENO_ROUTES = frozenset({"check", "check-if-exists", "check-read", "check-read-if-exists"})


def parse_freno(parts: list[str], query: str = "") -> Check:
    """`[route, app, type, database]`, and a threshold for the read routes. Of the query only
    `cost` is ours: freno's clients send parameters of their own."""
    route, want = parts[0], 5 if parts[0].startswith("check-read") else 4
    if len(parts) != want:
        shape = "/<app>/<type>/<database>" + ("/<threshold>" if want == 5 else "")
        raise InvalidRequest(f"use /{route} as /{route}{shape}", status=404)
    check = build_check(unquote(parts[1]), unquote(parts[3]), [])
    if want == 5:
        check = check._replace(metrics=LAG, read_threshold=parse_read_threshold(parts[4]))
    if "cost=" in query:
        check = check._replace(cost=_freno_cost(query))
    return check._replace(ok_if_unknown=route.endswith("-if-exists"))


def _freno_cost(query: str) -> float:
    costs = [value for key, value in _pairs(query) if key == "cost"]
    if len(costs) > 1:
        raise InvalidRequest("parameter 'cost' is given twice", field="cost")
    return parse_cost(costs[0]) if costs else 1.0


def _detail(given: Mapping[str, str]) -> bool:
    wish = given.get("detail", "false")
    if wish not in ("true", "false"):
        raise InvalidRequest(f"detail is {wish!r}, must be true or false", field="detail")
    return wish == "true"


def _database(given: Mapping[str, str]) -> str:
    if "database" not in given:
        raise InvalidRequest("give the database to check", field="database")
    return given["database"]


def _query(query: str, known: Set[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in _pairs(query):
        if key not in known:
            message = f"unknown parameter {key!r}; known: {', '.join(sorted(known))}"
            raise InvalidRequest(message, field=key)
        if key in given:
            raise InvalidRequest(f"parameter {key!r} is given twice", field=key)
        given[key] = value
    return given


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=16, errors="strict")
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the query string cannot be read: {error}") from None
