"""What a fleet shares, as values, and the key of each in its store.

head               which revision (n) the fleet is at: every change compares and raises it
log/<n>            what that change did, and its author: audit, history, the way back
items/wide/…       rules and budgets that reach beyond one shard
items/shard/<s>/…  those of one shard: only its agents read them
beat               written by one of the agents, every few seconds: finds stalled watches
members/<s>/<m>@<h>  a member, its agent's (h) address, its server's role (lease); without @<h>
                   where both have the same name
shards/<s>         state of a shard, as its primary's agent reports it (lease)
leaders/<name>     who leads an active–passive pair (lease)
notes/…            of an agent's own log: what it noted itself, not set by an operator

An entry that vanishes means nothing: a removed change is stored as removed, with its n, and a lease
deletes it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

from headgate.changes.reach import Level, Reach

HEAD, BEAT = "head", "beat"
LOG, ITEMS, WIDE = "log/", "items/", "items/wide/"
NOTES = "notes/"
MAX_REVISIONS = 500
"""Of a log; the oldest goes with the commit of the newest."""
OURSELVES = "headgate"
"""The author of what an agent does automatically."""
FORGET_AFTER_S = 86_400.0
"""How long an ended change is known and shown."""
REPLICATED = "replicated"
"""The action of a revision: another agent of the shard has made its changes."""
ROLLBACK = "rollback"
MEMBERS, SHARDS, LEADERS = "members/", "shards/", "leaders/"


class ChangeKind(StrEnum):
    """Those that this version knows. Another one, of a newer version, is kept and passed on."""

    RULE = "rule"
    """The value is a rule as it is stored (rules/drafts.value_of)."""
    BUDGET = "budget"
    """The value is one budget of a policy, as `written`; of HERE what differs (budgets/layers)."""
    POLICY = "policy"
    """What an agent changed of a database's policy besides its budgets: settings, order, mode."""
    METRIC = "metric"
    """Settings of a metric of a database, or that it is removed."""
    SKIP = "skip"
    """A member that its shard's rollup leaves out for a while."""
    PEER = "peer"
    """A member of a shard, and where its agent is."""
    HANDOVER = "handover"
    """An announced switchover of a shard."""


class Sort(StrEnum):
    """What can be rolled back without the rest."""

    RULES = "rules"
    BUDGETS = "budgets"
    METRICS = "metrics"
    MEMBERS = "members"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that an operator set for the fleet."""

    kind: str
    """A ChangeKind, or the word of a newer version."""
    id: str
    """Of a rule `f-1a2b3c`; of a budget its name and its reach: `etl-cap@shard:commerce/*`."""
    reach: Reach
    value: Mapping[str, Any] | None
    """None: removed."""
    n: int
    """The fleet's revision that set it."""
    set_at: float
    """Wall-clock seconds, by the author's clock."""
    set_by: str
    again: int | None = None
    """For a shard whose agents share no store: how often it was set again after it was removed
    (changes/exchanged.Version). None: its log orders changes by n."""

    @property
    def key(self) -> str:
        return item_key(self.kind, self.id, self.reach)


@dataclass(frozen=True, slots=True)
class Edit:
    before: Change | None
    after: Change | None


@dataclass(frozen=True, slots=True)
class Revision:
    """One change of the fleet's items, all of it or none."""

    n: int
    wall_s: float
    who: str
    action: str
    """Such as `rule.set`, `apply` or `rollback`."""
    summary: str
    op: str
    """Made up by the caller: finds a change again whose outcome was lost."""
    changes: tuple[Edit, ...] = ()
    """Empty where only the list of revisions was asked for."""
    before_n: int | None = None
    """The revision that it was built on; None: the one before it."""
    unread: str = ""
    """Why its changes cannot be read here: a newer version made it, or it is broken. Then the
    rest is what can be read of it; `wall_s` is 0 if that cannot."""

    @property
    def built_on(self) -> int:
        return self.n - 1 if self.before_n is None else self.before_n


def quoted(name: str) -> str:
    """A name as one piece of a key."""
    return quote(name, safe="")


def unquoted(piece: str) -> str:
    return unquote(piece)


def item_key(kind: str, item_id: str, reach: Reach) -> str:
    alone = reach.level is Level.SHARD and reach.is_exact
    under = shard_items(reach.pattern) if alone else WIDE
    return f"{under}{kind}/{quoted(item_id)}"


def shard_items(shard: str) -> str:
    return f"{ITEMS}shard/{quoted(shard)}/"


def shard_members(shard: str) -> str:
    return f"{MEMBERS}{quoted(shard)}/"


def shard_key(shard: str) -> str:
    return f"{SHARDS}{quoted(shard)}"


def log_key(n: int) -> str:
    return f"{LOG}{n:012d}"


def log_n(key: str) -> int | None:
    """The revision that lies there; None: none does."""
    digits = key.removeprefix(LOG)
    is_one = digits.isascii() and digits.isdigit() and log_key(int(digits)) == key
    return int(digits) if is_one else None


def followed_prefixes(shards: Iterable[str]) -> tuple[str, ...]:
    """What an agent of these shards has to know, and no more: it grows with no fleet."""
    own = sorted({shard for shard in shards if shard})
    return (BEAT, WIDE, *map(shard_items, own), *map(shard_members, own))
