"""Shards, their members, and what watching them costs.   Shards, Demands ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from headgate.base.prometheus import Row
from headgate.changes.follower import FollowState
from headgate.check.answers import IDLE
from headgate.check.decide import judge
from headgate.check.model import PASSING, State
from headgate.fleet.view import FleetCounts
from headgate.http.exposition.series import Rows, Scrape, Section, single
from headgate.shard.api import CostDoc, MemberDoc
from headgate.shard.rollup import SkipKind

MEMBER_STATES = ("counted", "skipped", "missing")


def _member_state(member: MemberDoc) -> str:
    if member.skip is not None or member.skipped_metrics:
        return "skipped"
    return "counted" if member.reachable and not member.problem else "missing"


def _cost(of: Callable[[CostDoc], int]) -> Rows:
    def rows(look: Scrape) -> Iterator[Row]:
        for plan in look.parts.book.databases():
            for cost in look.views.costs(plan.name):
                yield (plan.name, cost.state), float(of(cost))

    return rows


SHARDS = Section()


@SHARDS.rows(
    "headgate_role{database,role}",
    "1 for the role that the database's own server reports; missing while unknown.",
)
def _role(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            if member.member == shard.member and member.role is not None:
                yield (shard.database, member.role), 1.0


@SHARDS.rows(
    "headgate_shard_leading{database}",
    "1 while this agent leads the database's shard, 0 while it does not.",
)
def _leading(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        yield (shard.database,), float(shard.state == "leading")


@SHARDS.rows(
    "headgate_shard_members{database,state}",
    "Members by `counted`, `skipped` (skipped for any metric) and `missing`; only while leading.",
)
def _members(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        # Who does not roll up counts nobody: a 0 would say that everybody is gone.
        if shard.state == "leading":
            states = Counter(_member_state(member) for member in shard.members)
            for state in MEMBER_STATES:
                yield (shard.database, state), float(states[state])


@SHARDS.rows(
    "headgate_member_state{database,member,state}",
    "1 for the member's state: `counted`, `skipped` or `missing`; only while leading.",
)
def _each_member(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members if shard.state == "leading" else ():
            state = _member_state(member)
            for one in MEMBER_STATES:
                yield (shard.database, member.member, one), float(one == state)


@SHARDS.rows(
    "headgate_member_skipped{database,member,why}",
    "1 for a member that does not count for some metric, by `skipped` (by an operator), "
    "`missing` (for long), `hopeless`, `grace`, `unsupported` and `ignored`; only while "
    "leading.",
)
def _skips(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members if shard.state == "leading" else ():
            skipped = {SkipKind.SKIPPED.value} if member.skip is not None else set()
            for why in sorted(skipped | set(member.skip_kinds.values())):
                yield (shard.database, member.member, why), 1.0


@SHARDS.rows(
    "headgate_member_hopeless{database,member,metric}",
    "1 for a replica that the agent skips in the rollup, because throttling does not help "
    "it; missing if there is none.",
)
def _hopeless(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members if shard.state == "leading" else ():
            for metric in member.hopeless:
                yield (shard.database, member.member, metric), 1.0


@SHARDS.rows(
    "headgate_shard_metric_value{database,metric}",
    "The shard's rollup. Missing while there is none, or another agent makes it.",
)
def _shard_values(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.shard.standings.items() if health.shard else ():
            finding = judge(standing, look.now)
            if finding.value is not None and finding.state is not State.UNAVAILABLE:
                yield (name, metric), finding.value


@SHARDS.rows(
    "headgate_shard_metric_healthy{database,metric}",
    "1 while the shard's value admits checks, else 0. Missing if the database belongs to no shard.",
)
def _shard_healthy(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.shard.standings.items() if health.shard else ():
            yield (name, metric), float(judge(standing, look.now).state in PASSING)


@SHARDS.rows(
    "headgate_member_reading{database,member,metric}",
    "A member's value as it goes into the rollup; at most 256 members.",
)
def _member_readings(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            for reading in member.readings:
                is_current = reading.state not in (State.UNAVAILABLE.value, IDLE)
                if reading.value is not None and is_current:
                    yield (shard.database, member.member, reading.metric), reading.value


@SHARDS.rows(
    "headgate_member_clock_ahead_seconds{database,member}",
    "The clock of a member's database minus the primary's; lag is corrected for it.",
)
def _member_clocks(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            if member.clock_ahead_s is not None:
                yield (shard.database, member.member), member.clock_ahead_s


@SHARDS.rows(
    "headgate_member_has_copy{database,member}",
    "1 while the member's agent has a copy of all changes of the shard, else 0. Missing if "
    "this agent sends it none.",
)
def _member_copies(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            if member.copy is not None:
                yield (shard.database, member.member), float(member.copy.has_all)


SHARDS.add(
    "headgate_probes_total{database,state}",
    "Probes run, by the activity of the database: none while hibernating.",
    _cost(lambda cost: cost.probes),
)
SHARDS.add(
    "headgate_peer_messages_total{database,state}",
    "Messages sent to agents of other members, by activity: none while hibernating.",
    _cost(lambda cost: cost.messages),
)
SHARDS.add(
    "headgate_heartbeat_writes_total{database,state}",
    "Heartbeats written, by activity: none while hibernating but the one that says so.",
    _cost(lambda cost: cost.beats),
)


# --- the agent's connection to its fleet.   LogFollower, FleetView ──► rows ----------------


FLEET_SOURCES = ("store", "agent", "nobody")
FLEET_SHARD_STATES = ("healthy", "unhealthy", "idle", "starting", "silent")
FLEET_AGENT_STATES = ("current", "pending", "behind", "unknown")


def _fleet(of: Callable[[FollowState], float | None]) -> Rows:
    """None: there is nothing to tell; and outside a fleet there never is."""

    def rows(look: Scrape) -> Iterator[Row]:
        if (fleet := look.parts.fleet) is not None:
            value = of(fleet.follower.state())
            if value is not None:
                yield (), float(value)

    return rows


def _viewed(of: Callable[[FleetCounts], float]) -> Rows:
    """Where this agent watches the whole fleet."""

    def rows(look: Scrape) -> Iterator[Row]:
        fleet = look.parts.fleet
        if fleet is not None and fleet.view is not None:
            yield (), float(of(fleet.view.counts))

    return rows


FLEET = Section()


@FLEET.rows(
    "headgate_fleet_n{store}",
    "The fleet's revision that this agent has applied; the highest of all agents with the same "
    "`store` is the fleet's.",
)
def _fleet_n(look: Scrape) -> Iterator[Row]:
    """With the store it is counted by: one Prometheus may scrape agents of several fleets."""
    if (fleet := look.parts.fleet) is not None:
        state = fleet.follower.state()
        if state.store_id:
            yield (state.store_id,), float(state.n)


FLEET.add(
    "headgate_fleet_revision",
    "Revision of the fleet's store up to which this agent has everything; missing before the "
    "first contact.",
    _fleet(lambda state: state.revision if state.store_id else None),
)
FLEET.add(
    "headgate_fleet_stale_seconds",
    "Time without contact to the fleet; 0 while there is contact. Rules stay in force meanwhile.",
    _fleet(lambda state: state.stale_for_s),
)


@FLEET.rows(
    "headgate_fleet_source{source}",
    "1 for the source that this agent follows: `store`, another `agent` of its shard, or `nobody`.",
)
def _fleet_source(look: Scrape) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        state = fleet.follower.state()
        kind = ("store" if state.direct else "agent") if state.source else "nobody"
        for one in FLEET_SOURCES:
            yield (one,), float(one == kind)


FLEET.add(
    "headgate_fleet_kept_items",
    "Items that the fleet's store has lost and that stay in force here. Above 0, an operator "
    "must look: `headgate changes restore --fleet`.",
    _fleet(lambda state: state.went_back.kept if state.went_back else 0),
)
FLEET.add(
    "headgate_fleet_entries",
    "Entries of the fleet in this agent's memory.",
    _fleet(lambda state: state.entries),
)
FLEET.add(
    "headgate_fleet_connects_total",
    "Times that following was started or restarted.",
    _fleet(lambda state: state.connects_total),
)
FLEET.add(
    "headgate_fleet_losses_total",
    "Watches and tries that failed.",
    _fleet(lambda state: state.losses_total),
)
FLEET.add(
    "headgate_fleet_listings_total",
    "Times that all followed entries were read again.",
    _fleet(lambda state: state.listings_total),
)


@FLEET.rows(
    "headgate_fleet_store_requests_total{outcome}",
    "Requests of this agent to the fleet's store: `ok`, `conflict`, `unavailable`, `rejected`, "
    "`unknown` (sent, but no answer), `compacted`, `lease_lost`, `other`.",
)
def _fleet_requests(look: Scrape) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        for outcome, count in fleet.requests.items():
            yield (outcome,), float(count)


@FLEET.rows(
    "headgate_fleet_shards{state}",
    "With `view` of [fleet]: shards of the fleet that are `healthy`, `unhealthy`, "
    "`idle`, `starting`, or `silent`.",
)
def _fleet_shards(look: Scrape) -> Iterator[Row]:
    fleet = look.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_SHARD_STATES:
            yield (state,), float(getattr(counts, state))


@FLEET.rows(
    "headgate_fleet_agents{state}",
    "With `view` of [fleet]: agents that have what was set for them (`current`), may still "
    "report it in time (`pending`), are `behind`, or have not reported (`unknown`).",
)
def _fleet_agents(look: Scrape) -> Iterator[Row]:
    fleet = look.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_AGENT_STATES:
            yield (state,), float(getattr(counts, state))


FLEET.add(
    "headgate_fleet_agents_stale",
    "With `view` of [fleet]: agents that report no contact to the fleet.",
    _viewed(lambda counts: counts.stale),
)
FLEET.add(
    "headgate_fleet_agents_behind",
    "With `view` of [fleet]: agents that do not have what was set for them yet.",
    _viewed(lambda counts: counts.behind),
)
FLEET.add(
    "headgate_fleet_agents_rejecting",
    "With `view` of [fleet]: agents that could not apply what was set for them.",
    _viewed(lambda counts: counts.rejecting),
)
FLEET.add(
    "headgate_fleet_unreadable_items",
    "Items of the fleet that this agent cannot read; their last readable version stays in force.",
    single(
        lambda look: None if (fleet := look.parts.fleet) is None else float(len(fleet.unreadable()))
    ),
)
