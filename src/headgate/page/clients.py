"""The pages /clients and /clients/{client}: which clients check, which are throttled, and by what.

GET ──► ClientLooks (the API) ──► present/clients, present/starvation ──► HTML
"""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response

from headgate.check.answer_api import AnswerDoc
from headgate.check.api import ClientsDoc, RejectionsDoc, StatusDoc
from headgate.history.api import (
    BinDoc,
    ClientsSumsDoc,
    RoguesDoc,
    SpanDoc,
    StarvationDoc,
    SumsDoc,
    TimelineDoc,
)
from headgate.history.unthrottled_api import UnthrottledDoc, UnthrottledsDoc
from headgate.page.api import ApiRejected, PageApi, Query, in_path
from headgate.page.shell import Visit, page, part, zone
from headgate.present.clients import (
    SORTS,
    CheckCounts,
    ClientRow,
    ClientSummary,
    Wanted,
    added,
    by_words,
    listing,
    seen_of,
    state_of_all,
    sums_of,
)
from headgate.present.explain import explained
from headgate.present.history import (
    REASONS,
    outcome,
    rejection_runs,
    runs_words,
    span_words,
    summary,
)
from headgate.present.rules import match_state
from headgate.present.starvation import (
    NO_ROGUES,
    SUSPECT_COLUMNS,
    SUSPECT_NUMBERS,
    StarvedRow,
    client_remedies,
    rogue_faults,
    starved_rows,
    suspect_rows,
)
from headgate.present.words import bare_reason
from headgate.rules.api import ExplainDoc

T = TypeVar("T")
MAX_REJECTIONS = 200
MAX_DATABASES = 8
"""Explained on a client's page, those where it was last seen first."""
MAX_PERIODS = 10
SHOWN_CHILDREN = 12
"""The others are folded: on a phone each is a card."""
HOUR_KEPT_TIMES = 20.0
"""The sums of an hour are kept for so many times as long as it took to make them: a viewer takes no
more than a twentieth of the store's time for it."""
NOT_FOUND = 404
MAX_FOLDS = 60
MAX_QUERY_CHARS = 100


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
        if visit.by_script and wants == "rejections":
            return part(visit, "clients_one_rejections.html", **await _rejections(visit, app))
        now = await self._now(visit, app)
        if visit.by_script:
            return part(visit, "clients_one_now.html", **now)
        context = now | await _history(visit, app) | await _rejections(visit, app)
        return await to_thread(lambda: page(visit, "clients_one.html", **context))

    async def _now(self, visit: Visit, app: str) -> dict[str, Any]:
        found = await self._looks.clients(visit.api, app)
        about = await watched(visit.api, app)
        databases = await _databases(visit.api, found)
        mine = set(app.split(":"))
        starved = [one for one in about.starved if mine <= set(one.doc.client.split(":"))]
        return {
            "app": app,
            "levels": app.split(":"),
            "found": found,
            "state": state_of_all(found.seen),
            "rates": found.rates,
            "hour": added(one.hour for one in found.seen),
            "seen_s_ago": min((one.seen_s_ago for one in found.seen), default=None),
            "asked_of": databases,
            "explained": await _explained(visit.api, app, databases),
            "starved": starved,
            "unthrottled": about.unthrottled[:MAX_PERIODS],
            "links": client_remedies(app, visit.query.get("database", "")),
            "match_state": match_state,
            "now_href": _self(visit, app, part="now"),
        }


# --- what they are made of, from the API --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clients:
    seen: tuple[ClientSummary, ...]
    fault: str
    """Why there are no rates, or no sums of the hour."""

    @property
    def rates(self) -> CheckCounts | None:
        return added(one.rates for one in self.seen)


@dataclass(frozen=True, slots=True)
class Watched:
    watches: bool
    """False: this agent does not look for starvation."""
    starved: Sequence[StarvedRow]
    rogues: RoguesDoc | None
    """None: this agent lists no sessions."""
    unthrottled: Sequence[UnthrottledDoc]


class ClientLooks:
    def __init__(self) -> None:
        self._hour: tuple[float, ClientsSumsDoc] | None = None
        """Until when it is good (the loop's time), and what it is."""
        self._turn = asyncio.Lock()

    async def clients(self, api: PageApi, app: str = "") -> Clients:
        """All of them, or those that have the levels of `app`."""
        docs = (await api.get("/v1/clients", ClientsDoc)).clients
        levels = set(app.split(":")) if app else set()
        mine = [doc for doc in docs if levels <= set(doc.client.split(":"))]
        try:
            minute = await api.get("/v1/history/clients", ClientsSumsDoc, {"since": "1m"})
            hour = await self._last_hour(api)
        except ApiRejected as rejected:
            return Clients(tuple(seen_of(mine)), rejected.detail)
        seen = await to_thread(lambda: seen_of(mine, sums_of(minute), sums_of(hour)))
        return Clients(tuple(seen), "")

    async def _last_hour(self, api: PageApi) -> ClientsSumsDoc:
        """One look for all viewers."""
        async with self._turn:
            clock = asyncio.get_running_loop().time
            began = clock()
            if self._hour is None or began >= self._hour[0]:
                found = await api.get("/v1/history/clients", ClientsSumsDoc, {"since": "1h"})
                self._hour = (clock() + HOUR_KEPT_TIMES * (clock() - began), found)
            return self._hour[1]


async def watched(api: PageApi, app: str = "") -> Watched:
    starvation = await _if_watched(api, "/v1/starvation", StarvationDoc)
    rogues = await _if_watched(api, "/v1/rogues", RoguesDoc)
    asked = {"since": "1h", "app": app}
    found = await api.get("/v1/unthrottled", UnthrottledsDoc, asked)
    starved = starved_rows(starvation.starved if starvation is not None else ())
    return Watched(starvation is not None, starved, rogues, found.unthrottled)


async def _if_watched(api: PageApi, path: str, kind: type[T]) -> T | None:
    try:
        return await api.get(path, kind)
    except ApiRejected as rejected:
        if rejected.status != NOT_FOUND:
            raise
        return None


# --- all ----------------------------------------------------------------------------------------


def wanted_of(query: Mapping[str, str]) -> Wanted:
    sort = query.get("sort", "throttled")
    return Wanted(
        text=query.get("q", "").strip()[:MAX_QUERY_CHARS],
        sort=sort if sort in SORTS else "throttled",
        throttled_only=query.get("throttled") == "1",
        opened=_names(query.get("open", "")),
        shut=_names(query.get("shut", "")),
    )


def _names(text: str) -> tuple[str, ...]:
    """No level has a comma in it."""
    return tuple(dict.fromkeys(name for name in text.split(",") if name))[:MAX_FOLDS]


def fold_href(wanted: Wanted, row: ClientRow) -> str:
    """Folds it, or unfolds it, without a script."""
    opened = [name for name in wanted.opened if name != row.app]
    shut = [name for name in wanted.shut if name != row.app]
    (shut if row.is_open else opened).append(row.app)
    query = {
        "q": wanted.text,
        "sort": "" if wanted.sort == "throttled" else wanted.sort,
        "throttled": "1" if wanted.throttled_only else "",
        "open": ",".join(opened),
        "shut": ",".join(shut),
    }
    return f"/clients?{urlencode({name: value for name, value in query.items() if value})}"


def _all_shown(visit: Visit, wanted: Wanted, found: Clients, about: Watched) -> Response:
    rogues = about.rogues
    context: dict[str, Any] = {
        "wanted": wanted,
        "sorts": [(name, words) for name, (words, _) in SORTS.items()],
        "listing": listing(found.seen, wanted),
        "fold_href": fold_href,
        "rates": found.rates,
        "fault": found.fault,
        "starved": about.starved,
        "watches": about.watches,
        "rogues": rogues,
        "rogue_faults": rogue_faults(rogues) if rogues is not None else (),
        "suspects": suspect_rows(rogues.suspects) if rogues is not None else (),
        "suspect_columns": SUSPECT_COLUMNS,
        "suspect_numbers": SUSPECT_NUMBERS,
        "no_rogues": NO_ROGUES,
        "unthrottled": about.unthrottled[:MAX_PERIODS],
        "unthrottled_more": max(0, len(about.unthrottled) - MAX_PERIODS),
    }
    if visit.by_script:
        return part(visit, "clients_live.html", **context)
    return page(visit, "clients.html", **context)


# --- one ----------------------------------------------------------------------------------------


async def _databases(api: PageApi, found: Clients) -> list[str]:
    """Where it was seen; where it was not, all that there are."""
    seen = sorted({name for one in found.seen for name in one.databases})
    known = [one.database for one in (await api.get("/v1/status", StatusDoc)).databases]
    return ([name for name in seen if name in known] or known)[:MAX_DATABASES]


async def _explained(api: PageApi, app: str, databases: Sequence[str]) -> list[Any]:
    return [
        explained(await api.get("/v1/explain", ExplainDoc, {"app": app, "database": name}))
        for name in databases
    ]


async def _rejections(visit: Visit, app: str) -> dict[str, Any]:
    asked: Query = {"app": app, "limit": MAX_REJECTIONS}
    found = await visit.api.get("/v1/rejections", RejectionsDoc, asked)
    return {
        "app": app,
        "rejection_runs": rejection_runs(found.rejections),
        "reason_of": _reason_of,
        "rejections_href": _self(visit, app, part="rejections"),
    }


def _reason_of(answer: AnswerDoc) -> str:
    return bare_reason(answer) or answer.verdict


async def _history(visit: Visit, app: str) -> dict[str, Any]:
    since, database = visit.query.get("since", ""), visit.query.get("database", "")

    async def timeline(span: str) -> TimelineDoc:
        asked = {"app": app, "since": span, "step": PERIODS[span].step, "database": database}
        return await visit.api.get("/v1/history/timeline", TimelineDoc, asked)

    if since in PERIODS:
        doc = await timeline(since)
    else:  # Its day; of a client that is new, as much as there is.
        since, doc = "24h", await timeline("24h")
        spans = instant(doc.until) - instant(doc.bins[0].at) if doc.bins else timedelta(days=1)
        if spans < timedelta(hours=6):
            since = "1h" if spans < timedelta(hours=1) else "6h"
            doc = await timeline(since)
    status = await visit.api.get("/v1/status", StatusDoc)
    known = [one.database for one in status.databases]
    links = HistorySubject(app, database or _where(status, app))
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
        "runs": runs_words(doc.runs, zone()) if doc.runs is not None else "",
        "by_words": by_words,
        "shown_children": SHOWN_CHILDREN,
        "children": [child for child in doc.children if child.client != app],
        "history_href": _self(visit, app, part="history"),
    }


def _where(status: StatusDoc, app: str) -> str:
    """A minute is explained on one database: where it is throttled, or was seen last."""
    levels = set(app.split(":"))
    mine = [one for one in status.clients if levels <= set(one.client.split(":"))]
    mine.sort(key=lambda one: (one.rejected_for_s is None, one.last_seen_s_ago))
    known = [one.database for one in status.databases]
    places = [one.database for one in mine if one.database in known]
    return next(iter([*places, *known]), "")


def _self(visit: Visit, app: str, **other: str) -> str:
    """This page, with something in its query put another way."""
    told = {name: visit.query.get(name, "") for name in ("since", "database")} | other
    query = urlencode({name: value for name, value in told.items() if value})
    return f"/clients/{in_path(app)}" + (f"?{query}" if query else "")


# --- its timeline as a strip --------------------------------------------------------------------

HEIGHT_PX = 72


class StripPeriod(NamedTuple):
    name: str
    step: str


PERIODS: Mapping[str, StripPeriod] = {
    "1h": StripPeriod("1 h", "1m"),
    "6h": StripPeriod("6 h", "5m"),
    "24h": StripPeriod("24 h", "15m"),
    "7d": StripPeriod("7 days", "2h"),
    "14d": StripPeriod("14 days", "4h"),
}


class StripPiece(NamedTuple):
    reason: str
    y_px: float
    height_px: float


class StripColumn(NamedTuple):
    """One bin."""

    x: float
    width: float
    """Percent of the strip's."""
    pieces: tuple[StripPiece, ...]
    title: str
    href: str


class AxisTick(NamedTuple):
    x: float
    words: str
    anchor: str


@dataclass(frozen=True, slots=True)
class HistoryStrip:
    columns: tuple[StripColumn, ...]
    ticks: tuple[AxisTick, ...]
    reasons: tuple[tuple[str, str, int], ...]
    """Those that there are, with how many checks."""
    summary: str
    height_px: int = HEIGHT_PX


class Sentence(NamedTuple):
    when: str
    words: str
    href: str
    share: float


@dataclass(frozen=True, slots=True)
class HistorySubject:
    """The client and database of a link to a minute."""

    app: str
    database: str

    def at(self, iso: str) -> str:
        told = {"app": self.app, "database": self.database, "at": iso}
        return f"/explain?{urlencode(told)}"


def strip_of(doc: TimelineDoc, asked: HistorySubject) -> HistoryStrip:
    frame = _Frame.of(doc)
    columns = tuple(_column(one, doc.spans, frame, asked) for one in doc.bins)
    return HistoryStrip(
        columns=columns,
        ticks=tuple(_ticks(frame)),
        reasons=tuple(
            (name, reason, count)
            for name, reason in REASONS.items()
            if (count := doc.total.by_reason.get(name, 0))
        ),
        summary=summary(doc),
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    since: datetime
    until: datetime
    step: timedelta

    @classmethod
    def of(cls, doc: TimelineDoc) -> _Frame:
        """From the first bin's round time on, which may be a little before `since`."""
        since, until = instant(doc.since), instant(doc.until)
        first = min([since, *(instant(one.at) for one in doc.bins[:1])])
        return cls(first, until, timedelta(minutes=doc.step_minutes))

    def x(self, at: datetime) -> float:
        share = (at - self.since) / (self.until - self.since)
        return round(100 * min(1.0, max(0.0, share)), 3)


def _column(
    one: BinDoc, spans: Sequence[SpanDoc], frame: _Frame, asked: HistorySubject
) -> StripColumn:
    at = instant(one.at)
    x, end = frame.x(at), frame.x(at + frame.step)
    return StripColumn(
        x=x,
        width=round(end - x, 3),
        pieces=tuple(_pieces(one.sums)),
        title=f"{when_words(at, at + frame.step, frame.until)}: {outcome(one.sums)}",
        href=asked.at(_worst_minute(at, frame.step, spans)),
    )


def _worst_minute(at: datetime, step: timedelta, spans: Sequence[SpanDoc]) -> str:
    """The first of the bin in which it was mostly throttled; else the bin's first."""
    starts = (max(at, instant(s.since)) for s in spans if instant(s.until) > at)
    found = next((start for start in starts if start < at + step), at)
    return found.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def _pieces(sums: SumsDoc) -> Iterator[StripPiece]:
    top = float(HEIGHT_PX)
    for reason in REASONS:
        count = sums.by_reason.get(reason, 0)
        if count and sums.checks:
            height = max(1.0, HEIGHT_PX * count / sums.checks)
            top -= height
            yield StripPiece(reason, round(max(0.0, top), 2), round(height, 2))


def _ticks(frame: _Frame) -> Iterator[AxisTick]:
    """At round times of the viewer's clock."""
    span = frame.until - frame.since
    every = next(step for step in _TICKS if span / step <= MAX_TICKS)
    form = "%H:%M" if every < timedelta(days=1) else "%-d %b"
    at = frame.since.replace(hour=0, minute=0, second=0, microsecond=0)
    while at < frame.until:
        if at >= frame.since:
            x = frame.x(at)
            anchor = "start" if x < 3 else "end" if x > 97 else "middle"
            yield AxisTick(x, at.strftime(form), anchor)
        at += every


MAX_TICKS = 8
_TICKS = tuple(timedelta(minutes=n) for n in (10, 30, 180, 360, 1440, 2880, 10_000))


# --- words --------------------------------------------------------------------------------------


def instant(iso: str) -> datetime:
    return datetime.fromisoformat(iso).astimezone(zone())


def when_words(since: datetime, until: datetime, today: datetime) -> str:
    """`07:00–07:25`, with the day where that is not today."""
    day = "" if since.date() == today.date() else f"{since.day} {since:%b} "
    return f"{day}{since:%H:%M}–{until:%H:%M}"


def sentences(doc: TimelineDoc, asked: HistorySubject) -> list[Sentence]:
    """Newest first."""
    until = instant(doc.until)
    return [
        Sentence(
            when_words(instant(span.since), instant(span.until), until),
            f"mostly throttled {span_words(span)}",
            asked.at(span.since),
            span.share,
        )
        for span in reversed(doc.spans)
    ]
