"""Which budgets a statement falls under.   StatementIdentity, Statement ──RuleSet──► Matched

One look-up per pair that the statement brings, however many rules there are: a rule is filed under
its rarest pair alone, and compared as a whole when that pair is there. Three things cost more,
as they must: an address is looked up once per length of prefix in use, a rule with several pairs
is compared in all of them, and a pair that several rules name leads to each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from types import MappingProxyType
from typing import NamedTuple

from headgate.budgets.model import (
    MAX_MATCHES,
    SYSTEM_KEY,
    TAG_KEY,
    Match,
    Statement,
    StatementIdentity,
    budget_key,
    hg_hash,
)
from headgate.budgets.policy import (
    FINGERPRINT,
    QUERY,
    REMOTE_ADDRESS,
    SESSION_KEYS,
    SYSTEM_KEYS,
    TAG_PREFIX,
    Budget,
    BudgetRule,
    Condition,
    Mode,
    Policy,
    UnknownHealth,
    When,
    address_value,
    is_tag,
    number_value,
    shown_value,
    tag_name,
)
from headgate.budgets.sql_text import ParsedTags, fingerprint, read_tags

MAX_LABEL_BYTES = 47


class NumberedRule(NamedTuple):
    """A rule in its place."""

    number: int
    """Among the rules of all budgets that are not off."""
    budget: int
    rule: BudgetRule


class Now(NamedTuple):
    """What decides whether a budget takes part at all."""

    wall_ms: int = 0
    healthy: bool | None = None
    """None: not known."""


class StatementFacts(NamedTuple):
    """What is known of a statement, by key, as the bytes that rules compare."""

    values: Mapping[str, bytes]
    tags: ParsedTags
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class Matched:
    at: tuple[Match, ...] = ()
    """In the order of the document; each bucket once."""
    left_out: int = 0
    """Beyond MAX_MATCHES."""
    ignored_tags: int = 0
    duplicate_tags: int = 0
    probes: int = 0
    """Look-ups made."""


NOTHING = Matched()


class RuleSet:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.budgets: tuple[Budget, ...] = policy.kept
        rules = ((at, rule) for at, budget in enumerate(self.budgets) for rule in budget.rules)
        self.rules = tuple(NumberedRule(n, at, rule) for n, (at, rule) in enumerate(rules))
        self._keys = frozenset(key for ruled in self.rules for key in ruled.rule.keys)
        self._masks = _masks_of(self.rules)
        self._by_pair, self._by_key, self._always = _indexed(self.rules)

    def match(self, who: StatementIdentity, statement: Statement, now: Now) -> Matched:
        facts = self.facts(who, statement)
        if facts.exempt:
            return NOTHING
        looked_up, candidates = list(self._pairs(facts.values)), list(self._always)
        for condition in looked_up:
            candidates += self._by_pair.get(condition, ())
        for key in facts.values:
            candidates += self._by_key.get(key, ())
        candidates.sort(key=lambda ruled: ruled.number)
        whole = [r for r in candidates if self.takes_part(r, now) and fits(r.rule, facts.values)]
        applied = nearest(whole, self.budgets)
        if statement.cut:
            applied += self._unseen(facts.values, now, applied)
        at, left_out = _distinct(self._match_of(r, facts.values) for r in applied)
        return Matched(at, left_out, facts.tags.ignored, facts.tags.duplicates, len(looked_up))

    def facts(self, who: StatementIdentity, statement: Statement) -> StatementFacts:
        """The session's own, and of the statement what some rule looks for that the session leaves
        open: nobody pays for tags or a fingerprint that decide nothing."""
        if who.username is not None and who.username in self.policy.exempt_usernames:
            return StatementFacts({}, ParsedTags(), exempt=True)
        values = dict(_session_values(who))
        open_rules = (r.rule for r in self.rules if may_match(r.rule, values))
        asked = {key for rule in open_rules for key in rule.keys} - SESSION_KEYS
        tags = ParsedTags()
        if any(is_tag(key) for key in asked):
            tags = read_tags(statement.text, statement.dialect)
            values |= {TAG_PREFIX + key.decode(): value for key, value in tags.pairs.items()}
        if QUERY in asked and statement.query_id:
            values[QUERY] = number_value(statement.query_id)
        if FINGERPRINT in asked:
            values[FINGERPRINT] = number_value(fingerprint_of(statement))
        return StatementFacts(MappingProxyType(values), tags)

    def takes_part(self, ruled: NumberedRule, now: Now) -> bool:
        budget = self.budgets[ruled.budget]
        return not budget.expired(now.wall_ms) and not rests(budget, self.policy, now.healthy)

    def _pairs(self, values: Mapping[str, bytes]) -> Iterator[Condition]:
        for key, value in values.items():
            if key == REMOTE_ADDRESS:
                for bits in self._masks.get(len(value), ()):
                    yield Condition(key, address_value(value, bits))
            elif is_tag(key) or key in self._keys:
                yield Condition(key, value)

    def _unseen(
        self, values: Mapping[str, bytes], now: Now, applied: Sequence[NumberedRule]
    ) -> list[NumberedRule]:
        """All that the rest of a text that is cut could lead to: none of it may go unmatched
        because it is out of sight. None of them hides another."""
        known = {ruled.number for ruled in applied}
        return [
            ruled
            for ruled in self.rules
            if ruled.number not in known
            and self.takes_part(ruled, now)
            and may_fit(ruled.rule, values)
        ]

    def _match_of(self, ruled: NumberedRule, values: Mapping[str, bytes]) -> Match:
        own = budget_key(self.budgets[ruled.budget].name)
        bucket = bucket_key(own, ruled.rule.each, values)
        return Match(ruled.budget, ruled.number, bucket, label_of(ruled.rule.each, values))


# --- a rule and a statement -------------------------------------------------------------------


def holds(condition: Condition, values: Mapping[str, bytes]) -> bool:
    value = values.get(condition.key)
    if value is None or condition.key != REMOTE_ADDRESS:
        return value == condition.value
    return len(value) + 1 == len(condition.value) and condition.value == address_value(
        value, condition.value[-1]
    )


def fits(rule: BudgetRule, values: Mapping[str, bytes]) -> bool:
    """All conditions hold, and there is a value for every each-key."""
    return all(holds(c, values) for c in rule.conditions) and all(k in values for k in rule.each)


def may_fit(rule: BudgetRule, values: Mapping[str, bytes]) -> bool:
    """Whether it could match what a text that is cut goes on to say."""
    known = (c for c in rule.conditions if not is_tag(c.key) and c.key != FINGERPRINT)
    return all(holds(c, values) for c in known) and all(
        key in values for key in rule.each if not is_tag(key)
    )


def may_match(rule: BudgetRule, session: Mapping[str, bytes]) -> bool:
    """Whether some statement of this session could match the rule."""
    conditions = (c for c in rule.conditions if c.key in SESSION_KEYS)
    return all(holds(c, session) for c in conditions) and all(
        key in session for key in rule.each if key in SESSION_KEYS
    )


def rests(budget: Budget, policy: Policy, healthy: bool | None) -> bool:
    """Whether a budget that bites only under pressure does not apply now."""
    if budget.when is When.ALWAYS:
        return False
    if healthy is None:
        return policy.health_unknown is UnknownHealth.HEALTHY
    return healthy


def nearest(whole: Sequence[NumberedRule], budgets: Sequence[Budget]) -> list[NumberedRule]:
    """Of the rules with an address only those with the longest prefix; all without one.
    Only an enforced budget hides an enforced one: warn mode must not switch off a block."""
    longest = _longest(whole)
    enforced = _longest([r for r in whole if budgets[r.budget].mode is Mode.ENFORCE])

    def stands(ruled: NumberedRule) -> bool:
        bits = ruled.rule.prefix_bits
        nearer = enforced if budgets[ruled.budget].mode is Mode.ENFORCE else longest
        return bits is None or bits >= nearer

    return [ruled for ruled in whole if stands(ruled)]


def _longest(rules: Iterable[NumberedRule]) -> int:
    return max((r.rule.prefix_bits for r in rules if r.rule.prefix_bits is not None), default=0)


def bucket_key(own: int, each: Iterable[str], values: Mapping[str, bytes]) -> int:
    """The budget's own key, or one for this combination of values; a tag that a text which
    is cut may go on to have is empty."""
    for key in each:
        value = _not_reserved(hg_hash(key_hash(key), values.get(key, b"")))
        own = _not_reserved(hg_hash(own, value.to_bytes(8, "little")))
    return own


def label_of(each: Iterable[str], values: Mapping[str, bytes]) -> bytes:
    shown = (tag_name(key).encode() + b"=" + _shown(key, values.get(key, b"")) for key in each)
    return b",".join(shown)[:MAX_LABEL_BYTES]


def fingerprint_of(statement: Statement) -> int:
    if statement.fingerprint is not None:
        return statement.fingerprint
    return fingerprint(statement.text, statement.dialect)


def known_address(
    address: IPv4Address | IPv6Address | None,
) -> IPv4Address | IPv6Address | None:
    """An IPv4 address mapped into IPv6 is the IPv4 address."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _session_values(who: StatementIdentity) -> Iterator[tuple[str, bytes]]:
    for key, text in zip(
        SYSTEM_KEYS, (who.username, who.database, who.application_name), strict=False
    ):
        if text is not None:
            yield key, text.encode("utf-8", "surrogateescape")
    if (address := known_address(who.address)) is not None:
        yield REMOTE_ADDRESS, address.packed


def key_hash(key: str) -> int:
    return hg_hash(TAG_KEY if is_tag(key) else SYSTEM_KEY, tag_name(key).encode())


def _not_reserved(key: int) -> int:
    """0 and 1 mean a free place and one that is being taken."""
    return key if key > 1 else key + 2


def _shown(key: str, value: bytes) -> bytes:
    if key == REMOTE_ADDRESS:
        return str((IPv4Address if len(value) == 4 else IPv6Address)(value)).encode()
    if key == QUERY:
        return shown_value(FINGERPRINT, value).encode()
    return shown_value(key, value).encode() if key == FINGERPRINT else value


def _distinct(matches: Iterable[Match]) -> tuple[tuple[Match, ...], int]:
    """The first match of each bucket, and how many were too many."""
    first: dict[int, Match] = {}
    for match in matches:
        first.setdefault(match.bucket, match)
    return tuple(first.values())[:MAX_MATCHES], max(len(first) - MAX_MATCHES, 0)


# --- the index --------------------------------------------------------------------------------


def _masks_of(rules: Iterable[NumberedRule]) -> dict[int, list[int]]:
    """Lengths of prefix in use, the longest first, by bytes of an address."""
    masks: dict[int, set[int]] = {}
    for ruled in rules:
        for key, value in ruled.rule.conditions:
            if key == REMOTE_ADDRESS:
                masks.setdefault(len(value) - 1, set()).add(value[-1])
    return {width: sorted(bits, reverse=True) for width, bits in masks.items()}


def _indexed(
    rules: Iterable[NumberedRule],
) -> tuple[dict[Condition, list[NumberedRule]], dict[str, list[NumberedRule]], list[NumberedRule]]:
    """Every rule in one place: under its rarest pair, else its first each-key, else always."""
    rules = list(rules)
    named_by = Counter(c for ruled in rules for c in ruled.rule.conditions)
    by_pair: dict[Condition, list[NumberedRule]] = {}
    by_key: dict[str, list[NumberedRule]] = {}
    always: list[NumberedRule] = []
    for ruled in rules:
        if ruled.rule.conditions:
            rarest = min(ruled.rule.conditions, key=lambda c: named_by[c])
            by_pair.setdefault(rarest, []).append(ruled)
        elif ruled.rule.each:
            by_key.setdefault(ruled.rule.each[0], []).append(ruled)
        else:
            always.append(ruled)
    return by_pair, by_key, always
