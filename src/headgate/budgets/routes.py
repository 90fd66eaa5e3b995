"""Budgets over HTTP.   Control ──► Budgeting ──► PolicyKeeper: of a database, at this agent
                                       └──reach──► ChangeLogs ──► OwnBook: of a shard that it leads
                                                       └──► ChangeBook: of a fleet

All are answered alike. A shard's is in force here when it is acknowledged, with how many agents
have a copy; a fleet's is when the agents that it reaches have followed it.
"""

from __future__ import annotations

import zlib
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.responses import Response

from headgate.base.declared import iso
from headgate.base.ports import Clock, Store
from headgate.budgets.api import (
    MAX_DIFFERENCES,
    BudgetDoc,
    CapBody,
    ExplainStatementBody,
    LintDoc,
    OutletDoc,
    PoliciesDoc,
    PolicyChangeDoc,
    PolicyDoc,
    PublishedPolicyDoc,
    StateDoc,
    StatementExplainDoc,
    ViolationsDoc,
    budget_doc,
    state_doc,
    state_of,
    violations_doc,
)
from headgate.budgets.difference import PolicyDifference
from headgate.budgets.drafts import (
    EVERY,
    cap_budgets,
    forgive_budget,
    patch_budget,
    remove_budget,
    set_budget,
)
from headgate.budgets.keeper import NoSuchBudget, budget_in
from headgate.budgets.layers import Edition, EditionChange, budgets_of
from headgate.budgets.limits import budget_schema, policy_schema
from headgate.budgets.parse import parse_budget, written
from headgate.budgets.policy import Mode
from headgate.budgets.service import Budgets, Controlled
from headgate.budgets.views import (
    Pick,
    budget_docs,
    change_doc,
    explained,
    explained_then,
    policy_doc,
    published_docs,
    statements_known,
)
from headgate.changes.api import difference_docs as item_difference_docs
from headgate.changes.book import NoSuchItem
from headgate.changes.exchange_api import copies_doc
from headgate.changes.logs import NO_LOGS, REACH, ChangeLogs
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import HERE, Level, Reach, parse_reach
from headgate.changes.state import ChangeMade, Draft, is_change_of_file, said_by
from headgate.check.questions import Span, about
from headgate.errors import Fault, InvalidRequest, InvalidSettings, StoreUnavailable
from headgate.fleet.api import reached_doc
from headgate.history.looking import Turns, json_in_thread
from headgate.http.documents import SECURITY_HEADERS, etag, json_response, past_instant, seconds
from headgate.http.routes import (
    Call,
    Caller,
    DryRun,
    Plain,
    Reaching,
    ReachText,
    Route,
    SettingsBody,
)
from headgate.rules.routes import REACH_SETTINGS
from headgate.rules.settings import RULE_SETTINGS

MAX_MINUTES_READ = 50_000
MAX_FIND_CHARS = 200


class PickQuery(msgspec.Struct, frozen=True):
    most: (
        Annotated[
            int,
            msgspec.Meta(
                ge=0, le=1000, description="So many budgets alone, the most urgent; no `document`."
            ),
        ]
        | None
    ) = None
    find: Annotated[str, about("Of those with this in their name or limits.")] = ""

    @property
    def pick(self) -> Pick | None:
        """None: whole."""
        if self.most is None and not self.find:
            return None
        return Pick(1000 if self.most is None else self.most, self.find[:MAX_FIND_CHARS])


class BudgetQuery(msgspec.Struct, frozen=True):
    reach: ReachText | None = None


class StateQuery(msgspec.Struct, frozen=True):
    statements: Annotated[bool, about("`false` leaves out the statements: cheaper.")] = True


class ViolationsQuery(msgspec.Struct, frozen=True):
    since: Annotated[Span, about("How long ago it begins.")] = "1h"
    budget: Annotated[str, about("Only violations of this budget.")] = ""


class _Lookup:
    """What a request is about: which database's budgets, and for which part of the fleet."""

    def __init__(self, given: Budgets | None, logs: ChangeLogs) -> None:
        self.given = given
        self._logs = logs

    @property
    def budgets(self) -> Budgets:
        if self.given is None:
            raise InvalidRequest("this agent keeps no budgets", status=404)
        return self.given

    def controlled(self, call: Call[Any, Any]) -> Controlled:
        database, known = call.place("database"), self.budgets.by_database
        if database == EVERY and len(known) == 1:
            (database,) = known  # At this agent, all of them are that one.
        return self.budgets.of(database)

    async def reach(
        self, call: Call[Any, Any], asked: str | None = None, said: Any = None
    ) -> Reach:
        """As the query or the body says; else as the budget was set. A new one, and a change of one
        that the settings file has, is for the shard that this agent leads (Exchange.reach)."""
        given, database, name = _reach_given(asked, said), *map(call.place, ("database", "name"))
        known = None if self.given is None else self.given.by_database.get(database)
        if given is not None or known is None:
            return await self._logs.reach(given, "" if database == EVERY else database)
        if (found := self._set_for(known.edition, name)) is not None:
            return found
        reach = await self._logs.reach(None, database)
        # It may have waited for others, who brought that budget.
        return self._set_for(known.edition, name) or reach

    def _set_for(self, edition: Edition, name: str) -> Reach | None:
        """As the budget was set; None: there is none, or the settings file has it."""
        shared = edition.of_shard(name)
        if shared is not None and self._logs.is_shared(shared.reach):
            return shared.reach
        is_there = edition.budget(name) is not None
        if is_there and edition.origin(name) == "file":
            return None
        return HERE if is_there or name in edition.changes.budgets else None

    def kept_by(self, call: Call[Any, Any], reach: Reach) -> Controlled | None:
        """Whose policy a change is of: at this agent, or for its shard of what the settings file
        has. None: the change is of a whole budget that reaches beyond this agent."""
        if reach == HERE:
            return self.controlled(call)
        name, database = call.place("name"), call.place("database")
        known = {} if self.given is None else self.given.by_database
        if database == EVERY and len(known) == 1:
            (database,) = known
        if database not in known or not self._logs.is_shared(reach):
            return None
        edition = known[database].edition
        shared = edition.fleet.get(name)
        is_of_file = name in budgets_of(edition.file) and (shared is None or not shared.whole)
        return known[database] if is_of_file else None


class Budgeting:
    """Handlers, as Control's."""

    def __init__(
        self,
        budgets: Budgets | None,
        store: Store,
        clock: Clock,
        logs: ChangeLogs = NO_LOGS,
        turns: Turns | None = None,
    ) -> None:
        self._lookup = _Lookup(budgets, logs)
        self._store = store
        self._clock = clock
        self._logs = logs
        self._turns = turns or Turns()

    # --- looking ---------------------------------------------------------------------------

    async def policies(self, call: Call[PickQuery, None]) -> Response:
        now, health_of, pick = (
            self._clock.now().wall_s,
            self._lookup.budgets.health_of,
            call.query.pick,
        )
        each = [
            (one, health_of(name)) for name, one in sorted(self._lookup.budgets.by_database.items())
        ]
        return await json_in_thread(
            lambda: PoliciesDoc([policy_doc(one, healthy, now, pick) for one, healthy in each])
        )

    async def policy(self, call: Call[PickQuery, None]) -> Response:
        controlled, pick = self._lookup.controlled(call), call.query.pick
        healthy, now = (
            self._lookup.budgets.health_of(controlled.plan.database),
            self._clock.now().wall_s,
        )
        response = await json_in_thread(lambda: policy_doc(controlled, healthy, now, pick))
        response.headers.update(etag(controlled.edition.revision))
        return response

    async def budget(self, call: Call[BudgetQuery, None]) -> Response:
        name, given = call.place("name"), _reach_given(call.query.reach)
        reach = given or HERE
        if given is not None and given.level is not Level.SHARD:
            reach = await self._logs.reach(given)  # Of a shard's, any of its agents has its own.
        if reach != HERE:
            # As the log has it, whether or not it is in force here.
            item = (await self._logs.book(reach).items()).budget(name, reach)
            if item is None or item.value is None:
                raise NoSuchItem(f"there is no budget {name!r} for {reach}")
            if not is_change_of_file(item.value):
                is_shared, wall_s = self._logs.is_shared(reach), self._clock.now().wall_s
                doc = _item_doc(item, wall_s, is_shared=is_shared)
                return json_response(doc, headers=etag(item.n))
        controlled = self._lookup.controlled(call)
        budget_in(controlled.edition.document, name, controlled.plan.database)
        doc = self._one(controlled, controlled.edition, name)
        return json_response(doc, headers=etag(doc.revision))

    async def state(self, call: Call[StateQuery, None]) -> Response:
        controlled, brief = self._lookup.controlled(call), not call.query.statements
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
                known=None
                if brief
                else lambda shown: statements_known(controlled, shown, now.wall_s),
            )
        )

    async def violations(self, call: Call[ViolationsQuery, None]) -> Response:
        database, since_s = self._lookup.controlled(call).plan.database, seconds(call.query.since)
        await self._lookup.budgets.flush()
        until = int(self._clock.now().wall_s // 60)
        since = max(0, int((self._clock.now().wall_s - since_s) // 60))
        async with self._turns.look(call.request):
            found = await self._store.history.budget_minutes(
                since_minute=since,
                until_minute=until,
                database=database,
                budget=call.query.budget,
                limit=MAX_MINUTES_READ,
            )
        span = (iso(since * 60), iso((until + 1) * 60))
        whole = len(found) < MAX_MINUTES_READ
        return await json_in_thread(lambda: violations_doc(database, found, span, whole=whole))

    async def explain(self, call: Call[None, ExplainStatementBody]) -> Response:
        controlled, body = self._lookup.controlled(call), call.body
        if body.at is not None:
            at_ms = int(past_instant(body.at, self._clock.now().wall_s) * 1000)
            at_ms = min(at_ms, controlled.wall_ms)
            async with self._turns.look(call.request):
                return await json_in_thread(lambda: explained_then(controlled, body, at_ms))
        healthy = self._lookup.budgets.health_of(controlled.plan.database)
        found = await to_thread(explained, controlled, body, healthy, controlled.wall_ms)
        return json_response(found)

    async def lint(self, call: Call[None, dict[str, Any]]) -> Response:
        change = await self._lookup.controlled(call).book.judge(call.body)

        def judged() -> LintDoc:
            after = change.after
            found = change.differences
            return LintDoc(
                budgets=len(after.policy.budgets),
                rules=sum(len(budget.rules) for budget in after.policy.budgets),
                advice=[str(advice) for advice in after.advice],
                difference=found[:MAX_DIFFERENCES],
                difference_total=len(found),
            )

        return await json_in_thread(judged)

    # --- changing --------------------------------------------------------------------------

    async def cap(self, call: Call[Reaching, CapBody]) -> Response:
        given, kw = _reach_given(call.query.reach), call.change
        reach = HERE if given is None else await self._logs.reach(given)
        if reach != HERE:
            kw.pop("expect")  # It is a switch, whatever lies beneath.
            draft = partial(cap_budgets, mode=call.body.mode_cap, reach=reach)
            switching = self._logs.book(reach).make(draft, **kw)
            return await self._changed_beyond(call, switching, reach, EVERY, call.body.mode_cap)
        controlled = self._lookup.controlled(call)
        capping = controlled.book.cap(call.body.mode_cap, **call.change)
        return await self._changed(controlled, capping)

    async def put_budget(self, call: Call[Reaching, dict[str, Any]]) -> Response:
        kw, name = call.change, call.place("name")
        new = call.request.headers.get("if-none-match", "").strip() == "*"
        given = {key: value for key, value in call.body.items() if value is not None}
        reach = await self._lookup.reach(call, call.query.reach, given.pop(REACH, None))
        is_said = call.query.reach is not None or REACH in call.body
        controlled = None if is_said and reach != HERE else self._lookup.kept_by(call, reach)
        if controlled is None:
            return await self._made_beyond(call, reach, set_budget, raw=given, new=new)
        was_there = controlled.edition.budget(name) is not None
        change = controlled.book.set_budget(name, given, new=new, reach=reach, **kw)
        created = not was_there and not kw["dry_run"]
        return await self._changed(controlled, change, name, created=created)

    async def patch_budget(self, call: Call[Reaching, dict[str, Any]]) -> Response:
        kw, name = call.change, call.place("name")
        reach = await self._lookup.reach(call, call.query.reach, call.body.get(REACH))
        given = {key: value for key, value in call.body.items() if key != REACH}
        if (controlled := self._lookup.kept_by(call, reach)) is None:
            return await self._made_beyond(call, reach, patch_budget, raw=given)
        change = controlled.book.patch_budget(name, given, reach=reach, **kw)
        return await self._changed(controlled, change, name)

    async def delete_budget(self, call: Call[Reaching, None]) -> Response:
        kw, name = call.change, call.place("name")
        reach = await self._lookup.reach(call, call.query.reach)
        if (controlled := self._lookup.kept_by(call, reach)) is None:
            return await self._made_beyond(call, reach, remove_budget)
        removing = controlled.book.remove(name, reach=reach, **kw)
        return await self._changed(controlled, removing, name)

    async def forgive(self, call: Call[DryRun, None]) -> Response:
        self._lookup.controlled(call)
        name, kw, reach = call.place("name"), call.change, await self._lookup.reach(call)
        if (controlled := self._lookup.kept_by(call, reach)) is None:
            return await self._made_beyond(call, reach, forgive_budget)
        forgiving = controlled.book.forgive(name, reach=reach, **kw)
        return await self._changed(controlled, forgiving, name)

    # --- steps -----------------------------------------------------------------------------

    async def _made_beyond(
        self, call: Call[Any, Any], reach: Reach, draft: Callable[..., Draft], **given: Any
    ) -> Response:
        """Of a whole budget that reaches beyond this agent."""
        kw, name = call.change, call.place("name")
        drafted = partial(draft, name=name, reach=reach, expect=kw.pop("expect"), **given)
        making = self._logs.book(reach).make(drafted, **kw)
        return await self._changed_beyond(call, making, reach)

    async def _changed_beyond(
        self,
        call: Call[Any, Any],
        change: Awaitable[ChangeMade],
        reach: Reach,
        name: str = "",
        cap: Mode = Mode.ENFORCE,
    ) -> Response:
        """`name`: of the switch for all of them, which is set to `cap`; else the path has it."""
        done, name = await change, name or call.place("name")
        budgets = (one for one in done.items if one.kind == ChangeKind.BUDGET)
        item = next((one for one in budgets if one.value is not None), None)
        found, is_shared = item_difference_docs(done.changes), self._logs.is_shared(reach)
        database, published = call.place("database"), list[OutletDoc]()
        wall_s = self._clock.now().wall_s
        if is_shared and self._lookup.given is not None and not done.dry_run:
            await self._lookup.given.publish()
            known = self._lookup.given.by_database.get(database)
            published = [] if known is None else published_docs(known, wall_s)
        doc = PolicyChangeDoc(
            database=database,
            revision=done.after_n,
            dry_run=done.dry_run,
            changed=bool(done.changes),
            mode_cap=cap.value,
            difference=[PolicyDifference(d.kind, name, line=d.line) for d in found],
            difference_total=len(done.changes),
            budget=None if item is None else _item_doc(item, wall_s, is_shared=is_shared),
            advice=[str(advice) for advice in done.advice],
            published=published,
            reach=str(reach),
            reached=None if is_shared else reached_doc(done.reached),
            copies=copies_doc(done.copies),
        )
        created = any(one.before is None or one.before.value is None for one in done.changes)
        if not is_shared or done.dry_run or item is None or not created:
            return json_response(doc, headers=etag(doc.revision))
        headers = {**etag(item.n), "Location": f"{_POLICIES}/{database}/{name}"}
        return json_response(doc, status=201, headers=headers)

    async def _changed(
        self,
        controlled: Controlled,
        making: Awaitable[EditionChange],
        name: str = "",
        *,
        created: bool = False,
    ) -> Response:
        change = await making
        if change.of.reach != HERE and not change.dry_run:
            await self._lookup.budgets.publish()
        after, now = change.after, self._clock.now().wall_s
        budget = self._one(controlled, after, name) if after.budget(name) else None
        response = await json_in_thread(lambda: change_doc(change, controlled, budget, now))
        response.headers.update(etag(change.of.built_on(after)))
        if created:
            response.status_code = 201
            response.headers["Location"] = f"{_POLICIES}/{controlled.plan.database}/{name}"
        return response

    def _one(self, controlled: Controlled, edition: Edition, name: str) -> BudgetDoc:
        healthy = self._lookup.budgets.health_of(controlled.plan.database)
        (doc,) = budget_docs(controlled, edition, healthy, self._clock.now().wall_s, only=name)
        return doc


def _item_doc(item: Change, wall_s: float, *, is_shared: bool) -> BudgetDoc:
    """What servers count of it is for each agent to tell."""
    said = said_by(item)
    budget = parse_budget(said, place=f"budget {item.id}")
    return budget_doc(
        budget,
        said,
        state=state_of(budget, Mode.ENFORCE, None, ended=budget.expired(int(wall_s * 1000))),
        origin="shard" if is_shared else "fleet",
        revision=item.n,
        wall_s=wall_s,
        of_fleet=(str(item.reach), item.n),
    )


NO_DIRECTORY = "no server gets the policy: [databases.NAME.traffic] has no directory"
_POLICIES = "/v1/budgets"
_POLICY = f"{_POLICIES}/{{database}}"
_BUDGET = f"{_POLICY}/{{name}}"
_ONE = {
    "name": "exports", "mode": "enforce", "rate": 20, "capacity": 100,
    "rules": [{"match": {"username": "exports"}}],
}  # fmt: skip
_WHOLE = SettingsBody(policy_schema)
_BUILT_ON = "`If-Match` with the `ETag` rejects (412) what was built on an older one."


def _budget_schema() -> dict[str, Any]:
    return budget_schema({"for": RULE_SETTINGS["for"], **REACH_SETTINGS})


BUDGET_ROUTES = (
    Route(
        "GET", _POLICIES, "policies", "Every database's budgets", PoliciesDoc,
        query=PickQuery, errors=(404,), example={"most": "100", "find": "etl"},
        about="[Budgets](../howto/budgets.md): state, fill, counters, whether the server has the "
        "newest policy.",
    ),
    Route(
        "GET", _POLICY, "policy", "A database's budgets", PolicyDoc, query=PickQuery,
        about="`document` is the whole policy in force; its revision as `ETag`. "
        "[Changes](../howto/changes.md) has its history, files and rollback.",
    ),
    Route(
        "PATCH", _POLICY, "cap", "Cap the mode of every budget", PolicyChangeDoc,
        role=Caller.OPERATOR, query=Reaching, body=CapBody, sends={"mode_cap": "off"},
        rejects="a policy that can no longer be set",
        about="`off`, `warn`, or `enforce` for each by its own mode again. With a `reach`, for "
        "every database in it; of several switches the mildest mode counts.",
    ),
    Route(
        "GET", f"{_POLICY}/violations", "violations", "Violations by the minute", ViolationsDoc,
        query=ViolationsQuery, errors=(429, 503), example={"since": "1h", "budget": "exports"},
        about="What was warned of, blocked and delayed, by budget and limit.",
    ),
    Route(
        "GET", f"{_POLICY}/state", "state", "What the server itself counts", StateDoc,
        query=StateQuery, example={"statements": "false"},
        about="Policy in force (per backend, too), counters, buckets, patterns with their cost and "
        "error, texts without literals (or `text_cause`), share of the CPU recently.",
    ),
    Route(
        "POST", f"{_POLICY}/explain", "explain", "What would become of a statement",
        StatementExplainDoc, body=ExplainStatementBody, errors=(429, 503),
        rejects="an address that is none, or an `at` of which nothing is known",
        sends={"sql": "select 1", "username": "etl", "remote_address": "10.0.0.7", "cost_ms": 250},
    ),
    Route(
        "POST", f"{_POLICY}/lint", "lint", "Validate a policy; change nothing", LintDoc,
        body=_WHOLE, sends={"budgets": [_ONE]}, rejects="faults, all of which are listed",
        about="And compare it with the one in force.",
    ),
    Route(
        "GET", _BUDGET, "budget", "A budget", BudgetDoc, query=BudgetQuery, errors=(409, 503),
    ),
    Route(
        "PUT", _BUDGET, "put_budget", "Add or replace a budget", PolicyChangeDoc, created=True,
        role=Caller.OPERATOR, query=Reaching, body=SettingsBody(_budget_schema), sends=_ONE,
        example={"dry_run": "true"}, rejects="a budget with faults, all of which are listed",
        about='`"for": "2h"` instead of `expires_at`. With `If-None-Match: *` only where there is '
        "none.",
    ),
    Route(
        "PATCH", _BUDGET, "patch_budget", "Change some settings of a budget", PolicyChangeDoc,
        role=Caller.OPERATOR, query=Reaching, body=SettingsBody(_budget_schema), sends={"rate": 10},
        rejects="a budget with faults, all of which are listed",
        about="`null` takes one out.",
    ),
    Route(
        "DELETE", _BUDGET, "delete_budget", "Remove a budget", PolicyChangeDoc,
        role=Caller.OPERATOR, query=Reaching, rejects="a policy that can no longer be set",
    ),
    Route(
        "POST", f"{_BUDGET}/forgive", "forgive", "Forgive a budget's debt", PolicyChangeDoc,
        role=Caller.OPERATOR, query=DryRun, rejects="a policy that can no longer be set",
    ),
)  # fmt: skip


def _reach_given(asked: str | None, said: Any = None) -> Reach | None:
    """As the query says, or the body; None: neither does."""
    given = [one for one in (asked, said) if one is not None]
    if any(one != given[0] for one in given):
        message = f"reach is {' and '.join(map(repr, given))}: say one; two are two budgets"
        raise InvalidRequest(message, status=422, field=REACH)
    try:
        return parse_reach(given[0]) if given else None
    except ValueError as error:
        raise InvalidSettings([Fault(REACH, str(error))]) from None


# --- policies for proxies ------------------------------------------------------------------------

# A policy as servers get it, for proxies that have no folder here.   GET /v1/policies/D
#
# Proxies poll every second: a policy that has not changed is answered without its body, and its
# body is made once, however many poll. Who may look may read it, as in /v1/budgets/D.


class _Made(NamedTuple):
    edition: Edition
    expired: frozenset[str]
    etag: str
    body: bytes


class Publishing:
    """Handlers, as Control's."""

    def __init__(self, budgets: Budgets | None) -> None:
        self._given = budgets
        self._made: dict[str, _Made] = {}

    async def published(self, call: Plain) -> Response:
        if self._given is None:
            raise InvalidRequest("this agent has no budgets", status=404)
        controlled = self._given.of(call.place("database"))
        made = await self._of(controlled)
        headers = {**SECURITY_HEADERS, "ETag": made.etag}
        asked = call.request.headers.get("if-none-match", "")
        if made.etag in [one.strip().removeprefix("W/") for one in asked.split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(made.body, media_type="application/json", headers=headers)

    async def _of(self, controlled: Controlled) -> _Made:
        database, edition = controlled.plan.database, controlled.edition
        if not controlled.is_loaded:
            raise StoreUnavailable("the operators' changes have not been read yet")
        if not controlled.has_policy:
            message = (
                f"{database} has no policy: neither a file nor a change, so a server or proxy "
                f"keeps the one it has; `headgate budget create {database}` gives it one"
            )
            raise NoSuchBudget(message)
        over = frozenset(edition.ended(controlled.wall_ms))
        known = self._made.get(database)
        if known is None or known.edition is not edition or known.expired != over:
            known = await to_thread(_make, database, edition, over, controlled.wall_ms)
            self._made[database] = known
        return known


def _make(database: str, edition: Edition, expired: frozenset[str], wall_ms: int) -> _Made:
    doc = PublishedPolicyDoc(
        database=database,
        revision=edition.revision,
        mode_cap=edition.mode_cap.value,
        document=written(edition.in_force(wall_ms)),
    )
    body = msgspec.json.encode(doc)
    # By its content, too: a budget that expires changes it without a revision.
    return _Made(edition, expired, f'"{edition.revision}-{zlib.crc32(body):08x}"', body)


PUBLISHING_ROUTES = (
    Route(
        "GET", "/v1/policies/{database}", "published", "A policy as published to servers",
        PublishedPolicyDoc, errors=(503,),
        about="Capped, without expired budgets: for [proxies](../explanation/proxy.md) that no "
        "agent writes a file for. `If-None-Match` with its `ETag` is answered 304.",
    ),
)  # fmt: skip
