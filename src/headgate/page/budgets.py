"""The pages on traffic budgets.   /budgets, /budgets/{database}, /budgets/{database}/{name} …

A database's page tells first whether budgets bite at all, then which of them are full.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from headgate.budgets.api import (
    BudgetDoc,
    PoliciesDoc,
    PolicyDoc,
    StateDoc,
    ViolationsDoc,
)
from headgate.check.api import StatusDoc
from headgate.page.api import ApiRejected
from headgate.page.budgets_changes import (
    BudgetChanges,
    BudgetDrafts,
    budget_path,
    policy_of,
    policy_path,
)
from headgate.page.budgets_chart import chart_of
from headgate.page.changes import revision_made
from headgate.page.shell import POLL_S, Visit, page, part
from headgate.present.budgets import (
    advice_told,
    not_set_up,
    prediction,
    remarks,
    row_of,
    rows_of,
    seconds,
    standing_of,
)

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
            find=find,
            every_s=MANY_POLL_S if policy.budgets_total > MANY else POLL_S,
            slow_s=SLOW_POLL_S,
            done=await revision_made(visit, visit.query.get("done", "")),
            copies=_copies(visit),
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
            standing=standing_of(policy, await _state(visit, database)),
            row=row_of(budget),
            slow_s=SLOW_POLL_S,
            done=await revision_made(visit, visit.query.get("done", "")),
            copies=_copies(visit),
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


def _copies(visit: Visit) -> str:
    """Of a change for a shard: how many of its agents have it."""
    have, of = visit.query.get("have", ""), visit.query.get("of", "")
    is_told = all(one.isdecimal() and len(one) < 5 for one in (have, of)) and of != "0"
    return f"{have} of {of} replicas have a copy." if is_told else ""


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
