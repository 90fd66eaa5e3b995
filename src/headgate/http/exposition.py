"""Prometheus text.   One row of SERIES a metric: name, kind, labels, meaning.

Labels are bounded: clients by `max_clients`, crowds of further ones by a quarter of that,
budgets by 200 a database (the rest is `other`), databases and metrics by the settings, members
by 256 a shard, verdicts, causes and states by closed types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from headgate.agent.budgetmeter import BudgetWatch
from headgate.agent.budgets import Controlled
from headgate.agent.fleetfollower import FleetState
from headgate.core.activity import Activity
from headgate.core.decide import judge
from headgate.core.decision import PASSING, State
from headgate.core.samples import Instant
from headgate.traffic.policy import Mode
from headgate.traffic.readings import BudgetCounts
from headgate.wire.pacing import set_point
from headgate.wire.shard import CostDoc, MemberDoc

if TYPE_CHECKING:
    from headgate.http.views import Views

Row = tuple[tuple[str, ...], float]
Rows = Callable[["Views", Instant], Iterator[Row]]
MEMBER_STATES = ("counted", "aside", "missing")
FLEET_SOURCES = ("store", "agent", "nobody")
FLEET_SHARD_STATES = ("healthy", "unhealthy", "resting", "starting", "silent")
FLEET_AGENT_STATES = ("current", "pending", "behind", "unknown")


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str
    rows: Rows


def _build(views: Views, now: Instant) -> Iterator[Row]:
    yield (views.facts.version, views.facts.name), 1.0


def _checks(views: Views, now: Instant) -> Iterator[Row]:
    for (database, client, verdict, metric), count in views.parts.recorder.totals().items():
        yield (database, client, verdict.value, metric), float(count)


def _forgotten(views: Views, now: Instant) -> Iterator[Row]:
    for (database, verdict), count in views.parts.recorder.forgotten.items():
        yield (database, verdict.value), float(count)


def _values(views: Views, now: Instant) -> Iterator[Row]:
    for name, health in views.parts.board.healths.items():
        for metric, standing in health.standings.items():
            # An absent metric shows no value at all: a frozen one would look healthy.
            finding = judge(standing, now)
            if finding.value is not None and finding.state is not State.ABSENT:
                yield (name, metric), finding.value


def _thresholds(views: Views, now: Instant) -> Iterator[Row]:
    for name, health in views.parts.board.healths.items():
        for metric, standing in health.standings.items():
            yield (name, metric), standing.spec.threshold


def _ages(views: Views, now: Instant) -> Iterator[Row]:
    for name, health in views.parts.board.healths.items():
        for metric, standing in health.standings.items():
            if standing.sample is not None:
                yield (name, metric), max(0.0, now.mono_s - standing.sample.taken_at)


def _metric_healthy(views: Views, now: Instant) -> Iterator[Row]:
    for name, health in views.parts.board.healths.items():
        for metric, standing in health.standings.items():
            yield (name, metric), float(judge(standing, now).state in PASSING)


def _admitting(views: Views, now: Instant) -> Iterator[Row]:
    for name, health in views.parts.board.healths.items():
        chosen = health.own
        yield (name,), float(chosen.all_pass and now.mono_s <= chosen.all_pass_until)


def _readings(views: Views, now: Instant) -> Iterator[Row]:
    for (database, metric, outcome), count in views.parts.sampler.readings_total.items():
        yield (database, metric, outcome), float(count)


def _beats(views: Views, now: Instant) -> Iterator[Row]:
    for beat in views.facts.heartbeats:
        yield (beat.database,), float(beat.beats_total)


# --- shards ------------------------------------------------------------------------------------


def _role(views: Views, now: Instant) -> Iterator[Row]:
    for shard in views.shards(now):
        for member in shard.members:
            if member.member == shard.member and member.role is not None:
                yield (shard.database, member.role), 1.0


def _leading(views: Views, now: Instant) -> Iterator[Row]:
    for shard in views.shards(now):
        yield (shard.database,), float(shard.standing == "leading")


def _members(views: Views, now: Instant) -> Iterator[Row]:
    for shard in views.shards(now):
        # Who does not roll up counts nobody: a 0 would say that everybody is gone.
        if shard.standing == "leading":
            states = Counter(_member_state(member) for member in shard.members)
            for state in MEMBER_STATES:
                yield (shard.database, state), float(states[state])


def _member_state(member: MemberDoc) -> str:
    if member.skip is not None or member.asides:
        return "aside"
    return "counted" if member.reachable and not member.problem else "missing"


def _shard_values(views: Views, now: Instant) -> Iterator[Row]:
    for name, health in views.parts.board.healths.items():
        for metric, standing in health.shard.standings.items() if health.shard else ():
            finding = judge(standing, now)
            if finding.value is not None and finding.state is not State.ABSENT:
                yield (name, metric), finding.value


def _member_readings(views: Views, now: Instant) -> Iterator[Row]:
    for shard in views.shards(now):
        for member in shard.members:
            for reading in member.readings:
                if reading.value is not None and reading.state != State.ABSENT.value:
                    yield (shard.database, member.member, reading.metric), reading.value


def _member_clocks(views: Views, now: Instant) -> Iterator[Row]:
    for shard in views.shards(now):
        for member in shard.members:
            if member.clock_ahead_s is not None:
                yield (shard.database, member.member), member.clock_ahead_s


def _activity(views: Views, now: Instant) -> Iterator[Row]:
    for plan in views.parts.book.databases():
        current = views.activity(plan.name)
        for state in Activity:
            yield (plan.name, state.value), float(state is current)


def _cost(of: Callable[[CostDoc], int]) -> Rows:
    def rows(views: Views, now: Instant) -> Iterator[Row]:
        for plan in views.parts.book.databases():
            for cost in views.costs(plan.name):
                yield (plan.name, cost.state), float(of(cost))

    return rows


def _dice_waived(views: Views, now: Instant) -> Iterator[Row]:
    if (fairness := views.parts.checker.fairness) is not None:
        yield (), float(fairness.waived_total)


# --- paced admission -----------------------------------------------------------------------------


def _pace_rate(views: Views, now: Instant) -> Iterator[Row]:
    for database, pacer in views.parts.checker.pacers.items():
        yield (database,), pacer.pace.rate


def _pace_set_points(views: Views, now: Instant) -> Iterator[Row]:
    for database, pacer in views.parts.checker.pacers.items():
        for metric, standing in pacer.metrics.items():
            yield (database, metric), set_point(standing)


def _pace_cost(views: Views, now: Instant) -> Iterator[Row]:
    for database, pacer in views.parts.checker.pacers.items():
        yield (database,), pacer.cost_total


# --- clients that decide by themselves ----------------------------------------------------------


def _listeners(views: Views, now: Instant) -> Iterator[Row]:
    if (broadcasts := views.parts.broadcasts) is not None:
        yield (), float(broadcasts.subscribers)


def _listeners_dropped(views: Views, now: Instant) -> Iterator[Row]:
    if (broadcasts := views.parts.broadcasts) is not None:
        yield (), float(broadcasts.dropped_total)


def _reported(views: Views, now: Instant) -> Iterator[Row]:
    if (intake := views.parts.intake) is not None:
        yield (), float(intake.decisions_total)


def _repeated(views: Views, now: Instant) -> Iterator[Row]:
    if (intake := views.parts.intake) is not None:
        yield (), float(intake.repeated_total)


# --- who is starved, who never asks ---------------------------------------------------------------


def _starved(views: Views, now: Instant) -> Iterator[Row]:
    watch = views.parts.watch
    for f in watch.findings if watch is not None else ():
        yield (f.database, f.client, f.metric, f.culprit.value), f.for_s


def _starvation_share(views: Views, now: Instant) -> Iterator[Row]:
    watch = views.parts.watch
    for f in watch.findings if watch is not None else ():
        yield (f.database, f.client), f.share


def _rogues(views: Views, now: Instant) -> Iterator[Row]:
    rogues = views.parts.rogues
    for database in rogues.databases if rogues is not None else ():
        if rogues is not None and database not in rogues.faults:
            yield (database,), sum(s.active_mean for s in rogues.suspects(database))


def _alerts(views: Views, now: Instant) -> Iterator[Row]:
    watch = views.parts.watch
    for (kind, outcome), count in watch.alerts.outcomes.items() if watch is not None else ():
        yield (kind, outcome), float(count)


# --- budgets -----------------------------------------------------------------------------------

NS_PER_S = 1e9


def _watches(views: Views) -> Iterator[tuple[str, BudgetWatch]]:
    budgets = views.parts.budgets
    for database, controlled in budgets.by_database.items() if budgets is not None else ():
        if controlled.watch is not None:
            yield database, controlled.watch


def _counted(of: Callable[[BudgetCounts], float]) -> Rows:
    def rows(views: Views, now: Instant) -> Iterator[Row]:
        for database, watch in _watches(views):
            for budget, counts in watch.labelled():
                yield (database, budget), float(of(counts))

    return rows


def _counted_by_limit(of: Callable[[BudgetCounts], Mapping[str, int]]) -> Rows:
    def rows(views: Views, now: Instant) -> Iterator[Row]:
        for database, watch in _watches(views):
            for budget, counts in watch.labelled():
                for limit, count in of(counts).items():
                    yield (database, budget, limit), float(count)

    return rows


def _budget_fill(views: Views, now: Instant) -> Iterator[Row]:
    for database, watch in _watches(views):
        fills: dict[str, float] = {}
        for bucket in watch.readings.buckets if watch.readings is not None else ():
            if bucket.fill is not None:
                label = watch.label(bucket.budget)
                fills[label] = max(bucket.fill, fills.get(label, 0.0))
        for budget, fill in fills.items():
            yield (database, budget), fill


def _budget_running(views: Views, now: Instant) -> Iterator[Row]:
    for database, watch in _watches(views):
        running: Counter[str] = Counter()
        for bucket in watch.readings.buckets if watch.readings is not None else ():
            running[watch.label(bucket.budget)] += bucket.running
        for budget, workers in running.items():
            yield (database, budget), float(workers)


def _meter_readable(views: Views, now: Instant) -> Iterator[Row]:
    for database, watch in _watches(views):
        yield (database,), float(watch.readings is not None)


def _version_in_force(views: Views, now: Instant) -> Iterator[Row]:
    for database, watch in _watches(views):
        if watch.readings is not None:
            yield (database,), float(watch.readings.version)


def _policies_refused(views: Views, now: Instant) -> Iterator[Row]:
    for database, watch in _watches(views):
        if watch.readings is not None:
            yield (database,), float(watch.readings.refused)


def _controlled(views: Views) -> Iterator[tuple[str, Controlled]]:
    budgets = views.parts.budgets
    yield from budgets.by_database.items() if budgets is not None else ()


def _version_published(views: Views, now: Instant) -> Iterator[Row]:
    for database, controlled in _controlled(views):
        told = [outlet.published for outlet in controlled.publisher.outlets if outlet.published]
        if told:
            yield (database,), float(min(one.version for one in told))


def _policy_current(views: Views, now: Instant) -> Iterator[Row]:
    for database, controlled in _controlled(views):
        publisher = controlled.publisher
        if publisher.outlets:
            took = (outlet.told == publisher.wanted for outlet in publisher.outlets)
            yield (database,), float(publisher.wanted is not None and all(took))


def _publish_failures(views: Views, now: Instant) -> Iterator[Row]:
    for database, controlled in _controlled(views):
        if outlets := controlled.publisher.outlets:
            yield (database,), float(sum(outlet.failures_total for outlet in outlets))


def _policy_put_back(views: Views, now: Instant) -> Iterator[Row]:
    for database, controlled in _controlled(views):
        if outlets := controlled.publisher.outlets:
            yield (database,), float(sum(outlet.put_back_total for outlet in outlets))


def _switched_off(views: Views, now: Instant) -> Iterator[Row]:
    for database, controlled in _controlled(views):
        if controlled.publisher.outlets:
            yield (database,), float(controlled.is_off)


def _capped(views: Views, now: Instant) -> Iterator[Row]:
    for database, controlled in _controlled(views):
        yield (database,), float(controlled.book.edition.changes.mode_cap is not Mode.ENFORCE)


# --- the store ---------------------------------------------------------------------------------


def _store_writable(views: Views, now: Instant) -> Iterator[Row]:
    yield (), float(views.parts.keeper.fault is None)


def _waiting(views: Views, now: Instant) -> Iterator[Row]:
    yield (), float(views.parts.recorder.waiting)


def _dropped(views: Views, now: Instant) -> Iterator[Row]:
    yield (), float(views.parts.recorder.dropped_tallies)


# --- the fleet ---------------------------------------------------------------------------------


def _fleet(of: Callable[[FleetState], float | None]) -> Rows:
    """None: there is nothing to tell; and outside a fleet there never is."""

    def rows(views: Views, now: Instant) -> Iterator[Row]:
        if (fleet := views.parts.fleet) is not None:
            value = of(fleet.follower.state())
            if value is not None:
                yield (), float(value)

    return rows


def _fleet_source(views: Views, now: Instant) -> Iterator[Row]:
    if (fleet := views.parts.fleet) is not None:
        state = fleet.follower.state()
        kind = ("store" if state.direct else "agent") if state.source else "nobody"
        for one in FLEET_SOURCES:
            yield (one,), float(one == kind)


def _fleet_requests(views: Views, now: Instant) -> Iterator[Row]:
    if (fleet := views.parts.fleet) is not None:
        for outcome, count in fleet.requests.items():
            yield (outcome,), float(count)


def _fleet_shards(views: Views, now: Instant) -> Iterator[Row]:
    fleet = views.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_SHARD_STATES:
            yield (state,), float(getattr(counts, state))


def _fleet_agents(views: Views, now: Instant) -> Iterator[Row]:
    fleet = views.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_AGENT_STATES:
            yield (state,), float(getattr(counts, state))


def _fleet_agents_stale(views: Views, now: Instant) -> Iterator[Row]:
    fleet = views.parts.fleet
    if fleet is not None and fleet.view is not None:
        yield (), float(fleet.view.counts.stale)


def _fleet_agents_behind(views: Views, now: Instant) -> Iterator[Row]:
    fleet = views.parts.fleet
    if fleet is not None and fleet.view is not None:
        yield (), float(fleet.view.counts.behind)


SERIES = (
    Series("headgate_build_info", "gauge", ("version", "agent"), "Always 1.", _build),
    Series(
        "headgate_checks_total",
        "counter",
        ("database", "client", "verdict", "metric"),
        "Checks answered; `metric` is what decided: a metric, a rule, or nothing (admitted).",
        _checks,
    ),
    Series(
        "headgate_checks_forgotten_total",
        "counter",
        ("database", "verdict"),
        "Checks of clients that gave their place up, whose series have ended: with those of "
        "`headgate_checks_total`, all since the start. Leave them out of rates.",
        _forgotten,
    ),
    Series(
        "headgate_dice_waived_total",
        "counter",
        (),
        "Checks judged without dice, for dice had refused the client for as long as they may.",
        _dice_waived,
    ),
    Series(
        "headgate_metric_value",
        "gauge",
        ("database", "metric"),
        "Newest value. Missing, not frozen, while the metric is absent.",
        _values,
    ),
    Series(
        "headgate_metric_threshold",
        "gauge",
        ("database", "metric"),
        "Threshold in force.",
        _thresholds,
    ),
    Series(
        "headgate_metric_age_seconds",
        "gauge",
        ("database", "metric"),
        "Age of the newest value.",
        _ages,
    ),
    Series(
        "headgate_metric_healthy",
        "gauge",
        ("database", "metric"),
        "1 while this metric lets checks through, else 0.",
        _metric_healthy,
    ),
    Series(
        "headgate_database_admitting",
        "gauge",
        ("database",),
        "1 while a check that names no metric would be admitted, else 0.",
        _admitting,
    ),
    Series(
        "headgate_readings_total",
        "counter",
        ("database", "metric", "outcome"),
        "Probes that ended, by `value` or the cause of absence.",
        _readings,
    ),
    Series("headgate_heartbeats_total", "counter", ("database",), "Heartbeats written.", _beats),
    Series(
        "headgate_role",
        "gauge",
        ("database", "role"),
        "1 for the role that the database's own server says it has; missing while unknown.",
        _role,
    ),
    Series(
        "headgate_activity",
        "gauge",
        ("database", "state"),
        "1 for the state it is in (`normal`, `slow`, `hibernating`), 0 for the others.",
        _activity,
    ),
    Series(
        "headgate_shard_leading",
        "gauge",
        ("database",),
        "1 while this agent rolls up the database's shard, 0 while it may not.",
        _leading,
    ),
    Series(
        "headgate_shard_members",
        "gauge",
        ("database", "state"),
        "Members by `counted`, `aside` (from any metric) and `missing`; only while leading.",
        _members,
    ),
    Series(
        "headgate_shard_metric_value",
        "gauge",
        ("database", "metric"),
        "The shard's value, rolled up. Missing while there is none, or it is rolled up elsewhere.",
        _shard_values,
    ),
    Series(
        "headgate_member_reading",
        "gauge",
        ("database", "member", "metric"),
        "A member's value as it goes into the roll-up; at most 256 members.",
        _member_readings,
    ),
    Series(
        "headgate_member_clock_ahead_seconds",
        "gauge",
        ("database", "member"),
        "The clock of a member's database minus the primary's; lag is corrected for it.",
        _member_clocks,
    ),
    Series(
        "headgate_probes_total",
        "counter",
        ("database", "state"),
        "Probes run, by the state they were run in: none while hibernating.",
        _cost(lambda cost: cost.probes),
    ),
    Series(
        "headgate_peer_messages_total",
        "counter",
        ("database", "state"),
        "Messages sent to agents of other members, by state: none while hibernating.",
        _cost(lambda cost: cost.messages),
    ),
    Series(
        "headgate_heartbeat_writes_total",
        "counter",
        ("database", "state"),
        "Heartbeats written, by state: none while hibernating but the one that says so.",
        _cost(lambda cost: cost.beats),
    ),
    Series(
        "headgate_pace_rate",
        "gauge",
        ("database",),
        "Cost a second that pacing releases. Missing where no metric is paced.",
        _pace_rate,
    ),
    Series(
        "headgate_pace_set_point",
        "gauge",
        ("database", "metric"),
        "Where pacing keeps the metric, in its own unit.",
        _pace_set_points,
    ),
    Series(
        "headgate_pace_cost_total",
        "counter",
        ("database",),
        "Cost charged to admitted checks since the metric is paced.",
        _pace_cost,
    ),
    Series(
        "headgate_snapshot_listeners",
        "gauge",
        (),
        "Streams of snapshots, one for each process and database that decides locally.",
        _listeners,
    ),
    Series(
        "headgate_snapshot_listeners_dropped_total",
        "counter",
        (),
        "Streams that were cut because nobody read them for 5 s.",
        _listeners_dropped,
    ),
    Series(
        "headgate_local_decisions_total",
        "counter",
        (),
        "Decisions that clients made by themselves and reported; `headgate_checks_total` has "
        "them, too.",
        _reported,
    ),
    Series(
        "headgate_local_reports_repeated_total",
        "counter",
        (),
        "Batches of such decisions that came again, and were not counted again.",
        _repeated,
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
        "Starved time of its runtime; alert above the waterline, 0.05 by default.",
        _starvation_share,
    ),
    Series(
        "headgate_rogue_sessions_active",
        "gauge",
        ("database",),
        "Sessions at work, on average, of those who never ask. Missing where none are listed.",
        _rogues,
    ),
    Series(
        "headgate_alerts_total",
        "counter",
        ("kind", "outcome"),
        "Alerts by outcome: `told` (all), `sent` (the webhook took it), `dropped`.",
        _alerts,
    ),
    Series(
        "headgate_budget_admitted_total",
        "counter",
        ("database", "budget"),
        "Statements that a budget let run, as the server counts them: from 0 after its start. "
        "Missing, as all that follow, while its counters cannot be read.",
        _counted(lambda counts: counts.admitted),
    ),
    Series(
        "headgate_budget_warned_total",
        "counter",
        ("database", "budget", "limit"),
        "Statements that ran though a limit was exceeded (`concurrency`, `burst`, `capacity`), or "
        "only its warning threshold crossed (`threshold`).",
        _counted_by_limit(lambda counts: counts.warned),
    ),
    Series(
        "headgate_budget_blocked_total",
        "counter",
        ("database", "budget", "limit"),
        "Statements refused, by the limit that refused them.",
        _counted_by_limit(lambda counts: counts.blocked),
    ),
    Series(
        "headgate_budget_blocked_early_total",
        "counter",
        ("database", "budget"),
        "Of the refused, those refused before they were planned.",
        _counted(lambda counts: counts.early),
    ),
    Series(
        "headgate_budget_delayed_total",
        "counter",
        ("database", "budget"),
        "Statements that waited for room.",
        _counted(lambda counts: counts.delayed),
    ),
    Series(
        "headgate_budget_delayed_seconds_total",
        "counter",
        ("database", "budget"),
        "How long they waited, together.",
        _counted(lambda counts: counts.delayed_ns / NS_PER_S),
    ),
    Series(
        "headgate_budget_passed_total",
        "counter",
        ("database", "budget"),
        "Statements over a limit that ran, for they were inside a transaction.",
        _counted(lambda counts: counts.passed),
    ),
    Series(
        "headgate_budget_sleeping",
        "gauge",
        ("database", "budget"),
        "Sessions held now, by a delay or a penalty.",
        _counted(lambda counts: counts.sleeping),
    ),
    Series(
        "headgate_budget_estimated_cpu_seconds_total",
        "counter",
        ("database", "budget"),
        "CPU that the admitted were estimated at.",
        _counted(lambda counts: counts.estimated_ns / NS_PER_S),
    ),
    Series(
        "headgate_budget_charged_cpu_seconds_total",
        "counter",
        ("database", "budget"),
        "CPU that they came to.",
        _counted(lambda counts: counts.charged_ns / NS_PER_S),
    ),
    Series(
        "headgate_budget_forgiven_cpu_seconds_total",
        "counter",
        ("database", "budget"),
        "CPU owed that nobody will pay: forgiven by an operator, or by a full table of buckets.",
        _counted(lambda counts: counts.forgiven_ns / NS_PER_S),
    ),
    Series(
        "headgate_budget_fill",
        "gauge",
        ("database", "budget"),
        "Owed of the capacity, 0 to 1, of its fullest bucket; missing without a capacity.",
        _budget_fill,
    ),
    Series(
        "headgate_budget_running",
        "gauge",
        ("database", "budget"),
        "Workers at work under it now.",
        _budget_running,
    ),
    Series(
        "headgate_budget_counters_readable",
        "gauge",
        ("database",),
        "1 while the server's counters can be read, else 0.",
        _meter_readable,
    ),
    Series(
        "headgate_budget_policy_published_version",
        "gauge",
        ("database",),
        "Of the policy that the server was given last.",
        _version_published,
    ),
    Series(
        "headgate_budget_policy_in_force_version",
        "gauge",
        ("database",),
        "Of the policy that the server goes by; alert where it stays below the published one.",
        _version_in_force,
    ),
    Series(
        "headgate_budget_policy_current",
        "gauge",
        ("database",),
        "1 while the server was given the newest policy, 0 while that fails.",
        _policy_current,
    ),
    Series(
        "headgate_budget_publish_failures_total",
        "counter",
        ("database",),
        "Tries to give the server a policy that failed.",
        _publish_failures,
    ),
    Series(
        "headgate_budget_policy_put_back_total",
        "counter",
        ("database",),
        "Times that a server's policy was gone, older or somebody else's, and was put back.",
        _policy_put_back,
    ),
    Series(
        "headgate_budget_switched_off",
        "gauge",
        ("database",),
        "1 while traffic control is switched off at the server itself (`headgate pg disable`, or "
        "its setting): no statement is judged, whatever is published. Else 0.",
        _switched_off,
    ),
    Series(
        "headgate_budget_policies_refused_total",
        "counter",
        ("database",),
        "Policies that the server itself did not take since its start.",
        _policies_refused,
    ),
    Series(
        "headgate_budget_capped",
        "gauge",
        ("database",),
        "1 while no budget may go beyond `warn` or `off` (`headgate budget mode --all`), else 0.",
        _capped,
    ),
    Series(
        "headgate_store_writable",
        "gauge",
        (),
        "1 while runtime settings, audit and history can be kept, else 0.",
        _store_writable,
    ),
    Series(
        "headgate_store_tallies_waiting",
        "gauge",
        (),
        "Rows of history that wait for the store.",
        _waiting,
    ),
    Series(
        "headgate_store_dropped_total",
        "counter",
        (),
        "Decisions missing from history (never from the counters) because the store was away "
        "too long.",
        _dropped,
    ),
    Series(
        "headgate_fleet_n",
        "gauge",
        (),
        "The fleet's revision that this agent has come to; the highest of all agents is the "
        "fleet's.",
        _fleet(lambda state: state.n if state.store_id else None),
    ),
    Series(
        "headgate_fleet_revision",
        "gauge",
        (),
        "Revision of the fleet's store up to which nothing is missing here; none while nothing "
        "is known.",
        _fleet(lambda state: state.revision if state.store_id else None),
    ),
    Series(
        "headgate_fleet_stale_seconds",
        "gauge",
        (),
        "How long nothing was heard of the fleet; 0 while it is. Rules stay in force meanwhile.",
        _fleet(lambda state: state.stale_for_s),
    ),
    Series(
        "headgate_fleet_source",
        "gauge",
        ("source",),
        "1 for whom this agent follows: `store`, another `agent` of its shard, or `nobody`.",
        _fleet_source,
    ),
    Series(
        "headgate_fleet_kept_items",
        "gauge",
        (),
        "Items that the fleet's store has lost and that stay in force here; above 0, somebody "
        "has to look: `headgate fleet restore`.",
        _fleet(lambda state: state.went_back.kept if state.went_back else 0),
    ),
    Series(
        "headgate_fleet_entries",
        "gauge",
        (),
        "Entries of the fleet that are kept here in memory.",
        _fleet(lambda state: state.entries),
    ),
    Series(
        "headgate_fleet_connects_total",
        "counter",
        (),
        "Times that following was begun, or begun anew.",
        _fleet(lambda state: state.connects_total),
    ),
    Series(
        "headgate_fleet_losses_total",
        "counter",
        (),
        "Watches and tries that ended in a fault.",
        _fleet(lambda state: state.losses_total),
    ),
    Series(
        "headgate_fleet_listings_total",
        "counter",
        (),
        "Times that everything which is followed was read anew.",
        _fleet(lambda state: state.listings_total),
    ),
    Series(
        "headgate_fleet_store_requests_total",
        "counter",
        ("outcome",),
        "Requests of this agent to the fleet's store: `ok`, `conflict`, `unavailable`, `refused`, "
        "`unknown` (sent, and no answer came), `compacted`, `lease_lost`, `other`.",
        _fleet_requests,
    ),
    Series(
        "headgate_fleet_shards",
        "gauge",
        ("state",),
        "Where `view` of [fleet] is set: shards of the fleet that are `healthy`, `unhealthy`, "
        "`resting`, `starting`, or have fallen `silent`.",
        _fleet_shards,
    ),
    Series(
        "headgate_fleet_agents",
        "gauge",
        ("state",),
        "Where `view` of [fleet] is set: agents that have what was set for them (`current`), are "
        "not yet due to have told so (`pending`), lag `behind`, or have told nothing (`unknown`).",
        _fleet_agents,
    ),
    Series(
        "headgate_fleet_agents_stale",
        "gauge",
        (),
        "Where `view` of [fleet] is set: agents that told that they hear nothing of the fleet.",
        _fleet_agents_stale,
    ),
    Series(
        "headgate_fleet_agents_behind",
        "gauge",
        (),
        "Where `view` of [fleet] is set: agents that lag behind what was set for them.",
        _fleet_agents_behind,
    ),
)


class _AgentCollector(Collector):
    def __init__(self, views: Views) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        now = self._views.parts.clock.now()
        for series in SERIES:
            family = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
            metric = family(series.name, series.about, labels=series.labels)
            for labels, value in series.rows(self._views, now):
                metric.add_metric(labels, value)
            yield metric


def render_metrics(views: Views) -> tuple[bytes, str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_AgentCollector(views))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
