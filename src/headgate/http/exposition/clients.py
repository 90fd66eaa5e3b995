"""Which clients check, the answers they get, and who is throttled.   Recorder, … ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nlargest
from itertools import islice

from headgate.base.names import OTHER, Scope
from headgate.base.prometheus import Row
from headgate.history.recorder import BUDGET, RULE, ClientRecord
from headgate.http.exposition.series import Scrape, Section, single
from headgate.rules.matching import Kind, Rule

WINDOWS = {"5m": 300.0, "1h": 3600.0, "24h": 86400.0}
HELD_S = 60.0
"""A client that was rejected and has not checked since is gone, and not throttled any more."""
MAX_NAMED = 100
UNTHROTTLED_S = 3600.0
BY_RULE, BY_BUDGET = "(rule)", "(budget)"
_SHARD = f"{Scope.SHARD.value}/"


def decider(by: str) -> tuple[str, str]:
    """Scope and metric behind a decision. Rules come and go, each with its own id, and would leave
    a series each: by kind and target they are in headgate_rule_*, by id in history. Nothing is
    added up over clients: the sum would fall when one loses its place, and Prometheus would take
    that for a counter reset."""
    if by.startswith(RULE):
        return "", BY_RULE
    if by.startswith(BUDGET):
        return "", BY_BUDGET
    if by.startswith(_SHARD):
        return Scope.SHARD.value, by.removeprefix(_SHARD)
    return (Scope.HOST.value if by not in ("", OTHER) else ""), by


def _held(look: Scrape) -> list[tuple[float, str, str, ClientRecord]]:
    """(for how long, database, client, its record)"""
    now_s = look.now.wall_s
    return [
        (max(0.0, now_s - record.rejected_since), database, client, record)
        for database, client, record in look.parts.recorder.clients()
        if record.rejected_since is not None and record.last_at > now_s - HELD_S
    ]


# --- without a throttler -------------------------------------------------------------------------


def _unthrottled(look: Scrape) -> Iterator[tuple[str, float, int]]:
    """(client, seconds, pieces) of the last hour; the longest by name."""
    book = look.parts.watchers.unthrottled
    seconds: dict[str, float] = {}
    pieces: Counter[str] = Counter()
    for client, period in book.since(look.now.wall_s - UNTHROTTLED_S) if book is not None else ():
        seconds[client] = seconds.get(client, 0.0) + period.duration_s
        pieces[client] += period.pieces
    for client in nlargest(MAX_NAMED, seconds, key=lambda name: (seconds[name], name)):
        yield client, seconds[client], pieces[client]


# --- clients that decide locally ----------------------------------------------------------------


CLIENTS = Section()


@CLIENTS.rows(
    "headgate_checks_total{database,client,verdict,scope,metric}",
    "Checks answered. `metric` is what decided, in its `scope`: a metric, `(rule)`, "
    "`(budget)`, or empty if the check was admitted. For an admission, `(rule)` is the "
    "exemption that made it possible.",
)
def _checks(look: Scrape) -> Iterator[Row]:
    counts: dict[tuple[str, str, str, str, str], int] = {}
    deciders: dict[str, tuple[str, str]] = {}
    for (database, client, verdict, by), count in look.totals.items():
        if by not in deciders:
            deciders[by] = decider(by)
        labels = (database, client, verdict.value, *deciders[by])
        counts[labels] = counts.get(labels, 0) + count
    yield from counts.items()


@CLIENTS.rows(
    "headgate_checks_forgotten_total{database,verdict}",
    "Checks of clients that lost their place, so that their series have ended. Add them to "
    "`headgate_checks_total` for all checks since the start, but not to rates.",
)
def _forgotten(look: Scrape) -> Iterator[Row]:
    for (database, verdict), count in look.parts.recorder.forgotten.items():
        yield (database, verdict.value), float(count)


CLIENTS.add(
    "headgate_dice_waived_total",
    "Checks that skipped ratio rules, because these had rejected the client for the maximum time.",
    single(
        lambda look: (
            None
            if (fairness := look.parts.checker.fairness) is None
            else float(fairness.waived_total)
        )
    ),
)


@CLIENTS.rows(
    "headgate_clients{database,window}",
    "Clients that checked within the window. Clients that share a place count as one.",
)
def _recent(look: Scrape) -> Iterator[Row]:
    ages_s: dict[str, list[float]] = {database: [] for database in look.healths}
    for database, _, record in look.parts.recorder.clients():
        ages_s.setdefault(database, []).append(look.now.wall_s - record.last_at)
    for database, ages in ages_s.items():
        for window, seconds in WINDOWS.items():
            yield (database, window), float(sum(age_s < seconds for age_s in ages))


@CLIENTS.rows(
    "headgate_clients_held{database}",
    "Clients whose last check was rejected, and that checked within the last minute.",
)
def _held_clients(look: Scrape) -> Iterator[Row]:
    counts = Counter(database for _, database, _, _ in _held(look))
    for database in {*look.healths, *counts}:
        yield (database,), float(counts[database])


@CLIENTS.rows(
    "headgate_client_held_seconds{database,client,verdict,scope,metric}",
    "How long such a client has been throttled without a break, and what rejected its last "
    "check. Only while it lasts; the 100 longest.",
)
def _held_seconds(look: Scrape) -> Iterator[Row]:
    longest = nlargest(MAX_NAMED, _held(look), key=lambda item: (item[0], item[2]))
    for held_s, database, client, record in longest:
        scope, metric = decider(record.rejected_by)
        yield (database, client, record.last_verdict.value, scope, metric), held_s


@CLIENTS.rows(
    "headgate_unthrottled_clients",
    "Clients that reported work without a throttler, in periods that ended within the last hour.",
)
def _unthrottled_clients(look: Scrape) -> Iterator[Row]:
    if (book := look.parts.watchers.unthrottled) is not None:
        periods = book.since(look.now.wall_s - UNTHROTTLED_S)
        yield (), float(len({client for client, _ in periods}))


@CLIENTS.rows(
    "headgate_unthrottled_seconds{client}",
    "How long they worked without one in those periods; the 100 longest.",
)
def _unthrottled_seconds(look: Scrape) -> Iterator[Row]:
    for client, total_s, _ in _unthrottled(look):
        yield (client,), total_s


@CLIENTS.rows(
    "headgate_unthrottled_pieces{client}",
    "Pieces of work that they did in those periods; the same 100.",
)
def _unthrottled_pieces(look: Scrape) -> Iterator[Row]:
    for client, _, pieces in _unthrottled(look):
        yield (client,), float(pieces)


CLIENTS.add(
    "headgate_snapshot_listeners",
    "Streams of snapshots, one for each process and database that decides locally.",
    single(lambda look: float(look.parts.local.broadcasts.subscribers)),
)
CLIENTS.add(
    "headgate_snapshot_listeners_dropped_total",
    "Streams that were closed because the client did not read for 5 s.",
    single(lambda look: float(look.parts.local.broadcasts.dropped_total)),
)
CLIENTS.add(
    "headgate_local_decisions_total",
    "Decisions that clients made locally and reported; `headgate_checks_total` includes them.",
    single(lambda look: float(look.parts.local.intake.decisions_total)),
)
CLIENTS.add(
    "headgate_local_reports_repeated_total",
    "Batches of such decisions that arrived again, and were not counted again.",
    single(lambda look: float(look.parts.local.intake.repeated_total)),
)


# --- rules in force, and when they end.   RuleBook ──► rows --------------------------------
# By target and kind, not by id: an id is used once, and a series each would never end.


IN_FORCE, WAITING, SUSPENDED = "in_force", "waiting", "suspended"
STATES = (IN_FORCE, WAITING, SUSPENDED)
FIRST = (Kind.EXEMPT, Kind.HOLD)
"""If there are too many to list: exemptions and holds first."""

Place = tuple[str, str, str]
"""(database, target, kind)"""


def state_of(rule: Rule, look: Scrape) -> str | None:
    """None: it has ended, and is kept only to be shown."""
    if look.now.wall_s >= rule.expires_at:
        return None
    if rule.id in look.parts.checker.rules.suspended:
        return SUSPENDED
    return IN_FORCE if rule.in_force(look.now.wall_s) else WAITING


def _by_place(look: Scrape) -> Mapping[Place, list[Rule]]:
    found: dict[Place, list[Rule]] = {}
    for rule in look.parts.checker.rules.rules:
        if state_of(rule, look) == IN_FORCE:
            found.setdefault((rule.database, rule.target, rule.kind.value), []).append(rule)
    telling = {kind.value for kind in FIRST}
    named = sorted(found, key=lambda place: (place[2] not in telling, place))
    return {place: found[place] for place in islice(named, MAX_NAMED)}


def _since(rule: Rule, look: Scrape) -> float:
    wall_s = look.now.wall_s
    begun = [begin for begin, end in rule.windows or () if begin <= wall_s < end]
    return max([rule.created_at, *begun])


RULES = Section()


@RULES.rows(
    "headgate_rules{kind,state}",
    "Rules that have not ended: `in_force`, `waiting` for their schedule, or "
    "`suspended` because they starve others.",
)
def _rules(look: Scrape) -> Iterator[Row]:
    counts = Counter((rule.kind, state_of(rule, look)) for rule in look.parts.checker.rules.rules)
    for kind in Kind:
        for state in STATES:
            yield (kind.value, state), float(counts[kind, state])


@RULES.rows(
    "headgate_rule_seconds_left{database,target,kind}",
    "Time until the last rule in force of that kind on that target expires; `database` "
    "is empty for rules that apply everywhere. At most 100.",
)
def _left(look: Scrape) -> Iterator[Row]:
    for place, rules in _by_place(look).items():
        yield place, max(rule.expires_at for rule in rules) - look.now.wall_s


@RULES.rows(
    "headgate_rule_in_force_seconds{database,target,kind}",
    "Time since the first of them was set, or its window began.",
)
def _age(look: Scrape) -> Iterator[Row]:
    for place, rules in _by_place(look).items():
        yield place, max(0.0, look.now.wall_s - min(_since(rule, look) for rule in rules))


RULES.add(
    "headgate_rules_revision",
    "Grows with each change of the rules in force.",
    single(lambda look: float(look.parts.checker.rules.revision)),
)
