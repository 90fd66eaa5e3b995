"""What every change of a budget from the page asks the API, and shows.

control ──► tried (dry run), replay_of ──► Confirmation ──(confirmed)──► made ──► done_path
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from starlette.responses import Response

from headgate.http.page.api import PageApi, Refused, in_path
from headgate.http.page.shell import Visit, moved, page, part
from headgate.present.budgets import advice_told
from headgate.present.words import age
from headgate.wire.budget_replay import BudgetReplayDoc, BudgetReplayRowDoc
from headgate.wire.budgets import BudgetDoc, PolicyChangeDoc, PolicyDoc

MAX_CLIENTS = 5


@dataclass(frozen=True, slots=True)
class Replay:
    """What it would have done, or why nobody knows."""

    fault: str = ""
    statements: float = 0.0
    refused: float = 0.0
    warned: float = 0.0
    delayed: float = 0.0
    error: float = 0.0
    cpu_before_s: float = 0.0
    span_s: float = 0.0
    clients: Sequence[BudgetReplayRowDoc] = ()
    notes: Sequence[str] = ()

    @property
    def span(self) -> str:
        return age(self.span_s)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What is shown before something is changed."""

    title: str
    action: str
    button: str
    words: Sequence[str] = ()
    change: PolicyChangeDoc | None = None
    replay: Replay | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    is_danger: bool = False
    back: str = ""


# --- asking the API -----------------------------------------------------------------------------


def policy_path(database: str) -> str:
    return f"/v1/budgets/{in_path(database)}"


async def policy_of(visit: Visit, database: str, most: int, find: str = "") -> PolicyDoc:
    """With the most urgent of its budgets: there may be ten thousand."""
    return await visit.api.get(policy_path(database), PolicyDoc, {"most": most, "find": find})


def budget_path(database: str, name: str) -> str:
    return f"{policy_path(database)}/{in_path(name)}"


async def replay_of(api: PageApi, database: str, budget: Mapping[str, Any]) -> Replay:
    """Of the last hour, for that budget alone."""
    body = {"budget": dict(budget), "since_s": 3600}
    try:
        doc = await api.send("POST", f"{policy_path(database)}/replay", BudgetReplayDoc, body)
    except Refused as refused:
        return Replay(fault="; ".join((refused.detail, *refused.faults)))
    name = str(budget["name"])
    mine = [row for row in doc.clients if row.budget == name]
    return Replay(
        statements=sum(row.sums.statements for row in mine),
        refused=sum(row.sums.refused for row in mine),
        warned=sum(row.sums.warned for row in mine),
        delayed=sum(row.sums.delayed for row in mine),
        error=doc.total.error,
        cpu_before_s=sum(row.sums.cpu_before_s for row in mine),
        span_s=_span_s(doc),
        clients=mine[:MAX_CLIENTS],
        notes=doc.notes,
    )


def _span_s(doc: BudgetReplayDoc) -> float:
    begins, ends = datetime.fromisoformat(doc.since), datetime.fromisoformat(doc.until)
    return (ends - begins).total_seconds()


def done_path(database: str, name: str, change: PolicyChangeDoc) -> str:
    """Where to go after a change: what became of it is told there."""
    where = f"/budgets/{in_path(database)}"
    where += f"/{in_path(name)}" if name and change.budget is not None else ""
    return f"{where}?done={change.revision}"


# --- steps --------------------------------------------------------------------------------------


def place(visit: Visit) -> tuple[str, str]:
    return visit.path["database"], visit.path["name"]


def of_fleet(budget: BudgetDoc) -> list[str]:
    if budget.reach is None:
        return []
    if budget.origin == "shard":
        return [f"It is set for {budget.reach}: this changes it at every agent of the shard."]
    return [
        f"The fleet has set it, for {budget.reach}: this changes it at this agent alone. "
        "`headgate budget set all` with that reach changes it for all of them."
    ]


def is_confirmed(visit: Visit) -> bool:
    return visit.form.get("step") == "make"


async def tried(
    visit: Visit, method: str, path: str, body: Mapping[str, Any] | None = None
) -> PolicyChangeDoc:
    return await visit.api.send(method, path, PolicyChangeDoc, body, query={"dry_run": True})


async def made(
    visit: Visit,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    name: str = "",
) -> Response:
    raw = visit.form.get("revision", "")
    revision = int(raw) if raw.isdecimal() and len(raw) <= 18 else None
    new = method == "PUT"  # Built on there being none.
    change = await visit.api.send(method, path, PolicyChangeDoc, body, revision=revision, new=new)
    return moved(visit, done_path(change.database, name, change))


def asked(visit: Visit, confirm: Confirmation) -> Response:
    if visit.by_script:
        return part(
            visit, "budgets_confirm.html", confirm=confirm, in_dialog=True, advised=advice_told
        )
    return page(
        visit, "budgets_confirm_page.html", confirm=confirm, in_dialog=False, advised=advice_told
    )
