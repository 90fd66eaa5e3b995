"""The pages /clients and /clients/{client}: who asks, who is held, since when and by what."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from datetime import UTC
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from headgate.http.page.api import PageApi, Query, in_path
from headgate.http.page.clients_looks import ClientLooks, Clients, Watched, watched
from headgate.http.page.clients_remedy import budget_form, for_client, remedies
from headgate.http.page.clients_rows import (
    SORTS,
    Wanted,
    listing,
    rates_of,
    wanted_of,
)
from headgate.http.page.clients_strip import (
    PERIODS,
    Asked,
    sentences,
    strip_of,
)
from headgate.http.page.shell import Visit, page, part
from headgate.present.clients import added, by_words
from headgate.present.history import outcome, runs_words
from headgate.wire.answers import AnswerDoc
from headgate.wire.history import TimelineDoc
from headgate.wire.rules import ExplainDoc
from headgate.wire.starvation import StarvedDoc
from headgate.wire.status import RefusalsDoc, StatusDoc

MAX_REFUSALS = 20
MAX_DATABASES = 8
"""That are explained on a client's page, those where it was seen first."""
MAX_SUSPECTS = 20
MAX_PERIODS_TOLD = 10
SHOWN_CHILDREN = 12
"""The others are folded: on a phone each is a card."""


class ClientsPage:
    routes = (
        ("GET", "/clients", "page"),
        ("GET", "/clients/{client:path}", "one"),
    )

    def __init__(self) -> None:
        self._looks = ClientLooks()

    async def page(self, visit: Visit) -> Response:
        """All of them; by a script, the live part alone."""
        wanted = wanted_of(visit.query)
        found = await self._looks.clients(visit.api)
        about = await watched(visit.api)
        return await to_thread(_all_shown, visit, wanted, found, about)

    async def one(self, visit: Visit) -> Response:
        """One client, or all that have a level; by a script one of its live parts."""
        app, wants = visit.path["client"], visit.query.get("part", "")
        if visit.by_script and wants == "history":
            return part(visit, "clients_one_history.html", **await _history(visit, app))
        if visit.by_script and wants == "refusals":
            return part(visit, "clients_one_refusals.html", **await _refusals(visit, app))
        now = await self._now(visit, app)
        if visit.by_script:
            return part(visit, "clients_one_now.html", **now)
        context = now | await _history(visit, app) | await _refusals(visit, app)
        return await to_thread(lambda: page(visit, "clients_one.html", **context))

    async def _now(self, visit: Visit, app: str) -> dict[str, Any]:
        found = await self._looks.clients(visit.api, app)
        about = await watched(visit.api, app)
        databases = await _databases(visit.api, found)
        minute = added(one.minute for one in found.seen)
        mine = set(app.split(":"))
        starving = [one for one in _starved(about) if mine <= set(one.client.split(":"))]
        return {
            "app": app,
            "levels": app.split(":"),
            "found": found,
            "held": [one for one in found.seen if one.held_for_s is not None],
            "rates": rates_of(minute, found.seconds),
            "hour": added(one.hour for one in found.seen),
            "seen_s_ago": min((one.seen_s_ago for one in found.seen), default=None),
            "asked_of": databases,
            "explained": await _explained(visit.api, app, databases),
            "starved": [(one, remedies(one)) for one in starving],
            "unthrottled": about.unthrottled[:MAX_PERIODS_TOLD],
            "links": for_client(app, visit.query.get("database", "")),
            "bare": bare,
            "now_href": _self(visit, app, part="now"),
        }


# --- all ----------------------------------------------------------------------------------------


def _all_shown(visit: Visit, wanted: Wanted, found: Clients, about: Watched) -> Response:
    told = listing(found.seen, wanted, found.seconds)
    rates = rates_of(added(one.minute for one in found.seen), found.seconds)
    context: dict[str, Any] = {
        "wanted": wanted,
        "sorts": [(name, words) for name, (words, _) in SORTS.items()],
        "listing": told,
        "rates": rates,
        "fault": found.fault,
        "starved": [(one, remedies(one)) for one in _starved(about)],
        "watches": about.starvation is not None,
        "rogues": about.rogues,
        "suspects": _suspects(about),
        "unthrottled": about.unthrottled[:MAX_PERIODS_TOLD],
        "unthrottled_more": max(0, len(about.unthrottled) - MAX_PERIODS_TOLD),
    }
    if visit.by_script:
        return part(visit, "clients_live.html", **context)
    return page(visit, "clients.html", **context)


def _starved(about: Watched) -> Sequence[StarvedDoc]:
    """Those above the waterline first."""
    found = about.starvation.starved if about.starvation is not None else ()
    return sorted(found, key=lambda one: (not one.alarming, -one.starved_s))


def _suspects(about: Watched) -> list[tuple[Any, str]]:
    found = about.rogues.suspects if about.rogues is not None else ()
    busiest = sorted(found, key=lambda one: -one.share)[:MAX_SUSPECTS]
    return [(one, budget_form(one)) for one in busiest]


# --- one ----------------------------------------------------------------------------------------


async def _databases(api: PageApi, found: Clients) -> list[str]:
    """Where it was seen; where it was not, all that there are."""
    seen = sorted({name for one in found.seen for name in one.databases})
    known = [one.database for one in (await api.get("/v1/status", StatusDoc)).databases]
    return ([name for name in seen if name in known] or known)[:MAX_DATABASES]


async def _explained(api: PageApi, app: str, databases: Sequence[str]) -> list[ExplainDoc]:
    return [
        await api.get("/v1/explain", ExplainDoc, {"app": app, "database": name})
        for name in databases
    ]


async def _refusals(visit: Visit, app: str) -> dict[str, Any]:
    asked: Query = {"app": app, "limit": MAX_REFUSALS}
    found = await visit.api.get("/v1/refusals", RefusalsDoc, asked)
    return {
        "app": app,
        "refusals": found.refusals,
        "reason_of": _reason_of,
        "refusals_href": _self(visit, app, part="refusals"),
    }


def _reason_of(answer: AnswerDoc) -> str:
    return f"on {answer.database}: {bare(answer.reason, answer.database) or answer.verdict}"


def bare(reason: str, database: str) -> str:
    """Without the database's name before it, where that was just told."""
    return reason.removeprefix(f"{database}: ")


async def _history(visit: Visit, app: str) -> dict[str, Any]:
    since = visit.query.get("since", "1h")
    since = since if since in PERIODS else "1h"
    database = visit.query.get("database", "")
    asked = {"app": app, "since": since, "step": PERIODS[since].step, "database": database}
    doc = await visit.api.get("/v1/history/timeline", TimelineDoc, asked)
    status = await visit.api.get("/v1/status", StatusDoc)
    known = [one.database for one in status.databases]
    links = Asked(app, database or _where(status, app))
    strip = await to_thread(strip_of, doc, links)
    return {
        "app": app,
        "since": since,
        "database": database,
        "known": known,
        "periods": [(key, one.name, _self(visit, app, since=key)) for key, one in PERIODS.items()],
        "places": [(name, _self(visit, app, database=name)) for name in ("", *known)],
        "doc": doc,
        "strip": strip,
        "told": sentences(doc, links),
        "links_to": links.database,
        "runs": runs_words(doc.runs, UTC) if doc.runs is not None else "",
        "outcome": outcome,
        "by_words": by_words,
        "shown_children": SHOWN_CHILDREN,
        "children": [child for child in doc.children if child.client != app],
        "history_href": _self(visit, app, part="history"),
    }


def _where(status: StatusDoc, app: str) -> str:
    """A minute is explained on one database: where it is held, or was seen last."""
    levels = set(app.split(":"))
    mine = [one for one in status.clients if levels <= set(one.client.split(":"))]
    mine.sort(key=lambda one: (one.refused_for_s is None, one.last_seen_s_ago))
    known = [one.database for one in status.databases]
    places = [one.database for one in mine if one.database in known]
    return next(iter([*places, *known]), "")


def _self(visit: Visit, app: str, **other: str) -> str:
    """This page, with something in its query put another way."""
    told = {name: visit.query.get(name, "") for name in ("since", "database")} | other
    query = urlencode({name: value for name, value in told.items() if value})
    return f"/clients/{in_path(app)}" + (f"?{query}" if query else "")
