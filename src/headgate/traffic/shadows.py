"""Which rules of a policy say nothing beside others. For lint.py, and quick for 10,000 rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from itertools import islice
from typing import NamedTuple

from headgate.traffic.policy import (
    REMOTE_ADDRESS,
    Budget,
    BudgetRule,
    Condition,
    Policy,
    When,
    address_family,
    address_value,
)

MAX_COMPARED = 200
"""With one rule: beyond that, a rule that says nothing may go untold."""


class Placed(NamedTuple):
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


def placed_rules(policy: Policy) -> list[Placed]:
    return [Placed(number, *found) for number, found in enumerate(policy.numbered_rules())]


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
    def __init__(self, rules: list[Placed]) -> None:
        self._rules = rules
        self._named = Counter(one for placed in rules for one in placed.rule.conditions)
        self._under = defaultdict[Condition | None, list[Placed]](list)
        self._lengths = defaultdict[int, set[int]](set)
        self._addressed = defaultdict[bytes, list[Placed]](list)
        for placed in rules:
            rarest = min(placed.rule.conditions, key=self._named.__getitem__, default=None)
            self._under[rarest].append(placed)
            if (address := placed.address) is not None:
                self._lengths[address_family(address)].add(address[-1])
                self._addressed[address].append(placed)

    def shadowed(self) -> Iterator[tuple[Placed, Placed]]:
        """Rules, each with one of the same bucket that matches all that it does."""
        first = dict[tuple[int, BudgetRule], Placed]()
        for placed in self._rules:
            same = first.setdefault((placed.at, placed.rule), placed)
            other = next(self._broader(placed), None) if same is placed else same
            if other is not None:
                yield placed, other

    def _broader(self, placed: Placed) -> Iterator[Placed]:
        """Beside those that are equal: with fewer conditions, or with a wider prefix."""
        most = len(placed.rule.conditions) - (placed.address is None)
        for other in islice(self._candidates(placed), MAX_COMPARED):
            if len(other.rule.conditions) > most or other.bucket != placed.bucket:
                continue
            if other.rule == placed.rule or not covers(other.rule, placed.rule):
                continue
            if not self._changes_prefixes(placed, other):
                yield other

    def _candidates(self, placed: Placed) -> Iterator[Placed]:
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

    def _changes_prefixes(self, placed: Placed, other: Placed) -> bool:
        """Whether rules that lead elsewhere have a prefix between the two: the longest applies, so
        the narrower rule keeps addresses from them, or they would from the broader one."""
        mine, broad = placed.address, other.address
        if mine is None or mine == broad:
            return False
        between = (one for one in self._around(mine) if broad is None or one[-1] >= broad[-1])
        found = (rule for address in between for rule in self._addressed.get(address, ()))
        return any(rule.bucket != placed.bucket for rule in islice(found, MAX_COMPARED))

    def hidden(self) -> Iterator[tuple[Placed, list[Placed]]]:
        """Rules with an address, each with those of longer prefixes that come before it."""
        hiders = defaultdict[int, list[Placed]](list)
        for placed in self._rules:
            for wide in islice(self._wider(placed), MAX_COMPARED):
                if _comes_first(placed.rule, wide.rule) and _outlasts(placed.budget, wide.budget):
                    hiders[wide.number].append(placed)
        for number in sorted(hiders):
            yield self._rules[number], hiders[number]

    def _wider(self, placed: Placed) -> Iterator[Placed]:
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
    """Whether it takes part whenever the other does: an inactive or ended one hides nothing."""
    awake = longer.when is When.ALWAYS or wide.when is When.UNHEALTHY
    ends, other_ends = longer.expires_at_ms, wide.expires_at_ms
    return awake and (ends is None or (other_ends is not None and ends >= other_ends))


def all_hidden(wide: Placed, hiders: list[Placed]) -> bool:
    """Whether their prefixes leave nothing of the rule's own."""
    address = wide.address
    if address is None:
        return False
    longer = (one.address for one in hiders)
    left = collapse_addresses([_network(one) for one in longer if one is not None])  # type: ignore[type-var]
    return _network(address) in list(left)


def _network(address: bytes) -> IPv4Network | IPv6Network:
    return Condition(REMOTE_ADDRESS, address).network
