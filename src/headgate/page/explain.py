"""The page /explain: how a client's check, or a statement, would be answered, and why.

By GET for an identity, so that the address can be shared; a statement goes by POST alone, for it
may hold what nobody else is to see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from headgate.budgets.api import PoliciesDoc, StatementExplainDoc
from headgate.check.api import StatusDoc
from headgate.errors import InvalidRequest
from headgate.history.api import PastDoc
from headgate.page.api import ApiRejected, in_path
from headgate.page.shell import Visit, in_zone, page, part
from headgate.present.budgets import VERDICTS
from headgate.present.clients import by_words
from headgate.present.explain import explained
from headgate.present.rules import match_state
from headgate.present.words import bare_reason
from headgate.rules.api import ExplainDoc

NOW_ONLY = ("metrics", "scope", "cost", "budget", "cpu_s")
"""History does not keep these."""
ASKED = ("app", "database", *NOW_ONLY)
SAID = ("username", "application_name", "remote_address", "query_id")
MAX_SQL_CHARS = 50_000
NOT_FOUND = 404


class ExplainPage:
    routes = (
        ("GET", "/explain", "page"),
        ("POST", "/explain", "statement"),
    )

    async def page(self, visit: Visit) -> Response:
        asked = {name: visit.query.get(name, "").strip() for name in (*ASKED, "at")}
        asked["at"] = in_zone(asked["at"])
        found = await _identity(visit, asked) if asked["app"] or asked["at"] else {}
        if visit.by_script:
            shown = _part(visit, "explain_identity.html", found)
            # To share: with what the form has, and no more.
            said = {name: value for name, value in asked.items() if value}
            shown.headers["HX-Push-Url"] = f"/explain?{urlencode(said)}"
            return shown
        return await _page(visit, found | {"asked": asked})

    async def statement(self, visit: Visit) -> Response:
        form = {name: visit.form.get(name, "").strip() for name in (*SAID, "on", "within")}
        form |= {name: visit.form.get(name, "").strip() for name in ("cost_ms", "workers")}
        sql = visit.form.get("sql", "")
        found = await _statement(visit, sql, form)
        if visit.by_script:
            return _part(visit, "explain_statement.html", found)
        return await _page(visit, found | {"form": form, "sql": sql})


_NOTHING: Mapping[str, Any] = {
    "found": None,
    "past": None,
    "told": None,
    "rejected": None,
    "rejected_statement": None,
    "sql": "",
    "ignored": (),
    "bare_reason": bare_reason,
    "by_words": by_words,
    "match_state": match_state,
}


def _part(visit: Visit, template: str, found: Mapping[str, Any]) -> Response:
    return part(visit, template, **(dict(_NOTHING) | dict(found)))


async def _page(visit: Visit, found: Mapping[str, Any]) -> Response:
    status = await visit.api.get("/v1/status", StatusDoc)
    context: dict[str, Any] = {
        "databases": [one.database for one in status.databases],
        "controlled": await _controlled(visit),
        "asked": dict.fromkeys((*ASKED, "at"), ""),
        "form": dict.fromkeys((*SAID, "on", "within", "cost_ms", "workers"), ""),
    }
    context |= dict(_NOTHING) | dict(found)
    return page(visit, "explain.html", **context)


async def _controlled(visit: Visit) -> list[str]:
    """Databases with traffic control; none where this agent keeps no budgets."""
    try:
        found = await visit.api.get("/v1/budgets", PoliciesDoc)
    except ApiRejected as rejected:
        if rejected.status != NOT_FOUND:
            raise
        return []
    return [one.database for one in found.databases]


# --- an identity --------------------------------------------------------------------------------


async def _identity(visit: Visit, asked: Mapping[str, str]) -> dict[str, Any]:
    try:
        if not asked["at"]:
            query = {name: asked[name] for name in ASKED}
            return {"found": explained(await visit.api.get("/v1/explain", ExplainDoc, query))}
        query = {name: asked[name] for name in ("app", "database", "at")}
        past = await visit.api.get("/v1/explain", PastDoc, query)
    except ApiRejected as rejected:
        return {"rejected": rejected, "status": rejected.status}
    return {"past": past, "ignored": [name for name in NOW_ONLY if asked[name]]}


# --- a statement --------------------------------------------------------------------------------


async def _statement(visit: Visit, sql: str, form: Mapping[str, str]) -> dict[str, Any]:
    try:
        body = _body(sql, form)
        path = f"/v1/budgets/{in_path(form['on'])}/explain"
        doc = await visit.api.send("POST", path, StatementExplainDoc, body)
    except ApiRejected as rejected:
        return {"rejected_statement": rejected, "status": rejected.status}
    return {"told": doc, "on": form["on"], "verdicts": VERDICTS}


def _body(sql: str, form: Mapping[str, str]) -> dict[str, Any]:
    if not sql.strip():
        raise InvalidRequest("there is no statement: paste its SQL text", field="sql")
    if len(sql) > MAX_SQL_CHARS:
        message = f"the statement has {len(sql):,} characters, at most {MAX_SQL_CHARS:,} are read"
        raise InvalidRequest(message, field="sql")
    if not form["on"]:
        raise InvalidRequest("choose the database that has the budgets", field="on")
    body: dict[str, Any] = {"sql": sql}
    body |= {name: form[name] for name in SAID if form[name]}
    if form["within"]:
        body["database"] = form["within"]
    if form["cost_ms"]:
        body["cost_ms"] = _number(form["cost_ms"], "cost_ms")
    if form["workers"]:
        body["workers"] = int(_number(form["workers"], "workers"))
    return body


def _number(text: str, field: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidRequest(f"{field} is {text[:40]!r}, must be a number", field=field)
    return found
