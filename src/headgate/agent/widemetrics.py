"""Metrics that reach beyond this agent.

operators ──WideMetrics──► WideDrafts ──► the fleet's log, or that of a shard ──follow──► MetricBook
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headgate.agent.metricbook import MetricBook
from headgate.agent.metricdrafts import ANY, Wish, parted
from headgate.agent.ownitems import Make
from headgate.agent.widedrafts import WideDrafts
from headgate.core.fleet_change import FleetChange
from headgate.core.names import parse_database, parse_metric
from headgate.core.reach import Reach


class WideMetrics:
    """For one change: to a log, with a reach."""

    def __init__(self, book: MetricBook, make: Make, reach: Reach) -> None:
        self._book = book
        self._drafts = WideDrafts(book.drafts)
        self._make = make
        self._reach = reach

    async def put(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> FleetChange:
        """Add the metric where there is none, and patch it where there is. As MetricBook.put."""
        return await self._set(database, metric, raw, expect, who, dry_run, whole=True)

    async def patch(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> FleetChange:
        """Change some settings, wherever there is such a metric."""
        return await self._set(database, metric, raw, expect, who, dry_run, whole=False)

    async def remove(
        self,
        database: str,
        metric: str,
        *,
        end: Mapping[str, Any] = MappingProxyType({}),
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> FleetChange:
        wish = self._wish(database, metric, expect, parted(end, self._book.wall_s)[1])
        return await self._make(
            lambda held, asked: self._drafts.remove(held, asked, wish), who, dry_run=dry_run
        )

    async def revert(
        self,
        database: str,
        metric: str,
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> FleetChange:
        """Take out what was set with this reach: what lies beneath is in force again."""
        wish = self._wish(database, metric, expect)
        return await self._make(
            lambda held, asked: self._drafts.revert(held, asked, wish), who, dry_run=dry_run
        )

    async def _set(
        self,
        database: str,
        metric: str,
        raw: Mapping[str, Any],
        expect: int | None,
        who: str,
        dry_run: bool,
        *,
        whole: bool,
    ) -> FleetChange:
        settings, end = parted(raw, self._book.wall_s)
        wish = self._wish(database, metric, expect, end, keeps_end=not whole)
        grounds = self._book.grounds(wish.database, wish.metric, without=wish.id)
        return await self._make(
            lambda held, asked: self._drafts.set(held, asked, wish, settings, grounds, whole=whole),
            who,
            dry_run=dry_run,
        )

    def _wish(
        self,
        database: str,
        metric: str,
        expect: int | None,
        end: float | None = None,
        *,
        keeps_end: bool = False,
    ) -> Wish:
        named = database if database == ANY else parse_database(database)
        return Wish(named, parse_metric(metric), expect, end, keeps_end, self._reach)
