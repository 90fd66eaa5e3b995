"""The rules of one log as this agent has them.   items, places ──► FollowedRules ──► RulesInForce

An item is in force on those databases of the agent that its reach matches. What only this agent
knows about it is noted here, and never in a log that others read: how much of its time is used up
by the rules' own clock, whether it is suspended, and which clients it has starved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import structlog

from headgate.changes.inforce import ChangeMemory
from headgate.changes.model import FORGET_AFTER_S, OURSELVES, Change, ChangeKind
from headgate.changes.reach import HERE, Place, Reach
from headgate.changes.state import ends_at
from headgate.changes.time import STEP_S, ChangeTime, TimeMark, iso, parse_mark
from headgate.errors import InvalidSettings
from headgate.history.records import AuditEntry
from headgate.metrics.lint import Advice
from headgate.metrics.samples import Instant
from headgate.rules.matching import NO_LIMITS, Rule, Window
from headgate.rules.schedules import check_zone, windows_ahead
from headgate.rules.settings import RULE_SETTINGS, RuleSpec, parse_kept, written
from headgate.rules.times import parse_date_time

NEVER: tuple[Window, ...] = ()
"""No clock brings back a lifted rule."""


@dataclass(frozen=True, slots=True)
class RuleOrigin:
    """The change of a log that a rule is of: as what, how far, and by which revision."""

    item_id: str
    reach: Reach
    n: int
    set_by: str


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """One rule as it is stored, and as it applies."""

    spec: RuleSpec
    ends_mono_s: float
    """By this the rule ends, whatever the wall clock says."""
    origin: RuleOrigin
    advice: tuple[Advice, ...] = ()
    unread: str = ""
    """For a rule that a newer version set for the fleet: why it cannot be read here. Its spec then
    has only its name, its target, and its end."""

    @property
    def id(self) -> str:
        return self.spec.id

    def in_book(self, now: Instant) -> Rule:
        """As the book has it: with its windows, and with an end that no clock can put off."""
        rule, schedule = self.spec.rule, self.spec.schedule
        if self.spec.lifted_by:
            return replace(rule, windows=NEVER)
        by_mono = now.wall_s + self.ends_mono_s - now.mono_s
        if by_mono < rule.expires_at - STEP_S:
            rule = replace(rule, expires_at=by_mono)
        if schedule is not None:
            rule = replace(rule, windows=windows_ahead(schedule, now.wall_s))
        return rule


def value_of(spec: RuleSpec) -> Mapping[str, Any]:
    """As it is kept and audited: in times that a person can read."""
    rule = spec.rule
    value: dict[str, Any] = {
        **written(rule, spec.schedule),
        "expires_at": iso(rule.expires_at),
        "created_at": iso(rule.created_at),
        "created_by": rule.created_by,
        "set_at": iso(spec.set_at),
    }
    if spec.ruled_at is not None:
        value["ruled_at"] = spec.ruled_at
    if spec.charged:
        value["charged"] = dict(spec.charged)
    texts = {"pair": spec.pair, "suspended": spec.suspended, "lifted_by": spec.lifted_by}
    return value | {key: text for key, text in texts.items() if text}


def mark_of(value: Mapping[str, Any]) -> TimeMark | None:
    """A rule that was set here tells how far time had come when its end was set, by both clocks."""
    try:
        set_at = parse_date_time(value.get("set_at"))
    except ValueError:
        return None
    return parse_mark({"ruled_s": value.get("ruled_at"), "wall_s": set_at})


log = structlog.get_logger()

SPLIT = "@"
"""Between the id of an item and the database where it is in force; no id has it."""
OF_FLEET = "@fleet"
"""After the id of one whose name is also that of a rule of this agent."""
SAME_S = 0.01
HALF = "it was set together with {other}, which is not known here: neither applies alone"


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


class RuleNote(NamedTuple):
    """What the agent notes of a rule."""

    rule_id: str
    value: Mapping[str, Any] | None
    """None: nothing is to be kept of it."""
    audit: AuditEntry | None
    """So that the audit has the past of a fleet's rule, too; the agent's own log has an entry for
    each change already."""


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
        self._items = ChangeMemory(ChangeKind.RULE)
        self._places: tuple[Place, ...] = ()
        self._ids: dict[str, tuple[str, ...]] = {}
        """Change → its ids in the book."""
        self._waiting: set[str] = set()
        """Items for which there was no room."""
        self._noted: dict[str, RuleSpec] = {}
        """As the store has it."""
        self.entries: dict[str, RuleEntry] = {}
        self.faults: dict[str, str] = {}
        """Change → why it is not in force here as it was set."""
        self.unkept: dict[str, float] = {}
        """Rules that are not in the store in their current form; since when (wall clock)."""

    @property
    def name(self) -> str:
        return "shard" if self._shard else "host" if self._own else "fleet"

    # --- from the store --------------------------------------------------------------------

    def recall(self, notes: Mapping[str, Mapping[str, Any]]) -> list[RuleEntry]:
        """What was known of them before a restart. Where they are in force already, for the
        store was away, those that are otherwise by it."""
        self._noted = {}
        for rule_id, value in notes.items():
            here = value.get("reach") == str(HERE)
            own = here or value.get("own") is True
            if own is not self._own or (own and here is self._shard):
                continue
            try:
                self._noted[rule_id] = parse_kept(rule_id, value.get("rule"), value.get("n", 0))
            except InvalidSettings as error:
                log.error("rule.note_rejected", rule=rule_id, fault=str(error))
        # One that was set here says where its time was, and needs no note for that.
        says_it = self._own and not self._shard
        known = [one for one in self.entries.values() if says_it or one.id in self._noted]
        again = [self._recalled(entry) for entry in known]
        changed = [one for one, was in zip(again, known, strict=True) if _differ(one, was)]
        self.entries |= {entry.id: entry for entry in changed}
        return changed

    def _recalled(self, entry: RuleEntry) -> RuleEntry:
        """What was noted about it since stays: that it is suspended."""
        spec, origin = entry.spec, entry.origin
        said_at = spec.ruled_at if origin.reach == HERE else None
        again = self._entry(replace(spec, ruled_at=said_at), origin, self._noted.get(entry.id))
        suspended = entry.spec.suspended or again.spec.suspended
        return replace(again, spec=replace(again.spec, suspended=suspended))

    # --- following -------------------------------------------------------------------------

    def news(
        self, items: Sequence[Change], places: Sequence[Place], *, whole: bool
    ) -> RuleUpdate | None:
        """What there is to work out; None where a list says nothing new."""
        news = self._items.news(items, whole=whole)
        ids = dict.fromkeys([*news, *self._pairs(news)])
        if tuple(places) != self._places:
            ids |= dict.fromkeys(self._items.known)
        if self._waiting and self._has_room():
            ids |= dict.fromkeys(self._waiting)
        return RuleUpdate(news, tuple(places), list(ids)) if ids else None

    def _pairs(self, news: Mapping[str, Change | None]) -> Iterable[str]:
        """Of those that were set together with one that changes."""
        for name, item in news.items():
            for one in (item, self._items.known.get(name)):
                if one is not None and one.value is not None and one.value.get("pair"):
                    yield str(one.value["pair"])

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
        suffix = self._suffix(item) if item.id in taken else ""
        if self._shard:
            spec = _renamed(spec, item, outcome.places)
        placed = _placed(spec, item, outcome.places, suffix)
        if placed and spec.pair and not self._is_readable(spec.pair, outcome):
            placed = [replace(one, lifted_by=one.lifted_by or OURSELVES) for one in placed]
            outcome.faults[item.id] = HALF.format(other=spec.pair)
            log.warning("rule.half_of_a_pair", rule=item.id)
        origin = RuleOrigin(item.id, item.reach, item.n, item.set_by)
        return [self._entry(one, origin, self._known(one, origin)) for one in placed]

    def _suffix(self, item: Change) -> str:
        return f"{SPLIT}{item.reach.pattern}" if self._shard else OF_FLEET

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
        noted_at = None if known is None or known.set_at != spec.set_at else known.ruled_at
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
            if noted := self._noted.get(rule_id):
                return noted
        return None

    def take_over(self, outcome: RuleUpdate, wall_s: float) -> None:
        """From here on it is so."""
        self._waiting -= set(outcome.ids)
        self._bound(outcome)
        self._items.remember(outcome.news)
        self._places = outcome.places
        for rule_id in outcome.gone:
            if self.entries.pop(rule_id, None) is not None:
                self.unkept[rule_id] = wall_s
        self.entries |= outcome.entries
        for rule_id, entry in outcome.entries.items():
            self._note_unkept(rule_id, entry, wall_s)
        self._note_ids(outcome)
        for item_id in outcome.ids:
            self.faults.pop(item_id, None)
        self.faults |= outcome.faults

    def _has_room(self) -> bool:
        mark = self._time.mark()
        full = len(self.entries) >= self._max_rules
        return not full or any(_is_done(entry, mark) for entry in self.entries.values())

    def _bound(self, outcome: RuleUpdate) -> None:
        for rule_id in self._too_many(outcome, self._make_room(outcome)):
            entry = outcome.entries.pop(rule_id)
            outcome.left_out.append(rule_id)
            message = f"{self._max_rules:,} rules of the fleet are in force here, the maximum"
            outcome.faults[entry.origin.item_id] = message
            self._waiting.add(entry.origin.item_id)

    def _too_many(self, outcome: RuleUpdate, excess: int) -> list[str]:
        new = [name for name in outcome.entries if name not in self.entries]
        return new[len(new) - excess :] if excess > 0 else []

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
                self.unkept[entry.id] = mark.wall_s
            self._ids.pop(entry.origin.item_id, None)
        return excess - len(done[:excess])

    def _note_ids(self, outcome: RuleUpdate) -> None:
        by_item: dict[str, list[str]] = {}
        for rule_id, entry in outcome.entries.items():
            by_item.setdefault(entry.origin.item_id, []).append(rule_id)
        for item_id in outcome.ids:
            if item_id in by_item:
                self._ids[item_id] = tuple(by_item[item_id])
            elif item_id not in outcome.faults:
                self._ids.pop(item_id, None)

    def _note_unkept(self, rule_id: str, entry: RuleEntry, wall_s: float) -> None:
        noted = self._noted.get(rule_id)
        if noted == entry.spec:
            self._noted[rule_id] = entry.spec  # One of both is enough.
        elif noted is not None or self._says_more(entry):
            self.unkept.setdefault(rule_id, wall_s)

    def _says_more(self, entry: RuleEntry) -> bool:
        """Than its item does, which is in the agent's own log: only that has to be noted."""
        if not self._own or self._shard:
            return True
        item, spec = self._items.known.get(entry.origin.item_id), entry.spec
        said = None if item is None or item.value is None else item.value.get("ruled_at")
        return bool(spec.suspended or spec.charged) or said is None or said != spec.ruled_at

    # --- what the agent itself notes ---------------------------------------------------------

    def replaced(self, entry: RuleEntry, wall_s: float) -> None:
        """After it was suspended, or resumed."""
        self.entries[entry.id] = entry
        self.unkept[entry.id] = wall_s

    def charged(self, entry: RuleEntry) -> RuleNote | None:
        """What to note of it; None where that is due in any case, with all of it."""
        self.entries[entry.id] = entry
        if entry.id in self.unkept:
            return None
        self._noted[entry.id] = entry.spec
        return RuleNote(entry.id, self._note_value(entry), None)

    def make_way(self, own: Mapping[str, object]) -> list[Moved]:
        """The ids of rules that come before these are theirs: ours of the same get others."""
        moved = []
        for rule_id in own.keys() & self.entries.keys():
            entry = self.entries.pop(rule_id)
            suffix = f"{SPLIT}{entry.origin.reach.pattern}" if self._shard else OF_FLEET
            rule = replace(entry.spec.rule, id=f"{rule_id}{suffix}")
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
        stale = (name for name, noted in self._noted.items() if noted.rule.expires_at < over_s)
        gone = dict.fromkeys(
            [*(one.id for one in over), *(n for n in stale if n not in self.entries)]
        )
        self.unkept |= dict.fromkeys(gone, now.wall_s)
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

    # --- into the store --------------------------------------------------------------------

    def note_of(self, rule_id: str, wall_s: float, action: str = "", who: str = "") -> RuleNote:
        """What there is to note of it. `action`: an operator (`who`) or the agent made it so."""
        noted, entry = self._noted.get(rule_id), self.entries.get(rule_id)
        was = value_of(noted) if noted else None
        if entry is None:
            audit = AuditEntry(wall_s, OURSELVES, "rule.unfollowed", rule_id, was, None)
            return RuleNote(rule_id, None, None if self._own else audit)
        by = (who or OURSELVES) if action else entry.origin.set_by
        now = value_of(entry.spec)
        audit = AuditEntry(wall_s, by, action or "rule.followed", rule_id, was, now)
        is_told = self._own and not action
        value = self._note_value(entry) if self._says_more(entry) else None
        return RuleNote(rule_id, value, None if is_told else audit)

    def _note_value(self, entry: RuleEntry) -> Mapping[str, Any]:
        origin = {"reach": str(entry.origin.reach), "n": entry.origin.n, "own": self._own}
        return {**origin, **self._time.mark().written(), "rule": value_of(entry.spec)}

    def is_noted(self, notes: Iterable[RuleNote]) -> None:
        for note in notes:
            self.unkept.pop(note.rule_id, None)
            entry = self.entries.get(note.rule_id)
            if note.value is None or entry is None:
                self._noted.pop(note.rule_id, None)
            else:
                self._noted[note.rule_id] = entry.spec

    def has_no_note(self, rule_id: str) -> bool:
        """Gone before anything was noted: nothing has to be taken out."""
        return rule_id not in self.entries and rule_id not in self._noted


def _is_done(entry: RuleEntry, mark: TimeMark) -> bool:
    """Lifted, or over by both clocks: a wall clock that leapt may come back."""
    spec = entry.spec
    if spec.lifted_by:
        return True
    term_s = spec.rule.expires_at - spec.set_at
    is_over = spec.ruled_at is not None and spec.ruled_at + term_s <= mark.ruled_s
    return is_over and spec.rule.expires_at <= mark.wall_s


def _differ(one: RuleEntry, other: RuleEntry) -> bool:
    return one.spec != other.spec or abs(one.ends_mono_s - other.ends_mono_s) > SAME_S


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
