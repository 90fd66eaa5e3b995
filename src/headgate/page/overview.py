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
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.responses import Response

from headgate.base.declared import iso
from headgate.base.ports import Clock
from headgate.base.problems import Problem
from headgate.base.units import parse_amount
from headgate.budgets.api import PoliciesDoc
from headgate.check.answer_api import MetricDoc
from headgate.check.api import (
    AuditDoc,
    AuditsDoc,
    DatabaseDoc,
    MetricsDoc,
    MetricView,
    StatusDoc,
)
from headgate.errors import InvalidRequest
from headgate.history.api import (
    ClientsSumsDoc,
    MetricMinuteDoc,
    MetricMinutesDoc,
    RoguesDoc,
    StarvationDoc,
)
from headgate.page.api import ApiRejected, Query, in_path
from headgate.page.shell import Visit, moved, page, part, zone
from headgate.present.budgets import thrown
from headgate.present.changes import AuditLine, audit_line
from headgate.present.clients import by_words
from headgate.present.history import RejectedClient, rejected_by
from headgate.present.metrics import CURRENT
from headgate.present.shard import (
    MemberRow,
    facts,
    in_short,
    last_replica,
    standing_of,
    tree,
    unwatched,
    without,
)
from headgate.present.sparks import Minutes, Spark, by_metric, spark_of
from headgate.present.status import (
    SELDOM,
    DatabaseState,
    MetricRow,
    Tile,
    agent_notes,
    budgets_enforcing,
    clients_starved,
    database_state,
    metric_rows,
    no_metric,
    pace_words,
    rogue_clients,
    rules_in_force,
    tiles_now,
    told_tiles,
)
from headgate.present.view import Note, Tone
from headgate.present.words import ADVICE, advice_of
from headgate.rules.api import RulesDoc
from headgate.shard.api import MemberDoc, ShardDoc, is_without
from headgate.shard.routes import WokenDoc

T = TypeVar("T")
RANGES = ("15m", "1h", "6h", "24h")
DEFAULT_RANGE = "1h"
MORE_S = 10
"""How often the tiles are asked for that thousands of rules may stand behind."""
HOUR_S = 15
"""How often the last hour is asked for that the rows draw."""
LAG = "lag"


@dataclass(frozen=True, slots=True)
class DatabaseView:
    """A database, as the page shows it."""

    doc: DatabaseDoc
    state: DatabaseState
    metrics: Sequence[MetricRow]
    others: Sequence[MetricRow]
    rows: Sequence[MemberRow]
    in_short: str
    sparks: Mapping[str, Spark | None]
    """By the name that history has for it: `shard/lag`, and `lag@db-b` of a member."""


class Hours:
    """The last hour of every metric: one look for all viewers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: tuple[float, Minutes] = (float("-inf"), {})
        """When, monotonic, and what."""

    async def minutes(self, visit: Visit) -> Minutes:
        now_s = self._clock.now().mono_s
        if now_s - self._kept[0] >= HOUR_S:
            try:
                found = await visit.api.get("/v1/history/metrics", MetricMinutesDoc, LAST_HOUR)
                self._kept = (now_s, by_metric(found.minutes))
            except ApiRejected:  # The store is away, as the page says; rows do without.
                self._kept = (now_s, {})
        return self._kept[1]

    async def sparks(
        self, visit: Visit, doc: DatabaseDoc, rows: Sequence[MemberRow]
    ) -> dict[str, Spark | None]:
        minutes, now_s = await self.minutes(visit), self._clock.now().wall_s
        found: dict[str, Spark | None] = {}

        def draw(name: str, now: MetricDoc) -> None:
            value = now.value if now.state in CURRENT else None
            kept = minutes.get((doc.database, name), ())
            found[name] = spark_of(kept, value, now.threshold, now.unit, now_s)

        for metric in (*doc.metrics, *doc.other_metrics):
            draw(metric.name, metric)
        for row in rows:
            if row.lag is not None:
                draw(f"{LAG}@{row.member.member}", row.lag)
        return found


LAST_HOUR: Query = {"since": "1h"}


class OverviewPage:
    routes = (
        ("GET", "/", "page"),
        ("GET", "/overview/now", "now"),
    )

    def __init__(self, clock: Clock, hours: Hours) -> None:
        self._clock = clock
        self._hours = hours
        self._counted: tuple[float, Sequence[Tile]] = (float("-inf"), ())
        """When, monotonic, and what: the same for everybody."""

    async def page(self, visit: Visit) -> Response:
        return page(visit, "overview.html", **await self._seen(visit), **chosen_range(visit))

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
        shown = []
        for doc in status.databases:
            rows = tree(doc.shard) if doc.shard is not None else []
            one = DatabaseView(
                doc=doc,
                state=database_state(doc, status.uptime_s),
                metrics=metric_rows(doc, doc.metrics, views),
                others=metric_rows(doc, doc.other_metrics, views),
                rows=rows,
                in_short=in_short(doc.shard, rows) if doc.shard is not None else "",
                sparks=await self._hours.sparks(visit, doc, rows),
            )
            shown.append(one)
        tiles, quiet = told_tiles([*tiles_now(status), *await self._tiles(visit)])
        return {
            "told": status,
            "shown": sorted(shown, key=lambda one: _ORDER[one.state.tone]),
            "notes": agent_notes(status),
            "advice": [one for one in advice_of(status.advice) if one.word == ADVICE],
            "loud": [one for one in advice_of(status.advice) if one.word != ADVICE],
            "standing_of": standing_of,
            "unwatched": unwatched,
            "rejected": known.rejected,
            "tiles": tiles,
            "quiet_tiles": quiet,
            "no_metric": no_metric,
            "pace_words": pace_words,
            "seldom": SELDOM,
            "iso": iso,
            "wall_s": self._clock.now().wall_s,
        }


_ORDER: Mapping[str, int] = {"bad": 0, "warned": 1, "good": 2, "": 3}


# --- the tiles of others ------------------------------------------------------------------------


async def _more_tiles(visit: Visit) -> list[Tile]:
    api = visit.api
    return [
        await _tile(
            "rules in force", "/rules", lambda: api.get("/v1/rules", RulesDoc), rules_in_force
        ),
        await _tile(
            "clients starved",
            "/clients#starved",
            lambda: api.get("/v1/starvation", StarvationDoc),
            clients_starved,
        ),
        await _tile(
            "rogue clients",
            "/clients#rogue",
            lambda: api.get("/v1/rogues", RoguesDoc),
            rogue_clients,
        ),
        await _tile(
            "budgets enforcing",
            "/budgets",
            lambda: api.get("/v1/budgets", PoliciesDoc),
            budgets_enforcing,
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
    """A metric's own page, and the dialog that changes its threshold."""

    def __init__(self, clock: Clock, hours: Hours) -> None:
        self._clock = clock
        self._hours = hours

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
        return _done(visit, "overview_changed.html", _page_of(visit), view=view, before=before)

    async def revert(self, visit: Visit) -> Response:
        before = await visit.api.get(_metric_path(visit), MetricView)
        path = f"{_metric_path(visit)}/revert"
        try:
            view = await visit.api.send("POST", path, MetricView, revision=_revision(visit))
        except (ApiRejected, InvalidRequest) as error:
            return await self._form(visit, rejected=as_rejected(error))
        return _done(visit, "overview_changed.html", _page_of(visit), view=view, before=before)

    async def _form(
        self, visit: Visit, preview: MetricView | None = None, rejected: ApiRejected | None = None
    ) -> Response:
        """As it is now: after a rejection a second try begins from this."""
        view = await visit.api.get(_metric_path(visit), MetricView)
        limit = preview.now.threshold if preview is not None else None
        status = await visit.api.get("/v1/status", StatusDoc)
        doc = next(one for one in status.databases if one.database == view.database)
        counts = _counting(doc, view)
        hour = None if limit is None else await _hour(visit, view, counts.name, limit)
        form: dict[str, Any] = {"view": view, "preview": preview, "hour": hour, "counts": counts}
        if visit.by_script and not visit.query.get("live"):
            return _shown(visit, "overview_threshold.html", rejected, **form)
        about = await self._about(visit, view, doc, counts)
        if visit.by_script:
            live = "about" if visit.query["live"] == "about" else "now"
            return part(visit, f"metric_{live}.html", **form, **about)
        return page(
            visit,
            "metric.html",
            status=200 if rejected is None else rejected.status,
            rejected=rejected,
            **form,
            **about,
            **chosen_range(visit),
        )

    async def _about(
        self, visit: Visit, view: MetricView, doc: DatabaseDoc, now: MetricDoc
    ) -> dict[str, Any]:
        """All that its own page says of it."""
        rows = tree(doc.shard) if doc.shard is not None and now.metric == LAG else []
        targets = (view.metric, f"{view.database}/{view.metric}")
        return {
            "row": metric_rows(doc, [now], {(view.database, view.metric): view})[0],
            "rows": rows,
            "sparks": await self._hours.sparks(visit, doc, rows),
            "clients": await _rejected(visit, view.database, now.name),
            "changed": await _audit(visit, targets, "metric"),
            "by_words": by_words,
        }

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
    """A member's own page, and the dialog that skips it."""

    def __init__(self, clock: Clock, hours: Hours) -> None:
        self._clock = clock
        self._hours = hours

    routes = (
        ("GET", "/databases/{database}/members/{member}", "form"),
        ("POST", "/databases/{database}/members/{member}/preview", "preview"),
        ("POST", "/databases/{database}/members/{member}/skip", "skip"),
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

    async def skip(self, visit: Visit) -> Response:
        try:
            asked = _skip_asked(visit)
            doc = await visit.api.send("PUT", _skip_path(visit), ShardDoc, asked)
        except (ApiRejected, InvalidRequest) as error:
            return await self._form(visit, rejected=as_rejected(error))
        return _done(
            visit,
            "overview_skipped.html",
            _page_of(visit),
            shard=doc,
            member=_member(visit, doc),
        )

    async def count(self, visit: Visit) -> Response:
        try:
            doc = await visit.api.send("DELETE", _skip_path(visit), ShardDoc)
        except ApiRejected as error:
            return await self._form(visit, rejected=error)
        return _done(
            visit,
            "overview_skipped.html",
            _page_of(visit),
            shard=doc,
            member=_member(visit, doc),
        )

    async def wake(self, visit: Visit) -> Response:
        path = f"/v1/databases/{in_path(visit.path['database'])}/wake"
        woken = await visit.api.send("POST", path, WokenDoc, {})
        return _done(visit, "overview_woken.html", "/", woken=woken)

    async def _form(
        self, visit: Visit, asked: dict[str, str] | None = None, rejected: ApiRejected | None = None
    ) -> Response:
        doc = await visit.api.get(_shard_path(visit), ShardDoc)
        name = visit.path["member"]
        form: dict[str, Any] = {
            "shard": doc,
            "member": _member(visit, doc),
            "asked": asked,
            "without": without(doc, name),
            "last": last_replica(doc, name),
            "lasts": SKIPS,
        }
        if visit.by_script and not visit.query.get("live"):
            return _shown(visit, "overview_skip.html", rejected, **form)
        status = await visit.api.get("/v1/status", StatusDoc)
        database = next(one for one in status.databases if one.database == doc.database)
        rows = [row for row in tree(doc) if row.member.member == name]
        about: dict[str, Any] = {
            "row": rows[0],
            "readings": _readings(database, rows[0].member),
            "sparks": await self._hours.sparks(visit, database, rows),
            "facts": facts(rows[0].member, doc),
            "changed": await _audit(visit, (name,), "skip"),
        }
        if visit.by_script:
            return part(visit, "member_now.html", **form, **about)
        return page(
            visit,
            "member.html",
            status=200 if rejected is None else rejected.status,
            rejected=rejected,
            **form,
            **about,
            **chosen_range(visit),
        )


# --- steps --------------------------------------------------------------------------------------


def chosen_range(visit: Visit) -> dict[str, Any]:
    chosen = visit.query.get("range", DEFAULT_RANGE)
    return {"ranges": RANGES, "chosen": chosen if chosen in RANGES else DEFAULT_RANGE}


async def _rejected(visit: Visit, database: str, name: str) -> list[RejectedClient]:
    """Clients that it rejected within the last hour, most first."""
    query = {"since": "1h", "database": database}
    try:
        found = await visit.api.get("/v1/history/clients", ClientsSumsDoc, query)
    except ApiRejected:  # History is away, as the page's top says.
        return []
    return rejected_by(found, name)[:MAX_CLIENTS]


def _readings(database: DatabaseDoc, member: MemberDoc) -> list[MetricRow]:
    rows = metric_rows(database, member.readings, {})
    return [
        replace(row, word="not on this server", tone="")
        if is_without(member, row.now.metric)
        else row
        for row in rows
    ]


async def _audit(visit: Visit, targets: Sequence[str], kind: str) -> list[AuditLine]:
    """What was changed of it, newest first."""
    found = await visit.api.get("/v1/audit", AuditsDoc, {"limit": LOOKED_AT})
    mine = [doc for doc in found.audit if _is_about(doc, targets, kind)]
    return [audit_line(doc, zone()) for doc in mine[:MAX_CHANGES]]


def _is_about(doc: AuditDoc, targets: Sequence[str], kind: str) -> bool:
    named = doc.target in targets or any(doc.target.endswith(f"/{name}") for name in targets)
    return kind in doc.action and named


MAX_CLIENTS, MAX_CHANGES, LOOKED_AT = 12, 10, 500


def _metric_path(visit: Visit) -> str:
    database, metric = in_path(visit.path["database"]), in_path(visit.path["metric"])
    return f"/v1/databases/{database}/metrics/{metric}"


def _page_of(visit: Visit) -> str:
    """The page of the metric or member that was changed."""
    database = in_path(visit.path["database"])
    if "metric" in visit.path:
        return f"/databases/{database}/metrics/{in_path(visit.path['metric'])}"
    return f"/databases/{database}/members/{in_path(visit.path['member'])}"


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


def _counting(doc: DatabaseDoc, view: MetricView) -> MetricDoc:
    """By the metric's own scope: that is what checks are decided by."""
    both = (*doc.metrics, *doc.other_metrics)
    return next((m for m in both if m.metric == view.metric), view.now)


async def _hour(visit: Visit, view: MetricView, name: str, threshold: float) -> HourSeen:
    query = {"database": view.database, "metric": name, "since": "1h"}
    kept = await visit.api.get("/v1/history/metrics", MetricMinutesDoc, query)
    return hour_seen(kept.minutes, threshold, at_least=view.now.comparison == ">=")


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
    """In the dialog, or in its place on a page."""
    status = 200 if rejected is None else rejected.status
    return part(visit, template, status=status, rejected=rejected, **context)


def _done(visit: Visit, template: str, path: str, **context: Any) -> Response:
    if not visit.by_script:
        return moved(visit, path)
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
