"""The API for programs: an OpenAPI 3.1 document that follows from the table of routes."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from headgate.base.problems import CONTENT_TYPE, Problem
from headgate.check.answers import STATUS
from headgate.check.model import VERDICT_MEANINGS, Verdict
from headgate.check.questions import CheckBody
from headgate.http.routes import (
    PLACES,
    Caller,
    Route,
    SettingsBody,
    Text,
    Unread,
    Verdicts,
    parameters,
)
from headgate.version import VERSION

_REF = "#/components/schemas/{name}"
_NULL = {"type": "null"}
_SECURITY: dict[Caller, list[dict[str, list[str]]]] = {
    Caller.OPERATOR: [{"token": []}],
    Caller.PEER: [{"token": []}, {"certificate": []}],
}
_LISTENERS = (405, 413, 414, 415, 431)
"""What the listener itself answers a check with."""


@cache
def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    used = {doc for route in routes for doc in structs(route)}
    by_name = sorted(used, key=lambda doc: doc.__name__)
    _, schemas = msgspec.json.schema_components(by_name, ref_template=_REF)
    for kind in _kinds(by_name):
        # Two of one name differ by their modules.
        whole = schemas.get(kind.__name__) or schemas[f"{kind.__module__}.{kind.__name__}"]
        for name, one in whole.get("properties", {}).items():
            one.setdefault("description", field_docs(kind).get(name) or FIELDS.get(name, ""))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate agent", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _kinds(found: Iterable[type]) -> set[type]:
    """These, and every struct inside of them."""
    known: set[type] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(one) for one in found]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if info.cls in known:
                continue
            known.add(info.cls)
            waiting += [one.type for one in info.fields]
        for name in ("type", "item_type", "key_type", "value_type"):
            inner = getattr(info, name, None)
            waiting += [inner] if isinstance(inner, msgspec.inspect.Type) else []
        waiting += [*getattr(info, "types", ()), *(getattr(info, "item_types", ()) or ())]
    return known


def field_docs(kind: type) -> dict[str, str]:
    """What the string below each field says; nothing where the source is not installed."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        found |= _docs_in(one.__module__).get(one.__name__, {})
    return found


@cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {
        node.name: dict(_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id.rstrip("_"), " ".join(str(below.value.value).split())


def documents(route: Route) -> tuple[type, ...]:
    """What it answers with, where that is a document."""
    answer = route.answer.documents if isinstance(route.answer, Verdicts) else route.answer
    found = answer if isinstance(answer, tuple) else (answer,)
    return tuple(one for one in found if isinstance(one, type))


def structs(route: Route) -> Iterator[type]:
    yield from (*documents(route), Problem, CheckBody)
    if isinstance(route.body, Unread):
        yield route.body.document
    elif isinstance(route.body, type):
        yield route.body


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [*_places(route), *_query(route)],
        "responses": _responses(route),
    }
    if route.about:
        operation["description"] = route.about
    if route.body is not None:
        content: dict[str, Any] = {"schema": body_schema(route)}
        content |= {} if route.sends is None else {"example": route.sends}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.role in _SECURITY:
        operation["security"] = _SECURITY[route.role]
    return operation


def _places(route: Route) -> Iterator[dict[str, Any]]:
    reaches = route.query is not None and "reach" in parameters(route.query)
    for name in route.places:
        schema = PLACES[name]
        if name == "database" and reaches:  # Each database of the agents that it reaches.
            schema = {"anyOf": [schema, {"const": "*"}]}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query(route: Route) -> Iterator[dict[str, Any]]:
    for name, schema in ({} if route.query is None else parameters(route.query)).items():
        told = {key: value for key, value in schema.items() if key not in ("required", "about")}
        given = {"description": told.pop("description")} if "description" in told else {}
        row = {"name": name, "in": "query", "required": schema["required"], **given}
        yield {**row, "schema": told}


def body_schema(route: Route) -> dict[str, Any]:
    body = route.body
    if isinstance(body, SettingsBody):
        return body.schema()
    assert body is not None
    return _schema(body.document if isinstance(body, Unread) else body)


def _responses(route: Route) -> dict[str, Any]:
    problems = {str(status): _problem(route, status) for status in route.statuses}
    if isinstance(route.answer, Verdicts):
        return _by_verdict(route, problems)
    if isinstance(route.answer, Text):
        told: dict[str, Any] = {"description": route.summary, "content": {}}
        told["content"][route.answer.media_type] = {}
    else:
        told = _content(_answer(route), route.summary)
    found = {"200": told, **({"201": told} if route.created else {}), **problems}
    return {**found, "503": told} if route.path == "/readyz" else found


def _by_verdict(route: Route, problems: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for verdict, code in STATUS.items():
        told = f"{verdict.value}: {VERDICT_MEANINGS[verdict]}"
        if verdict is Verdict.INTERNAL_ERROR:
            answers[str(code)] = {**_problem(route, code), "description": told}
            continue
        known = answers.setdefault(str(code), _content(_answer(route), told))
        if told not in known["description"]:
            known["description"] += f"; or {told}"
    for status in _LISTENERS:
        problems[str(status)] = _problem(route, status)
    for told_status, problem in problems.items():
        answers.setdefault(told_status, problem)["content"] |= problem["content"]
    return answers


def _answer(route: Route) -> dict[str, Any]:
    found = [_schema(doc) for doc in documents(route)]
    if not found:
        schema: dict[str, Any] = route.answer
        return schema
    return found[0] if len(found) == 1 else {"anyOf": found}


def _problem(route: Route, status: int) -> dict[str, Any]:
    told = f"Rejected: {route.rejects}" if status == 422 and route.rejects else "RFC 9457 problem"
    return {"description": told, "content": {CONTENT_TYPE: {"schema": _schema(Problem)}}}


def _content(schema: Any, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _schema(doc: type) -> dict[str, Any]:
    return {"$ref": _REF.format(name=doc.__name__)}


def check_schema() -> dict[str, Any]:
    """A database, or a list of checks with everything inside."""
    string = {"type": "string"}
    one = {"required": ["database"], "properties": {"database": string, "checks": _NULL}}
    inside = {"database": _NULL, "metrics": {"maxItems": 0}, "scope": _NULL, "cost": _NULL}
    inside |= {"budget": _NULL, "cpu_s": _NULL}
    many = {
        "required": ["checks"],
        "properties": {"checks": {"type": "array", "minItems": 1}, **inside},
    }
    free = {"properties": {"budget": _NULL, "cpu_s": _NULL}}
    both_said = {"budget": string, "cpu_s": {"type": "number"}}
    charged = {"required": ["budget", "cpu_s"], "properties": both_said}
    both = {"allOf": [one, {"oneOf": [free, charged]}]}
    return {"allOf": [_schema(CheckBody), {"oneOf": [both, many]}]}


# --- what a field means where its struct says nothing of its own ---------------------------
# Only names that mean the same in every document; all others have a docstring below the field.

FIELDS: Mapping[str, str] = {
    # what a document is about
    "database": "The database, by its name in the agent's settings.",
    "databases": "Databases, by their names in the agent's settings.",
    "app": "The client, by its name with all levels.",
    "client": "The client, by its name with all levels.",
    "clients": "Clients, one document each.",
    "metric": "The metric's name.",
    "metrics": "Metrics, one document each.",
    "budget": "The budget's name.",
    "budgets": "Budgets, one document each.",
    "rule": "The rule's id.",
    "shard": "The replica set's name.",
    "member": "The member's name in its replica set.",
    "agent": "The agent's name.",
    "name": "Its name.",
    "id": "Its id.",
    "kind": "Which kind it is.",
    "target": "A client, or a level of clients' names.",
    "reach": "Where it applies: `fleet`, `region:…`, `cluster:…`, `shard:…` or `host:…`.",
    "url": "URL of the agent.",
    "host": "Host name or address.",
    "hosts": "How many hosts it reaches.",
    "port": "Port; null: not known.",
    "region": "Region, from the agent's settings.",
    "role": "`primary` or `replica`, as the server reports it.",
    "path": "Path of the file or folder.",
    "where": "Where it is: a server, a proxy or a file.",
    "what": "What it is.",
    "source": "Where it comes from.",
    "log": "Which log: `agent` for this agent's own, `fleet` for the fleet's.",
    "setting": "The setting's name.",
    "field": "The field that is wrong; null: not one field.",
    "key": "Its key.",
    "label": "The bucket, of a budget with one for each value; empty: the only one.",
    # answers
    "verdict": "The verdict: see the list of verdicts.",
    "admitted": "Whether the check was admitted.",
    "rejected": "How many checks were rejected.",
    "rejections": "Rejected checks, the newest first.",
    "reason": "Why, as a sentence or as the operator gave it.",
    "retry_after_ms": "When to check again; null: no advice.",
    "utilization": "The highest metric value as a share of its threshold.",
    "read_only": "The check was for a metric's value and is not counted.",
    "scope": "`host` or `shard`.",
    "cost": "How much work the check is for; 1 where it gives none.",
    "cost_s": "CPU seconds that the check charges.",
    "capacity_s": "CPU seconds of debt that the budget allows; null: it has no such limit.",
    "note": "More about it; empty: nothing.",
    "notes": "More about it, a sentence each.",
    "detail": "More about it as text, such as a server's message; empty: nothing.",
    "says": "What it does, in a sentence.",
    "why": "Why, in a sentence.",
    "known": "What is known, a sentence each.",
    "advice": "What an operator should do, a sentence each.",
    "type": "As in RFC 9457.",
    "title": "As in RFC 9457.",
    "status": "The HTTP status.",
    "faults": "Everything that is wrong, one line or document each.",
    "fault": "What is wrong; empty or null: nothing.",
    "problem": "What is wrong; empty: nothing.",
    "answer": "The answer that the client got.",
    "StatusCode": "As freno answers it.",
    "Value": "As freno answers it.",
    "Threshold": "As freno answers it.",
    "Message": "As freno answers it.",
    # metrics
    "state": "Its state.",
    "value": "The value; null: there is none.",
    "unit": "The unit of the value: `s`, `ratio`, `bytes`; empty: a plain number.",
    "threshold": "The threshold; null: there is none.",
    "comparison": "`>` or `>=`: how the value is compared with its threshold.",
    "age_ms": "Age of the value; null: there is no value.",
    "age_s": "Age of the value.",
    "cause": "Why there is no value.",
    "unavailable_for_ms": "How long it has been unavailable; null: it is not.",
    "set_point": "The value that pacing keeps the metric at.",
    "set_points": "Paced metrics, and the value that each is kept at.",
    "looks": "How often the agent looked at it.",
    "low": "The lowest value; null: there was none.",
    "mean": "The mean value; null: there was none.",
    "high": "The highest value; null: there was none.",
    "breached_share": "Share of the time in which it was above its threshold; null: no value.",
    "interval_s": "Seconds between two probes.",
    "timeout_s": "The probe is given up after so long.",
    "max_age_s": "An older value is stale.",
    "at_most": "The upper bound.",
    "readings": "The last reading of each metric.",
    "engine": "`postgres` or `mysql`.",
    # rules and changes
    "ratio": "Share of checks that a ratio rule rejects; null: it is no ratio rule.",
    "order": "Whether the ratio applies `before` or `after` the metrics; null: no ratio rule.",
    "thresholds": "Thresholds by metric, of a rule with stricter ones.",
    "justification": "Why the exemption is justified: one of a list; null: no exemption.",
    "ceiling": "The exemption ends at so many times a threshold; null: no exemption.",
    "schedule": "When it applies, by weekday and time; null: always.",
    "created_at": "When it was set (ISO 8601, UTC).",
    "created_by": "Who set it.",
    "lifted_by": "Who lifted it; null: it was not lifted.",
    "expires_at": "When it ends (ISO 8601, UTC); null: it does not.",
    "expires_in_s": "Seconds until it ends.",
    "left_s": "Seconds until it ends; null: it does not.",
    "ended_s_ago": "Seconds since it ended; null: it has not.",
    "set_at": "When it was set (ISO 8601, UTC).",
    "set_by": "Who set it.",
    "set_s_ago": "Seconds since it was set.",
    "who": "Who did it: a token's name, or the user on the Unix socket.",
    "action": "What was done.",
    "audit": "Changes, newest first.",
    "before": "What it was before; null: it was not there.",
    "after": "What it is now; null: it is gone.",
    "changes": "Changes, one document each.",
    "changed": "Whether anything changed.",
    "dry_run": "Whether this was a dry run: nothing was changed.",
    "difference_total": "How many differences there are; the list may be shorter.",
    "n": "The revision.",
    "before_n": "The revision before the change.",
    "revision": "The revision.",
    "about": "The revision itself: who, when and what.",
    "summary": "What changed, in a line.",
    "is_current": "Whether it is in force now.",
    "have": "How many agents have it.",
    "has_all": "Whether it has all changes of the replica set.",
    "document": "The policy, as a document.",
    "mode": "`off`, `warn` or `enforce`.",
    "mode_cap": "The highest mode that the agent's settings allow.",
    "changed_at_runtime": "Whether it was changed since the settings file was read.",
    # times
    "at": "When (ISO 8601, UTC).",
    "since": "When it begins (ISO 8601, UTC).",
    "until": "When it ends (ISO 8601, UTC).",
    "since_s": "How long ago it begins.",
    "step_s": "Seconds of one row.",
    "step_minutes": "Minutes of one row.",
    "hour": "The beginning of the hour (ISO 8601, UTC).",
    "minutes": "Minutes, one document each.",
    "for_s": "How long it has been so; null: not known.",
    "duration_s": "How long it lasted.",
    "duration_ms": "How long it lasted.",
    "ended_ago_ms": "How long ago it ended.",
    "uptime_s": "Seconds since the process started.",
    "fault_for_s": "How long that has been wrong; null: nothing is.",
    "read_s_ago": "Seconds since the region was read; null: it never was.",
    "last_at": "When it last happened (ISO 8601, UTC); null: never.",
    "last_seen_s_ago": "Seconds since its last check.",
    "reported_s_ago": "Seconds since its last report; null: there was none.",
    "checked_s_ago": "Seconds since a client last checked there; null: not known.",
    "checked_after": "The next minute with a check, within an hour; null: none.",
    "unreachable_for_s": "How long it has been unreachable; null: it is reachable.",
    "lag_s": "Replication lag; null: not known.",
    # history
    "sums": "How the checks were answered.",
    "total": "The sum of all.",
    "count": "How many.",
    "by": "What rejected, with how many each.",
    "tallies": "Counts by minute, client and verdict.",
    "mostly_by": "What rejected most.",
    "ongoing": "Whether it still runs.",
    "longest_minutes": "The longest of its earlier runs.",
    "last_verdict": "The verdict of its last check.",
    "pieces": "Jobs that were started without a check meanwhile.",
    "periods": "Periods without a throttler.",
    "unthrottled": "Periods without a throttler, as clients reported them.",
    "suspects": "Rogue clients, the busiest first.",
    "clients_total": "How many clients there are; the list may be shorter.",
    "more_clients": "How many more clients there are.",
    "admitted_before": "How many were admitted as it was.",
    "admitted_low": "How many would be admitted at least.",
    "admitted_high": "How many would be admitted at most.",
    "rejected_before": "How many were rejected as it was.",
    "ran_before": "How many ran as it was.",
    "cpu_before_s": "CPU seconds that they took as it was.",
    "blocked_before": "How many were blocked as it was.",
    "newly_blocked": "How many would be blocked that ran.",
    "newly_admitted": "How many would run that were blocked.",
    "waited_s": "Seconds that they would wait.",
    "statements": "How many statements.",
    "times": "How often.",
    "first_s_ago": "Seconds since the first.",
    "last_s_ago": "Seconds since the last.",
    "rows": "Rows, one document each.",
    "batch": "The id of the batch, which is counted once.",
    # budgets
    "counts": "Its counters.",
    "warned": "How many were warned about.",
    "delayed": "How many were delayed.",
    "delayed_ms": "How long they were delayed in total.",
    "estimated_ms": "CPU that was estimated for them.",
    "charged_ms": "CPU that was charged.",
    "forgiven_ms": "Debt that operators forgave.",
    "evicted": "Buckets that made room for others.",
    "unpinned": "Buckets without a place of their own.",
    "last_violation_at": "When it last blocked or warned (ISO 8601, UTC); null: never.",
    "capacity_ms": "CPU of debt that the bucket allows; null: no limit.",
    "max_workers": "Statements that may run at once; null: no limit.",
    "buckets_total": "How many buckets there are; the list may be shorter.",
    "limit": "The limit that decides; empty or null: none.",
    "published": "Whether, and where, the policy is published.",
    "published_at": "When it was published (ISO 8601, UTC); null: never.",
    "failures_total": "How often it failed.",
    "health_fault": "Why the server's health is not published; empty: it is.",
    "put_back_at": "When the agent last restored a policy that was overwritten; null: never.",
    "put_back_total": "How often the agent restored a policy that was overwritten.",
    "checksum": "Checksum of the policy.",
    "enabled": "Whether traffic control is switched on.",
    "rejection": "Why the server rejected a policy; empty: it did not.",
    "health": "The server's health, as published.",
    "cpus": "CPUs of the server.",
    "workers": "Worker processes or statements at once.",
    "seats": "Backends of the server.",
    "seats_total": "How many backends there are; the list may be shorter.",
    "patterns_total": "How many statement patterns there are; the list may be shorter.",
    "calls": "How often it ran.",
    "cpu_mean_ms": "CPU of a typical call.",
    "cpu_p90_ms": "CPU that nine of ten calls stay below.",
    "cpu_total_ms": "CPU of all calls.",
    "sql": "The statement's text.",
    "username": "Database user that runs the statement.",
    "application_name": "application_name of the session.",
    "remote_address": "Client IP address; empty: a Unix socket.",
    "tags": "SQLCommenter tags of the statement.",
    "fingerprint": "Fingerprint of the statement.",
    "rules_total": "How many rules there are; the list may be shorter.",
    "outcome": "Whether the rule matches.",
    # replica sets and fleets
    "activity": "`awake`, `idle` or `hibernating`.",
    "primary": "The primary's name; null: there is none.",
    "members": "Members of the replica set.",
    "collect_interval_s": "Seconds between two collections of the members' reports.",
    "messages_total": "Messages to other agents so far.",
    "costs": "What watching has cost, by state of activity.",
    "probes": "Probes so far.",
    "reachable": "Whether its agent answers.",
    "skip": "Who skipped it, why and for how long; null: nobody did.",
    "labels": "Labels from its agent's settings.",
    "term": "Grows with each promotion; null: the engine has none.",
    "bytes_behind": "Bytes of log that it has not replayed; null: not known.",
    "clock_ahead_s": "Its clock minus ours; null: not measured.",
    "clock_error_s": "How far off that may be.",
    "wall_error_s": "How far off that may be.",
    "server_id": "The server's id.",
    "upstream_id": "Id of the server that it replicates from.",
    "upstream": "host:port of the server that it replicates from.",
    "downstream": "Replicas that its server lists.",
    "role_unavailable": "Why its role is not known; null: it is.",
    "registered": "Whether it is registered in the fleet's store.",
    "version": "Version of the message's format.",
    "items_total": "How many rules and budgets there are.",
    "items_page": "Which page of them this is.",
    "items_pages": "How many pages of them there are.",
    "unhealthy": "How many are unhealthy.",
    "silent": "How many send no report.",
    "starting": "How many have just registered.",
    "healthy": "How many are healthy.",
    "standby": "Whether this agent is a standby.",
    "sender": "The agent that sends it.",
    "store_id": "Id of the fleet's store.",
    "entries": "Entries, one document each.",
    "events": "Changes of entries, one document each.",
    # the agent
    "ready": "Whether the agent is ready.",
    "waiting_for": "What it waits for before it is ready.",
    "settings_fault": "Why the last reload was rejected; null: it was not.",
    "store": "The store of what operators set and of history.",
    "writable": "Whether it can be written.",
    "tallies_waiting": "Counts that wait to be written.",
    "is_level": "Whether it is a level of clients' names.",
    # debugging
    "python": "Version of Python.",
    "system": "The operating system.",
    "packages": "Versions of installed packages.",
    "process": "The agent's process.",
    "loop": "The event loop.",
    "clocks": "The agent's clocks.",
    "disks": "Disks that the agent writes to.",
    "servers": "Database servers.",
    "facts": "What the agent knows of the server.",
    "connections": "Open connections.",
    "connections_max": "Connections at most.",
    "tasks_left_out": "Tasks that are not listed.",
    "pid": "Process id.",
    "files": "Open files.",
    "files_max": "Open files at most.",
    "late_sum_s": "How late the loop was in total.",
    "wall_s": "Wall clock, seconds since 1970.",
    "mono_s": "Monotonic clock, seconds.",
    "started_wall_s": "When the process started, seconds since 1970.",
    "free_bytes": "Free bytes.",
    "total_bytes": "Bytes in total.",
    "collector": "Where traces are sent.",
    "outcomes": "What became of the spans, with how many each.",
    "waiting": "How many wait.",
}
