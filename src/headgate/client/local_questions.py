"""A question as the agent would understand it.   Question ──► Check

The bytes that would be sent are what is read: whatever else a question may come to say, what
is not known here is left to the agent.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from headgate.base.names import (
    MetricRef,
    parse_database,
    parse_identity,
    parse_metric_ref,
    parse_scope,
)
from headgate.check.model import Check
from headgate.client.question import Question
from headgate.errors import InvalidName

_WRITES = frozenset({"app", "database", "metrics", "scope", "cost"})
_READS = frozenset({"app", "database", "metric", "threshold"})


def check_of(question: Question, database: str = "") -> Check | None:
    """About one database, named `database` where that is given; None: check at the agent."""
    method, _, rest = question.request.partition(b" ")
    path, _, query = rest.partition(b" ")[0].decode("ascii").partition("?")
    if method != b"GET":
        return None
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))
        check = _check(path, given)
    except (InvalidName, ValueError):
        return None
    return check if check is None or not database else check._replace(database=database)


def _check(path: str, given: dict[str, str]) -> Check | None:
    if path == "/v1/check" and given.keys() <= _WRITES:
        return _write_check(given)
    if path == "/v1/check-read" and given.keys() <= _READS:
        return _asked(given, [given["metric"]])._replace(read_threshold=float(given["threshold"]))
    return None


def _write_check(given: dict[str, str]) -> Check:
    # What it costs is for pacing, and so for the agent; without it, alike questions are one.
    check = _asked(given, [name for name in given.get("metrics", "").split(",") if name])
    if "scope" not in given:
        return check
    scope = parse_scope(given["scope"])
    refs = dict.fromkeys(MetricRef(ref.metric, scope) for ref in check.metrics)
    return check._replace(metrics=tuple(refs), scope=scope)


def _asked(given: dict[str, str], metrics: list[str]) -> Check:
    refs = tuple(dict.fromkeys(parse_metric_ref(name) for name in metrics))
    return Check(parse_identity(given.get("app", "")), parse_database(given["database"]), refs)
