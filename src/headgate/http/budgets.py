"""Budgets over HTTP.   Control ──► Budgeting ──► PolicyKeeper: of a database, at this agent
                                       └──reach──► ChangeBook: those that reach further

Both are answered alike. One that reaches further is in force, here too, when the agents that it
reaches have heard of it.
"""

from __future__ import annotations

import re
from asyncio import to_thread
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.budgets import Budgets, Controlled
from headgate.agent.changebook import ChangeBook, NoSuchItem
from headgate.agent.policykeeper import Change, Edition
from headgate.agent.ports import Clock, Store
from headgate.core.change import Item
from headgate.core.change_log import ChangeMade
from headgate.core.reach import HERE, Reach, parse_reach
from headgate.core.settings import one_of
from headgate.errors import Fault, InvalidRequest, InvalidSettings
from headgate.http.auth import Gatekeeper
from headgate.http.budget_views import Pick, budget_docs, change_doc, explained, policy_doc
from headgate.http.changes import etag, expected_revision, is_dry_run
from headgate.http.documents import UnderWay, json_response, parse_duration, strict_object
from headgate.http.fleet import NO_FLEET
from headgate.http.fleet_ruling import REACH
from headgate.http.looking import Turns, iso, json_in_thread
from headgate.http.statement_views import statements_known
from headgate.traffic.difference import differences
from headgate.traffic.parse import parse_budget, parse_policy
from headgate.traffic.policy import Mode
from headgate.wire.budgets import (
    BudgetDoc,
    CapBody,
    DifferenceDoc,
    ExplainStatementBody,
    LintDoc,
    PoliciesDoc,
    PolicyChangeDoc,
    RevisionsDoc,
    RevisionWholeDoc,
    RollbackBody,
    budget_doc,
    difference_docs,
    revision_doc,
    state_doc,
    state_of,
    violations_doc,
)
from headgate.wire.changes import difference_docs as item_difference_docs
from headgate.wire.fleet_reach import reached_doc

T = TypeVar("T")
MAX_MINUTES_READ = 50_000
_LIMIT = re.compile(r"[0-9]{1,4}")
_REVISION = re.compile(r"[0-9]{1,18}")
MAX_FIND_CHARS = 200
MAX_REVISION = 2**63 - 1


class Budgeting:
    """Handlers, as Control's."""

    def __init__(
        self,
        budgets: Budgets | None,
        store: Store,
        clock: Clock,
        gatekeeper: Gatekeeper,
        fleet: ChangeBook | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._given = budgets
        self._store = store
        self._clock = clock
        self._gatekeeper = gatekeeper
        self._given_fleet = fleet
        self._under_way = UnderWay()
        self._turns = turns or Turns()

    # --- looking ---------------------------------------------------------------------------

    async def policies(self, request: Request) -> Response:
        now, health_of, pick = self._now(), self._budgets.health_of, _pick(request)
        each = [(one, health_of(name)) for name, one in sorted(self._budgets.by_database.items())]
        return await json_in_thread(
            lambda: PoliciesDoc([policy_doc(one, healthy, now, pick) for one, healthy in each])
        )

    async def policy(self, request: Request) -> Response:
        controlled = self._controlled(request)
        healthy, now = self._budgets.health_of(controlled.plan.database), self._now()
        pick = _pick(request)
        response = await json_in_thread(lambda: policy_doc(controlled, healthy, now, pick))
        response.headers.update(etag(controlled.book.edition.revision))
        return response

    async def budget(self, request: Request) -> Response:
        name, reach = request.path_params["name"], _reach_of(request)
        if reach != HERE:
            # As the log has it, whether or not it is in force here.
            item = (await self._fleet.items()).budget(name, reach)
            if item is None or item.value is None:
                raise NoSuchItem(f"the fleet has no budget {name!r} for {reach}")
            return json_response(_item_doc(item, self._now()), headers=etag(item.n))
        controlled = self._controlled(request)
        controlled.book.raw(name)
        doc = self._one(controlled, controlled.book.edition, name)
        return json_response(doc, headers=etag(controlled.book.edition.revision))

    async def state(self, request: Request) -> Response:
        controlled, brief = self._controlled(request), _is_brief(request)
        watch, now = controlled.watch, self._clock.now()
        published = [o.published for o in controlled.publisher.outlets if o.published]
        read_at = watch.read_at if watch else None
        return await json_in_thread(
            lambda: state_doc(
                controlled.plan.database,
                watch.readings if watch else None,
                read_s_ago=None if read_at is None else now.mono_s - read_at.mono_s,
                fault=watch.fault if watch else NO_DIRECTORY,
                wanted_version=max((one.version for one in published), default=None),
                when=iso,
                known=None
                if brief
                else lambda shown: statements_known(controlled, shown, now.wall_s),
            )
        )

    async def history(self, request: Request) -> Response:
        book, limit = self._controlled(request).book, _limit(request)
        current = book.edition.revision
        found = [revision_doc(kept, current, iso) for kept in await book.history(limit)]
        return json_response(RevisionsDoc(book.database, found))

    async def revision(self, request: Request) -> Response:
        book, asked = self._controlled(request).book, request.path_params["revision"]
        if not _REVISION.fullmatch(asked):
            raise InvalidRequest(f"revision is {asked!r}, must be a number", field="revision")
        then = await book.at_revision(int(asked))
        now = book.edition

        def whole() -> RevisionWholeDoc:
            found = differences(parse_policy(then.document), now.policy)
            about = revision_doc(then.about, now.revision, iso)
            docs = difference_docs(found)
            return RevisionWholeDoc(book.database, about, then.document, docs, len(found))

        return await json_in_thread(whole)

    async def violations(self, request: Request) -> Response:
        database = self._controlled(request).plan.database
        since_s = parse_duration(request.query_params.get("since", "1h"), "since")
        await self._budgets.flush()
        until = int(self._now() // 60)
        since = max(0, int((self._now() - since_s) // 60))
        async with self._turns.look(request):
            found = await self._store.budget_minutes(
                since_minute=since,
                until_minute=until,
                database=database,
                budget=request.query_params.get("budget", ""),
                limit=MAX_MINUTES_READ,
            )
        span = (iso(since * 60), iso((until + 1) * 60))
        whole = len(found) < MAX_MINUTES_READ
        return await json_in_thread(
            lambda: violations_doc(database, found, span, whole=whole, when=iso)
        )

    async def explain(self, request: Request) -> Response:
        controlled = self._controlled(request)
        body = await _typed(request, ExplainStatementBody)
        healthy, wall_ms = self._budgets.health_of(controlled.plan.database), int(self._now() * 1e3)
        return json_response(await to_thread(explained, controlled, body, healthy, wall_ms))

    async def lint(self, request: Request) -> Response:
        controlled = self._controlled(request)
        change = await controlled.book.judge(await strict_object(request))

        def judged() -> LintDoc:
            after = change.after
            found = change.differences
            return LintDoc(
                budgets=len(after.policy.budgets),
                rules=sum(len(budget.rules) for budget in after.policy.budgets),
                advice=[str(advice) for advice in after.advice],
                difference=difference_docs(found),
                difference_total=len(found),
            )

        return await json_in_thread(judged)

    # --- changing --------------------------------------------------------------------------

    async def put_policy(self, request: Request) -> Response:
        kw, controlled = self._change_of(request), self._controlled(request)
        body = await strict_object(request)
        return await self._changed(controlled, controlled.book.put(body, **kw))

    async def cap(self, request: Request) -> Response:
        kw, controlled = self._change_of(request), self._controlled(request)
        mode = _mode((await _typed(request, CapBody)).mode_cap)
        return await self._changed(controlled, controlled.book.cap(mode, **kw))

    async def put_budget(self, request: Request) -> Response:
        kw = self._change_of(request, REACH)
        name, body = request.path_params["name"], await strict_object(request)
        new = request.headers.get("if-none-match", "").strip() == "*"
        given = {key: value for key, value in body.items() if value is not None}
        reach = _reach_of(request, given)
        given.pop(REACH, None)
        if reach != HERE:
            setting = self._fleet.set_budget(name, given, reach=reach, new=new, **kw)
            return await self._changed_for_fleet(request, setting, reach)
        controlled = self._controlled(request)
        was_there = controlled.book.edition.budget(name) is not None
        change = controlled.book.set_budget(name, given, new=new, **kw)
        created = not was_there and not kw["dry_run"]
        return await self._changed(controlled, change, name, created=created)

    async def patch_budget(self, request: Request) -> Response:
        kw = self._change_of(request, REACH)
        name, body = request.path_params["name"], await strict_object(request)
        reach = _reach_of(request, body)
        given = {key: value for key, value in body.items() if key != REACH}
        if reach != HERE:
            patching = self._fleet.patch_budget(name, given, reach=reach, **kw)
            return await self._changed_for_fleet(request, patching, reach)
        controlled = self._controlled(request)
        change = controlled.book.patch_budget(name, given, **kw)
        return await self._changed(controlled, change, name)

    async def delete_budget(self, request: Request) -> Response:
        kw, name = self._change_of(request, REACH), request.path_params["name"]
        if (reach := _reach_of(request)) != HERE:
            removal = self._fleet.remove_budget(name, reach=reach, **kw)
            return await self._changed_for_fleet(request, removal, reach)
        controlled = self._controlled(request)
        return await self._changed(controlled, controlled.book.remove(name, **kw), name)

    async def forgive(self, request: Request) -> Response:
        kw, controlled = self._change_of(request), self._controlled(request)
        name = request.path_params["name"]
        return await self._changed(controlled, controlled.book.forgive(name, **kw), name)

    async def rollback(self, request: Request) -> Response:
        kw, controlled = self._change_of(request), self._controlled(request)
        revision = (await _typed(request, RollbackBody)).revision
        if not 0 <= revision <= MAX_REVISION:
            raise InvalidRequest(f"revision is {revision}, which none can be", field="revision")
        return await self._changed(controlled, controlled.book.rollback(revision, **kw))

    # --- steps -----------------------------------------------------------------------------

    def _change_of(self, request: Request, *others: str) -> dict[str, Any]:
        """Who, on what it was built, and whether only to try. `others`: what else it takes."""
        peer, authorization = request.state.peer, request.headers.get("authorization")
        return {
            "who": self._gatekeeper.who_changes(peer, authorization),
            "expect": expected_revision(request),
            "dry_run": is_dry_run(request, *others),
        }

    async def _changed_for_fleet(
        self, request: Request, change: Awaitable[ChangeMade], reach: Reach
    ) -> Response:
        done, name = await self._under_way.finish(change), request.path_params["name"]
        item = next((one for one in done.items if one.value is not None), None)
        found = item_difference_docs(done.changes)
        doc = PolicyChangeDoc(
            database=request.path_params["database"],
            revision=done.after_n,
            dry_run=done.dry_run,
            changed=bool(done.changes),
            mode_cap=Mode.ENFORCE.value,
            difference=[DifferenceDoc(d.kind, name, "", None, None, d.line) for d in found],
            difference_total=len(done.changes),
            budget=None if item is None else _item_doc(item, self._now()),
            advice=[str(advice) for advice in done.advice],
            published=(),
            reach=str(reach),
            reached=reached_doc(done.reached),
        )
        return json_response(doc, headers=etag(doc.revision))

    async def _changed(
        self,
        controlled: Controlled,
        making: Awaitable[Change],
        name: str = "",
        *,
        created: bool = False,
    ) -> Response:
        change = await self._under_way.finish(making)
        after, now = change.after, self._now()
        budget = self._one(controlled, after, name) if after.budget(name) else None
        response = await json_in_thread(lambda: change_doc(change, controlled, budget, now))
        response.headers.update(etag(after.revision))
        if created:
            response.status_code = 201
            response.headers["Location"] = f"{_POLICIES}/{controlled.plan.database}/{name}"
        return response

    def _one(self, controlled: Controlled, edition: Edition, name: str) -> Any:
        healthy = self._budgets.health_of(controlled.plan.database)
        (doc,) = budget_docs(controlled, edition, healthy, self._now(), only=name)
        return doc

    def _controlled(self, request: Request) -> Controlled:
        return self._budgets.of(request.path_params["database"])

    @property
    def _budgets(self) -> Budgets:
        if self._given is None:
            raise InvalidRequest("this agent keeps no budgets", status=404)
        return self._given

    @property
    def _fleet(self) -> ChangeBook:
        if self._given_fleet is None:
            raise InvalidRequest(NO_FLEET, status=409, field=REACH)
        return self._given_fleet

    def _now(self) -> float:
        return self._clock.now().wall_s


NO_DIRECTORY = "no server is told: [databases.NAME.traffic] has no directory"
_POLICIES = "/v1/budgets"
_POLICY = f"{_POLICIES}/{{database}}"
_BUDGET = f"{_POLICY}/{{name}}"
BUDGET_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", _POLICIES, "policies"),
    ("GET", _POLICY, "policy"),
    ("PUT", _POLICY, "put_policy"),
    ("PATCH", _POLICY, "cap"),
    ("GET", f"{_POLICY}/history", "history"),
    ("GET", f"{_POLICY}/history/{{revision}}", "revision"),
    ("POST", f"{_POLICY}/rollback", "rollback"),
    ("GET", f"{_POLICY}/violations", "violations"),
    ("GET", f"{_POLICY}/state", "state"),
    ("POST", f"{_POLICY}/explain", "explain"),
    ("POST", f"{_POLICY}/lint", "lint"),
    ("GET", _BUDGET, "budget"),
    ("PUT", _BUDGET, "put_budget"),
    ("PATCH", _BUDGET, "patch_budget"),
    ("DELETE", _BUDGET, "delete_budget"),
    ("POST", f"{_BUDGET}/forgive", "forgive"),
)


def _reach_of(request: Request, body: Mapping[str, Any] | None = None) -> Reach:
    """As the query says, or the body; else this agent alone is meant."""
    said = request.query_params.getlist(REACH)
    said += [body[REACH]] if body is not None and body.get(REACH) is not None else []
    if not said:
        return HERE
    if any(one != said[0] for one in said):
        message = f"reach is {' and '.join(map(repr, said[:3]))}: say one; two are two budgets"
        raise InvalidRequest(message, field=REACH)
    try:
        return parse_reach(said[0])
    except ValueError as error:
        raise InvalidSettings([Fault(REACH, str(error))]) from None


def _item_doc(item: Item, wall_s: float) -> BudgetDoc:
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


def _mode(given: str) -> Mode:
    try:
        found = one_of(Mode)(given)
    except ValueError as error:
        raise InvalidRequest(f"mode_cap {error}", field="mode_cap") from None
    assert isinstance(found, Mode)
    return found


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "100")
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= 1000:
        raise InvalidRequest(f"limit is {text!r}, must be from 1 to 1000", field="limit")
    return int(text)


def _pick(request: Request) -> Pick | None:
    """None: whole."""
    text, find = request.query_params.get("most"), request.query_params.get("find", "")
    if text is None:
        if find:
            raise InvalidRequest("find needs most, how many are wanted", field="most")
        return None
    if not _LIMIT.fullmatch(text) or not 0 <= int(text) <= 1000:
        raise InvalidRequest(f"most is {text[:40]!r}, must be from 0 to 1000", field="most")
    return Pick(int(text), find[:MAX_FIND_CHARS])


def _is_brief(request: Request) -> bool:
    text = request.query_params.get("statements", "true")
    if text not in ("true", "false"):
        message = f"statements is {text[:40]!r}, must be true or false"
        raise InvalidRequest(message, field="statements")
    return text == "false"


async def _typed(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.convert(await strict_object(request), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is not as it should be: {error}") from None
