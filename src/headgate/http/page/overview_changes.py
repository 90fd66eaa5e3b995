"""Changes made from the overview: a threshold, a member set aside, a database woken.

GET: the form. POST …/preview: what it would do. POST: done, and how to undo it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from headgate.core.units import parse_amount
from headgate.errors import InvalidRequest
from headgate.http.page.api import Refused, in_path
from headgate.http.page.shell import Visit, moved, page, part
from headgate.http.peering import WokenDoc
from headgate.present.shard import without
from headgate.wire.history import MetricMinuteDoc, MetricMinutesDoc
from headgate.wire.problems import Problem
from headgate.wire.shard import MemberDoc, ShardDoc
from headgate.wire.status import MetricView

CHANGED = "changed"
"""The event that has the live parts ask again at once."""
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
        except (Refused, InvalidRequest) as error:
            return await self._form(visit, refused=as_refused(error))
        return await self._form(visit, preview=proposed)

    async def change(self, visit: Visit) -> Response:
        before = await visit.api.get(_metric_path(visit), MetricView)
        try:
            view = await self._sent(visit, _threshold(visit), dry_run=False)
        except (Refused, InvalidRequest) as error:
            return await self._form(visit, refused=as_refused(error))
        return _done(visit, "overview_changed.html", view=view, before=before)

    async def revert(self, visit: Visit) -> Response:
        before = await visit.api.get(_metric_path(visit), MetricView)
        path = f"{_metric_path(visit)}/revert"
        try:
            view = await visit.api.send("POST", path, MetricView, revision=_revision(visit))
        except (Refused, InvalidRequest) as error:
            return await self._form(visit, refused=as_refused(error))
        return _done(visit, "overview_changed.html", view=view, before=before)

    async def _form(
        self, visit: Visit, preview: MetricView | None = None, refused: Refused | None = None
    ) -> Response:
        """As it stands now: after a refusal it is that which a second try is built on."""
        view = await visit.api.get(_metric_path(visit), MetricView)
        limit = preview.now.threshold if preview is not None else None
        hour = None if limit is None else await _hour(visit, view, limit)
        return _shown(
            visit, "overview_threshold.html", refused, view=view, preview=preview, hour=hour
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
            return await self._form(visit, refused=as_refused(error))
        return await self._form(visit, asked=asked)

    async def aside(self, visit: Visit) -> Response:
        try:
            asked = _skip_asked(visit)
            doc = await visit.api.send("PUT", _skip_path(visit), ShardDoc, asked)
        except (Refused, InvalidRequest) as error:
            return await self._form(visit, refused=as_refused(error))
        return _done(visit, "overview_set_aside.html", shard=doc, member=_member(visit, doc))

    async def count(self, visit: Visit) -> Response:
        try:
            doc = await visit.api.send("DELETE", _skip_path(visit), ShardDoc)
        except Refused as error:
            return await self._form(visit, refused=error)
        return _done(visit, "overview_set_aside.html", shard=doc, member=_member(visit, doc))

    async def wake(self, visit: Visit) -> Response:
        path = f"/v1/databases/{in_path(visit.path['database'])}/wake"
        woken = await visit.api.send("POST", path, WokenDoc, {})
        return _done(visit, "overview_woken.html", woken=woken)

    async def _form(
        self, visit: Visit, asked: dict[str, str] | None = None, refused: Refused | None = None
    ) -> Response:
        doc = await visit.api.get(_shard_path(visit), ShardDoc)
        return _shown(
            visit,
            "overview_aside.html",
            refused,
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
        raise InvalidRequest("say why it is set aside: who comes next will ask", field="reason")
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


def as_refused(error: Refused | InvalidRequest) -> Refused:
    if isinstance(error, Refused):
        return error
    return Refused(error.status, Problem("about:blank", "", error.status, str(error)))


def _shown(visit: Visit, template: str, refused: Refused | None, **context: Any) -> Response:
    """In the dialog, or as a page of its own where there is no script."""
    status = 200 if refused is None else refused.status
    if visit.by_script:
        return part(visit, template, status=status, refused=refused, **context)
    alone = "overview_alone.html"
    return page(visit, alone, status=status, refused=refused, inner=template, **context)


def _done(visit: Visit, template: str, **context: Any) -> Response:
    if not visit.by_script:
        return moved(visit, "/")
    response = part(visit, template, **context)
    response.headers["HX-Trigger"] = CHANGED
    return response
