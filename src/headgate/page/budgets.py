"""The pages on traffic budgets.   /budgets, /budgets/{database}, /budgets/{database}/{name} …

A database's page tells first whether budgets bite at all, then which of them are full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from headgate.budgets.api import BudgetDoc, PoliciesDoc, PolicyDoc, StateDoc, ViolationsDoc
from headgate.check.api import StatusDoc
from headgate.page.api import ApiRejected
from headgate.page.budgets_changes import (
    BudgetChanges,
    BudgetDrafts,
    budget_path,
    policy_of,
    policy_path,
)
from headgate.page.changes import copies_made, revision_made
from headgate.page.shell import POLL_S, Visit, page, part
from headgate.present.budgets import (
    CAPS,
    LIMITS_TOLD,
    advice_told,
    not_set_up,
    prediction,
    remarks,
    row_of,
    rows_of,
    seconds,
    standing_of,
    summary,
    switch_note,
)

# --- violations as bars.   ViolationsDoc ──► Chart ──► templates/budgets_violations.html ---

MAX_SERIES = 6
MINUTE_S, QUARTER_S = 60, 900
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class BarPiece:
    y: float
    height: float
    css: str


@dataclass(frozen=True, slots=True)
class ChartBar:
    x: int
    pieces: Sequence[BarPiece]
    title: str


@dataclass(frozen=True, slots=True)
class ChartSeries:
    css: str
    label: str
    total: int


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in a box of `width` × 100."""

    bars: Sequence[ChartBar]
    series: Sequence[ChartSeries]
    width: int
    top: int
    """What the full height represents."""
    summary: str
    since: str
    until: str


Key = tuple[str, str, str]
_KINDS = ("blocked", "delayed", "warned")
COLOURS = ("b1", "b2", "b3", "w1", "w2", "d1")
"""By the first letter of what they are for, as long as there are enough."""
OTHERS: Key = ("", "", "")
BAR = 10


def chart_of(doc: ViolationsDoc) -> Chart:
    begins, ends = _stamp(doc.since), _stamp(doc.until)
    step_s = MINUTE_S if ends - begins <= 2 * HOUR_S else QUARTER_S
    shown = _series_keys(doc)
    steps: dict[int, dict[Key, int]] = {}
    for one in doc.minutes:
        at = (_stamp(one.at) - begins) // step_s
        key = (one.budget, one.what, one.limit)
        of = steps.setdefault(at, {})
        key = key if key in shown else OTHERS
        of[key] = of.get(key, 0) + one.count
    top = max((sum(of.values()) for of in steps.values()), default=0)
    bars = [_bar(at, of, shown, top, begins + at * step_s) for at, of in sorted(steps.items())]
    width = BAR * -(-(ends - begins) // step_s)
    return Chart(bars, _series(doc, shown), width, top, summary(doc), doc.since, doc.until)


def _series_keys(doc: ViolationsDoc) -> dict[Key, str]:
    totals = _totals(doc)
    most = sorted(totals, key=lambda key: (-totals[key], key))[:MAX_SERIES]
    free = list(COLOURS)
    found = {}
    for key in sorted(most, key=lambda key: (_KINDS.index(key[1]), -totals[key], key)):
        css = next((c for c in free if c[0] == key[1][0]), free[0])
        free.remove(css)
        found[key] = css
    return found


def _totals(doc: ViolationsDoc) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for one in doc.minutes:
        key = (one.budget, one.what, one.limit)
        found[key] = found.get(key, 0) + one.count
    return found


def _series(doc: ViolationsDoc, shown: Mapping[Key, str]) -> list[ChartSeries]:
    totals = _totals(doc)
    told = [ChartSeries(css, label_of(key), totals[key]) for key, css in shown.items()]
    rest = sum(count for key, count in totals.items() if key not in shown)
    return [*told, ChartSeries("rest", "all others", rest)] if rest else told


def _bar(
    at: int, of: Mapping[Key, int], shown: Mapping[Key, str], top: int, stamp: int
) -> ChartBar:
    pieces, y = [], 100.0
    for key in [*shown, OTHERS]:
        if count := of.get(key, 0):
            height = count * 100 / top
            y -= height
            pieces.append(BarPiece(round(y, 2), round(height, 2), shown.get(key, "rest")))
    told = ", ".join(f"{label_of(key)} {count:,}" for key, count in of.items())
    clock = f"{stamp // 3600 % 24:02d}:{stamp // 60 % 60:02d}"
    return ChartBar(at * BAR, pieces, f"{clock} {told}")


def label_of(key: Key) -> str:
    if key == OTHERS:
        return "all others"
    budget, what, limit = key
    by = LIMITS_TOLD.get(limit, limit)
    return f"{budget}: {what}{by and f' by {by}'}"


def _stamp(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp())


# --- the pages -----------------------------------------------------------------------------


MAX_ROWS = 100
MAX_NAMED = 5
"""Of each database, where all of them are listed."""
MANY = 500
MANY_POLL_S = 15
SLOW_POLL_S = 10
MAX_STATEMENTS = 30
SPANS = ("1h", "24h")
_ORDER = ("bad", "warned", "good", "")
"""What needs an operator comes first."""


class BudgetsPage(BudgetDrafts, BudgetChanges):
    routes = (
        ("GET", "/budgets", "page"),
        ("GET", "/budgets/{database}", "database"),
        ("GET", "/budgets/{database}/state", "statements"),
        ("GET", "/budgets/{database}/violations", "violations"),
        *BudgetDrafts.draft_routes,
        *BudgetChanges.change_routes,
        ("GET", "/budgets/{database}/{name}", "budget"),
        # For a budget that is called `new`, as a page is.
        ("GET", "/budgets/{database}/{name}/now", "budget"),
    )

    async def page(self, visit: Visit) -> Response:
        status = await visit.api.get("/v1/status", StatusDoc)
        policies = {one.database: one for one in (await _policies(visit)).databases}
        found: list[dict[str, Any]] = []
        for database in status.databases:
            policy = policies.get(database.database)
            found.append(await self._card(visit, database.database, database.engine, policy))
        found.sort(key=lambda card: (_ORDER.index(card["standing"].tone), card["database"]))
        return _answered(visit, "budgets.html", "budgets_databases.html", cards=found)

    async def _card(
        self, visit: Visit, database: str, engine: str, policy: PolicyDoc | None
    ) -> dict[str, Any]:
        if policy is None:
            standing = not_set_up(database, engine)
            return {"database": database, "standing": standing, "rows": [], "policy": None}
        state = await _state(visit, database)
        rows = rows_of(policy.budgets)
        standing = standing_of(policy, state)
        return {"database": database, "standing": standing, "rows": rows, "policy": policy}

    async def database(self, visit: Visit) -> Response:
        database, find = visit.path["database"], visit.query.get("find", "").strip()
        try:
            policy = await policy_of(visit, database, MAX_ROWS, find)
        except ApiRejected as rejected:
            return await self._not_set_up(visit, database, rejected)
        state = await _state(visit, database)
        return _answered(
            visit,
            "budgets_database.html",
            "budgets_policy.html",
            database=database,
            policy=policy,
            state=state,
            standing=standing_of(policy, state),
            remarks=list(remarks(policy)),
            rows=rows_of(policy.budgets),
            left_out=policy.budgets_total - len(policy.budgets),
            caps=CAPS,
            switch_note=switch_note,
            find=find,
            every_s=MANY_POLL_S if policy.budgets_total > MANY else POLL_S,
            slow_s=SLOW_POLL_S,
            done=await revision_made(visit, visit.query.get("done", "")),
            copies=copies_made(visit),
            seconds=seconds,
        )

    async def _not_set_up(self, visit: Visit, database: str, rejected: ApiRejected) -> Response:
        status = await visit.api.get("/v1/status", StatusDoc)
        engines = {one.database: one.engine for one in status.databases}
        if rejected.status != 404 or database not in engines:
            raise rejected
        standing = not_set_up(database, engines[database])
        return page(visit, "budgets_without.html", database=database, standing=standing)

    async def budget(self, visit: Visit) -> Response:
        database, name = visit.path["database"], visit.path["name"]
        try:
            budget = await visit.api.get(budget_path(database, name), BudgetDoc)
        except ApiRejected as rejected:
            if rejected.status != 404 or not visit.by_script:
                raise
            return part(visit, "budgets_one_gone.html", database=database, name=name)
        policy = await policy_of(visit, database, 0)
        return _answered(
            visit,
            "budgets_one.html",
            "budgets_one_now.html",
            database=database,
            policy=policy,
            switch_note=switch_note,
            standing=standing_of(policy, await _state(visit, database)),
            row=row_of(budget),
            slow_s=SLOW_POLL_S,
            done=await revision_made(visit, visit.query.get("done", "")),
            copies=copies_made(visit),
            seconds=seconds,
            advised=advice_told,
        )

    async def statements(self, visit: Visit) -> Response:
        database = visit.path["database"]
        state = await visit.api.get(f"{policy_path(database)}/state", StateDoc)
        total_ms = sum(pattern.cpu_total_ms for pattern in state.patterns)
        return _answered(
            visit,
            "budgets_statements_page.html",
            "budgets_statements.html",
            database=database,
            state=state,
            patterns=state.patterns[:MAX_STATEMENTS],
            total_ms=total_ms,
            prediction=prediction,
            seconds=seconds,
            slow_s=SLOW_POLL_S,
        )

    async def violations(self, visit: Visit) -> Response:
        database, budget = visit.path["database"], visit.query.get("budget", "")
        since = visit.query.get("since", "1h")
        since = since if since in SPANS else SPANS[0]
        query = {"since": since, "budget": budget}
        doc = await visit.api.get(f"{policy_path(database)}/violations", ViolationsDoc, query)
        return _answered(
            visit,
            "budgets_violations_page.html",
            "budgets_violations.html",
            database=database,
            chart=chart_of(doc),
            doc=doc,
            fault=_fault(await _state(visit, database)),
            since=since,
            spans=SPANS,
            budget=budget,
            slow_s=SLOW_POLL_S,
        )


def _answered(visit: Visit, whole: str, live: str, **context: Any) -> Response:
    """To a script that polls, only what changes; `whole` includes it."""
    if visit.by_script:
        return part(visit, live, **context)
    return page(visit, whole, **context)


async def _policies(visit: Visit) -> PoliciesDoc:
    try:
        return await visit.api.get("/v1/budgets", PoliciesDoc, {"most": MAX_NAMED})
    except ApiRejected as rejected:
        if rejected.status == 404:  # This agent keeps none.
            return PoliciesDoc(())
        raise


async def _state(visit: Visit, database: str) -> StateDoc | None:
    """None where no server is read."""
    try:
        path = f"{policy_path(database)}/state"
        return await visit.api.get(path, StateDoc, {"statements": False})
    except ApiRejected:
        return None


def _fault(state: StateDoc | None) -> str | None:
    """Why nothing is counted just now."""
    return "no server is read" if state is None else state.fault
