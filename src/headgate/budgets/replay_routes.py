"""Replay over HTTP.   Control ──► BudgetReplay ──► TraceMemory ──► counterfactual (in a thread)"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from headgate.base.declared import iso, unknown
from headgate.base.ports import Clock
from headgate.budgets.api import MAX_DIFFERENCES
from headgate.budgets.consequences import BY_KEYS, ReplayOutcome
from headgate.budgets.counterfactual import (
    HOUR_S,
    MINUTE_S,
    ReplayServer,
    counterfactual,
    newest_within,
)
from headgate.budgets.difference import differences
from headgate.budgets.layers import EditionChange, exempting
from headgate.budgets.policy import Mode, Policy, is_tag
from headgate.budgets.replay_api import (
    MAX_ROWS,
    BudgetReplayBody,
    BudgetReplayDoc,
    client_docs,
    step_docs,
    tally_doc,
)
from headgate.budgets.service import Budgets, Controlled
from headgate.budgets.traces import Trace, thinned
from headgate.budgets.tracing import TraceMemory
from headgate.budgets.views import MAX_LOOKS, MAX_PLAYED, NO_TRACES, replayed
from headgate.changes.api import Log
from headgate.changes.logs import NO_FLEET, NO_LOGS, ChangeLogs
from headgate.changes.model import OURSELVES
from headgate.errors import InvalidRequest
from headgate.http.documents import json_response
from headgate.http.routes import Call, Route

MAX_S = 50.0
"""A little less than the command line waits, so that it can show the cause."""


@dataclass(frozen=True, slots=True)
class ReplayInput:
    policy: Policy
    stage: ReplayServer
    traces: Sequence[Trace]
    notes: tuple[str, ...]


class BudgetReplay:
    """A handler, as Control's."""

    def __init__(self, budgets: Budgets | None, clock: Clock, logs: ChangeLogs = NO_LOGS) -> None:
        self._budgets = budgets
        self._clock = clock
        self._logs = logs
        self._free = asyncio.Semaphore(1)

    async def replay(self, call: Call[None, BudgetReplayBody]) -> Response:
        if self._budgets is None:
            raise InvalidRequest("this agent keeps no budgets", status=404)
        controlled, body = self._budgets.of(call.place("database")), call.body
        _check(body)
        memory = controlled.traces
        if memory is None:
            raise InvalidRequest(NO_TRACES.format(controlled.plan.database), status=404)
        change = await self._judged(controlled, body)
        wanted = self._wanted(controlled, memory, change, body)
        try:
            async with asyncio.timeout(MAX_S), self._free:
                doc = await asyncio.to_thread(_played, controlled, change, wanted)
        except TimeoutError:
            message = f"replaying took longer than {MAX_S:g} s; ask for less (--since 10m)"
            raise InvalidRequest(message, status=503) from None
        return json_response(doc)

    async def _judged(self, controlled: Controlled, body: BudgetReplayBody) -> EditionChange:
        """As a change would be, with the same faults; nothing changes."""
        book = controlled.book
        if body.changes is not None:
            log = self._logs.own if body.log is Log.AGENT else self._logs.fleet
            if log is None or self._budgets is None:
                raise InvalidRequest(NO_FLEET, status=409, field="log")
            made = await log.apply(body.changes, who=OURSELVES, dry_run=True)
            return await self._budgets.tried(book.database, made.items)
        if body.budget is not None:
            name = body.budget.get("name")
            if not isinstance(name, str):
                raise InvalidRequest("the budget has no name", status=422, field="budget.name")
            return await book.set_budget(name, body.budget, who=OURSELVES, dry_run=True)
        return await book.judge(
            body.policy if body.policy is not None else controlled.edition.document
        )

    def _wanted(
        self,
        controlled: Controlled,
        memory: TraceMemory,
        change: EditionChange,
        body: BudgetReplayBody,
    ) -> ReplayInput:
        wall_ms = int(self._clock.now().wall_s * 1000)
        since_ms = wall_ms - int(body.since_s * 1000)
        step_s = body.step_s or (MINUTE_S if body.since_s <= HOUR_S else HOUR_S)
        stage = replayed(controlled, tuple(body.by), step_s)
        traces = memory.since(since_ms)
        policy = exempting(change.after.policy, change.after.own_role)
        return ReplayInput(policy, stage, traces, tuple(_notes(memory, change, since_ms)))


def _check(body: BudgetReplayBody) -> None:
    given = [one for one in (body.policy, body.budget, body.changes) if one is not None]
    if len(given) > 1:
        message = "give one of policy, budget and changes"
        raise InvalidRequest(message, status=422, field="budget")
    for key in body.by:
        if key not in BY_KEYS and not is_tag(key):
            raise InvalidRequest(f"by: {unknown(key, (*BY_KEYS, 'tag.NAME'))}", field="by")


def _notes(memory: TraceMemory, change: EditionChange, since_ms: int) -> list[str]:
    notes = []
    if memory.since_ms is None or memory.since_ms > since_ms:
        began = "not yet" if memory.since_ms is None else iso(memory.since_ms / 1000)
        notes.append(f"Traces are kept since {began}: of what was before, nothing is known.")
    if memory.fault:
        notes.append(f"No newer traces come: {memory.fault}.")
    if memory.lost_total:
        notes.append(f"{memory.lost_total:,} traces were lost before they could be read.")
    cap = change.before.mode_cap
    if cap is not Mode.ENFORCE:
        notes.append(f"No budget goes beyond {cap.value} now: replayed as if that were lifted.")
    return notes


# --- in a thread --------------------------------------------------------------------------------


def _played(controlled: Controlled, change: EditionChange, wanted: ReplayInput) -> BudgetReplayDoc:
    now = change.before
    known = newest_within(wanted.traces, wanted.policy, MAX_LOOKS)
    known = newest_within(known, now.policy, MAX_LOOKS)
    traces = thinned(known, MAX_PLAYED)
    outcome = counterfactual(traces, wanted.policy, wanted.stage)
    in_force = counterfactual(traces, now.in_force(outcome.until_ms), wanted.stage)
    found = differences(now.policy, wanted.policy)
    clients, steps = client_docs(outcome), step_docs(outcome, iso)
    return BudgetReplayDoc(
        database=controlled.plan.database,
        since=iso(outcome.since_ms / 1000),
        until=iso(outcome.until_ms / 1000),
        step_s=wanted.stage.step_s,
        by=wanted.stage.by,
        traces=outcome.traces,
        total=tally_doc(outcome.total),
        in_force=tally_doc(in_force.total),
        clients=clients[:MAX_ROWS],
        more_clients=max(0, len(clients) - MAX_ROWS),
        steps=steps[-MAX_ROWS:],
        more_steps=max(0, len(steps) - MAX_ROWS),
        difference=found[:MAX_DIFFERENCES],
        difference_total=len(found),
        notes=[*wanted.notes, *_left_out(wanted, known, outcome), *outcome.notes],
    )


def _left_out(wanted: ReplayInput, known: Sequence[Trace], outcome: ReplayOutcome) -> list[str]:
    if len(known) == len(wanted.traces):
        return []
    left = len(wanted.traces) - len(known)
    return [
        f"{left:,} older traces are left out: with so many rules they would take too long; it "
        f"begins at {iso(outcome.since_ms / 1000)}."
    ]


REPLAY_ROUTES = (
    Route(
        "POST", "/v1/budgets/{database}/replay", "replay", "What another policy would have changed",
        BudgetReplayDoc, body=BudgetReplayBody, errors=(503,),
        rejects="more than one of policy, budget and changes, or faults, all of which are listed",
        sends={"budget": {"name": "exports", "rate": 10}, "since_s": 3600, "by": ["username"]},
        about="Or `policy`, a whole one, or `changes`, a file: "
        "[replay](../howto/budget-replay.md).",
    ),
)  # fmt: skip
