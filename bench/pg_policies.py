"""Policies for the measurements, as documents: what a user would have written, in any size."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import NamedTuple

RULES_A_BUDGET = 20
ROOMY: Mapping[str, object] = {
    "mode": "enforce",
    "rate": 100,
    "capacity": 6000,
    "burst": 6000,
    "concurrency": 100,
}
"""All four limits, none of which is ever reached."""
Match = Mapping[str, str]
Document = Mapping[str, object]


class Matching(NamedTuple):
    """Whom three budgets are about, each by another key."""

    username: str
    application: str
    tag: tuple[str, str]

    def matches(self) -> list[tuple[str, Match]]:
        key, value = self.tag
        return [
            ("by-tag", {f"tag.{key}": value}),
            ("by-user", {"username": self.username}),
            ("by-application", {"application_name": self.application}),
        ]


def budget(name: str, *matches: Match, **limits: object) -> Document:
    return {"name": name, "rules": [{"match": dict(match)} for match in matches], **limits}


def matching(rules: int, who: Matching) -> Document:
    """Three budgets of one rule that match; the others name users, applications and tags that
    are not his."""
    own = [budget(name, match, **ROOMY) for name, match in who.matches()]
    return {"budgets": [*own, *_filled([_stranger(n) for n in range(rules - len(own))])]}


def of_others(rules: int) -> Document:
    """Each names a user or an application that is not the session's, most of them a tag, too."""
    tags = [{"tag.controller": f"c{n}"} if n % 3 else {} for n in range(rules)]
    return {"budgets": _filled([_somebody(n) | tag for n, tag in enumerate(tags)])}


def on_tags(rules: int) -> Document:
    return {"budgets": _filled([{"tag.controller": f"c{n}"} for n in range(rules)])}


def stopping(user: str, rules: int) -> Document:
    """One user is blocked; all other rules are of a budget that concerns nobody."""
    stop = budget("stop", {"username": user}, mode="enforce", rate=0, penalty_s=0)
    others: list[Match] = [{"username": f"u{n}"} for n in range(rules - 1)]
    return {"budgets": [stop, budget("others", *others, **ROOMY)]}


def cidrs(lengths: int, rules: int) -> Document:
    """Networks of as many mask lengths, from /8 on in steps of two; the session's is the widest."""
    bits = [8 + 2 * n for n in range(lengths)]
    own = budget("by-network", {"remote_address": "10.0.0.0/8"}, **ROOMY)
    others = [_network(n, bits[n % lengths]) for n in range(rules - 1)]
    return {"budgets": [own, *_filled(others)]}


def _network(number: int, bits: int) -> Match:
    """Never in 10.0.0.0/8, where the session is."""
    first = 11 + number % 200
    address = (first << 24 | (number * 2654435761) & 0xFFFFFF) >> (32 - bits) << (32 - bits)
    return {"remote_address": f"{IPv4Address(address)}/{bits}"}


def _somebody(number: int) -> dict[str, str]:
    key = "username" if number % 2 else "application_name"
    return {key: f"other{number}"}


def _stranger(number: int) -> Match:
    return {"tag.controller": f"c{number}"} if number % 3 == 0 else _somebody(number)


def _filled(matches: list[Match]) -> list[Document]:
    starts = range(0, len(matches), RULES_A_BUDGET)
    return [
        budget(f"b{start}", *matches[start : start + RULES_A_BUDGET], **ROOMY) for start in starts
    ]
