"""The overview: what an operator sees first.   GET / ──► PageApi ──► present/status ──► HTML

One part is asked for again every two seconds. What others than the status tell (rules, budgets, who
is starved) is counted less often, and once for all who look: there may be thousands of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.responses import Response

from headgate.agent.ports import Clock
from headgate.http.page.api import Refused
from headgate.http.page.shell import Visit, page, part
from headgate.present.shard import MemberRow, in_short, standing_of, tree, unwatched
from headgate.present.status import (
    DatabaseState,
    MetricRow,
    Tile,
    agent_notes,
    database_state,
    metric_rows,
    tiles_now,
)
from headgate.present.view import Tone
from headgate.present.words import ADVICE, advice_of
from headgate.wire.budgets import PoliciesDoc
from headgate.wire.rules import RulesDoc
from headgate.wire.starvation import RoguesDoc, StarvationDoc
from headgate.wire.status import DatabaseDoc, MetricsDoc, StatusDoc

T = TypeVar("T")
RANGES = ("15m", "1h", "6h", "24h")
DEFAULT_RANGE = "1h"
MORE_S = 10
"""How often the tiles are asked for that thousands of rules may stand behind."""
MAX_ADVICE = 6
"""Of what is not loud; the rest is folded."""


@dataclass(frozen=True, slots=True)
class Shown:
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
            Shown(
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
            "refused": known.refused,
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
            "work unasked", "/clients#rogue", lambda: api.get("/v1/rogues", RoguesDoc), _rogues
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
    except Refused as refused:  # An agent that does not watch for it, or cannot just now.
        return Tile(None, label, "", href, refused.detail)
    return Tile(counted, label, tone, href, why)


def _rules(doc: RulesDoc) -> tuple[int, Tone, str]:
    in_force = [rule for rule in doc.rules if rule.state == "in_force"]
    suspended = sum(rule.state == "suspended" for rule in doc.rules)
    why = f"{suspended} suspended" if suspended else ""
    return len(in_force), "warned" if suspended or doc.refused else "", why


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
    faults = [p.database for p in doc.databases if p.read_fault or p.refusal]
    if faults:
        return len(enforcing), "bad", f"not in force as set on {', '.join(faults[:3])}"
    return len(enforcing), "warned" if full else "", f"{len(full)} full" if full else ""
