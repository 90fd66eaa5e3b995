"""Keep the rules in force.

logs ──follow──► RuleKeeper ──► FollowedRules, of each log ──► RulesInForce ──RuleBook──► checker

Changes come from two logs: the agent's own, with those of its shards, and the one that a fleet
shares. An item is in force on those databases of the agent that its reach matches. What only this
agent knows about a rule, it notes itself (notes.py).

A rule ends by the reader's comparison, not by anything here: what this loop drops has no effect
any more. It only handles what a comparison cannot see: setting the wall clock back must not
prolong a rule, and schedules have to be computed for the days ahead.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import structlog

from headgate.base.advice import Advice, Severity
from headgate.base.ports import ChangeLog, Clock
from headgate.changes.inforce import ChangeMemory
from headgate.changes.model import (
    FORGET_AFTER_S,
    OURSELVES,
    Change,
    ChangeKind,
)
from headgate.changes.reach import HERE, Place, Reach
from headgate.changes.state import counted_from, ends_at
from headgate.changes.time import STEP_S, ChangeTime, TimeMark
from headgate.errors import Conflict, Fault, HeadgateError, InvalidSettings, StoreUnavailable
from headgate.metrics.samples import Instant
from headgate.rules.drafts import NEVER, RuleAdvisor, RuleEntry, RuleOrigin
from headgate.rules.matching import NO_LIMITS, NO_RULES, Kind, Rule, RuleBook, RuleBookDraft
from headgate.rules.notes import ChangeNotes, RuleNotes
from headgate.rules.schedules import RENEW_S, check_zone
from headgate.rules.settings import (
    RULE_SETTINGS,
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    parse_kept,
)

__all__ = ["SLICE", "NoSuchRule", "RuleKeeper"]

log = structlog.get_logger()

TICK_S = 1.0
MAX_FORGOTTEN_AT_ONCE = 100

Forget = Callable[[Sequence[str]], Awaitable[None]]
"""Removes rules that ended a day ago from the agent's own log."""
SUSPENDED, RESUMED = "rule.suspended", "rule.resumed"
MAX_REASON_CHARS = 500
SPLIT = "@"
"""Between the id of an item and the database where it is in force; no id has it."""
OF_FLEET = "@fleet"
"""After the id of one whose name is also that of a rule of this agent."""
SAME_S = 0.01
HALF = "it was set together with {other}, which is not known here: neither applies alone"


class NoSuchRule(HeadgateError, LookupError):
    """A rule that is not in force here."""


class RuleKeeper:
    def __init__(
        self,
        store: ChangeLog,
        clock: Clock,
        apply: Callable[[RuleBook], None],
        known_metrics: KnownMetrics,
        *,
        limits: RuleLimits = RuleLimits(),  # noqa: B008 -- frozen
        time: ChangeTime | None = None,
        forget: Forget | None = None,
    ) -> None:
        self._clock = clock
        self.known_metrics = known_metrics
        self.time = time or ChangeTime(clock)
        self.forget = forget
        most = limits.max_rules
        logs = Logs(
            FollowedRules(self.time, most, own=True),
            FollowedRules(self.time, most, own=True, shard=True),
            FollowedRules(self.time, most),
        )
        self._rules = RulesInForce(clock, apply, logs, known_metrics)
        self._notes = ChangeNotes(store, clock, [log.notes for log in logs], self.time)
        self._advisor = RuleAdvisor()
        self._lock = asyncio.Lock()
        self.suspensions = RuleSuspensions(clock, self._rules, self._notes, self._lock)

    # --- looking ---------------------------------------------------------------------------

    @property
    def book(self) -> RuleBook:
        """The snapshot in force. Holds rules that ended within the day, too, for explain."""
        return self._rules.book

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        """Every known rule, ended ones too, with the rule in its effective form."""
        return self._rules.entries()

    def entry(self, rule_id: str) -> RuleEntry:
        entry = self._rules.known(rule_id)
        if entry is None:
            parts = self.parts_of(rule_id)
            known_as = f", but {', '.join(parts)}" if parts else ""
            message = (
                f"no rule {rule_id!r} exists here{known_as}; `headgate rules --all` lists them"
            )
            raise NoSuchRule(message)
        return entry

    def is_own(self, rule_id: str) -> bool:
        """Is of this agent's own log."""
        own, shard, _ = self._rules.logs
        return any(log.ids_of(rule_id) or rule_id in log.entries for log in (own, shard))

    def has_ended(self, item: Change, *, own: bool) -> bool:
        """A change of any kind, by the time that changes count. `own`: of the agent's own log."""
        if item.kind != ChangeKind.RULE:
            return self.time.has_used_up(item, own=own)
        logs = self._rules.logs
        log = logs.fleet if not own else logs.own if item.reach == HERE else logs.shard
        known = [log.entries[rule_id] for rule_id in log.ids_of(item.id) if rule_id in log.entries]
        if entries := [entry for entry in known if entry.origin.n == item.n]:
            return any(map(self._rules.ended, entries))
        try:
            set_at, end_s = counted_from(item), ends_at(item)
        except ValueError:  # Of a newer version.
            return False
        # Changed since, but not its time; and one that was set at this agent says itself when.
        noted = [one.spec.ruled_at for one in known if one.spec.set_at == set_at]
        said_at = (item.value or {}).get("ruled_at") if item.reach == HERE else None
        ruled = [at for at in (*noted, said_at) if isinstance(at, int | float)]
        if ruled and end_s is not None:
            return self.time.term(set_at, end_s, *ruled).has_ended(self._clock.now())
        return self.time.has_used_up(item, own=own)

    def parts_of(self, item_id: str) -> tuple[str, ...]:
        """The ids under which a change of a log is in force here."""
        return next((ids for log in self._rules.logs if (ids := log.ids_of(item_id))), ())

    @property
    def faults(self) -> Mapping[str, str]:
        """Rules that are not in force here as they were set, and why."""
        return ChainMap(self._rules.unmeasured, *(log.faults for log in self._rules.logs))

    def advice(self, spec: RuleSpec, known: KnownMetrics | None = None) -> tuple[Advice, ...]:
        """`known`: the metrics, for a caller with many rules that has them already."""
        wall_s = self._clock.now().wall_s
        return self._advisor.advice(spec, self.book, known or self.known_metrics, wall_s)

    # --- from the logs ---------------------------------------------------------------------

    async def follow(
        self,
        items: Sequence[Change],
        places: Sequence[Place],
        *,
        whole: bool = False,
        own: bool = False,
    ) -> None:
        """What is set. `places`: where each database of this agent is. `own`: from the agent's
        own log. In force at once, even if neither log can be reached.

        `whole`: these are all, from a source that knows their order, and what is missing is gone.
        Else they are some, and may be late: the higher n counts, and a missing one means nothing.
        What is known already changes nothing in any case."""
        async with self._lock:
            if not self._notes.is_tried or (own and whole):
                # Once, and where the own log was just read: while the agent's own disk hangs, what
                # comes after need not wait for it.
                await self._recall()
            if own:
                self._notes.go_on_from(items)
            logs = self._rules.logs
            if not own:
                await self._follow(logs.fleet, items, places, whole=whole)
                return
            here = [item for item in items if item.reach == HERE]
            await self._follow(logs.own, here, places, whole=whole)
            others = [item for item in items if item.reach != HERE]
            await self._follow(logs.shard, others, places, whole=whole)

    async def _follow(
        self, of: FollowedRules, items: Sequence[Change], places: Sequence[Place], *, whole: bool
    ) -> None:
        outcome = of.news(items, places, whole=whole)
        if outcome is not None:
            await self._rules.take(of, outcome)
            said = {"rules": len(outcome.entries), "gone": len(outcome.gone)}
            log.info("rules.followed", **said, rejected=len(outcome.faults), reach=of.name)

    async def _recall(self) -> None:
        if await self._notes.recall():
            changed = [entry for log in self._rules.logs for entry in log.recall()]
            if changed:
                self._rules.put(changed)

    # --- what the agent notes --------------------------------------------------------------

    async def suspend(self, rule_id: str, why: str) -> bool:
        """Suspend an exemption at once; noted if the store can be written."""
        return await self._suspend(rule_id, why, SUSPENDED)

    async def resume(self, rule_id: str) -> bool:
        return await self._suspend(rule_id, "", RESUMED)

    async def _suspend(self, rule_id: str, why: str, action: str) -> bool:
        async with self._lock:
            entry = self._rules.known(rule_id)
            if entry is None or entry.spec.rule.kind is not Kind.EXEMPT or self._rules.ended(entry):
                return False
            if bool(entry.spec.suspended) is bool(why):
                return False
            entry = replace(entry, spec=replace(entry.spec, suspended=why))
            self._rules.put([entry])  # Before it is noted: it protects.
            log.warning(action, rule=rule_id, why=why)
            try:
                await self._notes.keep_suspension(entry.id, action)
            except (StoreUnavailable, Conflict) as error:
                log.error("rule.rests_unkept", rule=entry.id, detail=str(error))
            return True

    def charged(self, rule_id: str) -> Mapping[str, float]:
        """Which clients an exemption has starved for how long, as last charged."""
        entry = self._rules.known(rule_id)
        return entry.spec.charged if entry is not None else {}

    async def charge(self, rule_id: str, charged: Mapping[str, float]) -> None:
        """Note it with the rule, so that a restart does not refill its budget."""
        async with self._lock:
            entry = self._rules.known(rule_id)
            if entry is not None and not self._rules.ended(entry):
                entry = replace(entry, spec=replace(entry.spec, charged=charged))
                self._rules.of(rule_id).entries[rule_id] = entry
                await self._notes.note_charge(entry)

    # --- each second -----------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the clock. A check never waits for this, and ends no later without it."""
        while True:
            await self._clock.sleep(TICK_S)
            now = self._clock.now()
            passed_s = now.mono_s - self._rules.built_at.mono_s
            stepped_s = now.wall_s - self._rules.built_at.wall_s - passed_s
            if abs(stepped_s) > STEP_S:
                log.warning("rules.clock_was_set", by_s=round(stepped_s, 3))
            otherwise = self._rules.is_measured_otherwise()
            if abs(stepped_s) > STEP_S or passed_s >= RENEW_S or otherwise:
                await self._renew(now)
            await self.keep_notes()
            if not self.book.is_empty or self.time.is_counted:
                await self._notes.keep_time()

    async def _renew(self, now: Instant) -> None:
        async with self._lock:
            await self._rules.renew(now)
            over = (await self._rules.forget_over(now))[:MAX_FORGOTTEN_AT_ONCE]
        # Without the lock: the log puts its change in force, which takes it.
        try:
            if over and self.forget is not None:
                await self.forget(over)
        except (StoreUnavailable, Conflict) as error:
            log.warning("rules.not_forgotten", detail=str(error))

    async def keep_notes(self) -> None:
        """Note down what has changed, for the time after a restart. A batch at a time: who changes
        a rule of this agent waits for none but one."""
        more = self._notes.is_due
        while more:
            async with self._lock:
                await self._recall()
                more = await self._notes.keep()


class RuleSuspensions:
    """Suspends a rule of others at this agent, while the fleet's store cannot be reached, or
    has lost it, or nobody leads the shard: then nobody can lift it, and it would stop work here
    until its own end. It is this agent's alone, and kept in its own store."""

    def __init__(
        self, clock: Clock, rules: RulesInForce, notes: ChangeNotes, lock: asyncio.Lock
    ) -> None:
        """`lock`: the keeper's, who changes the same rules."""
        self._clock = clock
        self._notes = notes
        self._rules = rules
        self._lock = lock

    async def put(
        self, rule_id: str, reason: str, *, who: str, dry_run: bool = False
    ) -> list[RuleEntry]:
        """All that is in force of it here, with what was set together with it."""
        if not 1 <= len(reason) <= MAX_REASON_CHARS:
            message = f"is required, up to {MAX_REASON_CHARS} characters: say why, for others"
            raise InvalidSettings([Fault("rest.reason", message)])
        async with self._lock:
            return await self._set(
                rule_id, f"by {who} at this agent: {reason}", who, dry_run=dry_run
            )

    async def end(self, rule_id: str, *, who: str, dry_run: bool = False) -> list[RuleEntry]:
        async with self._lock:
            return await self._set(rule_id, "", who, dry_run=dry_run)

    async def _set(self, rule_id: str, why: str, who: str, *, dry_run: bool) -> list[RuleEntry]:
        found = list(self._concerned(rule_id))
        if not found:
            message = (
                "is not a rule of the fleet or of a shard that is in force here; end a rule of "
                "this agent with `headgate rule lift`"
            )
            raise InvalidSettings([Fault(f"rule {rule_id}", message)])
        entries = [replace(one, spec=replace(one.spec, suspended=why)) for one in found]
        if dry_run:
            return entries
        # In force before it is stored: if that fails, it holds until a restart, and is reported.
        self._rules.put(entries)
        action = SUSPENDED if why else RESUMED
        log.warning(action, rule=rule_id, who=who, why=why)
        return [await self._kept(entry, action, who) for entry in entries]

    def _concerned(self, rule_id: str) -> Iterator[RuleEntry]:
        """By the item's id all of its parts; by that of a part, that one."""
        _, *others = self._rules.logs
        for log in others:
            named = [rule_id] if rule_id in log.entries else log.ids_of(rule_id)
            for name in named:
                entry = log.entries[name]
                if self._rules.ended(entry):
                    continue
                yield entry
                pair = log.ids_of(item_of(entry.spec.pair)) if entry.spec.pair else ()
                for other in pair:
                    if other not in named and not self._rules.ended(log.entries[other]):
                        yield log.entries[other]

    async def _kept(self, entry: RuleEntry, action: str, who: str) -> RuleEntry:
        try:
            await self._notes.keep_suspension(entry.id, action, who)
        except (StoreUnavailable, Conflict) as error:
            log.error("rule.rests_unkept", rule=entry.id, detail=str(error))
            message = f"holds until a restart: this agent's own store did not take it ({error})"
            return replace(entry, advice=(Advice(Severity.WARNING, "unkept", entry.id, message),))
        return entry


# --- the rules of one log, as this agent has them ------------------------------------------------


def item_of(rule_id: str) -> str:
    """The id of the item that a rule in the book is of."""
    return rule_id.partition(SPLIT)[0]


@dataclass
class RuleUpdate:
    """What a list changes: worked out first, and then taken over at once."""

    news: Mapping[str, Change | None]
    places: tuple[Place, ...]
    ids: Sequence[str]
    """Of the items that have to be worked out."""
    entries: dict[str, RuleEntry] = field(default_factory=dict)
    """By their ids in the book."""
    gone: set[str] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Entries that are left out because there is no room."""


class Moved(NamedTuple):
    was: str
    """The id that it had in the book."""
    entry: RuleEntry


class FollowedRules:
    """No store and no lock in here: the keeper has both."""

    def __init__(
        self, time: ChangeTime, max_rules: int, *, own: bool = False, shard: bool = False
    ) -> None:
        """`own`: of the agent's own log; `shard`: of that, what is of its shards."""
        self._time = time
        self._own = own
        self._shard = shard
        self._max_rules = max_rules
        self.name = "shard" if shard else "host" if own else "fleet"
        self._notes_of = f"{ChangeKind.RULE}/{self.name}/"
        """How the names of their times begin (ChangeTime)."""
        self._items = ChangeMemory(ChangeKind.RULE)
        self._places: tuple[Place, ...] = ()
        self._ids: dict[str, tuple[str, ...]] = {}
        """Change → its ids in the book."""
        self._waiting: set[str] = set()
        """Items for which there was no room."""
        self.entries: dict[str, RuleEntry] = {}
        self.faults: dict[str, str] = {}
        """Change → why it is not in force here as it was set."""
        self.notes = RuleNotes(time, self.entries, self._items.known, own=own, shard=shard)

    def recall(self) -> list[RuleEntry]:
        """Their notes were read. Those that are in force already, for the store was away, and that
        are otherwise by them."""
        # One that was set here says where its time was, and needs no note for that.
        says_it, noted = self._own and not self._shard, self.notes.noted
        changed = []
        for was in [one for one in self.entries.values() if says_it or one.id in noted]:
            said_at = was.spec.ruled_at if was.origin.reach == HERE else None
            again = self._entry(replace(was.spec, ruled_at=said_at), was.origin, noted.get(was.id))
            # What was found out about it since stays: that it is suspended.
            suspended = was.spec.suspended or again.spec.suspended
            again = replace(again, spec=replace(again.spec, suspended=suspended))
            if again.spec != was.spec or abs(again.ends_mono_s - was.ends_mono_s) > SAME_S:
                changed.append(again)
        self.entries |= {entry.id: entry for entry in changed}
        return changed

    # --- following -------------------------------------------------------------------------

    def news(
        self, items: Sequence[Change], places: Sequence[Place], *, whole: bool
    ) -> RuleUpdate | None:
        """What there is to work out; None where a list says nothing new."""
        news = self._items.news(items, whole=whole)
        ids = dict.fromkeys(news)
        for item in (one for name in news for one in (news[name], self._items.known.get(name))):
            if item is not None and item.value is not None and item.value.get("pair"):
                ids[str(item.value["pair"])] = None
        if tuple(places) != self._places:
            ids |= dict.fromkeys(self._items.known)
        if self._waiting:
            mark, known = self._time.mark(), self.entries
            if len(known) < self._max_rules or any(_is_done(e, mark) for e in known.values()):
                ids |= dict.fromkeys(self._waiting)  # There is room for them by now.
        return RuleUpdate(news, tuple(places), list(ids)) if ids else None

    def work_out(
        self, outcome: RuleUpdate, ids: Iterable[str], taken: Mapping[str, object], now: Instant
    ) -> None:
        """`taken`: ids of rules that come before these."""
        for item_id in ids:
            item = self._item(item_id, outcome)
            before = self._ids.get(item_id, ())
            try:
                entries = self._entries(item, outcome, taken, now) if item is not None else []
            except (InvalidSettings, ValueError) as error:
                # Of a newer version, or broken: the last good one stays, and ends by its clock.
                outcome.faults[item_id] = str(error)
                log.error("rule.rejected", rule=item_id, fault=str(error))
                continue
            outcome.entries |= {entry.id: entry for entry in entries}
            outcome.gone |= set(before) - {entry.id for entry in entries}

    def _item(self, item_id: str, outcome: RuleUpdate) -> Change | None:
        if item_id in outcome.news:
            return outcome.news[item_id]
        return self._items.known.get(item_id)

    def _entries(
        self, item: Change, outcome: RuleUpdate, taken: Mapping[str, object], now: Instant
    ) -> list[RuleEntry]:
        if item.value is None:
            return []
        spec = _parsed(item)
        if spec.rule.expires_at < now.wall_s - FORGET_AFTER_S:
            return []
        suffix = self._suffix(item.reach) if item.id in taken else ""
        if self._shard:
            spec = _renamed(spec, item, outcome.places)
        placed = _placed(spec, item, outcome.places, suffix)
        if placed and spec.pair and not self._is_readable(spec.pair, outcome):
            placed = [replace(one, lifted_by=one.lifted_by or OURSELVES) for one in placed]
            outcome.faults[item.id] = HALF.format(other=spec.pair)
            log.warning("rule.half_of_a_pair", rule=item.id)
        origin = RuleOrigin(item.id, item.reach, item.n, item.set_by)
        return [self._entry(one, origin, self._known(one, origin)) for one in placed]

    def _suffix(self, reach: Reach) -> str:
        """After the id of one whose name a rule that comes before it has."""
        return f"{SPLIT}{reach.pattern}" if self._shard else OF_FLEET

    def _is_readable(self, item_id: str, outcome: RuleUpdate) -> bool:
        other = self._item(item_id, outcome)
        if other is None or other.value is None:
            return False
        try:
            _parsed(other)
        except (InvalidSettings, ValueError):
            return False
        return True

    def _entry(self, spec: RuleSpec, origin: RuleOrigin, known: RuleSpec | None) -> RuleEntry:
        """With what is known of it here. One that was set at this agent says where its time was."""
        if known is not None and known.set_at == spec.set_at:
            noted_at = known.ruled_at
        else:
            noted_at = self._time.past_at(f"{self._notes_of}{origin.item_id}", spec.set_at)
        term = self._time.term(spec.set_at, spec.rule.expires_at, spec.ruled_at, noted_at)
        again = known is not None and known.lifted_by and not spec.lifted_by
        if known is not None and not again and known.rule.created_at == spec.rule.created_at:
            spec = replace(spec, suspended=known.suspended, charged=known.charged)
        return RuleEntry(replace(spec, ruled_at=term.ruled_at), term.ends_mono_s, origin=origin)

    def _known(self, spec: RuleSpec, origin: RuleOrigin) -> RuleSpec | None:
        """Of another split, too: it is the same rule."""
        for rule_id in (spec.id, origin.item_id, *self._ids.get(origin.item_id, ())):
            if entry := self.entries.get(rule_id):
                return entry.spec
            if noted := self.notes.noted.get(rule_id):
                return noted
        return None

    def take_over(self, outcome: RuleUpdate, wall_s: float) -> None:
        """From here on it is so."""
        self._waiting -= set(outcome.ids)
        self._bound(outcome)
        self._note_past(outcome)
        self._items.remember(outcome.news)
        self._places = outcome.places
        for rule_id in outcome.gone:
            if self.entries.pop(rule_id, None) is not None:
                self.notes.unkept[rule_id] = wall_s
        self.entries |= outcome.entries
        for entry in outcome.entries.values():
            self.notes.changed(entry, wall_s)
        by_item: dict[str, list[str]] = {}
        for rule_id, entry in outcome.entries.items():
            by_item.setdefault(entry.origin.item_id, []).append(rule_id)
        for item_id in outcome.ids:
            if item_id in by_item:
                self._ids[item_id] = tuple(by_item[item_id])
            elif item_id not in outcome.faults:
                self._ids.pop(item_id, None)
            self.faults.pop(item_id, None)
        self.faults |= outcome.faults

    def _note_past(self, outcome: RuleUpdate) -> None:
        """Of those that others take the place of: a rollback gives them what is left of their time.
        One that was set at this agent says it itself."""
        if self._own and not self._shard:
            return
        now_set_at = {one.origin.item_id: one.spec.set_at for one in outcome.entries.values()}
        for item_id in outcome.ids:
            if item_id in outcome.faults and item_id not in now_set_at:
                continue  # The last good one stays.
            split = (f"{item_id}{SPLIT}{place.database}" for place in outcome.places)
            for rule_id in dict.fromkeys([*self._ids.get(item_id, ()), item_id, *split]):
                entry = self.entries.get(rule_id)
                was = entry.spec if entry is not None else self.notes.noted.get(rule_id)
                if was is not None and was.set_at != now_set_at.get(item_id):
                    term = self._time.term(was.set_at, was.rule.expires_at, was.ruled_at)
                    self._time.note_past(f"{self._notes_of}{item_id}", term)

    def _bound(self, outcome: RuleUpdate) -> None:
        excess = self._make_room(outcome)
        new = [name for name in outcome.entries if name not in self.entries]
        for rule_id in new[len(new) - excess :] if excess > 0 else ():
            entry = outcome.entries.pop(rule_id)
            outcome.left_out.append(rule_id)
            message = f"{self._max_rules:,} rules of the fleet are in force here, the maximum"
            outcome.faults[entry.origin.item_id] = message
            self._waiting.add(entry.origin.item_id)

    def _make_room(self, outcome: RuleUpdate) -> int:
        """Those that ended first go first: they are there for their past alone. How many there
        are still too many."""
        new = sum(name not in self.entries for name in outcome.entries)
        gone = sum(name in self.entries or name in outcome.entries for name in outcome.gone)
        excess = len(self.entries) + new - gone - self._max_rules
        if excess <= 0:
            return 0
        mark, known = self._time.mark(), self.entries | outcome.entries
        done = [e for e in known.values() if e.id not in outcome.gone and _is_done(e, mark)]
        done.sort(key=lambda entry: entry.spec.rule.expires_at)
        for entry in done[:excess]:
            outcome.left_out.append(entry.id)
            outcome.entries.pop(entry.id, None)
            if self.entries.pop(entry.id, None) is not None:
                self.notes.unkept[entry.id] = mark.wall_s
            self._ids.pop(entry.origin.item_id, None)
        return excess - len(done[:excess])

    def make_way(self, own: Mapping[str, object]) -> list[Moved]:
        """The ids of rules that come before these are theirs: ours of the same get others."""
        moved = []
        for rule_id in own.keys() & self.entries.keys():
            entry = self.entries.pop(rule_id)
            rule = replace(entry.spec.rule, id=f"{rule_id}{self._suffix(entry.origin.reach)}")
            entry = self.entries[rule.id] = replace(entry, spec=replace(entry.spec, rule=rule))
            self._ids[entry.origin.item_id] = (rule.id,)
            moved.append(Moved(rule_id, entry))
        return moved

    def forget_over(self, now: Instant) -> list[str]:
        """Those that ended a day ago, by both clocks: a wall clock that leapt may come back."""
        over_s = now.wall_s - FORGET_AFTER_S
        over = [
            entry
            for entry in self.entries.values()
            if entry.ends_mono_s <= now.mono_s and entry.in_book(now).expires_at < over_s
        ]
        for entry in over:
            del self.entries[entry.id]
            self._ids.pop(entry.origin.item_id, None)
            self._items.is_over(entry.origin.item_id)
        stale = (name for name, noted in self.notes.noted.items() if noted.rule.expires_at < over_s)
        gone = dict.fromkeys(
            [*(one.id for one in over), *(n for n in stale if n not in self.entries)]
        )
        self.notes.unkept |= dict.fromkeys(gone, now.wall_s)
        return list(gone)

    def prune(self, item_ids: Iterable[str], wall_s: float) -> None:
        """Items that are in force nowhere here, and ended long ago."""
        for item_id in item_ids:
            item = self._items.known.get(item_id)
            if item is not None and item_id not in self._ids and _is_over(item, wall_s):
                self._items.is_over(item_id)
                self.faults.pop(item_id, None)

    @property
    def item_ids(self) -> list[str]:
        return list(self._items.known)

    def ids_of(self, item_id: str) -> tuple[str, ...]:
        """Its ids here: one for each database, if it does not match all."""
        return self._ids.get(item_id, ())


def _is_done(entry: RuleEntry, mark: TimeMark) -> bool:
    """Lifted, or over by both clocks: a wall clock that leapt may come back."""
    spec = entry.spec
    if spec.lifted_by:
        return True
    term_s = spec.rule.expires_at - spec.set_at
    is_over = spec.ruled_at is not None and spec.ruled_at + term_s <= mark.ruled_s
    return is_over and spec.rule.expires_at <= mark.wall_s


def _is_over(item: Change, wall_s: float) -> bool:
    try:
        end_s = ends_at(item)
    except ValueError:
        return False
    return end_s is None or end_s < wall_s - FORGET_AFTER_S


def _parsed(item: Change) -> RuleSpec:
    """As it was set. What another agent notes of a rule says nothing here."""
    RULE_SETTINGS["id"].read(item.id)
    spec = parse_kept(item.id, item.value, item.n)
    if spec.schedule is not None:
        check_zone(spec.schedule)
    ruled_at = spec.ruled_at if item.reach == HERE else None
    return replace(spec, suspended="", charged=NO_LIMITS, ruled_at=ruled_at)


def _renamed(spec: RuleSpec, item: Change, places: Sequence[Place]) -> RuleSpec:
    """Each agent of a shard may call its database otherwise: what was set for one of the shard is
    for the only one of it here."""
    met = item.reach.databases(places)
    if not spec.rule.database or spec.rule.database in met or len(met) != 1:
        return spec
    return replace(spec, rule=replace(spec.rule, database=met[0]))


def _placed(spec: RuleSpec, item: Change, places: Sequence[Place], suffix: str) -> list[RuleSpec]:
    """One for all databases of the agent, if it matches them all; else one for each match."""
    only = spec.rule.database
    if item.reach == HERE:
        return [_named(spec, item.id, only, spec.pair)]
    met = item.reach.databases(places)
    if only:
        met = tuple(name for name in met if name == only)
    if not met:
        return []
    if only or len(met) == len(places):
        return [_named(spec, f"{item.id}{suffix}", only, spec.pair)]
    pair = spec.pair
    return [
        _named(spec, f"{item.id}{SPLIT}{name}", name, pair and f"{pair}{SPLIT}{name}")
        for name in met
    ]


def _named(spec: RuleSpec, rule_id: str, database: str, pair: str) -> RuleSpec:
    rule = replace(spec.rule, id=rule_id, database=database)
    return replace(spec, rule=rule, pair=pair)


# --- the rules of all logs, in force -------------------------------------------------------------


T = TypeVar("T")
SLICE = 250
"""Rules that are processed before checks have their turn."""


class Logs(NamedTuple):
    """Rules of each log, in the order in which they have their names."""

    own: FollowedRules
    """Rules of this agent alone."""
    shard: FollowedRules
    """Rules of its shards, from its own log."""
    fleet: FollowedRules


class RulesInForce:
    """The rules that count just now: of all logs, in one book.

    A change costs what it changes. Work on many rules is done in slices, on a draft, and takes
    effect all together. A caller of a method that waits holds the keeper's lock: no change is lost.
    """

    def __init__(
        self,
        clock: Clock,
        apply: Callable[[RuleBook], None],
        logs: Logs,
        known_metrics: KnownMetrics,
    ) -> None:
        self._clock = clock
        self._apply = apply
        self._known_metrics = known_metrics
        self._measured: frozenset[tuple[str, str]] = frozenset()
        """The known metrics when all rules were last computed."""
        self.unmeasured: dict[str, str] = {}
        """Rules → their effect here, if metrics are missing."""
        self.logs = logs
        self.built_at = clock.now()
        """When all were last computed."""
        self.book: RuleBook = NO_RULES

    def known(self, rule_id: str) -> RuleEntry | None:
        return self.of(rule_id).entries.get(rule_id)

    def of(self, rule_id: str) -> FollowedRules:
        """The log's whose rule it is."""
        return next((log for log in self.logs if rule_id in log.entries), self.logs.fleet)

    def entries(self) -> list[tuple[RuleEntry, Rule]]:
        found = ((self.known(rule.id), rule) for rule in self.book.rules)
        return [(entry, rule) for entry, rule in found if entry is not None]

    def ended(self, entry: RuleEntry) -> bool:
        if entry.spec.lifted_by:
            return True
        now = self._clock.now()
        return now.wall_s >= entry.spec.rule.expires_at or now.mono_s >= entry.ends_mono_s

    # --- changing --------------------------------------------------------------------------

    def put(self, entries: Sequence[RuleEntry]) -> None:
        """Together, at once; the others stay as they are, so that it takes no longer than that."""
        for entry in entries:
            self.of(entry.id).entries[entry.id] = entry
        now = self._clock.now()
        draft = self.book.draft(now.wall_s)
        draft.put(self._in_book(entry, now) for entry in entries)
        self._adopt_changed(draft, entries)

    def drop(self, gone: Iterable[str]) -> None:
        gone = list(gone)
        self._forget_unmeasured(gone)
        draft = self.book.draft(self._clock.now().wall_s)
        draft.drop(gone)
        self._adopt(draft, self.book.revision)

    async def take(self, of: FollowedRules, outcome: RuleUpdate) -> None:
        """What was set in one of the logs. Should it be given up meanwhile, nothing was done."""
        at = self.logs.index(of)
        taken = ChainMap(*(log.entries for log in self.logs[:at]))
        for ids in _slices(outcome.ids):
            of.work_out(outcome, ids, taken, self._clock.now())
            await _let_checks_in(outcome.ids)
        moved = [one for log in self.logs[at + 1 :] for one in log.make_way(outcome.entries)]
        entries, gone = list(outcome.entries.values()), outcome.gone
        now = self._clock.now()
        draft = self.book.draft(now.wall_s)
        draft.drop({*gone, *(one.was for one in moved)})
        for some in _slices([*entries, *(one.entry for one in moved)]):
            draft.put(self._in_book(entry, now) for entry in some)
            await _let_checks_in(entries)
        of.take_over(outcome, self._clock.now().wall_s)
        self._forget_unmeasured([*gone, *outcome.left_out])
        if entries or gone:
            draft.drop(outcome.left_out)
            changed = [*outcome.entries.values(), *(one.entry for one in moved)]
            self._adopt_changed(draft, changed, gone)
        if self.book.is_empty:
            self.built_at = now

    async def renew(self, now: Instant) -> None:
        """Windows of the days ahead, ends by both clocks, and metrics that came or went."""
        self.built_at, self._measured = now, self._measured_now()
        draft = self.book.draft(now.wall_s)
        entries = [entry for log in self.logs for entry in log.entries.values()]
        for some in _slices(entries):
            rules = (self._in_book(entry, now) for entry in some)
            draft.put([rule for rule in rules if not draft.has(rule)])
            await asyncio.sleep(0)
        self._adopt(draft, self.book.revision)

    async def forget_over(self, now: Instant) -> list[str]:
        """What ended a day ago; those of the agent's own log, which has them still."""
        for of in self.logs:
            for some in _slices(of.item_ids):
                of.prune(some, now.wall_s)
                await asyncio.sleep(0)
        own, shard, fleet = (log.forget_over(now) for log in self.logs)
        if gone := [*own, *shard, *fleet]:
            self.drop(gone)
        return own

    # --- metrics ---------------------------------------------------------------------------

    def is_measured_otherwise(self) -> bool:
        """Than when all were worked out: rules of others on metrics may say something else."""
        return any(log.entries for log in self.logs) and self._measured_now() != self._measured

    def _measured_now(self) -> frozenset[tuple[str, str]]:
        return frozenset((name, one.missing_on) for name, one in self._known_metrics("").items())

    def _in_book(self, entry: RuleEntry, now: Instant) -> Rule:
        """A metric that is not measured would lock a client out. A rule for this agent alone was
        validated for that; one that reaches further was set where other metrics exist, or has a
        typing error: metrics that are not measured here have no effect here."""
        rule = entry.in_book(now)
        if entry.origin.reach == HERE:
            return rule
        if entry.spec.suspended and rule.kind is not Kind.EXEMPT:
            return replace(
                rule, windows=NEVER
            )  # An operator has suspended it here (RuleSuspensions).
        if rule.kind is not Kind.METRICS:
            return rule
        known = self._known_metrics(rule.database)
        there = [name for name in rule.metrics if name in known and not known[name].missing_on]
        missing = [name for name in rule.metrics if name not in there]
        if not missing:
            self.unmeasured.pop(rule.id, None)
            return rule
        told = f"{', '.join(missing)}: not measured on every database here that the rule is for"
        rest = f"{', '.join(there)} alone" if there else "no metric, and so has no effect"
        self.unmeasured[rule.id] = f"{told}; here it names {rest}"
        return replace(rule, metrics=tuple(there)) if there else replace(rule, windows=NEVER)

    def _forget_unmeasured(self, gone: Iterable[str]) -> None:
        for rule_id in gone:
            self.unmeasured.pop(rule_id, None)

    # --- steps -----------------------------------------------------------------------------

    def _adopt_changed(
        self, draft: RuleBookDraft, entries: Sequence[RuleEntry], gone: Collection[str] = ()
    ) -> None:
        resting = {entry.id for entry in entries if entry.spec.suspended}
        awake = {entry.id for entry in entries} | {*gone}
        draft.suspend(self.book.suspended - awake | resting)
        self._adopt(draft, self.book.revision + 1)

    def _adopt(self, draft: RuleBookDraft, revision: int) -> None:
        self.book = draft.book(revision)
        self._apply(self.book)


def _slices(many: Sequence[T]) -> Iterable[Sequence[T]]:
    return (many[start : start + SLICE] for start in range(0, len(many), SLICE))


async def _let_checks_in(many: Sequence[object]) -> None:
    if len(many) > SLICE:
        await asyncio.sleep(0)
