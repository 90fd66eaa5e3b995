"""Metrics over HTTP: settings, values, changes.   Control ──► MetricRoutes ──► MetricKeeper

A change reaches this agent alone, or with a reach further (metrics/routes). A dry run shows what a
first probe returns, and what the last hour would have been like.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from headgate.base.declared import iso, settings_schema
from headgate.base.redaction import redacted
from headgate.changes.model import Change
from headgate.changes.state import ChangeMade
from headgate.check.api import MetricsDoc, MetricView, RemovedDoc, WideMetricDoc
from headgate.check.health import Window
from headgate.check.questions import about
from headgate.check.views import Views, hides_file
from headgate.errors import StoreUnavailable
from headgate.history.replay import REPLAYED_MINUTES, ThresholdReplay, replay_threshold
from headgate.http.documents import etag, json_response
from headgate.http.routes import Call, Caller, Plain, Reaching, Route, SettingsBody
from headgate.metrics.model import Builtin, Command, Http, Source, Sql, granularity_s
from headgate.metrics.routes import END_SETTINGS, FOR_TOLD, MetricReaching
from headgate.metrics.service import DatabasePlan, MetricEntry, NoSuchMetric, Proposal
from headgate.metrics.settings import METRIC_SETTINGS
from headgate.rules.settings import ONE_END


class MetricsQuery(msgspec.Struct, frozen=True):
    database: Annotated[str, about("Only this database.")] | None = None


class RemovalQuery(Reaching, frozen=True, rename={"for_": "for"}):
    for_: Annotated[str, about(FOR_TOLD)] | None = None


class MetricRoutes:
    """Handlers, as Control's."""

    def __init__(self, views: Views, reaching: MetricReaching) -> None:
        self._views = views
        self._reaching = reaching

    # --- looking ---------------------------------------------------------------------------

    async def metrics(self, call: Call[MetricsQuery, None]) -> Response:
        book, database = self._views.parts.book, call.query.database
        names = [plan.name for plan in book.databases()]
        if database is not None and database not in names:
            raise NoSuchMetric(f"no database {database!r}; configured: {', '.join(names)}")
        views = [
            self._view(plan, entry)
            for plan in book.databases()
            if database in (None, plan.name)
            for entry in book.database(plan.name).entries.values()
        ]
        faults = [f"{told}: {fault}" for told, fault in book.faults.items()]
        return json_response(MetricsDoc(views, faults))

    async def metric(self, call: Plain) -> Response:
        known = self._views.parts.book.database(call.place("database"))
        view = self._view(known.plan, known.entry(call.place("metric")))
        return json_response(view, headers=etag(view.revision))

    # --- changing --------------------------------------------------------------------------

    async def put_metric(self, call: Call[Reaching, dict[str, Any]]) -> Response:
        return await self._changed(call, "put", call.body)

    async def patch_metric(self, call: Call[Reaching, dict[str, Any]]) -> Response:
        return await self._changed(call, "patch", call.body)

    async def delete_metric(self, call: Call[RemovalQuery, None]) -> Response:
        end = {} if call.query.for_ is None else {"for": call.query.for_}
        return await self._changed(call, "remove", end=end)

    async def revert_metric(self, call: Call[Reaching, None]) -> Response:
        return await self._changed(call, "revert")

    async def _changed(
        self, call: Call[Any, Any], verb: str, *settings: dict[str, Any], **more: Any
    ) -> Response:
        """`verb`: of MetricKeeper, or of WideMetrics where it reaches further."""
        dry_run = call.query.dry_run
        database, metric = call.place("database"), call.place("metric")
        book = await self._reaching.target(call.query.reach, database)
        change = getattr(book, verb)(database, metric, *settings, **call.change, **more)
        made: Proposal | ChangeMade = await change
        if isinstance(made, ChangeMade):
            doc = self._reaching.doc(database, metric, made)
            if dry_run:
                replay = await self.replayed_here(made.items[0])
                doc = msgspec.structs.replace(doc, replay=replay)
            return json_response(doc, headers=etag(doc.revision))
        if made.entry is None:
            return json_response(_removed(database, metric, made))
        view = self._proposed(database, made.entry, made, dry_run=dry_run)
        if dry_run:
            replay = await self._replayed(database, made.entry)
            view = msgspec.structs.replace(view, replay=replay)
        return json_response(view, headers=etag(made.entry.revision))

    def _proposed(
        self, database: str, entry: MetricEntry, made: Proposal, *, dry_run: bool
    ) -> MetricView:
        """A change as it is now; a dry run shows what a first probe of it returned."""
        plan, window = self._views.parts.book.database(database).plan, None
        if dry_run and made.reading is not None:
            window = Window().push(made.reading, keep=1)
        view = self._view(plan, entry, window)
        advice = [*view.advice, *map(str, made.advice)]
        if not plan.in_default(view.metric):
            advice.append(
                f"{database}/{view.metric}: it does not apply to checks that name no metric; name "
                f"it in a check, or add it to default_metrics of {database} in the settings file"
            )
        return msgspec.structs.replace(view, advice=advice)

    async def replayed_here(self, item: Change) -> ThresholdReplay | None:
        """Of a change that reaches further: what it would have done to this agent's checks."""
        here = self._reaching.first_here(item)
        return None if here is None else await self._replayed(*here)

    async def _replayed(self, database: str, entry: MetricEntry) -> ThresholdReplay | None:
        """What it would have done to the checks of the last hour; None: history is away."""
        parts = self._views.parts
        until = int(parts.clock.now().wall_s // 60)
        since = until - REPLAYED_MINUTES + 1
        try:
            await parts.keeper.flush()
            tallies = await parts.store.history.sums(
                (), since_minute=since, until_minute=until, database=database, by_client=False
            )
            values = await parts.store.history.metric_minutes(
                since_minute=since, until_minute=until, database=database
            )
        except StoreUnavailable:
            return None  # A preview, and never a condition.
        return replay_threshold(entry.spec, values, tallies, enabled=entry.enabled)

    def _view(
        self, plan: DatabasePlan, entry: MetricEntry, window: Window | None = None
    ) -> MetricView:
        spec, file = entry.spec, plan.raw_metrics.get(entry.spec.name)
        now = self._views.metric_now(plan.name, entry, window)
        return MetricView(
            database=plan.name,
            metric=spec.name,
            source=_source_name(spec.source),
            origin=entry.origin,
            revision=entry.revision,
            settings=redacted(entry.raw),
            file=None if file is None else redacted(file),
            in_default=plan.in_default(spec.name),
            interval_s=spec.interval_s,
            timeout_s=spec.timeout_s,
            max_age_s=spec.max_age_s,
            granularity_s=granularity_s(
                spec, age_s=(now.age_ms or 0) / 1000, beats_every_s=plan.beats_every_s
            ),
            now=now,
            advice=[*map(str, entry.advice), *hides_file(plan, entry)],
            expires_at=None if entry.expires_at is None else iso(entry.expires_at),
        )


def _removed(database: str, metric: str, made: Proposal) -> RemovedDoc:
    return RemovedDoc(
        database,
        metric,
        removed=not made.dry_run,
        expires_at=None if made.expires_at is None else iso(made.expires_at),
        advice=[str(advice) for advice in made.advice],
    )


def _source_name(source: Source) -> str:
    match source:
        case Builtin():
            return "builtin"
        case Sql():
            return "sql"
        case Http():
            return "url"
        case Command():
            return "command"
        case _:
            return "plugin"


# --- the table -----------------------------------------------------------------------------

_METRIC = "/v1/databases/{database}/metrics/{metric}"
_FAULTS = "settings with faults, all of which are listed: a setting that this metric or this "
_FAULTS += "engine does not have; a probe that failed"


def _metric_schema() -> dict[str, Any]:
    rows = {**METRIC_SETTINGS, **END_SETTINGS}
    return {**settings_schema(rows, nullable=True), **ONE_END}


METRIC_ROUTES = (
    Route(
        "GET", "/v1/metrics", "metrics", "Metrics with settings and values", MetricsDoc,
        query=MetricsQuery, errors=(404,), example={"database": "main"},
        about="Where they were set, and when a change at run time ends (`expires_at`).",
    ),
    Route("GET", _METRIC, "metric", "A metric", MetricView),
    Route(
        "PUT", _METRIC, "put_metric", "Add or replace a metric", (MetricView, WideMetricDoc),
        role=Caller.OPERATOR, query=Reaching, body=SettingsBody(_metric_schema), rejects=_FAULTS,
        example={"dry_run": "true"}, sends={"threshold": "5s", "for": "2h"},
        about="A change that is looser than the file "
        "[ends after 1 h](../howto/custom-metrics.md#changes-that-end) unless the body says "
        'otherwise: `"for": "2h"` or `"expires_at"`, `"never"` for none.',
    ),
    Route(
        "PATCH", _METRIC, "patch_metric", "Change some settings of a metric",
        (MetricView, WideMetricDoc), role=Caller.OPERATOR, query=Reaching,
        body=SettingsBody(_metric_schema), rejects=_FAULTS, example={"dry_run": "true"},
        sends={"threshold": "6s"},
        about="`null` restores a default. Its end stays, unless the body has a new one.",
    ),
    Route(
        "DELETE", _METRIC, "delete_metric", "Remove a metric",
        (RemovedDoc, WideMetricDoc), role=Caller.OPERATOR, query=RemovalQuery,
        rejects="an invalid end", example={"for": "2h", "dry_run": "true"},
        about="A metric of the settings file comes back after 1 h, or after `for`.",
    ),
    Route(
        "POST", f"{_METRIC}/revert", "revert_metric", "Drop what was changed at run time",
        (MetricView, RemovedDoc, WideMetricDoc), role=Caller.OPERATOR, query=Reaching,
        rejects="a change that can no longer be reverted",
        about="The metric is again as the file sets it, or is gone if the file does not have it.",
    ),
)  # fmt: skip
