"""Changes of metrics that reach beyond this agent.   Control ──► MetricReaching ──► WideMetrics

Without a reach: this agent alone. With one: the fleet's log, or where there is none that of a
shard that this agent leads.
"""

from __future__ import annotations

from contextlib import suppress

from headgate.base.declared import Reader, Setting, parse_date_time, parse_for, table
from headgate.base.redaction import redacted
from headgate.changes.book import ChangeBook
from headgate.changes.exchange import Exchange
from headgate.changes.exchange_api import copies_doc
from headgate.changes.model import Change
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Level, Reach, parse_reach
from headgate.changes.state import ChangeMade, ends_at
from headgate.check.api import WideMetricDoc
from headgate.errors import InvalidRequest, InvalidSettings
from headgate.fleet.api import iso, reached_doc
from headgate.fleet.routes import NO_FLEET
from headgate.metrics.drafts import NEVER, MetricEntry, parted_id, patched
from headgate.metrics.reaching import WideMetrics
from headgate.metrics.service import MetricKeeper

REACH = "reach"
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
    def __init__(
        self,
        book: MetricKeeper,
        own: OwnBook | None,
        fleet: ChangeBook | None,
        exchange: Exchange | None,
    ) -> None:
        self._book = book
        self._own = own
        self._fleet = fleet
        self._exchange = exchange

    async def target(self, given: str | None, database: str) -> MetricKeeper | WideMetrics:
        """What makes the change."""
        reach = HERE if given is None else parsed_reach(given)
        if given is not None and self._exchange is not None:
            reach = await self._exchange.lead.reach(reach, [database])
        if reach == HERE:
            return self._book
        if self._fleet is not None:
            return WideMetrics(self._book, self._fleet.make, reach)
        exchange = self._exchange if reach.level is Level.SHARD else None
        if self._own is None or exchange is None or not exchange.lead.has_shard(reach.pattern):
            raise InvalidRequest(NO_FLEET, status=409, field=REACH)
        return WideMetrics(self._book, self._own.make, reach)

    def first_here(self, item: Change) -> tuple[str, MetricEntry] | None:
        """The first of this agent's databases that it changes, and the metric as it would be."""
        said, (database, metric) = item.value or {}, parted_id(item.id)
        for known, ground in self._book.grounds(database, metric, without=item.id):
            if not said.get("settings") or (
                ground.raw is None and item.reach != HERE and not said.get("adds")
            ):
                continue
            beneath = ground.raw or {}
            with suppress(InvalidSettings):
                is_whole = item.reach == HERE
                raw = said["settings"] if is_whole else patched(beneath, said["settings"])
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
            reached=None if self._fleet is None else reached_doc(done.reached),
            copies=copies_doc(done.copies),
        )


def parsed_reach(given: str) -> Reach:
    try:
        return parse_reach(given)
    except ValueError as error:
        raise InvalidRequest(f"{REACH} {error}", field=REACH) from None
