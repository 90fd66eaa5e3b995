"""How the agent stands with its fleet.   LogFollower, FleetView ──► rows"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.agent.logfollower import FollowState
from headgate.core.fleet_view import FleetCounts
from headgate.http.exposition.series import Look, Rows, Series
from headgate.wire.exposition import Row

FLEET_SOURCES = ("store", "agent", "nobody")
FLEET_SHARD_STATES = ("healthy", "unhealthy", "resting", "starting", "silent")
FLEET_AGENT_STATES = ("current", "pending", "behind", "unknown")


def _fleet(of: Callable[[FollowState], float | None]) -> Rows:
    """None: there is nothing to tell; and outside a fleet there never is."""

    def rows(look: Look) -> Iterator[Row]:
        if (fleet := look.parts.fleet) is not None:
            value = of(fleet.follower.state())
            if value is not None:
                yield (), float(value)

    return rows


def _fleet_n(look: Look) -> Iterator[Row]:
    """With the store it is counted by: one Prometheus may scrape agents of several fleets."""
    if (fleet := look.parts.fleet) is not None:
        state = fleet.follower.state()
        if state.store_id:
            yield (state.store_id,), float(state.n)


def _fleet_source(look: Look) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        state = fleet.follower.state()
        kind = ("store" if state.direct else "agent") if state.source else "nobody"
        for one in FLEET_SOURCES:
            yield (one,), float(one == kind)


def _fleet_requests(look: Look) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        for outcome, count in fleet.requests.items():
            yield (outcome,), float(count)


def _fleet_unreadable(look: Look) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        yield (), float(len(fleet.unreadable()))


def _viewed(of: Callable[[FleetCounts], float]) -> Rows:
    """Where this agent watches the whole fleet."""

    def rows(look: Look) -> Iterator[Row]:
        fleet = look.parts.fleet
        if fleet is not None and fleet.view is not None:
            yield (), float(of(fleet.view.counts))

    return rows


def _fleet_shards(look: Look) -> Iterator[Row]:
    fleet = look.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_SHARD_STATES:
            yield (state,), float(getattr(counts, state))


def _fleet_agents(look: Look) -> Iterator[Row]:
    fleet = look.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_AGENT_STATES:
            yield (state,), float(getattr(counts, state))


FLEET = (
    Series(
        "headgate_fleet_n",
        "gauge",
        ("store",),
        "The fleet's revision that this agent has come to; the highest of all agents with the same "
        "`store` is the fleet's.",
        _fleet_n,
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
        "has to look: `headgate changes restore --fleet`.",
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
        _viewed(lambda counts: counts.stale),
    ),
    Series(
        "headgate_fleet_agents_behind",
        "gauge",
        (),
        "Where `view` of [fleet] is set: agents that lag behind what was set for them.",
        _viewed(lambda counts: counts.behind),
    ),
    Series(
        "headgate_fleet_agents_refusing",
        "gauge",
        (),
        "Where `view` of [fleet] is set: agents that could not put in force what they have.",
        _viewed(lambda counts: counts.refusing),
    ),
    Series(
        "headgate_fleet_unreadable_items",
        "gauge",
        (),
        "Items of the fleet that cannot be read here; what they said before stands.",
        _fleet_unreadable,
    ),
)
