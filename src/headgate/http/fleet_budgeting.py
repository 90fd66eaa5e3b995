"""Budgets that are set for the fleet.   Budgeting ──reach──► FleetBudgeting ──► ChangeBook

Answered as a change of one database's policy is. It is in force there, and here, when the agents
that it reaches have heard of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from starlette.requests import Request

from headgate.agent.fleetbook import ChangeBook, NoSuchItem
from headgate.core.fleet import Item
from headgate.core.fleet_change import FleetChange
from headgate.core.reach import Reach, parse_reach
from headgate.errors import Fault, InvalidRequest, InvalidSettings
from headgate.http.fleet import NO_FLEET
from headgate.http.fleet_ruling import REACH
from headgate.http.looking import iso
from headgate.traffic.parse import parse_budget
from headgate.traffic.policy import Mode
from headgate.wire.budgets import (
    BudgetDoc,
    DifferenceDoc,
    PolicyChangeDoc,
    budget_doc,
    state_of,
)
from headgate.wire.changes import difference_docs
from headgate.wire.fleet_reach import reached_doc


def reach_of(request: Request, body: Mapping[str, Any] | None = None) -> Reach | None:
    """As the query says, or the body; None: this agent alone is meant."""
    said = request.query_params.getlist(REACH)
    said += [body[REACH]] if body is not None and body.get(REACH) is not None else []
    if not said:
        return None
    if any(one != said[0] for one in said):
        message = f"reach is {' and '.join(map(repr, said[:3]))}: say one; two are two budgets"
        raise InvalidRequest(message, field=REACH)
    try:
        return parse_reach(said[0])
    except ValueError as error:
        raise InvalidSettings([Fault(REACH, str(error))]) from None


class FleetBudgeting:
    def __init__(self, book: ChangeBook | None) -> None:
        self._given = book

    @property
    def book(self) -> ChangeBook:
        if self._given is None:
            raise InvalidRequest(NO_FLEET, status=409, field=REACH)
        return self._given

    async def budget(self, name: str, reach: Reach, wall_s: float) -> BudgetDoc:
        """As the fleet's store has it, whether or not it is in force here."""
        item = (await self.book.items()).budget(name, reach)
        if item is None or item.value is None:
            raise NoSuchItem(f"the fleet has no budget {name!r} for {reach}")
        return item_doc(item, wall_s)

    async def made(
        self, change: Awaitable[FleetChange], database: str, name: str, reach: Reach, wall_s: float
    ) -> PolicyChangeDoc:
        done = await change
        found = difference_docs(done.changes)
        item = next((one for one in done.items if one.value is not None), None)
        return PolicyChangeDoc(
            database=database,
            revision=done.after_n,
            dry_run=done.dry_run,
            changed=bool(done.changes),
            mode_cap=Mode.ENFORCE.value,
            difference=[DifferenceDoc(d.kind, name, "", None, None, d.line) for d in found],
            difference_total=len(done.changes),
            budget=None if item is None else item_doc(item, wall_s),
            advice=[str(advice) for advice in done.advice],
            published=(),
            reach=str(reach),
            reached=reached_doc(done.reached),
        )


def item_doc(item: Item, wall_s: float) -> BudgetDoc:
    """What servers count of it is for each agent to tell."""
    assert item.value is not None
    budget = parse_budget(item.value, place=f"budget {item.id}")
    return budget_doc(
        budget,
        item.value,
        None,
        buckets=(),
        state=state_of(budget, Mode.ENFORCE, int(wall_s * 1000), None),
        origin="fleet",
        advice=(),
        revision=item.n,
        own_role="",
        wall_s=wall_s,
        when=iso,
        of_fleet=(str(item.reach), item.n),
    )
