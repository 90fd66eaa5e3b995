"""What the rules page shows: rules as rows, and a replay as figures and bars. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from headgate.present.rules import RuleRow, rows_of
from headgate.present.words import some
from headgate.wire.history import ReplayDoc, ReplayRowDoc
from headgate.wire.rules import RuleDoc, RulesDoc

MAX_ROWS = 100
FEW_RULES = 200
SLOWLY_S = 10
"""Between two looks at more than a few: each takes time that checks wait for."""
MAX_ENDED = 50
MAX_CLIENTS = 12
BAR_WIDTH = 200.0


# --- the list -----------------------------------------------------------------------------------


def acts_of(doc: RuleDoc) -> Sequence[str]:
    """What can be done about it."""
    if doc.state == "ended":
        return ()
    if doc.kind == "unreadable":
        return ("lift",)
    of_fleet = doc.reach is not None
    here = ("wake",) if of_fleet and doc.suspended else ("rest",) if of_fleet else ()
    return ("extend", "change", "lift", *here)


@dataclass(frozen=True, slots=True)
class RuleList:
    rows: Sequence[RuleRow]
    loud: Sequence[RuleRow]
    """Exemptions in force: said above all else, whatever the list is filtered by."""
    refused: Sequence[str]
    more: int
    counts: tuple[int, int, int]
    """In force, waiting, suspended; of all."""
    total: int
    q: str

    def poll_s(self, usual_s: int) -> int:
        return usual_s if self.total <= FEW_RULES else SLOWLY_S

    @property
    def live_path(self) -> str:
        return f"/rules/list?{urlencode({'q': self.q})}" if self.q else "/rules/list"


def rule_list(told: RulesDoc, q: str) -> RuleList:
    rows = rows_of(told.rules)
    found = [row for row in rows if _meant(row.doc, q)]
    states = [row.doc.state for row in rows]
    return RuleList(
        found[:MAX_ROWS],
        [row for row in rows if row.doc.loud],
        told.refused,
        max(0, len(found) - MAX_ROWS),
        (states.count("in_force"), states.count("waiting"), states.count("suspended")),
        len(rows),
        q,
    )


def ended_rules(told: RulesDoc) -> Sequence[RuleRow]:
    ended = [RuleRow(doc) for doc in told.rules if doc.state == "ended"]
    return sorted(ended, key=lambda row: row.doc.expires_at, reverse=True)[:MAX_ENDED]


def _meant(doc: RuleDoc, q: str) -> bool:
    words = (doc.id, doc.target, doc.kind, doc.says, doc.reason, doc.created_by, doc.database or "")
    return not q or any(q.lower() in word.lower() for word in (*words, *doc.clients))


# --- a replay -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Amount:
    """Admitted checks: between these two."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = some(self.low), some(self.high)
        return low if low == high else f"{low}\N{EN DASH}{high}"


@dataclass(frozen=True, slots=True)
class Shown:
    """Of one client, or of all: what was, and what would have been."""

    client: str
    checks: int
    before: int
    after: Amount
    how: str = ""
    scale: float = 1.0
    """Checks that are as wide as the picture."""

    @property
    def before_width(self) -> float:
        return _width(self.before, self.scale)

    @property
    def low_width(self) -> float:
        return _width(self.after.low, self.scale)

    @property
    def open_width(self) -> float:
        """From the least to the most that it may be."""
        return _width(self.after.high - self.after.low, self.scale)

    @property
    def checks_width(self) -> float:
        return _width(self.checks, self.scale)


@dataclass(frozen=True, slots=True)
class Replayed:
    since: str
    until: str
    total: Shown
    clients: Sequence[Shown]
    more: int
    notes: Sequence[str]


_HOW = {
    "exact": "exact",
    "expected": "on average: dice decide",
    "bounded": "between these: history is kept by the minute, and says no more",
    "unknown": "cannot tell",
}


def replayed(doc: ReplayDoc, spared: str = "") -> Replayed:
    """`spared`: whom another rule, set with this one, leaves alone (a favour is two rules)."""
    hit = [row for row in doc.rows if not _is_spared(row, spared)]
    left_out = [row for row in doc.rows if _is_spared(row, spared)]
    low = doc.total.admitted_low + sum(r.admitted_before - r.admitted_low for r in left_out)
    high = doc.total.admitted_high + sum(r.admitted_before - r.admitted_high for r in left_out)
    clients = _by_client(hit)
    total = doc.total
    return Replayed(
        doc.since,
        doc.until,
        Shown("all", total.checks, total.admitted_before, Amount(low, high), "", total.checks),
        clients[:MAX_CLIENTS],
        max(0, len(clients) - MAX_CLIENTS),
        doc.notes,
    )


def _is_spared(row: ReplayRowDoc, spared: str) -> bool:
    return bool(spared) and set(spared.split(":")) <= set(row.client.split(":"))


def _by_client(rows: Iterable[ReplayRowDoc]) -> list[Shown]:
    """Of all hours and databases, those that change most first."""
    grouped: dict[str, list[ReplayRowDoc]] = {}
    for row in rows:
        grouped.setdefault(row.client, []).append(row)
    scale = max((sum(r.checks for r in some) for some in grouped.values()), default=1)
    found = [_shown(client, some, scale) for client, some in grouped.items()]
    return sorted(found, key=lambda one: -_change(one))


def _shown(client: str, rows: Sequence[ReplayRowDoc], scale: float) -> Shown:
    after = Amount(sum(r.admitted_low for r in rows), sum(r.admitted_high for r in rows))
    before = sum(row.admitted_before for row in rows)
    return Shown(client, sum(row.checks for row in rows), before, after, _how(rows), scale)


def _how(rows: Sequence[ReplayRowDoc]) -> str:
    first = sorted({row.shadowed_by for row in rows if row.shadowed_by})
    told = [f"as before: rule {rule} comes first" for rule in first]
    ways = {row.how for row in rows if not row.shadowed_by}
    told += [words for way, words in _HOW.items() if way in ways and (way != "exact" or not told)]
    return "; ".join(told)


def _change(one: Shown) -> float:
    return max(abs(one.after.low - one.before), abs(one.after.high - one.before))


def _width(count: float, scale: float) -> float:
    return round(BAR_WIDTH * max(0.0, count) / max(scale, 1.0), 1)
