"""The agent itself: its store, its loop, its connections.   Keeper, Recorder, Works ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from headgate.base.names import OTHER
from headgate.base.prometheus import Row, Spread
from headgate.history.alerts import OUTCOMES
from headgate.history.sessions import Suspect
from headgate.history.watch import KINDS
from headgate.http.exposition.series import Scrape, Section, single

# --- the process ---------------------------------------------------------------------------------


AGENT = Section()


@AGENT.rows("headgate_build_info{version,agent}", "Always 1.")
def _build(look: Scrape) -> Iterator[Row]:
    yield (look.facts.version, look.facts.name), 1.0


AGENT.add(
    "headgate_uptime_seconds",
    "Since the agent's start.",
    single(lambda look: max(0.0, look.now.mono_s - look.facts.started_at.mono_s)),
)
AGENT.add(
    "headgate_settings_rejected",
    "1 while the settings file on disk is invalid and the last good one stays in force.",
    single(lambda look: float(look.facts.settings_fault is not None)),
)
AGENT.add(
    "headgate_state_lost",
    "1 while the operators' changes are lost, both in the state file and in its copy. Checks "
    "are rejected, or use only the settings file, as `state_lost` says.",
    single(lambda look: float(look.facts.state_lost is not None)),
)
AGENT.add(
    "headgate_standby",
    "1 while this agent is a passive standby, 0 while it answers. Missing without a standby.",
    single(
        lambda look: None if (standby := look.facts.standby) is None else float(standby.passive)
    ),
)
AGENT.add(
    "headgate_takeovers_total",
    "Times that it took over from the other agent.",
    single(
        lambda look: (
            None if (standby := look.facts.standby) is None else float(standby.takeovers_total)
        )
    ),
)
AGENT.add(
    "headgate_store_writable",
    "1 while runtime settings, audit and history can be stored, else 0.",
    single(lambda look: float(look.parts.keeper.fault is None)),
)


@AGENT.rows(
    "headgate_store_fault_seconds", "How long the store has not been writable; 0 while it is."
)
def _store_fault(look: Scrape) -> Iterator[Row]:
    fault = look.parts.keeper.fault
    yield (), 0.0 if fault is None else max(0.0, look.now.wall_s - fault.since_wall_s)


AGENT.add(
    "headgate_store_tallies_waiting",
    "Rows of history that wait for the store.",
    single(lambda look: float(look.parts.recorder.waiting)),
)
AGENT.add(
    "headgate_store_dropped_total",
    "Decisions missing from history (never from the counters) because the store was away too long.",
    single(lambda look: float(look.parts.recorder.dropped_tallies)),
)


@AGENT.rows(
    "headgate_loop_lag_seconds",
    "How late the agent's event loop was, measured four times a second: how long a check may "
    "have had to wait.",
    kind="histogram",
)
def _loop_lag(look: Scrape) -> Iterator[Row]:
    if look.works is not None:
        pulse = look.works.pulse
        yield (), Spread(pulse.up_to(), pulse.sum_s)


AGENT.add(
    "headgate_connections",
    "Connections to the agent now.",
    single(
        lambda look: None if look.works is None else float(len(look.works.listener().connections))
    ),
)
AGENT.add(
    "headgate_connections_max",
    "How many are served at once (`max_connections`).",
    single(
        lambda look: (
            None if look.works is None else float(look.works.listener().limits.max_connections)
        )
    ),
)
AGENT.add(
    "headgate_connections_shed_total",
    "Connections that never sent a request, and were closed because their places were needed.",
    single(
        lambda look: None if look.works is None else float(look.works.listener().shed_connections)
    ),
)
AGENT.add(
    "headgate_out_of_files",
    "1 while the process is at its limit of open files and accepts no more connections.",
    single(lambda look: float(look.facts.files_fault is not None)),
)
AGENT.add(
    "headgate_connections_rejected_total",
    "Connections that got status 503 because there were too many.",
    single(
        lambda look: (
            None if look.works is None else float(look.works.listener().rejected_connections)
        )
    ),
)


@AGENT.rows(
    "headgate_trace_spans_total{outcome}",
    "Spans by outcome: `sent`; `full` (too many waited); `busy` (too many began in one "
    "second); `undelivered` (the collector did not take them); `rejected` (by the collector). "
    "Missing without [tracing].",
)
def _spans(look: Scrape) -> Iterator[Row]:
    spans = look.facts.spans
    for outcome, count in spans.outcomes.items() if spans is not None else ():
        yield (outcome,), float(count)


AGENT.add(
    "headgate_trace_spans_waiting",
    "Spans that wait to be sent. Missing without [tracing].",
    single(lambda look: None if (spans := look.facts.spans) is None else float(spans.waiting)),
)


# --- starved clients and rogue clients.   Watch, Rogues, Alerts ──► rows -------------------
# Sessions are shown by user, not by program or host: a client may give itself any name.


MAX_FINDINGS = 100
MAX_USERS = 10


def _listed(look: Scrape) -> Iterator[tuple[str, tuple[Suspect, ...]]]:
    """By database; nothing if its sessions cannot be listed."""
    if (rogues := look.parts.watchers.rogues) is not None:
        for database in rogues.databases:
            if database not in rogues.faults:
                yield database, rogues.suspects(database)


WATCHING = Section()


@WATCHING.rows(
    "headgate_starved_clients{database}",
    "Clients, or levels, that are starved beyond the waterline now; 0 for none.",
)
def _starved_clients(look: Scrape) -> Iterator[Row]:
    if (watch := look.parts.watchers.watch) is not None:
        alarming = Counter(f.database for f in watch.findings if f.alarming)
        for database in look.healths:
            yield (database,), float(alarming[database])


@WATCHING.rows(
    "headgate_starved_seconds{database,client,metric,cause}",
    "How long a client, or a level, has been starved; only while it is. At most 100.",
)
def _starved(look: Scrape) -> Iterator[Row]:
    watch = look.parts.watchers.watch
    for f in watch.findings[:MAX_FINDINGS] if watch is not None else ():
        yield (f.database, f.client, f.metric, f.cause.value), f.starved_s


@WATCHING.rows(
    "headgate_starvation_share{database,client}",
    "Starved share of its runtime; alert above the waterline, 0.05 by default.",
)
def _starvation_share(look: Scrape) -> Iterator[Row]:
    watch = look.parts.watchers.watch
    for f in watch.findings[:MAX_FINDINGS] if watch is not None else ():
        yield (f.database, f.client), f.share


@WATCHING.rows(
    "headgate_rogue_sessions_active{database}",
    "Active sessions of rogue clients, on average. Missing if sessions cannot be listed.",
)
def _rogues(look: Scrape) -> Iterator[Row]:
    for database, suspects in _listed(look):
        yield (database,), sum(s.active_mean for s in suspects)


@WATCHING.rows(
    "headgate_rogue_suspects{database}",
    "Users, programs and hosts of rogue clients, 50 at most: `headgate "
    "starvation` names them. Missing if sessions cannot be listed.",
)
def _suspects(look: Scrape) -> Iterator[Row]:
    for database, suspects in _listed(look):
        yield (database,), float(len(suspects))


@WATCHING.rows(
    "headgate_rogue_user_sessions_active{database,user}",
    "Active sessions of rogue clients, on average, by user.",
)
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


@WATCHING.rows(
    "headgate_sessions_listed{database}",
    "1 while the database's sessions can be listed, 0 while that fails.",
)
def _sessions_listed(look: Scrape) -> Iterator[Row]:
    if (rogues := look.parts.watchers.rogues) is not None:
        for database in rogues.databases:
            yield (database,), float(database not in rogues.faults)


@WATCHING.rows(
    "headgate_alerts_total{kind,outcome}",
    "Alerts by outcome: `raised` (all), `sent` (the webhook took it), `dropped`.",
)
def _alerts(look: Scrape) -> Iterator[Row]:
    watch = look.parts.watchers.watch
    if watch is not None:
        # From 0 on: Prometheus sees no increase in a counter that begins with 1.
        for kind, outcome in product(KINDS, OUTCOMES):
            yield (kind, outcome), float(watch.alerts.outcomes[kind, outcome])
