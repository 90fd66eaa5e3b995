"""Advice on a policy that is valid but probably not what was meant.

As everywhere (base/advice.py): what, why, and what to do instead; it changes nothing. An ERROR is
what a publisher rejects unless forced: it would lock out a user who is needed
to put it right.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from itertools import islice
from typing import NamedTuple

from headgate.base.advice import Advice, Severity
from headgate.budgets.limits import in_thousands, instant_text
from headgate.budgets.policy import (
    QUERY,
    REMOTE_ADDRESS,
    Budget,
    BudgetRule,
    Condition,
    Mode,
    Policy,
    When,
    address_family,
    address_value,
    is_tag,
    shown_value,
    tag_name,
)

MAX_PREFIXES_TOLD = 3
MAX_TOLD = 10
"""Of one kind: who has made it ten thousand times has made it once, in a program."""

UNBOUNDED_TAGS = frozenset(
    {
        "traceparent", "tracestate", "trace_id", "traceid", "span_id", "spanid", "request_id",
        "requestid", "x-request-id", "correlation_id", "correlationid", "transaction_id",
        "session_id", "sessionid", "job_id", "jid", "uuid", "guid", "nonce", "timestamp",
    }
)  # fmt: skip
MAINTENANCE = Condition("database", b"postgres")
"""Where tools of administrators, and agents, connect to."""
_TAG_TEXT = re.compile(r"[A-Za-z0-9_\-./:,]+")


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of where the policy is to be in force."""

    administrators: Sequence[str] = ("postgres",)
    replicators: Sequence[str] = ("replicator",)
    agents: Sequence[str] = ()
    workers: int | None = None
    cpus: float | None = None
    wall_ms: int | None = None


def advise(
    policy: Policy,
    *,
    administrators: Sequence[str] = ("postgres",),
    replicators: Sequence[str] = ("replicator",),
    agents: Sequence[str] = (),
    workers: int | None = None,
    cpus: float | None = None,
    wall_ms: int | None = None,
) -> list[Advice]:
    """`agents`: roles that measure the server, where none of them publishes the policy: one that
    does exempts its own. `workers`: what 100 % of concurrency is; `wall_ms`: Unix time, to tell
    what has expired."""
    server = Server(administrators, replicators, agents, workers, cpus, wall_ms)
    rules = placed_rules(policy)
    shadows = Shadows(rules)
    budgets = ((f"budgets[{at}]", budget) for at, budget in enumerate(policy.budgets))
    kept = [(place, budget) for place, budget in budgets if budget.mode is not Mode.OFF]
    advice = [
        *(found for placed in kept for found in _of_budget(*placed, server)),
        *_overcommitted(policy, server),
        *(found for placed in rules for found in _of_rule(placed, policy, server)),
        *_shadowed(shadows),
        *_hidden_prefixes(shadows),
    ]
    return _bounded(advice)


def _bounded(advice: Iterable[Advice]) -> list[Advice]:
    """Errors first; of each kind the first few, and how many more there are."""
    by_code = defaultdict[tuple[Severity, str], list[Advice]](list)
    for one in advice:
        by_code[one.severity, one.code].append(one)
    told = list[Advice]()
    for (severity, code), found in sorted(by_code.items(), key=lambda kind: kind[0][0].value):
        told += found[:MAX_TOLD]
        if len(found) > MAX_TOLD:
            message = f"the same in {len(found) - MAX_TOLD:,} more places"
            told.append(Advice(severity, code, "budgets", message))
    return told


def _warning(code: str, place: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, place, message)


# --- of one budget -------------------------------------------------------------------------


def _of_budget(place: str, budget: Budget, server: Server) -> Iterator[Advice]:
    yield from _no_rule(place, budget)
    yield from _kill_switch(place, budget)
    yield from _bucket(place, budget)
    yield from _never_fits(place, budget)
    yield from _warning_threshold(place, budget)
    yield from _rounded_up(place, budget, server.workers)
    yield from _expired(place, budget, server.wall_ms)


_ZEROES = {
    "rate": "rate_mpct",
    "capacity": "capacity_mpcts",
    "burst": "burst_mpcts",
    "concurrency": "concurrency_mpct",
    "max_workers": "max_workers",
}


def _no_rule(place: str, budget: Budget) -> Iterator[Advice]:
    if not budget.rules:
        message = (
            f"budget {budget.name} has no rule, so no statement matches it: only checks that name "
            "it debit it. To limit statements give it one, such as --match username=etl, or "
            "--match '*' for all of them"
        )
        yield _warning("no-rule", place, message)


def _kill_switch(place: str, budget: Budget) -> Iterator[Advice]:
    if not budget.rules:
        return
    zero = next((name for name, field in _ZEROES.items() if getattr(budget, field) == 0), None)
    if zero is None:
        return
    does = "blocks" if budget.mode is Mode.ENFORCE else "would block, once enforced,"
    message = (
        f"is 0: budget {budget.name} {does} every statement that it matches. If no limit is meant, "
        "leave it out"
    )
    yield _warning("kill-switch", f"{place}.{zero}", message)
    if budget.mode is Mode.ENFORCE and budget.expires_at_ms is None:
        message = (
            f"is not set, and budget {budget.name} blocks everything that it matches: set an end, "
            "so that nobody has to remember it"
        )
        yield _warning("kill-switch-without-end", f"{place}.expires_at", message)


def _bucket(place: str, budget: Budget) -> Iterator[Advice]:
    rate, capacity = budget.rate_mpct, budget.capacity_mpcts
    if rate and capacity is None:
        message = (
            f"is {in_thousands(rate)} % without a capacity: a bucket without a size never "
            "overflows, so nothing is limited by it. Set capacity, such as "
            f"{in_thousands(10 * rate)} (ten seconds' worth)"
        )
        yield _warning("rate-without-capacity", f"{place}.rate", message)
    elif capacity and rate is None:
        message = (
            f"is {in_thousands(capacity)} % s without a rate: it drains at once, and limits "
            "only what one statement costs. Set rate, or say burst if that is meant"
        )
        yield _warning("capacity-without-rate", f"{place}.capacity", message)
    elif not budget.has_limit:
        message = f"{budget.name} has no limit: it counts what it matches, and blocks nothing"
        yield _warning("no-limit", place, message)


def _never_fits(place: str, budget: Budget) -> Iterator[Advice]:
    burst, capacity = budget.burst_mpcts, budget.capacity_mpcts
    if not burst or not capacity or burst <= capacity:
        return
    message = (
        f"is {in_thousands(burst)}, above capacity = {in_thousands(capacity)}: a statement that "
        "costs more than the bucket holds never fits, and retries in vain. Lower burst to "
        "capacity, so that its error says so"
    )
    yield _warning("burst-above-capacity", f"{place}.burst", message)


def _warning_threshold(place: str, budget: Budget) -> Iterator[Advice]:
    if budget.warning_mpct is None:
        return
    limits = budget.capacity_mpcts, budget.burst_mpcts, budget.concurrency_mpct, budget.max_workers
    if budget.mode is Mode.WARN:
        message = f"says nothing while {budget.name} only warns: it is for enforced budgets"
    elif all(limit is None for limit in limits):
        message = "is a share of capacity, burst and concurrency, and none of them is set"
    else:
        return
    yield _warning("warning-threshold", f"{place}.warning_threshold", message)


def _rounded_up(place: str, budget: Budget, workers: int | None) -> Iterator[Advice]:
    share = budget.concurrency_mpct
    if not share or workers is None or share * workers >= 100_000:
        return
    message = (
        f"is {in_thousands(share)} % of {workers} workers, which is {share * workers / 100_000:.3g}"
        ", rounded up to 1: if one worker is meant, say max_workers = 1; if none, 0"
    )
    yield _warning("rounded-up", f"{place}.concurrency", message)


def _is_over(budget: Budget, server: Server) -> bool:
    return server.wall_ms is not None and budget.expired(server.wall_ms)


def _expired(place: str, budget: Budget, wall_ms: int | None) -> Iterator[Advice]:
    if wall_ms is None or budget.expires_at_ms is None or not budget.expired(wall_ms):
        return
    message = (
        f"is {instant_text(budget.expires_at_ms)}, which is over: {budget.name} matches nothing "
        "any more. Remove it, or give it another end"
    )
    yield _warning("expired", f"{place}.expires_at", message)


def _overcommitted(policy: Policy, server: Server) -> Iterator[Advice]:
    shares = [
        budget.rate_mpct
        for budget in policy.budgets
        if budget.mode is Mode.ENFORCE and budget.rate_mpct and budget.capacity_mpcts is not None
        if not _is_over(budget, server)
    ]
    total = sum(shares)
    if total <= 100_000:
        return
    cpus = server.cpus
    of = "" if cpus is None else f" ({total / 100_000 * cpus:.3g} of {cpus:g} CPUs)"
    message = (
        f"{len(shares)} enforced budgets have rates of {in_thousands(total)} % in all{of}: if all "
        "use theirs, the server is full before any of them blocks. They are limits and reserve "
        "nothing; lower them, unless they are never busy at once"
    )
    yield _warning("rates-above-100", "budgets", message)


# --- of one rule ---------------------------------------------------------------------------


def _of_rule(placed: PlacedRule, policy: Policy, server: Server) -> Iterator[Advice]:
    yield from _match_all(placed)
    yield from _locked_out(placed, policy, server)
    yield from _each(placed)
    yield from _query_id(placed)
    yield from _no_such_tag(placed)


def _match_all(placed: PlacedRule) -> Iterator[Advice]:
    if placed.rule.conditions or placed.rule.each:
        return
    message = (
        f"matches every statement of everybody, except exempt_usernames, for budget "
        f"{placed.budget.name}: if that is not meant, name a key in match"
    )
    yield _warning("match-all", placed.place, message)


def _locked_out(placed: PlacedRule, policy: Policy, server: Server) -> Iterator[Advice]:
    if placed.budget.mode is not Mode.ENFORCE or not placed.budget.has_limit:
        return
    if _is_over(placed.budget, server):
        return
    needed = [("the administrator", "administrator", name) for name in server.administrators]
    needed += [("replication", "replication", name) for name in server.replicators]
    needed += [("the agent that measures this server", "agent", name) for name in server.agents]
    for who, code, username in needed:
        if username not in policy.exempt_usernames and _concerns(placed.rule, username):
            yield _lock_out(placed, f"{who} ({username}){_where(placed.rule)}", code, username)


def _concerns(rule: BudgetRule, username: str) -> bool:
    """Whether the rule matches whatever that user does, where such users work: by any address
    there is, and in the database that is there for them."""
    mine = Condition("username", username.encode())
    met = all(one == mine or _is_anywhere(one) for one in rule.conditions)
    return met and not any(map(is_tag, rule.each))


def _is_anywhere(condition: Condition) -> bool:
    if condition.key == REMOTE_ADDRESS:
        return condition.network.prefixlen == 0
    return condition == MAINTENANCE


def _where(rule: BudgetRule) -> str:
    by_address = any(one.key == REMOTE_ADDRESS for one in rule.conditions)
    of_database = MAINTENANCE in rule.conditions
    return " over the network" * by_address + " in the database postgres" * of_database


def _lock_out(placed: PlacedRule, who: str, code: str, username: str) -> Advice:
    budget = placed.budget
    advised = f'add "{username}" to exempt_usernames, or narrow the rule'
    if budget.admits_nothing:
        message = f"budget {budget.name} locks out {who}: {advised}"
        return Advice(Severity.ERROR, f"locks-out-{code}", placed.place, message)
    message = f"budget {budget.name} may block {who} when it is needed most: {advised}"
    return _warning(f"may-block-{code}", placed.place, message)


def _each(placed: PlacedRule) -> Iterator[Advice]:
    named = {condition.key for condition in placed.rule.conditions}
    for key in placed.rule.each:
        if is_tag(key) and tag_name(key).lower() in UNBOUNDED_TAGS:
            message = (
                f"{key} is another one for nearly every statement: each gets a bucket of its own, "
                "which limits nothing and evicts those that do. Use a tag with few values"
            )
            yield _warning("unbounded-each", f"{placed.place}.each", message)
        elif key in named and key != REMOTE_ADDRESS:
            message = f"{key} is matched already, so there is only one value for it; leave it out"
            yield _warning("each-of-one", f"{placed.place}.each", message)


def _query_id(placed: PlacedRule) -> Iterator[Advice]:
    if all(condition.key != QUERY for condition in placed.rule.conditions):
        return
    message = (
        "a query id changes with the major version, and after a table was created "
        "again: match by fingerprint, which is the same everywhere"
    )
    yield _warning("query-id", f"{placed.place}.match.query", message)


def _no_such_tag(placed: PlacedRule) -> Iterator[Advice]:
    for key, value in placed.rule.conditions:
        if not is_tag(key):
            continue
        texts = tag_name(key), value.decode()
        wrong = next((text for text in texts if not _TAG_TEXT.fullmatch(text)), None)
        if wrong is not None:
            message = (
                f"matches nothing: {wrong!r} holds what no tag may (letters, digits and _-./:, "
                "after decoding), and such tags are ignored"
            )
            yield _warning("never-matches", f"{placed.place}.match.{key}", message)


# --- of several rules ----------------------------------------------------------------------


def _shadowed(shadows: Shadows) -> Iterator[Advice]:
    for placed, other in shadows.shadowed():
        if other.rule == placed.rule:
            message = f"is the same as {other.place}; remove one of them"
            yield _warning("duplicate", placed.place, message)
        else:
            message = (
                f"says nothing: {other.place} ({other.rule}) of the same budget matches all that "
                "it does; remove it, or narrow the other"
            )
            yield _warning("shadowed", placed.place, message)


def _hidden_prefixes(shadows: Shadows) -> Iterator[Advice]:
    for placed, hiders in shadows.hidden():
        if all_hidden(placed, hiders):
            message = f"says nothing: {_prefixes(hiders)}, with longer prefixes, cover all of it"
            yield _warning("shadowed", f"{placed.place}.match.{REMOTE_ADDRESS}", message)
            continue
        elsewhere = [one for one in hiders if one.bucket != placed.bucket]
        if elsewhere:
            message = (
                f"does not apply to {_prefixes(elsewhere)}: the longest prefix alone applies. To "
                f"limit these in {placed.budget.name} as well, name their prefixes there, too"
            )
            yield _warning("longer-prefix", f"{placed.place}.match.{REMOTE_ADDRESS}", message)


def _prefixes(rules: list[PlacedRule]) -> str:
    told = [
        f"{shown_value(REMOTE_ADDRESS, one.address)} (budget {one.budget.name})"
        for one in rules[:MAX_PREFIXES_TOLD]
        if one.address is not None
    ]
    more = len(rules) - len(told)
    return ", ".join(told) + (f" and {more:,} more" if more else "")


# --- which rules say nothing beside others: quick for 10,000 rules ---------------------------

MAX_COMPARED = 200
"""With one rule: beyond that, a rule that says nothing may go untold."""


class PlacedRule(NamedTuple):
    """A rule of a budget that takes part, and its place."""

    number: int
    at: int
    """Of its budget in the document."""
    rule_at: int
    budget: Budget
    rule: BudgetRule

    @property
    def place(self) -> str:
        return f"budgets[{self.at}].rules[{self.rule_at}]"

    @property
    def bucket(self) -> tuple[int, tuple[str, ...]]:
        """Rules with the same lead a statement to the same bucket."""
        return self.at, self.rule.each

    @property
    def address(self) -> bytes | None:
        return next((value for key, value in self.rule.conditions if key == REMOTE_ADDRESS), None)


def placed_rules(policy: Policy) -> list[PlacedRule]:
    return [PlacedRule(number, *found) for number, found in enumerate(policy.numbered_rules())]


def within(narrow: bytes, wide: bytes) -> bool:
    """Of two values of remote_address."""
    return (
        len(narrow) == len(wide)
        and narrow[-1] >= wide[-1]
        and address_value(narrow[:-1], wide[-1]) == wide
    )


def covers(broad: BudgetRule, narrow: BudgetRule) -> bool:
    """Whether `broad` matches wherever `narrow` does."""
    mine = dict(narrow.conditions)
    return all(_met(condition, mine.get(condition.key)) for condition in broad.conditions)


def _met(condition: Condition, value: bytes | None) -> bool:
    if value is None or condition.key != REMOTE_ADDRESS:
        return value == condition.value
    return within(value, condition.value)


class Shadows:
    def __init__(self, rules: list[PlacedRule]) -> None:
        self._rules = rules
        self._named = Counter(one for placed in rules for one in placed.rule.conditions)
        self._under = defaultdict[Condition | None, list[PlacedRule]](list)
        self._lengths = defaultdict[int, set[int]](set)
        self._addressed = defaultdict[bytes, list[PlacedRule]](list)
        for placed in rules:
            rarest = min(placed.rule.conditions, key=self._named.__getitem__, default=None)
            self._under[rarest].append(placed)
            if (address := placed.address) is not None:
                self._lengths[address_family(address)].add(address[-1])
                self._addressed[address].append(placed)

    def shadowed(self) -> Iterator[tuple[PlacedRule, PlacedRule]]:
        """Rules, each with one of the same bucket that matches all that it does."""
        first = dict[tuple[int, BudgetRule], PlacedRule]()
        for placed in self._rules:
            same = first.setdefault((placed.at, placed.rule), placed)
            other = next(self._broader(placed), None) if same is placed else same
            if other is not None:
                yield placed, other

    def _broader(self, placed: PlacedRule) -> Iterator[PlacedRule]:
        """Beside those that are equal: with fewer conditions, or with a wider prefix."""
        most = len(placed.rule.conditions) - (placed.address is None)
        for other in islice(self._candidates(placed), MAX_COMPARED):
            if len(other.rule.conditions) > most or other.bucket != placed.bucket:
                continue
            if other.rule == placed.rule or not covers(other.rule, placed.rule):
                continue
            if not self._changes_prefixes(placed, other):
                yield other

    def _candidates(self, placed: PlacedRule) -> Iterator[PlacedRule]:
        yield from self._under.get(None, ())
        for condition in placed.rule.conditions:
            if condition.key == REMOTE_ADDRESS:
                for address in self._around(condition.value):
                    yield from self._under.get(Condition(REMOTE_ADDRESS, address), ())
            else:
                yield from self._under.get(condition, ())

    def _around(self, address: bytes) -> list[bytes]:
        """The prefix itself, and every wider one of a length in use."""
        lengths = self._lengths[address_family(address)]
        return [address_value(address[:-1], bits) for bits in lengths if bits <= address[-1]]

    def _changes_prefixes(self, placed: PlacedRule, other: PlacedRule) -> bool:
        """Whether rules that lead elsewhere have a prefix between the two: the longest applies, so
        the narrower rule keeps addresses from them, or they would from the broader one."""
        mine, broad = placed.address, other.address
        if mine is None or mine == broad:
            return False
        between = (one for one in self._around(mine) if broad is None or one[-1] >= broad[-1])
        found = (rule for address in between for rule in self._addressed.get(address, ()))
        return any(rule.bucket != placed.bucket for rule in islice(found, MAX_COMPARED))

    def hidden(self) -> Iterator[tuple[PlacedRule, list[PlacedRule]]]:
        """Rules with an address, each with those of longer prefixes that come before it."""
        hiders = defaultdict[int, list[PlacedRule]](list)
        for placed in self._rules:
            for wide in islice(self._wider(placed), MAX_COMPARED):
                if _comes_first(placed.rule, wide.rule) and _outlasts(placed.budget, wide.budget):
                    hiders[wide.number].append(placed)
        for number in sorted(hiders):
            yield self._rules[number], hiders[number]

    def _wider(self, placed: PlacedRule) -> Iterator[PlacedRule]:
        address = placed.address
        if address is not None:
            for wide in self._around(address):
                if wide != address:
                    yield from self._addressed.get(wide, ())


def _comes_first(longer: BudgetRule, wide: BudgetRule) -> bool:
    """Whether, at its own addresses, `longer` matches whatever `wide` does."""
    others = tuple(one for one in longer.conditions if one.key != REMOTE_ADDRESS)
    return covers(BudgetRule(others), wide) and set(longer.each) <= set(wide.keys)


def _outlasts(longer: Budget, wide: Budget) -> bool:
    """Whether it takes part whenever the other does: one that is over hides nothing."""
    awake = longer.when is When.ALWAYS or wide.when is When.UNHEALTHY
    ends, other_ends = longer.expires_at_ms, wide.expires_at_ms
    return awake and (ends is None or (other_ends is not None and ends >= other_ends))


def all_hidden(wide: PlacedRule, hiders: list[PlacedRule]) -> bool:
    """Whether their prefixes leave nothing of the rule's own."""
    address = wide.address
    if address is None:
        return False
    longer = (one.address for one in hiders)
    left = collapse_addresses([_network(one) for one in longer if one is not None])  # type: ignore[type-var]
    return _network(address) in list(left)


def _network(address: bytes) -> IPv4Network | IPv6Network:
    return Condition(REMOTE_ADDRESS, address).network
