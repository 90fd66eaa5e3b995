"""Rules over HTTP.   Control ──► Ruling ──reach──► OwnBook: of this agent, and of shards it leads
└──► ChangeBook: the fleet's, for all that reach further
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.responses import Response

from headgate.base.advice import Advice, Severity
from headgate.base.declared import Reader, Setting, read_table, settings_schema, table, text
from headgate.base.names import Identity
from headgate.changes.book import ChangeBook, NoSuchItem
from headgate.changes.exchange_api import CopiesDoc, copies_doc
from headgate.changes.logs import NO_LOGS, REACH, ChangeLogs
from headgate.changes.model import Change, ChangeKind, Edit
from headgate.changes.own import OwnBook
from headgate.changes.reach import EVERYWHERE, HERE, Reach, parse_reach
from headgate.changes.state import ChangeMade, ends_at
from headgate.check.questions import about
from headgate.check.views import Views
from headgate.errors import (
    Conflict,
    Fault,
    InvalidRequest,
    InvalidSettings,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from headgate.fleet.api import ReachedDoc, reached_doc
from headgate.http.documents import etag, json_response
from headgate.http.routes import REACH_PATTERN, Call, Caller, DryRun, Plain, Route, SettingsBody
from headgate.metrics.samples import Instant
from headgate.rules.api import RuleDoc, RulesDoc, matched_clients, rule_doc
from headgate.rules.drafts import RuleEntry, RuleOrigin
from headgate.rules.matching import Rule, RuleBook
from headgate.rules.service import NoSuchRule, RuleKeeper, item_of
from headgate.rules.settings import (
    FAVOR_SETTINGS,
    FIXED,
    OF_A_KIND,
    ONE_END,
    RULE_SETTINGS,
    KnownMetrics,
    RuleSpec,
    parse_kept,
    rule_schema,
    without_nulls,
)

SUSPENSION_SETTINGS = table((Setting("reason", "Why it is suspended at this agent.", text()),))
RULES_AT_A_TIME = 200
MAX_REJECTED_TOLD = 50


class RulesQuery(msgspec.Struct, frozen=True):
    all: Annotated[bool, about("`true` also lists those that ended within the last day.")] = False


_Change = Call[DryRun, dict[str, Any]]


class Ruling:
    """Handlers, as Control's."""

    def __init__(
        self,
        views: Views,
        rules: RuleKeeper | None,
        logs: ChangeLogs = NO_LOGS,
    ) -> None:
        self._views = views
        self._given = rules
        self._logs = logs
        self._fleet = logs.fleet

    # --- looking ---------------------------------------------------------------------------

    async def rules(self, call: Call[RulesQuery, None]) -> Response:
        pairs = self._rules.entries()
        meant = matched_clients(self._rules.book, _clients(self._views))
        docs: list[RuleDoc] = []
        known = cache(self._rules.known_metrics)
        for start in range(0, len(pairs), RULES_AT_A_TIME):
            docs += self._docs(pairs[start : start + RULES_AT_A_TIME], meant, known=known)
            await asyncio.sleep(0)  # Checks come in between.
        shown = [doc for doc in docs if call.query.all or doc.state != "ended"]
        faults = [f"{rule}: {fault}" for rule, fault in self._rules.faults.items()]
        return json_response(RulesDoc(shown, faults[:MAX_REJECTED_TOLD]))

    async def rule(self, call: Plain) -> Response:
        entry = await self._known(call.place("rule"))
        (doc,) = self._docs([(entry, entry.in_book(self._views.parts.clock.now()))])
        return json_response(doc, headers=etag(doc.revision))

    async def _known(self, rule_id: str) -> RuleEntry:
        """In force here; or elsewhere, where this agent can look it up."""
        try:
            entry = self._rules.entry(rule_id)
        except NoSuchRule:
            if self._fleet is None:
                raise
        else:
            if self._fleet is not None and entry.origin.item_id in self._rules.faults:
                # Where a newer version has changed it, in force here is the last that could be
                # read: no change can be built on that one.
                with suppress(StoreUnavailable, NoSuchItem):
                    newer = await self._in_fleet(entry.origin.item_id)
                    return newer if newer.unread else entry
            return entry
        parts = self._rules.parts_of(rule_id)
        try:
            entry = await self._in_fleet(rule_id)
            return replace(entry, advice=()) if parts else entry
        except (StoreUnavailable, NoSuchItem):
            if not parts:
                raise
            return self._rules.entry(parts[0])

    async def _in_fleet(self, rule_id: str) -> RuleEntry:
        """As the fleet's log has it, whether or not it is in force here."""
        found = (await self._book(EVERYWHERE).items()).rule(item_of(rule_id))
        if found is None or found.value is None:
            raise _nowhere(rule_id)
        told = Advice(Severity.WARNING, "elsewhere", f"rule {found.id}", NOT_HERE)
        entry = entry_of(found, self._views.parts.clock.now())
        return entry if entry.unread else replace(entry, advice=(told,))

    # --- changing --------------------------------------------------------------------------

    async def add_rule(self, call: _Change) -> Response:
        who, dry_run, body = call.who, call.query.dry_run, without_nulls(call.body)
        reach = await self._logs.reach(reach_in(body, "rule"), body.get("database"))
        body.pop(REACH, None)
        book, rule_id = self._book(reach), body.get("id")
        if book is self._logs.own and isinstance(rule_id, str) and rule_id in self._rules.book:
            origin = self._rules.entry(rule_id).origin
            if origin.reach != HERE:
                raise Conflict(f"rule {rule_id} already exists: it {_of_the_fleet(origin)}")
        put = book.make(partial(book.rules.put, raw=body, reach=reach), who, dry_run=dry_run)
        return _one(self._changed(await self._made(book, put)), created=not dry_run)

    async def favor(self, call: _Change) -> Response:
        dry_run, body = call.query.dry_run, without_nulls(call.body)
        sections = frozenset({REACH})
        values, faults = read_table(body, FAVOR_SETTINGS, place="favor", sections=sections)
        if faults:
            raise InvalidSettings(faults)
        own = {*OF_A_KIND, "over", REACH}
        shared = {key: value for key, value in body.items() if key not in own}
        said = {"over": values["over"], "ratio": values["ratio"], "more": shared}
        reach = await self._logs.reach(reach_in(body, "favor"), body.get("database"))
        book = self._book(reach)
        draft = partial(book.rules.favor, target=values["target"] or "", reach=reach, **said)
        ruled = await self._made(book, book.make(draft, call.who, dry_run=dry_run))
        return self._many(ruled, status=200 if dry_run else 201)

    async def change_rule(self, call: _Change) -> Response:
        rule_id, kw = call.place("rule"), call.change
        book, name = self._book_of(rule_id)
        draft = partial(book.rules.patch, rule_id=name, raw=call.body, expect=kw.pop("expect"))
        try:
            ruled = await self._made(book, book.make(draft, **kw), rule_id)
        except NoSuchItem:
            raise _nowhere(rule_id) from None
        return _one(self._changed(ruled))

    async def lift_rule(self, call: Call[DryRun, None]) -> Response:
        """Answers with what was lifted: both, where two were set together. One that is in force
        here and cannot be lifted from here can still be suspended here."""
        rule_id, kw = call.place("rule"), call.change
        book, name = self._book_of(rule_id)
        draft = partial(book.rules.lift, rule_id=name, expect=kw.pop("expect"))
        is_in_force = rule_id in self._rules.book or bool(self._rules.parts_of(rule_id))
        is_shared = book is self._fleet and is_in_force
        suspend = SUSPEND_HERE.format(item_of(rule_id))
        try:
            ruled = await self._made(book, book.make(draft, **kw))
        except NoSuchItem:
            if is_shared:
                raise InvalidRequest(_LOST.format(rule_id, suspend), status=409) from None
            raise _nowhere(rule_id) from None
        except InvalidRequest as error:
            if error.status != 409:
                raise
            raise InvalidRequest(f"{error}; {suspend}", status=409) from None
        except (OutcomeUnknown, StoreRejected):
            raise
        except StoreUnavailable as error:
            if not is_shared:
                raise
            raise StoreUnavailable(f"{error}; {suspend}") from error
        return self._many(ruled)

    async def suspend_rule(self, call: _Change) -> Response:
        """One of the fleet's or of a shard, at this agent alone: for when nobody can lift it."""
        values, faults = read_table(call.body, SUSPENSION_SETTINGS, place="suspend")
        if faults:
            raise InvalidSettings(faults)
        reason, dry_run = values["reason"] or "", call.query.dry_run
        suspended = self._rules.suspensions.put(
            call.place("rule"), reason, who=call.who, dry_run=dry_run
        )
        return self._many(RulesChanged(await suspended))

    async def resume_rule(self, call: Call[DryRun, None]) -> Response:
        dry_run = call.query.dry_run
        resumed = self._rules.suspensions.end(call.place("rule"), who=call.who, dry_run=dry_run)
        return self._many(RulesChanged(await resumed))

    # --- steps -----------------------------------------------------------------------------

    def _book(self, reach: Reach) -> ChangeBook:
        return self._own if reach == HERE else self._logs.book(reach)

    def _book_of(self, rule_id: str) -> tuple[ChangeBook, str]:
        """The book of a rule that is there, and what that calls it."""
        if self._rules.is_own(rule_id):
            try:
                origin = self._rules.entry(rule_id).origin
            except NoSuchRule:
                return self._own, rule_id
            return self._own, self._own.name(ChangeKind.RULE, origin.item_id, origin.reach)
        if self._fleet is not None:
            return self._fleet, item_of(rule_id)
        # Of a fleet that this agent is no part of: it says who can change it.
        told = _of_the_fleet(self._rules.entry(rule_id).origin)
        raise InvalidSettings([Fault(f"rule {rule_id}", told)])

    async def _made(
        self, book: ChangeBook, making: Awaitable[ChangeMade], rule_id: str = ""
    ) -> RulesChanged:
        """`rule_id`: of the one that was to be changed, for a change that changes nothing."""
        done = await making
        now, items, is_own = self._views.parts.clock.now(), items_of(done), book is not self._fleet
        # In force by now, where it is this agent's alone; what was only tried is not. One that
        # reaches further may be in force here as several, or not at all.
        entries = [
            entry_of(item, now)
            if done.dry_run or item.reach != HERE
            else self._rules.entry(item.id)
            for item in items
        ]
        if not items and rule_id:
            known = self._rules.entry(rule_id) if is_own else await self._in_fleet(rule_id)
            entries = [known]
        reached = None if is_own else reached_doc(done.reached)
        told = [replace(entry, advice=done.advice) for entry in entries]
        return RulesChanged(told, reached, copies_doc(done.copies))

    def _changed(self, ruled: RulesChanged) -> list[RuleDoc]:
        now = self._views.parts.clock.now()
        pairs = [(entry, entry.in_book(now)) for entry in ruled.entries]
        docs = self._docs(pairs, reached=ruled.reached)
        return [msgspec.structs.replace(doc, copies=ruled.copies) for doc in docs]

    def _many(self, ruled: RulesChanged, status: int = 200) -> Response:
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
            meant = matched_clients(RuleBook(rule for _, rule in pairs), _clients(self._views))
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

    @property
    def _rules(self) -> RuleKeeper:
        if self._given is None:
            raise InvalidRequest("this agent has no rules", status=404)
        return self._given

    @property
    def _own(self) -> OwnBook:
        if self._logs.own is None:
            raise InvalidRequest("this agent has no rules", status=404)
        return self._logs.own


def _clients(views: Views) -> list[tuple[Identity, str]]:
    """Clients that checked recently, newest first."""
    seen = views.clients().clients
    return [(Identity(c.client, tuple(c.client.split(":"))), c.database) for c in seen]


_RULES = "/v1/rules"
_RULE = f"{_RULES}/{{rule}}"
_FAULTS = "a rule with faults, all of which are listed; metrics that are not measured. An end that "
_FAULTS += "has passed or is too far, more than this agent allows"


def _rule_schema() -> dict[str, Any]:
    return rule_schema(REACH_SETTINGS)


def _favor_schema() -> dict[str, Any]:
    rows = {**FAVOR_SETTINGS, **REACH_SETTINGS}
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
        role=Caller.OPERATOR, query=DryRun, body=SettingsBody(_rule_schema), rejects=_FAULTS,
        example={"dry_run": "true"},
        sends={"target": "etl", "kind": "ratio", "ratio": 0.9, "for": "2h", "reason": "too much"},
        about="The [settings of a rule](rules.md). `copies` says which agents of the "
        "[shard](rules-in-detail.md#rules-of-a-shard) have it; null if it is for this agent "
        "alone, or in etcd.",
    ),
    Route(
        "POST", f"{_RULES}/favor", "favor", "Prioritize a client by throttling all the others",
        RulesDoc, created=True, role=Caller.OPERATOR, query=DryRun,
        body=SettingsBody(_favor_schema),
        rejects=f"{_FAULTS}. Two names that are too long together",
        example={"dry_run": "true"}, sends={"target": "billing", "for": "1h"},
        about="Sets two rules: a ratio on all others (`over`), none on `target`.",
    ),
    Route(
        "GET", _RULE, "rule", "A rule, with its revision as ETag", RuleDoc, errors=(422, 503),
    ),
    Route(
        "PATCH", _RULE, "change_rule", "Change some settings of a rule, or extend it", RuleDoc,
        role=Caller.OPERATOR, query=DryRun, body=SettingsBody(_patch_schema), rejects=_FAULTS,
        sends={"for": "2h"},
    ),
    Route(
        "DELETE", _RULE, "lift_rule", "Lift a rule before its end", RulesDoc,
        role=Caller.OPERATOR, query=DryRun, rejects="a rule of a fleet that this agent is not in",
        about="A rule of a pair is lifted together with the other one.",
    ),
    Route(
        "PUT", f"{_RULE}/suspension", "suspend_rule",
        "Suspend a rule of the fleet at this agent", RulesDoc,
        role=Caller.OPERATOR, query=DryRun,
        body=SettingsBody(lambda: settings_schema(SUSPENSION_SETTINGS)),
        rejects="a rule of this agent's own", sends={"reason": "etcd is unavailable"},
        about="At this agent alone, while it cannot be lifted.",
    ),
    Route(
        "DELETE", f"{_RULE}/suspension", "resume_rule", "End that suspension", RulesDoc,
        role=Caller.OPERATOR, query=DryRun, rejects="a rule that is not suspended here",
    ),
)  # fmt: skip


def _of_the_fleet(origin: RuleOrigin) -> str:
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


MAX_TARGET_CHARS = 200
REACH_SETTINGS = table(
    (
        Setting(
            REACH,
            "Its reach: `fleet`, `region:eu-*`, `cluster:x`, `shard:commerce/*` or `host:db-1`.",
            Reader(parse_reach, {"type": "string", "pattern": REACH_PATTERN}),
            shown_default="the shard that the agent leads; else this agent alone",
        ),
    )
)
NOT_HERE = (
    "is not in force at this agent: its reach matches none of its databases, or the agent does not "
    "have it yet (`headgate fleet status`)"
)


SUSPEND_HERE = "to suspend it at this agent alone: `headgate rule suspend {} --reason …`"
_LOST = (
    "rule {0} is in force here, but the fleet's store has lost it: `headgate changes restore "
    "--fleet` restores it, and then it can be lifted for all; {1}"
)


class RulesChanged(NamedTuple):
    """Rules as a change left them, or would."""

    entries: Sequence[RuleEntry]
    reached: ReachedDoc | None = None
    """Null: a rule of the agent's own."""
    copies: CopiesDoc | None = None
    """For a rule of one of its shards: which other agents have it."""


def reach_in(body: Mapping[str, Any], place: str) -> Reach | None:
    """What a body says of it; None: nothing."""
    if body.get(REACH) is None:
        return None
    try:
        return parse_reach(body[REACH])
    except ValueError as error:
        raise InvalidSettings([Fault(f"{place}.{REACH}", str(error))]) from None


def entry_of(item: Change, now: Instant) -> RuleEntry:
    """As a log has it. One that a newer version has set is shown, too: it can be lifted."""
    unread = ""
    try:
        spec = parse_kept(item.id, item.value, item.n)
    except InvalidSettings as error:
        spec, unread = _outline(item, now.wall_s), str(error)
    ends_mono_s = now.mono_s + spec.rule.expires_at - now.wall_s
    origin = RuleOrigin(item.id, item.reach, item.n, item.set_by)
    return RuleEntry(spec, ends_mono_s, origin=origin, unread=unread)


def items_of(change: ChangeMade) -> list[Change]:
    """What has become of its rules."""
    return [item for item in map(_shown, change.changes) if item is not None]


def _shown(change: Edit) -> Change | None:
    """What has become of a rule; of one that was taken out without a word, what it was."""
    after, before = change.after, change.before
    if after is None or after.value is not None:
        return after
    if before is None or before.value is None:
        return None
    return replace(after, value={**before.value, "lifted_by": after.set_by})


def _outline(item: Change, wall_s: float) -> RuleSpec:
    said = item.value or {}
    try:
        end_s = ends_at(item)
    except ValueError:
        end_s = None
    rule = Rule(
        id=item.id,
        target=str(said.get("target") or "?")[:MAX_TARGET_CHARS],
        ratio=0.0,
        expires_at=wall_s if end_s is None else end_s,
        created_at=item.set_at,
        created_by=item.set_by,
        revision=item.n,
    )
    return RuleSpec(rule, set_at=item.set_at, lifted_by=str(said.get("lifted_by", "")))


def _nowhere(rule_id: str) -> NoSuchItem:
    message = (
        f"no rule {rule_id!r} exists here or for the fleet; `headgate rules --all` "
        "and `headgate changes --fleet` list them"
    )
    return NoSuchItem(message)
