"""Rules over HTTP.   Control ──► Ruling ──► OwnBook: rules of this agent, and of shards it leads
└──reach──► FleetRuling ──► ChangeBook: those that reach further
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from headgate.agent.changebook import ChangeBook, NoSuchItem, OwnBook
from headgate.agent.exchange import Exchange
from headgate.agent.ruledrafts import FAVOR_RATIO
from headgate.agent.rulekeeper import NoSuchRule, RuleKeeper
from headgate.agent.rulesteps import Origin, RuleEntry
from headgate.core.change import ChangeKind, Item
from headgate.core.change_log import ChangeMade
from headgate.core.lint import Advice
from headgate.core.names import Identity
from headgate.core.reach import HERE, Level, Reach
from headgate.core.rule_settings import (
    FIXED,
    ONE_END,
    RULE_SETTINGS,
    KnownMetrics,
    parse_target,
    rule_schema,
)
from headgate.core.rules import EVERYONE, Rule, RuleBook
from headgate.core.samples import Instant
from headgate.core.settings import Setting, number, read_table, settings_schema, table, text
from headgate.errors import Conflict, Fault, InvalidRequest, InvalidSettings, StoreUnavailable
from headgate.http.documents import UnderWay, etag, json_response
from headgate.http.fleet_ruling import (
    REACH,
    REACH_SETTINGS,
    REST_HERE,
    FleetRuling,
    Ruled,
    entry_of,
    items_of,
    reach_in,
)
from headgate.http.routes import Call, DryRun, Plain, Role, Route, Settings
from headgate.http.views import Views
from headgate.wire.exchange import copies_doc
from headgate.wire.fleet_reach import ReachedDoc
from headgate.wire.questions import about
from headgate.wire.rules import RuleDoc, RulesDoc, matched_clients, rule_doc

FAVOR_SETTINGS = table(
    (
        Setting("target", "The client to prioritize, or a level of it.", parse_target),
        Setting("over", "The clients to throttle for it.", parse_target, default=EVERYONE),
        Setting(
            "ratio",
            "Share of the others' checks to reject.",
            number(0, 1),
            default=FAVOR_RATIO,
        ),
    )
)
REST_SETTINGS = table((Setting("reason", "Why it is suspended at this agent.", text()),))
RULES_AT_A_TIME = 200
FAVOR_SHARED = frozenset({"for", "expires_at", "schedule", "database", "reason"})
"""For both rules, as a rule has them."""
MAX_REFUSED_TOLD = 50


class RulesQuery(msgspec.Struct, frozen=True):
    all: Annotated[bool, about("`true` also lists those that ended within the last day.")] = False


_Change = Call[DryRun, dict[str, Any]]


class Ruling:
    """Handlers, as Control's."""

    def __init__(
        self,
        views: Views,
        rules: RuleKeeper | None,
        own: OwnBook | None = None,
        fleet: ChangeBook | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._views = views
        self._given = rules
        self._given_own = own
        self._fleet = FleetRuling(fleet, views.parts.clock)
        self._exchange = exchange
        self._under_way = UnderWay()

    # --- looking ---------------------------------------------------------------------------

    async def rules(self, call: Call[RulesQuery, None]) -> Response:
        pairs, meant = self._rules.entries(), matched_clients(self._rules.book, self._clients())
        docs: list[RuleDoc] = []
        known = cache(self._rules.known_metrics)
        for start in range(0, len(pairs), RULES_AT_A_TIME):
            docs += self._docs(pairs[start : start + RULES_AT_A_TIME], meant, known=known)
            await asyncio.sleep(0)  # Checks come in between.
        shown = [doc for doc in docs if call.query.all or doc.state != "ended"]
        faults = [f"{rule}: {fault}" for rule, fault in self._rules.faults.items()]
        return json_response(RulesDoc(shown, faults[:MAX_REFUSED_TOLD]))

    async def rule(self, call: Plain) -> Response:
        entry = await self._known(call.place("rule"))
        (doc,) = self._docs([(entry, entry.in_book(self._views.parts.clock.now()))])
        return json_response(doc, headers=etag(doc.revision))

    async def _known(self, rule_id: str) -> RuleEntry:
        """In force here; or elsewhere, where this agent can look it up."""
        try:
            return await self._newest(self._rules.entry(rule_id))
        except NoSuchRule:
            if not self._fleet.is_there:
                raise
        parts = self._rules.parts_of(rule_id)
        try:
            entry = await self._fleet.rule(rule_id)
            return replace(entry, advice=()) if parts else entry
        except (StoreUnavailable, NoSuchItem):
            if not parts:
                raise
            return self._rules.entry(parts[0])

    async def _newest(self, entry: RuleEntry) -> RuleEntry:
        """Where a newer version has changed it, in force here is the last that could be read: no
        change can be built on that one."""
        origin = entry.origin
        if origin.item_id in self._rules.faults:
            with suppress(StoreUnavailable, NoSuchItem, InvalidRequest):
                newer = await self._fleet.rule(origin.item_id)
                return newer if newer.unread else entry
        return entry

    # --- changing --------------------------------------------------------------------------

    async def add_rule(self, call: _Change) -> Response:
        who, dry_run, body = call.who, call.query.dry_run, _settings(call.body)
        reach = await self._reach(reach_in(body, "rule"), body)
        body.pop(REACH, None)
        if self._is_own_reach(reach):
            self._check_vacant(body.get("id"))
            put = self._own.put_rule(body, reach=reach, who=who, dry_run=dry_run)
            ruled = await self._made(put)
        else:
            put = self._fleet.book.put_rule(body, reach=reach, who=who, dry_run=dry_run)
            ruled = await self._under_way.finish(self._fleet.made(put))
        return _one(self._changed(ruled), created=not dry_run)

    async def favor(self, call: _Change) -> Response:
        dry_run, body = call.query.dry_run, _settings(call.body)
        sections = FAVOR_SHARED | {REACH}
        values, faults = read_table(body, FAVOR_SETTINGS, place="favor", sections=sections)
        if faults:
            raise InvalidSettings(faults)
        shared = {key: value for key, value in body.items() if key in FAVOR_SHARED}
        said = {"over": values["over"], "ratio": values["ratio"], "more": shared}
        said |= {"who": call.who, "dry_run": dry_run}
        target, reach = values["target"] or "", await self._reach(reach_in(body, "favor"), body)
        if self._is_own_reach(reach):
            ruled = await self._made(self._own.favor(target, reach=reach, **said))
        else:
            made = self._fleet.made(self._fleet.book.favor(target, reach=reach, **said))
            ruled = await self._under_way.finish(made)
        return self._many(ruled, status=200 if dry_run else 201)

    async def change_rule(self, call: _Change) -> Response:
        rule_id, body, said = call.place("rule"), call.body, call.change
        if self._is_of_fleet(rule_id):
            ruled = await self._under_way.finish(self._fleet.patched(rule_id, body, **said))
        else:
            self._check_own(rule_id)
            patching = self._own.patch_rule(self._name(rule_id), body, **said)
            ruled = await self._made(patching, rule_id)
        return _one(self._changed(ruled))

    async def lift_rule(self, call: Call[DryRun, None]) -> Response:
        """Answers with what was lifted: both, where two were set together."""
        rule_id, said = call.place("rule"), call.change
        if self._is_of_fleet(rule_id):
            here = self._is_in_force(rule_id)
            lifted = self._fleet.lifted(rule_id, in_force_here=here, **said)
            ruled = await self._under_way.finish(lifted)
        else:
            self._check_own(rule_id)
            ruled = await self._lifted(rule_id, **said)
        return self._many(ruled)

    async def _lifted(self, rule_id: str, **said: Any) -> Ruled:
        """One that another agent has to lift can still be had rest here."""
        try:
            return await self._made(self._own.lift_rule(self._name(rule_id), **said))
        except InvalidRequest as error:
            if error.status != 409:
                raise
            raise InvalidRequest(f"{error}; {REST_HERE.format(rule_id)}", status=409) from None

    async def rest_rule(self, call: _Change) -> Response:
        """One of the fleet's or of a shard, at this agent alone: for when nobody can lift it."""
        values, faults = read_table(call.body, REST_SETTINGS, place="rest")
        if faults:
            raise InvalidSettings(faults)
        reason, dry_run = values["reason"] or "", call.query.dry_run
        rested = self._rules.rests.put(call.place("rule"), reason, who=call.who, dry_run=dry_run)
        return self._many(Ruled(await self._under_way.finish(rested)))

    async def wake_rule(self, call: Call[DryRun, None]) -> Response:
        dry_run = call.query.dry_run
        woken = self._rules.rests.end(call.place("rule"), who=call.who, dry_run=dry_run)
        return self._many(Ruled(await self._under_way.finish(woken)))

    # --- steps -----------------------------------------------------------------------------

    async def _reach(self, given: Reach | None, body: Mapping[str, Any]) -> Reach:
        """An agent that leads a shard sets it for the shard by default (ownreach.py)."""
        if self._exchange is None:
            return given or HERE
        named = body.get("database")
        return await self._exchange.reach(given, [named] if isinstance(named, str) else ())

    def _is_own_reach(self, reach: Reach) -> bool:
        """Whether it goes to this agent's own log."""
        if reach == HERE or self._fleet.is_there or self._exchange is None:
            return reach == HERE
        return reach.level is Level.SHARD and self._exchange.has_shard(reach.pattern)

    def _name(self, rule_id: str) -> str:
        """What the agent's own log calls a rule that is in force here as `rule_id`."""
        try:
            origin = self._rules.entry(rule_id).origin
        except NoSuchRule:
            return rule_id
        return self._own.name(ChangeKind.RULE, origin.item_id, origin.reach)

    def _is_of_fleet(self, rule_id: str) -> bool:
        """Not set at this agent; where it knows of no fleet, its own book says what is wrong."""
        return self._fleet.is_there and not self._rules.is_own(rule_id)

    def _check_own(self, rule_id: str) -> None:
        """One of a fleet that this agent cannot change: it says who can."""
        if not self._rules.is_own(rule_id):
            entry = self._rules.entry(rule_id)
            raise InvalidSettings([Fault(f"rule {rule_id}", _of_the_fleet(entry.origin))])

    def _check_vacant(self, rule_id: object) -> None:
        if isinstance(rule_id, str) and rule_id in self._rules.book:
            entry = self._rules.entry(rule_id)
            if entry.origin.reach != HERE:
                raise Conflict(f"rule {rule_id} already exists: it {_of_the_fleet(entry.origin)}")

    def _is_in_force(self, rule_id: str) -> bool:
        return rule_id in self._rules.book or bool(self._rules.parts_of(rule_id))

    async def _made(self, making: Awaitable[ChangeMade], rule_id: str = "") -> Ruled:
        """Of this agent's own. `rule_id`: of the one that was to be changed, for a change that
        changes nothing."""
        done = await self._under_way.finish(making)
        now, items = self._views.parts.clock.now(), items_of(done)
        if not items:
            return Ruled([replace(self._rules.entry(rule_id), advice=done.advice)])
        entries = (self._as_it_is(item, now, done) for item in items)
        copies = copies_doc(done.copies)
        return Ruled([replace(entry, advice=done.advice) for entry in entries], copies=copies)

    def _as_it_is(self, item: Item, now: Instant, done: ChangeMade) -> RuleEntry:
        """In force by now; what was only tried is not. A shard's may be in force as several."""
        is_shown = done.dry_run or item.reach != HERE
        return entry_of(item, now) if is_shown else self._rules.entry(item.id)

    def _changed(self, ruled: Ruled) -> list[RuleDoc]:
        now = self._views.parts.clock.now()
        pairs = [(entry, entry.in_book(now)) for entry in ruled.entries]
        docs = self._docs(pairs, reached=ruled.reached)
        return [msgspec.structs.replace(doc, copies=ruled.copies) for doc in docs]

    def _many(self, ruled: Ruled, status: int = 200) -> Response:
        doc = RulesDoc(self._changed(ruled), reached=ruled.reached, copies=ruled.copies)
        return json_response(doc, status=status)

    def _docs(
        self,
        pairs: Sequence[tuple[RuleEntry, Rule]],
        meant: Mapping[str, Sequence[str]] | None = None,
        *,
        reached: ReachedDoc | None = None,
        known: KnownMetrics | None = None,
    ) -> list[RuleDoc]:
        """With who is meant. What is only proposed is in no book but its own."""
        wall_s = self._views.parts.clock.now().wall_s
        is_asked = bool(self._views.parts.book.databases())
        if meant is None:
            meant = matched_clients(RuleBook(rule for _, rule in pairs), self._clients())
        return [
            rule_doc(
                entry.spec,
                rule,
                wall_s,
                clients=meant.get(rule.id, ()) if is_asked else None,
                advice=[str(advice) for advice in self._advice(entry, known)],
                reach=None if entry.origin.reach == HERE else entry.origin.reach,
                reached=reached,
                unread=entry.unread,
            )
            for entry, rule in pairs
        ]

    def _advice(self, entry: RuleEntry, known: KnownMetrics | None) -> Sequence[Advice]:
        """If it is the fleet's and not in force here by this id, the fleet's book has advised."""
        elsewhere = entry.origin.reach != HERE and entry.id not in self._rules.book
        return entry.advice if entry.advice or elsewhere else self._rules.advice(entry.spec, known)

    def _clients(self) -> list[tuple[Identity, str]]:
        """Clients that checked recently, newest first."""
        seen = self._views.clients().clients
        return [(Identity(c.client, tuple(c.client.split(":"))), c.database) for c in seen]

    @property
    def _rules(self) -> RuleKeeper:
        if self._given is None:
            raise InvalidRequest("this agent has no rules", status=404)
        return self._given

    @property
    def _own(self) -> OwnBook:
        if self._given_own is None:
            raise InvalidRequest("this agent has no rules", status=404)
        return self._given_own


_RULES = "/v1/rules"
_RULE = f"{_RULES}/{{rule}}"
_FAULTS = "a rule with faults, all of which are listed: metrics that are not measured, an end that "
_FAULTS += "has passed or is too far, more than this agent allows"


def _rule_schema() -> dict[str, Any]:
    return rule_schema(REACH_SETTINGS)


def _favor_schema() -> dict[str, Any]:
    shared = {key: row for key, row in RULE_SETTINGS.items() if key in FAVOR_SHARED}
    rows = {**FAVOR_SETTINGS, **shared, **REACH_SETTINGS}
    return {**settings_schema(rows, nullable=True, required=["target"]), **ONE_END}


def _patch_schema() -> dict[str, Any]:
    rows = {key: row for key, row in RULE_SETTINGS.items() if key not in FIXED}
    return {**settings_schema(rows, nullable=True), **ONE_END}


RULING_ROUTES = (
    Route(
        "GET", _RULES, "rules", "Rules, with the time they have left", RulesDoc,
        query=RulesQuery, errors=(404,), example={"all": "true"},
    ),
    Route(
        "POST", _RULES, "add_rule", "Set a rule", RuleDoc, created=True,
        role=Role.OPERATOR, query=DryRun, body=Settings(_rule_schema), refuses=_FAULTS,
        example={"dry_run": "true"},
        sends={"target": "etl", "kind": "ratio", "ratio": 0.9, "for": "2h", "reason": "too much"},
        about="The [settings of a rule](rules.md). `copies` says which agents of the "
        "[shard](rules-in-detail.md#rules-of-a-shard) have it; null if it is for this agent "
        "alone, or in etcd.",
    ),
    Route(
        "POST", f"{_RULES}/favor", "favor", "Prioritize a client by throttling all the others",
        RulesDoc, created=True, role=Role.OPERATOR, query=DryRun, body=Settings(_favor_schema),
        refuses=f"{_FAULTS}; two names that are too long together",
        example={"dry_run": "true"}, sends={"target": "billing", "for": "1h"},
        about="Sets two rules: a ratio on all others (`over`), none on `target`.",
    ),
    Route(
        "GET", _RULE, "rule", "A rule, with its revision as ETag", RuleDoc, errors=(422, 503),
    ),
    Route(
        "PATCH", _RULE, "change_rule", "Change some settings of a rule, or extend it", RuleDoc,
        role=Role.OPERATOR, query=DryRun, body=Settings(_patch_schema), refuses=_FAULTS,
        sends={"for": "2h"},
    ),
    Route(
        "DELETE", _RULE, "lift_rule", "Lift a rule before its end", RulesDoc,
        role=Role.OPERATOR, query=DryRun, refuses="a rule of a fleet that this agent is not in",
        about="A rule of a pair is lifted together with the other one.",
    ),
    Route(
        "PUT", f"{_RULE}/rest", "rest_rule", "Suspend a rule of the fleet at this agent", RulesDoc,
        role=Role.OPERATOR, query=DryRun, body=Settings(lambda: settings_schema(REST_SETTINGS)),
        refuses="a rule of this agent's own", sends={"reason": "etcd is unavailable"},
        about="At this agent alone, while it cannot be lifted.",
    ),
    Route(
        "DELETE", f"{_RULE}/rest", "wake_rule", "End that suspension", RulesDoc,
        role=Role.OPERATOR, query=DryRun, refuses="a rule that is not suspended here",
    ),
)  # fmt: skip


def _of_the_fleet(origin: Origin) -> str:
    return (
        f"was set for {origin.reach} (revision {origin.n}) by {origin.set_by}; change or lift "
        f"{origin.item_id} at an agent that has [fleet] settings, with `headgate rule` or "
        "`headgate changes apply --fleet`"
    )


def _one(docs: Sequence[RuleDoc], *, created: bool = False) -> Response:
    """The requested rule; for a pair, the other one is in `pair`."""
    doc = docs[0]
    headers = etag(doc.revision)
    if created:
        headers["Location"] = f"{_RULES}/{doc.id}"
    return json_response(doc, status=201 if created else 200, headers=headers)


def _settings(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}
