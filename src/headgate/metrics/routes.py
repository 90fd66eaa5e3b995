"""Changes of metrics that reach beyond this agent.   Control ──► MetricReaching ──► WideMetrics

Without a reach: this agent alone. With one: the fleet's log, or where there is none that of a
shard that this agent leads.
"""

from __future__ import annotations

from contextlib import suppress

from headgate.base.declared import Reader, Setting, iso, parse_date_time, parse_for, table
from headgate.base.redaction import redacted
from headgate.changes.exchange_api import copies_doc
from headgate.changes.logs import ChangeLogs, parsed_reach
from headgate.changes.model import Change
from headgate.changes.reach import HERE
from headgate.changes.state import ChangeMade, ends_at
from headgate.check.api import WideMetricDoc
from headgate.errors import InvalidSettings
from headgate.fleet.api import reached_doc
from headgate.metrics.drafts import NEVER, MetricEntry, parted_id, patched
from headgate.metrics.reaching import WideMetrics
from headgate.metrics.service import MetricKeeper

FOR_TOLD = (
    "How long: 90s, 30m, 2h, 7d, or never; then the settings file decides again. Default: 1h for "
    "a change that is looser than the file, else never."
)
_NEVER = {"const": NEVER}
END_SETTINGS = table(
    (
        Setting("for", FOR_TOLD, Reader(parse_for, {"anyOf": [parse_for.schema, _NEVER]})),
        Setting(
            "expires_at",
            "Instead of for: until when, for example 2024-05-17T16:00:00Z.",
            Reader(parse_date_time, {"anyOf": [parse_date_time.schema, _NEVER]}),
        ),
    )
)
"""What a change may have besides the metric's settings."""


class MetricReaching:
    def __init__(self, book: MetricKeeper, logs: ChangeLogs) -> None:
        self._book = book
        self._logs = logs

    async def target(self, given: str | None, database: str) -> MetricKeeper | WideMetrics:
        """What makes the change."""
        reach = HERE
        if given is not None:
            reach = await self._logs.reach(parsed_reach(given), database)
        if reach == HERE:
            return self._book
        return WideMetrics(self._book, self._logs.book(reach).make, reach)

    def first_here(self, item: Change) -> tuple[str, MetricEntry] | None:
        """The first of this agent's databases that it changes, and the metric as it would be."""
        said, (database, metric) = item.value or {}, parted_id(item.id)
        for known, ground in self._book.grounds(database, metric, without=item.id):
            settings, beneath, now = (
                said.get("settings"),
                ground.raw or {},
                known.entries.get(metric),
            )
            if settings and (ground.raw is not None or item.reach == HERE or said.get("adds")):
                raw = settings if item.reach == HERE else patched(beneath, settings)
            elif item.value is None and ground.raw is not None:
                raw = beneath  # It is again as without the change.
            elif settings is None and now is not None:
                raw = beneath = {**now.raw, "enabled": False}
            else:
                continue
            with suppress(InvalidSettings):
                return known.plan.name, self._book.drafts.validated(known, metric, raw, beneath)
        return None

    def doc(self, database: str, metric: str, done: ChangeMade) -> WideMetricDoc:
        item = done.items[0]
        settings = (item.value or {}).get("settings")
        end_s = ends_at(item)
        return WideMetricDoc(
            database=database,
            metric=metric,
            reach=str(item.reach),
            state="reverted" if item.value is None else "set" if settings else "removed",
            settings=redacted(settings or {}),
            revision=item.n,
            dry_run=done.dry_run,
            expires_at=None if end_s is None else iso(end_s),
            advice=[str(advice) for advice in done.advice],
            reached=None if self._logs.fleet is None else reached_doc(done.reached),
            copies=copies_doc(done.copies),
        )
