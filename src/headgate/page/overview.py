"""The overview: what an operator sees first, and what can be changed from it.

GET / ──► PageApi ──► present/status ──► HTML. One part is refreshed every two seconds. What is not
in the status (rules, budgets, starved clients) is counted less often, and once for all viewers.

Changes: a threshold, a skipped replica, a database that is woken. GET: the form. POST …/preview:
what it would do. POST: done, and how to undo it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.responses import Response

from headgate.base.ports import Clock
from headgate.base.problems import Problem
from headgate.base.units import parse_amount
from headgate.budgets.api import PoliciesDoc
from headgate.check.api import DatabaseDoc, MetricsDoc, MetricView, StatusDoc
from headgate.errors import InvalidRequest
from headgate.history.api import MetricMinuteDoc, MetricMinutesDoc, RoguesDoc, StarvationDoc
from headgate.page.api import ApiRejected, in_path
from headgate.page.shell import Visit, moved, page, part
from headgate.present.budgets import thrown
from headgate.present.shard import MemberRow, in_short, standing_of, tree, unwatched, without
from headgate.present.status import (
    DatabaseState,
    MetricRow,
    Tile,
    agent_notes,
    database_state,
    metric_rows,
    tiles_now,
)
from headgate.present.view import Note, Tone
from headgate.present.words import ADVICE, advice_of
from headgate.rules.api import RulesDoc
from headgate.shard.api import MemberDoc, ShardDoc
from headgate.shard.routes import WokenDoc

T = TypeVar("T")
RANGES = ("15m", "1h", "6h", "24h")
DEFAULT_RANGE = "1h"
MORE_S = 10
"""How often the tiles are asked for that thousands of rules may stand behind."""
MAX_ADVICE = 6
"""Of what is not loud; the rest is folded."""


@dataclass(frozen=True, slots=True)
class DatabaseView:
    """A database, as the page shows it."""

    doc: DatabaseDoc
    state: DatabaseState
    metrics: Sequence[MetricRow]
    others: Sequence[MetricRow]
    rows: Sequence[MemberRow]
    in_short: str


class OverviewPage:
    routes = (
        ("GET", "/", "page"),
        ("GET", "/overview/now", "now"),
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted: tuple[float, Sequence[Tile]] = (float("-inf"), ())
        """When, monotonic, and what: the same for everybody."""

    async def page(self, visit: Visit) -> Response:
        chosen = visit.query.get("range", DEFAULT_RANGE)
        return page(
            visit,
            "overview.html",
            **await self._seen(visit),
            ranges=RANGES,
            chosen=chosen if chosen in RANGES else DEFAULT_RANGE,
        )

    async def now(self, visit: Visit) -> Response:
        return part(visit, "overview_now.html", **await self._seen(visit))

    async def _tiles(self, visit: Visit) -> Sequence[Tile]:
        now_s = self._clock.now().mono_s
        if now_s - self._counted[0] >= MORE_S:
            self._counted = (now_s, await _more_tiles(visit))
        return self._counted[1]

    async def _seen(self, visit: Visit) -> dict[str, Any]:
        status = await visit.api.get("/v1/status", StatusDoc)
        known = await visit.api.get("/v1/metrics", MetricsDoc)
        views = {(view.database, view.metric): view for view in known.metrics}
        shown = [
            DatabaseView(
                doc=doc,
                state=database_state(doc, status.uptime_s),
                metrics=metric_rows(doc, doc.metrics, views),
                others=metric_rows(doc, doc.other_metrics, views),
                rows=(rows := tree(doc.shard) if doc.shard is not None else []),
                in_short=in_short(doc.shard, rows) if doc.shard is not None else "",
            )
            for doc in status.databases
        ]
        return {
            "told": status,
            "shown": sorted(shown, key=lambda one: _ORDER[one.state.tone]),
            "notes": agent_notes(status),
            "advice": [one for one in advice_of(status.advice) if one.word == ADVICE],
            "loud": [one for one in advice_of(status.advice) if one.word != ADVICE],
            "standing_of": standing_of,
            "unwatched": unwatched,
            "rejected": known.rejected,
            "max_advice": MAX_ADVICE,
            "tiles": [*tiles_now(status), *await self._tiles(visit)],
            "wall_s": self._clock.now().wall_s,
            "clock_of": clock_of,
        }


_ORDER: Mapping[str, int] = {"bad": 0, "warned": 1, "good": 2, "": 3}


def clock_of(wall_s: float) -> str:
    """`07:03:12`; with its day where that is long ago enough to be another one."""
    return datetime.fromtimestamp(wall_s, tz=UTC).strftime("%H:%M:%S")


# --- the tiles of others ------------------------------------------------------------------------


async def _more_tiles(visit: Visit) -> list[Tile]:
    api = visit.api
    return [
        await _tile("rules in force", "/rules", lambda: api.get("/v1/rules", RulesDoc), _rules),
        await _tile(
            "clients starved",
            "/clients#starved",
            lambda: api.get("/v1/starvation", StarvationDoc),
            _starved,
        ),
        await _tile(
            "rogue clients", "/clients#rogue", lambda: api.get("/v1/rogues", RoguesDoc), _rogues
        ),
        await _tile(
            "budgets enforcing", "/budgets", lambda: api.get("/v1/budgets", PoliciesDoc), _budgets
        ),
    ]


async def _tile(
    label: str,
    href: str,
    ask: Callable[[], Awaitable[T]],
    count: Callable[[T], tuple[int, Tone, str]],
) -> Tile:
    try:
        counted, tone, why = count(await ask())
    except ApiRejected as rejected:  # An agent that does not watch for it, or cannot just now.
        return Tile(None, label, "", href, rejected.detail)
    return Tile(counted, label, tone, href, why)


def _rules(doc: RulesDoc) -> tuple[int, Tone, str]:
    in_force = [rule for rule in doc.rules if rule.state == "in_force"]
    suspended = sum(rule.state == "suspended" for rule in doc.rules)
    why = f"{suspended} suspended" if suspended else ""
    return len(in_force), "warned" if suspended or doc.rejected else "", why


def _starved(doc: StarvationDoc) -> tuple[int, Tone, str]:
    alarming = [one for one in doc.starved if one.alarming]
    return len(alarming), "bad" if alarming else "", ", ".join(s.client for s in alarming[:3])


def _rogues(doc: RoguesDoc) -> tuple[int, Tone, str]:
    why = ", ".join(suspect.application or suspect.user for suspect in doc.suspects[:3])
    return len(doc.suspects), "warned" if doc.suspects else "", why


def _budgets(doc: PoliciesDoc) -> tuple[int, Tone, str]:
    budgets = [budget for policy in doc.databases for budget in policy.budgets]
    enforcing = [budget for budget in budgets if budget.state == "enforcing"]
    full = [b.name for b in enforcing if (b.fill or 0.0) >= 1.0]
    faults = [p.database for p in doc.databases if p.read_fault or p.rejection]
    if faults:
        return len(enforcing), "bad", f"not in force as set on {', '.join(faults[:3])}"
    return len(enforcing), "warned" if full else "", f"{len(full)} full" if full else ""


CHANGED = "changed"
"""The event that refreshes the live parts at once."""
SKIPS = ("10m", "30m", "2h", "6h", "1d")


@dataclass(frozen=True, slots=True)
class HourSeen:
    """What the last hour held, and how much of it would have been above another threshold."""

    minutes: int
    absent: int
    above_now: int
    above_then: int


class MetricChanges:
    routes = (
        ("GET", "/databases/{database}/metrics/{metric}", "form"),
        ("POST", "/databases/{database}/metrics/{metric}/preview", "preview"),
        ("POST", "/databases/{database}/metrics/{metric}", "change"),
        ("POST", "/databases/{database}/metrics/{metric}/revert", "revert"),
    )

    async def form(self, visit: Visit) -> Response:
        return await self._form(visit)

    async def preview(self, visit: Visit) -> Response:
        try:
            threshold = _threshold(visit)
            proposed = await self._sent(visit, threshold, dry_run=True)
        except (ApiRejected, InvalidRequest) as error:
            return await self._form(visit, rejected=as_rejected(error))
        return await self._form(visit, preview=proposed)

    async def change(self, visit: Visit) -> Response:
        before = await visit.api.get(_metric_path(visit), MetricView)
        try:
            view = await self._sent(visit, _threshold(visit), dry_run=False)
        except (ApiRejected, InvalidRequest) as error:
            return await self._form(visit, rejected=as_rejected(error))
        return _done(visit, "overview_changed.html", view=view, before=before)

    async def revert(self, visit: Visit) -> Response:
        before = await visit.api.get(_metric_path(visit), MetricView)
        path = f"{_metric_path(visit)}/revert"
        try:
            view = await visit.api.send("POST", path, MetricView, revision=_revision(visit))
        except (ApiRejected, InvalidRequest) as error:
            return await self._form(visit, rejected=as_rejected(error))
        return _done(visit, "overview_changed.html", view=view, before=before)

    async def _form(
        self, visit: Visit, preview: MetricView | None = None, rejected: ApiRejected | None = None
    ) -> Response:
        """As it is now: after a rejection a second try begins from this."""
        view = await visit.api.get(_metric_path(visit), MetricView)
        limit = preview.now.threshold if preview is not None else None
        hour = None if limit is None else await _hour(visit, view, limit)
        return _shown(
            visit, "overview_threshold.html", rejected, view=view, preview=preview, hour=hour
        )

    async def _sent(self, visit: Visit, threshold: float | str, *, dry_run: bool) -> MetricView:
        return await visit.api.send(
            "PATCH",
            _metric_path(visit),
            MetricView,
            {"threshold": threshold},
            query={"dry_run": dry_run},
            revision=_revision(visit),
        )


class MemberChanges:
    routes = (
        ("GET", "/databases/{database}/members/{member}", "form"),
        ("POST", "/databases/{database}/members/{member}/preview", "preview"),
        ("POST", "/databases/{database}/members/{member}/aside", "aside"),
        ("POST", "/databases/{database}/members/{member}/count", "count"),
        ("POST", "/databases/{database}/wake", "wake"),
    )

    async def form(self, visit: Visit) -> Response:
        return await self._form(visit)

    async def preview(self, visit: Visit) -> Response:
        try:
            asked = _skip_asked(visit)
        except InvalidRequest as error:
            return await self._form(visit, rejected=as_rejected(error))
        return await self._form(visit, asked=asked)

    async def aside(self, visit: Visit) -> Response:
        try:
            asked = _skip_asked(visit)
            doc = await visit.api.send("PUT", _skip_path(visit), ShardDoc, asked)
        except (ApiRejected, InvalidRequest) as error:
            return await self._form(visit, rejected=as_rejected(error))
        return _done(visit, "overview_set_aside.html", shard=doc, member=_member(visit, doc))

    async def count(self, visit: Visit) -> Response:
        try:
            doc = await visit.api.send("DELETE", _skip_path(visit), ShardDoc)
        except ApiRejected as error:
            return await self._form(visit, rejected=error)
        return _done(visit, "overview_set_aside.html", shard=doc, member=_member(visit, doc))

    async def wake(self, visit: Visit) -> Response:
        path = f"/v1/databases/{in_path(visit.path['database'])}/wake"
        woken = await visit.api.send("POST", path, WokenDoc, {})
        return _done(visit, "overview_woken.html", woken=woken)

    async def _form(
        self, visit: Visit, asked: dict[str, str] | None = None, rejected: ApiRejected | None = None
    ) -> Response:
        doc = await visit.api.get(_shard_path(visit), ShardDoc)
        return _shown(
            visit,
            "overview_aside.html",
            rejected,
            shard=doc,
            member=_member(visit, doc),
            asked=asked,
            without=without(doc, visit.path["member"]),
            lasts=SKIPS,
        )


# --- steps --------------------------------------------------------------------------------------


def _metric_path(visit: Visit) -> str:
    database, metric = in_path(visit.path["database"]), in_path(visit.path["metric"])
    return f"/v1/databases/{database}/metrics/{metric}"


def _shard_path(visit: Visit) -> str:
    return f"/v1/databases/{in_path(visit.path['database'])}/shard"


def _skip_path(visit: Visit) -> str:
    return f"{_shard_path(visit)}/skips/{in_path(visit.path['member'])}"


def _member(visit: Visit, doc: ShardDoc) -> MemberDoc:
    name = visit.path["member"]
    found = next((member for member in doc.members if member.member == name), None)
    if found is None:
        known = ", ".join(member.member for member in doc.members)
        raise InvalidRequest(f"{doc.shard} has no member {name!r}; it has: {known}", status=404)
    return found


def _threshold(visit: Visit) -> float | str:
    """A number in the metric's unit, or a text with its own: 50ms, 80%."""
    given = visit.form.get("threshold", "").strip()
    try:
        if math.isfinite(value := float(given)):
            return value
    except ValueError:
        with suppress(ValueError):
            return parse_amount(given).text
    message = f"the threshold is {given[:40]!r}, must be a number, or read like 50ms, 80%, 4 GiB"
    raise InvalidRequest(message, field="threshold")


def _revision(visit: Visit) -> int:
    given = visit.form.get("revision", "")
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise InvalidRequest("the form has lost its revision: open it again", field="revision")
    return int(given)


def _skip_asked(visit: Visit) -> dict[str, str]:
    reason = visit.form.get("reason", "").strip()
    if not reason:
        raise InvalidRequest("give a reason: the next operator needs it", field="reason")
    return {"for": visit.form.get("for", "").strip(), "reason": reason}


async def _hour(visit: Visit, view: MetricView, threshold: float) -> HourSeen:
    """Of the shard, where it is rolled up here; else of the host."""
    found: Sequence[MetricMinuteDoc] = ()
    for name in (f"shard/{view.metric}", view.metric):
        query = {"database": view.database, "metric": name, "since": "1h"}
        kept = await visit.api.get("/v1/history/metrics", MetricMinutesDoc, query)
        if found := kept.minutes:
            break
    return hour_seen(found, threshold, at_least=view.now.comparison == ">=")


def hour_seen(minutes: Sequence[MetricMinuteDoc], threshold: float, *, at_least: bool) -> HourSeen:
    """By each minute's highest value: debounce and all between is not kept."""
    highs = [m.high for m in minutes if m.high is not None]
    return HourSeen(
        minutes=len(minutes),
        absent=sum(m.high is None for m in minutes),
        above_now=sum(bool(m.breached_share) for m in minutes),
        above_then=sum(high >= threshold if at_least else high > threshold for high in highs),
    )


def as_rejected(error: ApiRejected | InvalidRequest) -> ApiRejected:
    if isinstance(error, ApiRejected):
        return error
    return ApiRejected(error.status, Problem("about:blank", "", error.status, str(error)))


def _shown(visit: Visit, template: str, rejected: ApiRejected | None, **context: Any) -> Response:
    """In the dialog, or as a page of its own where there is no script."""
    status = 200 if rejected is None else rejected.status
    if visit.by_script:
        return part(visit, template, status=status, rejected=rejected, **context)
    alone = "overview_alone.html"
    return page(visit, alone, status=status, rejected=rejected, inner=template, **context)


def _done(visit: Visit, template: str, **context: Any) -> Response:
    if not visit.by_script:
        return moved(visit, "/")
    response = part(visit, template, **context)
    response.headers["HX-Trigger"] = CHANGED
    return response


@dataclass(frozen=True, slots=True)
class BannerLine:
    text: str
    path: str


class BannerPage:
    routes = (("GET", "/banner", "live"),)

    async def live(self, visit: Visit) -> Response:
        status = await visit.api.get("/v1/status", StatusDoc)
        lines = [*_of_agent(status), *await _of_budgets(visit)]
        return part(visit, "banner.html", lines=lines)


def _of_agent(status: StatusDoc) -> Iterator[BannerLine]:
    yield from (_line(note, "/") for note in agent_notes(status) if note.tone == "bad")
    for database in status.databases:
        for member in database.shard.members if database.shard else ():
            if member.hopeless:
                told = f"{database.database}: {member.member} is skipped as hopeless"
                yield BannerLine(f"{told}, and work goes on without it", "/")


def _line(note: Note, path: str, about: str = "") -> BannerLine:
    return BannerLine(f"{about}{note.word}: {note.says}", path)


async def _of_budgets(visit: Visit) -> list[BannerLine]:
    try:
        policies = await visit.api.get("/v1/budgets", PoliciesDoc, {"most": 1})
    except ApiRejected:  # Where budgets cannot be looked at, their own page says why.
        return []
    return [
        _line(note, f"/budgets/{in_path(doc.database)}", f"{doc.database}: ")
        for doc in policies.databases
        if (note := thrown(doc))
    ]
