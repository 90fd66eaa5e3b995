"""Starved clients and rogue clients.   Watch, Rogues, Alerts ──► rows

Sessions are shown by user, not by program or host: a client may give itself any name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from headgate.base.crowds import OTHER
from headgate.base.prometheus import Row
from headgate.history.alerts import OUTCOMES
from headgate.history.sessions import Suspect
from headgate.history.watch import KINDS
from headgate.http.exposition.series import Scrape, Series

MAX_FINDINGS = 100
MAX_USERS = 10


def _starved_clients(look: Scrape) -> Iterator[Row]:
    if (watch := look.parts.watch) is not None:
        alarming = Counter(f.database for f in watch.findings if f.alarming)
        for database in look.healths:
            yield (database,), float(alarming[database])


def _starved(look: Scrape) -> Iterator[Row]:
    watch = look.parts.watch
    for f in watch.findings[:MAX_FINDINGS] if watch is not None else ():
        yield (f.database, f.client, f.metric, f.cause.value), f.starved_s


def _starvation_share(look: Scrape) -> Iterator[Row]:
    watch = look.parts.watch
    for f in watch.findings[:MAX_FINDINGS] if watch is not None else ():
        yield (f.database, f.client), f.share


def _listed(look: Scrape) -> Iterator[tuple[str, tuple[Suspect, ...]]]:
    """By database; nothing if its sessions cannot be listed."""
    if (rogues := look.parts.rogues) is not None:
        for database in rogues.databases:
            if database not in rogues.faults:
                yield database, rogues.suspects(database)


def _rogues(look: Scrape) -> Iterator[Row]:
    for database, suspects in _listed(look):
        yield (database,), sum(s.active_mean for s in suspects)


def _suspects(look: Scrape) -> Iterator[Row]:
    for database, suspects in _listed(look):
        yield (database,), float(len(suspects))


def _rogue_users(look: Scrape) -> Iterator[Row]:
    for database, suspects in _listed(look):
        active: dict[str, float] = {}
        for suspect in suspects:
            active[suspect.who.user] = active.get(suspect.who.user, 0.0) + suspect.active_mean
        ranked = sorted(active, key=lambda user: (-active[user], user))
        for user in ranked[:MAX_USERS]:
            yield (database, user), active[user]
        if rest := ranked[MAX_USERS:]:
            yield (database, OTHER), sum(active[user] for user in rest)


def _sessions_listed(look: Scrape) -> Iterator[Row]:
    if (rogues := look.parts.rogues) is not None:
        for database in rogues.databases:
            yield (database,), float(database not in rogues.faults)


def _alerts(look: Scrape) -> Iterator[Row]:
    watch = look.parts.watch
    if watch is not None:
        # From 0 on: Prometheus sees no increase in a counter that begins with 1.
        for kind, outcome in product(KINDS, OUTCOMES):
            yield (kind, outcome), float(watch.alerts.outcomes[kind, outcome])


WATCHING = (
    Series(
        "headgate_starved_clients",
        "gauge",
        ("database",),
        "Clients, or levels, that are starved beyond the waterline now; 0 for none.",
        _starved_clients,
    ),
    Series(
        "headgate_starved_seconds",
        "gauge",
        ("database", "client", "metric", "cause"),
        "How long a client, or a level, has been starved; only while it is. At most 100.",
        _starved,
    ),
    Series(
        "headgate_starvation_share",
        "gauge",
        ("database", "client"),
        "Starved share of its runtime; alert above the waterline, 0.05 by default.",
        _starvation_share,
    ),
    Series(
        "headgate_rogue_sessions_active",
        "gauge",
        ("database",),
        "Active sessions of rogue clients, on average. Missing if sessions cannot be listed.",
        _rogues,
    ),
    Series(
        "headgate_rogue_suspects",
        "gauge",
        ("database",),
        "Users, programs and hosts of rogue clients, 50 at most: `headgate "
        "starvation` names them. Missing if sessions cannot be listed.",
        _suspects,
    ),
    Series(
        "headgate_rogue_user_sessions_active",
        "gauge",
        ("database", "user"),
        "Active sessions of rogue clients, on average, by user.",
        _rogue_users,
    ),
    Series(
        "headgate_sessions_listed",
        "gauge",
        ("database",),
        "1 while the database's sessions can be listed, 0 while that fails.",
        _sessions_listed,
    ),
    Series(
        "headgate_alerts_total",
        "counter",
        ("kind", "outcome"),
        "Alerts by outcome: `told` (all), `sent` (the webhook took it), `dropped`.",
        _alerts,
    ),
)
