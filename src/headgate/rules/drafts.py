"""Rules as changes of a log.   a request + LogState ──RuleDrafts──► Draft ──► … ──► RuleEntry

A rule of this agent's own log is validated with the agent's metrics: it is for this agent alone, or
for the shard that it leads. A rule that reaches further may name metrics that are measured only
where it applies, so that is advice and not a fault. Except for a
rule on `all`: it might lock out every client, so only an agent with these metrics may set it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from headgate.base.advice import Advice, Severity
from headgate.base.declared import iso
from headgate.base.names import parse_metric
from headgate.changes.model import Change, ChangeKind, Edit
from headgate.changes.reach import EVERYWHERE, HERE, Reach
from headgate.changes.state import (
    KEEP_S,
    Draft,
    LogState,
    NoSuchItem,
    ends_at,
    is_taken_out,
    name_of,
    stands,
)
from headgate.changes.time import STEP_S
from headgate.errors import Conflict, Fault, InvalidSettings
from headgate.metrics.samples import Instant
from headgate.rules.matching import EVERYONE, NO_RULES, Kind, Rule, RuleBook, Window
from headgate.rules.schedules import check_zone, windows_ahead
from headgate.rules.settings import (
    FAVOR_RATIO,
    FIXED,
    LOCK_OUT,
    PAIRED,
    KnownMetric,
    KnownMetrics,
    RuleLimits,
    RuleSpec,
    Sparing,
    advise,
    limit_told,
    not_held,
    parse_kept,
    parse_rule,
    parse_target,
    without_nulls,
    written,
)

MAX_COMPARED = 200
"""Rules that a new one is compared with, for advice."""
MAX_ALIKE = 20
"""Of the same target, for advice on each of a list."""
KEPT_TIMES = 3
"""Factor on the number of rules: how many items are kept at most, ended ones too."""
ELSEWHERE = "rule-elsewhere"
"""Advice on a database that is not configured here: for a fleet's rules most are not."""


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
        windows = None if schedule is None else windows_ahead(schedule, now.wall_s)
        if (start := self.spec.starts_at) is not None:
            given = ((start, rule.expires_at),) if windows is None else windows
            windows = tuple((max(begin, start), end) for begin, end in given if end > start)
        return rule if windows is None else replace(rule, windows=windows)


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
    if spec.starts_at is not None:
        value["starts_at"] = iso(spec.starts_at)
    if spec.charged:
        value["charged"] = dict(spec.charged)
    texts = {"pair": spec.pair, "suspended": spec.suspended, "lifted_by": spec.lifted_by}
    return value | {key: text for key, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class ChangeAuthor:
    """The author of a change, and its time."""

    who: str
    wall_s: float


@dataclass(frozen=True, slots=True)
class Here:
    """What an agent knows of rules beyond its log: for those that are for it alone."""

    advice: Callable[[RuleSpec], Sequence[Advice]]
    """Advice on a rule next to those in force."""
    ruled_s: Callable[[], float]
    """The rules' own time (changes/time.py)."""


@dataclass(frozen=True, slots=True)
class RuleDrafts:
    known_metrics: KnownMetrics
    limits: RuleLimits = RuleLimits()  # noqa: RUF009 -- frozen
    here: Here | None = None
    """Of an agent's own log."""
    new_id: Callable[[], str] | None = None
    """None: made up."""

    def put(
        self, held: LogState, asked: ChangeAuthor, *, raw: Mapping[str, Any], reach: Reach
    ) -> Draft:
        spec = self.parsed(raw, self.free_id(held), asked, reach)
        told = _checked_vacancy(held, spec, reach, asked)
        draft = self._drafted(held, "rule.set", [(spec, reach)], asked)
        return replace(draft, advice=(*draft.advice, *told))

    def favor(
        self,
        held: LogState,
        asked: ChangeAuthor,
        *,
        target: str,
        over: str = EVERYONE,
        ratio: float = FAVOR_RATIO,
        more: Mapping[str, Any] = MappingProxyType({}),
        reach: Reach,
    ) -> Draft:
        """Prioritize the target by throttling all others: two rules, set and lifted together.

        `more`: for, expires_at, schedule, database, reason; both rules have them.
        """
        favored, reduced = favor_targets(target, over)
        reason = f"{target} is favored over {over}"
        shared = {"kind": Kind.RATIO.value, "reason": reason, **more}
        first_id = self.free_id(held)
        second_id = self.free_id(held, {first_id})
        first = self.parsed({**shared, "target": favored, "ratio": 0.0}, first_id, asked, reach)
        second = self.parsed({**shared, "target": reduced, "ratio": ratio}, second_id, asked, reach)
        both = [(replace(first, pair=second_id), reach), (replace(second, pair=first_id), reach)]
        return self._drafted(held, "rule.set", both, asked)

    def patch(
        self,
        held: LogState,
        asked: ChangeAuthor,
        *,
        rule_id: str,
        raw: Mapping[str, Any],
        expect: int | None = None,
    ) -> Draft:
        """Some of it; `expect`: only if it is of that revision. A new end is of its pair, too."""
        item = changeable(held, rule_id, asked.wall_s, expect)
        _check_patch(raw)
        specs = [(self.patched(rule_spec(item), raw, asked, item.reach), item.reach)]
        end = {key: value for key, value in raw.items() if key in PAIRED}
        other = _pair_of(held, item, asked.wall_s)
        if end and other is not None:
            specs.append((self.patched(rule_spec(other), end, asked, other.reach), other.reach))
        action = "rule.extended" if raw.keys() <= set(PAIRED) else "rule.changed"
        return self._drafted(held, action, specs, asked)

    def lift(
        self, held: LogState, asked: ChangeAuthor, *, rule_id: str, expect: int | None = None
    ) -> Draft:
        """End it now, and the one that was set together with it. Also what has ended by this
        agent's clock: another's may be behind, or right."""
        item = _known(held, rule_id, expect)
        if is_taken_out(item):
            by = (item.value or {}).get("lifted_by", item.set_by)
            raise InvalidSettings([Fault(f"rule {rule_id}", f"was already lifted by {by}")])
        other = held.rule(_pair_id(item))
        both = [item] if other is None or is_taken_out(other) else [item, other]
        told = () if held.stands(item, asked.wall_s) else (_over(item),)
        return Draft("rule.lifted", [Edit(one, ended(one, asked)) for one in both], told)

    # --- one rule --------------------------------------------------------------------------

    def parsed(
        self,
        raw: Mapping[str, Any],
        rule_id: str,
        asked: ChangeAuthor,
        reach: Reach,
        *,
        place: str = "rule",
        known_metrics: KnownMetrics | None = None,
    ) -> RuleSpec:
        here = known_metrics or self.known_metrics
        spec = parse_rule(
            raw,
            rule_id=rule_id,
            author=asked.who,
            wall_s=asked.wall_s,
            known_metrics=here if self.here else lambda database: self._known(database, raw),
            limits=self.limits,
            place=place,
        )
        if spec.schedule is not None:
            check_zone(spec.schedule, place=f"{place}.schedule.zone")
        if self.here is None or reach != HERE:
            return spec
        return replace(spec, ruled_at=round(self.here.ruled_s(), 3))

    def patched(
        self,
        spec: RuleSpec,
        raw: Mapping[str, Any],
        asked: ChangeAuthor,
        reach: Reach,
        *,
        place: str = "rule",
    ) -> RuleSpec:
        """Change some settings. Without a new end, it gets no more time."""
        rule = spec.rule
        merged = {**written(rule, spec.schedule), "starts_at": spec.starts_at, **raw}
        new_end = any(raw.get(key) is not None for key in PAIRED)
        if not new_end:
            merged |= {"for": None, "expires_at": rule.expires_at}
        merged = without_nulls(merged)
        # Limits that stay as they are may bite by now: that is what they are there for.
        known = self.known_metrics if "thresholds" in raw else self._known_without_values
        parsed = self.parsed(
            {**merged, "id": rule.id}, rule.id, asked, reach, place=place, known_metrics=known
        )
        return self.in_place_of(spec, parsed)

    def in_place_of(self, before: RuleSpec, parsed: RuleSpec) -> RuleSpec:
        """The same rule, set again: its author stays, and the time of setting if the end does."""
        was = before.rule
        rule = replace(parsed.rule, created_at=was.created_at, created_by=was.created_by)
        if rule.expires_at != was.expires_at:
            return replace(parsed, rule=rule, pair=before.pair)
        return replace(
            parsed, rule=rule, set_at=before.set_at, ruled_at=before.ruled_at, pair=before.pair
        )

    def _known_without_values(self, database: str) -> Mapping[str, KnownMetric]:
        known = self.known_metrics(database)
        return {name: metric._replace(value=None) for name, metric in known.items()}

    def free_id(self, held: LogState, taken: set[str] | None = None) -> str:
        while True:
            made_up = f"{'r' if self.here else 'f'}-{token_hex(3)}"
            rule_id = self.new_id() if self.new_id else made_up
            if held.rule(rule_id) is None and rule_id not in (taken or ()):
                return rule_id

    def _known(self, database: str, raw: Mapping[str, Any]) -> Mapping[str, KnownMetric]:
        """As configured here; what is measured now, and where, says nothing of other places.
        Unknown ones are taken for such that any limit may be set for."""
        known = self.known_metrics(database)
        if not known:
            return known
        here = {name: one._replace(missing_on="", value=None) for name, one in known.items()}
        return {**dict.fromkeys(_named(raw), KnownMetric(0.0, False)), **here}

    def check_lock_out(
        self, spec: RuleSpec, reach: Reach, before: Change | None, *, place: str = "rule"
    ) -> None:
        """A mistyped word must not throttle every client of a fleet: only a hold may do that. A
        change that only extends a rule in force (`before`) locks out nobody."""
        rule, known = spec.rule, self.known_metrics(spec.rule.database)
        if self.here or rule.target != EVERYONE or _judges_as(before, rule, reach):
            return
        faults = [
            Fault(f"{place}.{where}", _UNJUDGED.format(name))
            for where, names in (("metrics", rule.metrics), ("thresholds", rule.thresholds))
            for name in names
            if name not in known and rule.kind is not Kind.EXEMPT
        ]
        if reach == EVERYWHERE and spec.schedule is None:
            faults += [
                Fault(f"{place}.thresholds.{name}", f"is {limit} for all: {why}; {LOCK_OUT}")
                for name, limit, why in _exceeded(rule, known)
            ]
        if faults:
            raise InvalidSettings(faults)

    # --- drafts ----------------------------------------------------------------------------

    def _drafted(
        self,
        held: LogState,
        action: str,
        specs: Sequence[tuple[RuleSpec, Reach]],
        asked: ChangeAuthor,
    ) -> Draft:
        for spec, reach in specs:
            self.check_lock_out(spec, reach, held.standing_rule(spec.id, asked.wall_s))
        changes = [Edit(held.rule(spec.id), rule_item(spec, reach, asked)) for spec, reach in specs]
        changes = [change for change in changes if is_change(change)]
        check_room(held, changes, self.limits, asked.wall_s)
        told = self._advice(held, specs, asked)
        return Draft(action, changes, tuple(told) if changes else (UNCHANGED,))

    def _advice(
        self, held: LogState, specs: Sequence[tuple[RuleSpec, Reach]], asked: ChangeAuthor
    ) -> list[Advice]:
        if self.here is not None:
            return [one for spec, _ in specs for one in self.here.advice(spec)]
        others = Neighbours(held, asked.wall_s)
        return [one for spec, reach in specs for one in self.advice(others, spec, reach, asked)]

    def advice(
        self, others: Neighbours, spec: RuleSpec, reach: Reach, asked: ChangeAuthor
    ) -> Iterator[Advice]:
        known = self.known_metrics(spec.rule.database)
        rules = list(islice(others.of(spec, reach), MAX_COMPARED))
        for one in (
            *advise(spec, rules, known, asked.wall_s),
            *not_held(spec.rule, rules, asked.wall_s),
        ):
            if one.code != ELSEWHERE:
                yield one
        yield from _unmeasured(spec.rule, known)


def favor_targets(target: str, over: str) -> tuple[str, str]:
    """The target without a ratio, and the one with it. A client in both must have no ratio: that
    takes a rule on both, because among equals the stricter wins."""
    faults = []
    for place, given in (("target", target), ("over", over)):
        try:
            parse_target(given)
        except ValueError as error:
            faults.append(Fault(f"favor.{place}", str(error)))
    if not faults and target in (over, EVERYONE):
        faults.append(Fault("favor.target", f"{target} cannot be favored over {over}"))
    if faults:
        raise InvalidSettings(faults)
    if over == EVERYONE:
        return target, over
    return ":".join(dict.fromkeys([*target.split(":"), *over.split(":")])), over


class Neighbours:
    """Rules in force, by their target: for advice on another one."""

    def __init__(self, held: LogState, wall_s: float) -> None:
        self._items = [
            item
            for item in held.items.values()
            if item.kind is ChangeKind.RULE and held.stands(item, wall_s)
        ]
        self._by_tokens: dict[frozenset[str], list[Change]] = {}
        for item in self._items:
            tokens = frozenset(str((item.value or {}).get("target", "")).split(":"))
            self._by_tokens.setdefault(tokens, []).append(item)

    def of(self, spec: RuleSpec, reach: Reach) -> Iterator[Rule]:
        """Rules on the same clients that are in force wherever this one is; for a hold, which does
        not apply to clients with a rule of their own, any."""
        alike = self._by_tokens.get(frozenset(spec.rule.tokens), [])
        for item in self._items if spec.rule.kind is Kind.HOLD else alike:
            if item.reach in (EVERYWHERE, reach) and item.id not in (spec.id, spec.pair):
                with suppress(InvalidSettings):
                    yield rule_spec(item).rule


UNCHANGED = Advice(Severity.WARNING, "unchanged", "fleet", "nothing changed: it is already set")


def is_change(change: Edit) -> bool:
    before, after = change.before, change.after
    if before is None or after is None:
        return before is not after
    return (before.reach, before.value) != (after.reach, after.value)


def rule_item(spec: RuleSpec, reach: Reach, asked: ChangeAuthor) -> Change:
    return Change(ChangeKind.RULE, spec.id, reach, value_of(spec), 0, asked.wall_s, asked.who)


def lifted(item: Change, asked: ChangeAuthor) -> Change:
    """Ended now, with its content: a reader sees its author and who lifted it."""
    spec = rule_spec(item)
    rule = replace(spec.rule, expires_at=min(spec.rule.expires_at, asked.wall_s))
    return rule_item(replace(spec, rule=rule, lifted_by=asked.who), item.reach, asked)


def ended(item: Change, asked: ChangeAuthor) -> Change:
    """Taken out: of a rule with what it said, and who lifted it."""
    if item.kind != ChangeKind.RULE:
        return taken_out(item, asked)
    try:
        return lifted(item, asked)
    except InvalidSettings:  # Of another version: what cannot be read can still be taken out.
        return taken_out(item, asked)


def taken_out(item: Change, asked: ChangeAuthor) -> Change:
    return replace(item, value=None, set_at=asked.wall_s, set_by=asked.who)


def rule_spec(item: Change) -> RuleSpec:
    """InvalidSettings where another version has put what cannot be read here."""
    return parse_kept(item.id, item.value, item.n)


def check_room(held: LogState, changes: Sequence[Edit], limits: RuleLimits, wall_s: float) -> None:
    """Rules that ended are not in the way of others, and who changes one adds none."""
    _check_kept(held, changes, limits)
    rules = [one.after for one in changes if one.after and one.after.kind is ChangeKind.RULE]
    added = sum(stands(rule, wall_s) for rule in rules)
    added -= sum(held.standing_rule(rule.id, wall_s) is not None for rule in rules)
    if added <= 0 or len(held.items) + added <= limits.max_rules:
        return
    kept = (item for item in held.items.values() if item.kind is ChangeKind.RULE)
    count = added + sum(stands(rule, wall_s) for rule in kept)
    if count > limits.max_rules:
        message = (
            f"there would be {count:,} rules, at most {limits.max_rules:,}; lift some, "
            "or set one on a category instead of many on its clients"
        )
        raise InvalidSettings([Fault("rules", message)])


def _check_kept(held: LogState, changes: Sequence[Edit], limits: RuleLimits) -> None:
    """What has ended is kept for a day, and everybody reads it: no program fills it up."""
    names = {name_of(change.after) for change in changes if change.after is not None}
    new = [name for name in names if name not in held.items]
    count = len(held.items) + len(new)
    if new and count > KEPT_TIMES * limits.max_rules:
        message = (
            f"the log would have {count:,} changes, most of which ended within the last "
            f"day; at most {KEPT_TIMES * limits.max_rules:,} are allowed: use the same ids again"
        )
        raise InvalidSettings([Fault("rules", message)])


def check_pairs(held: LogState, changes: Sequence[Edit], wall_s: float) -> None:
    """Two rules that were set together are kept together, or not at all."""
    after = {**held.items, **{name_of(one.after): one.after for one in changes if one.after}}
    rules = {rule_id: item for (kind, rule_id), item in after.items() if kind is ChangeKind.RULE}
    touched = {
        rule_id
        for change in changes
        for item in (change.before, change.after)
        if item is not None and item.kind is ChangeKind.RULE
        for rule_id in (item.id, _pair_id(item))
    }
    faults = []
    for rule_id in sorted(touched & rules.keys()):
        rule, other = rules[rule_id], rules.get(_pair_id(rules[rule_id]))
        if not _pair_id(rule) or not stands(rule, wall_s):
            continue
        if other is None or not stands(other, wall_s) or _pair_id(other) != rule_id:
            message = f"was set together with {_pair_id(rule)}: keep both, or remove both"
            faults.append(Fault(f"rule {rule_id}", message))
    if faults:
        raise InvalidSettings(faults)


def _known(held: LogState, rule_id: str, expect: int | None) -> Change:
    item = held.rule(rule_id)
    if item is None:
        message = f"there is no rule {rule_id!r}; `headgate rules --all` lists them"
        raise NoSuchItem(message)
    check_expected(item, expect)
    return item


def changeable(held: LogState, rule_id: str, wall_s: float, expect: int | None) -> Change:
    item = _known(held, rule_id, expect)
    if not held.stands(item, wall_s):
        message = "has ended, and an ended rule cannot be changed: set it again"
        raise InvalidSettings([Fault(f"rule {rule_id}", message)])
    return item


def check_expected(item: Change, expect: int | None) -> None:
    if expect is not None and expect != item.n:
        message = (
            f"{item.kind} {item.id} has revision {item.n}, not {expect}: "
            "it was changed meanwhile; look again and repeat"
        )
        raise Conflict(message)


def _checked_vacancy(
    held: LogState, spec: RuleSpec, reach: Reach, asked: ChangeAuthor
) -> tuple[Advice, ...]:
    """What has ended by this agent's clock may be in force by those of others: its id is for the
    same rule, set again, for as long as it is kept."""
    item = held.rule(spec.id)
    if item is None or is_taken_out(item):
        return ()
    if item.reach == HERE and not held.stands(item, asked.wall_s):
        return ()  # There is no other clock.
    if held.stands(item, asked.wall_s):
        message = (
            f"rule {spec.id} already exists for {item.reach}, set by {item.set_by} in revision "
            f"{item.n}; change that one, or choose another id"
        )
        raise Conflict(message)
    ago_s = _ended_ago_s(item, asked.wall_s)
    if ago_s > KEEP_S:
        return ()
    told = f"ended {ago_s / 60:,.0f} min ago by this agent's clock"
    if not _is_same(item, spec, reach):
        message = f"rule {spec.id} {told}, set by {item.set_by} for {item.reach}: another rule"
        raise Conflict(f"{message}. Choose another id, or lift that one first")
    return (_warning(spec.rule, "anew", f"{told}, set by {item.set_by}: it is set again"),)


def _ended_ago_s(item: Change, wall_s: float) -> float:
    """0, too, where nobody can tell."""
    with suppress(ValueError):
        return max(0.0, wall_s - (ends_at(item) or wall_s))
    return 0.0


def _is_same(item: Change, spec: RuleSpec, reach: Reach) -> bool:
    with suppress(InvalidSettings):
        was, rule = rule_spec(item).rule, spec.rule
        same = (was.target, was.kind, was.database) == (rule.target, rule.kind, rule.database)
        return same and item.reach == reach
    return False


def _over(item: Change) -> Advice:
    message = "ended by this agent's clock; agents with a clock behind it see it as lifted"
    return Advice(Severity.WARNING, "over", f"rule {item.id}", message)


def _check_patch(raw: Mapping[str, Any]) -> None:
    if not raw:
        raise InvalidSettings([Fault("rule", "nothing to change: give a setting of it")])
    another = "cannot be changed: that is another rule; lift this one and set the other"
    endless = "cannot be removed: every rule ends; give a time, such as 2h"
    faults = [Fault(f"rule.{key}", another) for key in (*FIXED, "reach") if key in raw]
    faults += [Fault(f"rule.{key}", endless) for key in PAIRED if key in raw and raw[key] is None]
    if faults:
        raise InvalidSettings(faults)


def _pair_id(item: Change) -> str:
    return str((item.value or {}).get("pair", ""))


def _pair_of(held: LogState, item: Change, wall_s: float) -> Change | None:
    """The rule that was set together with it, if it is in force."""
    other = held.rule(_pair_id(item))
    return other if other is not None and held.stands(other, wall_s) else None


# --- advice --------------------------------------------------------------------------------


_UNJUDGED = (
    "this agent does not measure {}, so it cannot tell whether the rule would lock out every "
    f"client: set the rule at an agent that measures it (--url); {LOCK_OUT}"
)


def _judges_as(before: Change | None, rule: Rule, reach: Reach) -> bool:
    """By the same metrics and limits, in the same places."""
    if before is None or before.reach != reach:
        return False
    with suppress(InvalidSettings):
        was = rule_spec(before).rule
        return (was.metrics, was.thresholds) == (rule.metrics, rule.thresholds)
    return False


def _exceeded(rule: Rule, known: Mapping[str, KnownMetric]) -> Iterator[tuple[str, str, str]]:
    """Limits that are exceeded here just now."""
    for name, limit in rule.thresholds.items():
        metric = known.get(name)
        if metric is not None and limit < metric.threshold and metric.rejects_now(limit):
            value = limit_told(name, metric.value or 0.0)
            why = f"{name} is {value} on {metric.value_on} now"
            yield name, limit_told(name, limit), why


def _unmeasured(rule: Rule, known: Mapping[str, KnownMetric]) -> Iterator[Advice]:
    """Of what this agent knows; it knows nothing of the others."""
    named = list(dict.fromkeys((*rule.metrics, *rule.thresholds)))
    if not known and (named or rule.database):
        where = f"no database {rule.database!r}" if rule.database else "no database"
        told = f"this agent has {where}"
        told += f", so {', '.join(named)} cannot be validated here" if named else ""
        yield _warning(rule, "unchecked", f"{told}; use an agent that has it (--url)")
        return
    for name in named:
        if name not in known:
            yield _warning(rule, "metric-elsewhere", f"{name} is not a metric of this agent: at "
                           "agents without it, that part of the rule has no effect")  # fmt: skip
        elif known[name].missing_on and rule.kind is Kind.METRICS:
            yield _warning(
                rule, "metric-missing", f"{name} is not measured on {known[name].missing_on}: "
                "it has no effect at agents that do not measure it on every database"
            )  # fmt: skip
    if rule.target == EVERYONE:
        for name, limit, why in _exceeded(rule, known):
            yield _warning(rule, "exceeded", f"{name} {limit}: {why}, so every check is "
                           "rejected wherever the rule reaches such a database")  # fmt: skip


def _warning(rule: Rule, code: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, f"rule {rule.id}", message)


def _named(raw: Mapping[str, Any]) -> Iterator[str]:
    listed, limits = raw.get("metrics"), raw.get("thresholds")
    given = [*(listed if isinstance(listed, list | tuple) else ())]
    given += [*(limits if isinstance(limits, Mapping) else ())]
    for name in given:
        with suppress(ValueError, TypeError):
            yield parse_metric(name)


class RuleAdvisor:
    """Advice on a rule next to the others, also on each rule of a list of thousands without
    delaying checks: the caller then gives `known_metrics` that remember what they found.
    """

    def __init__(self) -> None:
        self._spared = (NO_RULES, Sparing(()))

    def advice(
        self, spec: RuleSpec, book: RuleBook, known_metrics: KnownMetrics, wall_s: float
    ) -> tuple[Advice, ...]:
        known = known_metrics(spec.rule.database)
        alike = list(islice(book.alike(spec.rule.target), MAX_ALIKE))
        advice = advise(spec, alike, known, wall_s)
        if spec.rule.kind is Kind.HOLD:
            advice += not_held(spec.rule, self._sparing(book).of(spec.rule), wall_s)
        return tuple(advice)

    def _sparing(self, of: RuleBook) -> Sparing:
        """Made once of a book: each hold of a list asks for it."""
        book, sparing = self._spared
        if book is not of:
            self._spared = book, sparing = of, Sparing(of.rules)
        return sparing
