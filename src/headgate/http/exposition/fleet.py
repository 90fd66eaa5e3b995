"""The agent's connection to its fleet.   LogFollower, FleetView ──► rows"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.base.prometheus import Row
from headgate.changes.follower import FollowState
from headgate.fleet.view import FleetCounts
from headgate.http.exposition.series import Rows, Scrape, Series

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


def _fleet_n(look: Scrape) -> Iterator[Row]:
    """With the store it is counted by: one Prometheus may scrape agents of several fleets."""
    if (fleet := look.parts.fleet) is not None:
        state = fleet.follower.state()
        if state.store_id:
            yield (state.store_id,), float(state.n)


def _fleet_source(look: Scrape) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        state = fleet.follower.state()
        kind = ("store" if state.direct else "agent") if state.source else "nobody"
        for one in FLEET_SOURCES:
            yield (one,), float(one == kind)


def _fleet_requests(look: Scrape) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        for outcome, count in fleet.requests.items():
            yield (outcome,), float(count)


def _fleet_unreadable(look: Scrape) -> Iterator[Row]:
    if (fleet := look.parts.fleet) is not None:
        yield (), float(len(fleet.unreadable()))


def _viewed(of: Callable[[FleetCounts], float]) -> Rows:
    """Where this agent watches the whole fleet."""

    def rows(look: Scrape) -> Iterator[Row]:
        fleet = look.parts.fleet
        if fleet is not None and fleet.view is not None:
            yield (), float(of(fleet.view.counts))

    return rows


def _fleet_shards(look: Scrape) -> Iterator[Row]:
    fleet = look.parts.fleet
    if fleet is not None and fleet.view is not None:
        counts = fleet.view.counts
        for state in FLEET_SHARD_STATES:
            yield (state,), float(getattr(counts, state))


def _fleet_agents(look: Scrape) -> Iterator[Row]:
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
        "The fleet's revision that this agent has applied; the highest of all agents with the same "
        "`store` is the fleet's.",
        _fleet_n,
    ),
    Series(
        "headgate_fleet_revision",
        "gauge",
        (),
        "Revision of the fleet's store up to which this agent has everything; missing before the "
        "first contact.",
        _fleet(lambda state: state.revision if state.store_id else None),
    ),
    Series(
        "headgate_fleet_stale_seconds",
        "gauge",
        (),
        "Time without contact to the fleet; 0 while there is contact. Rules stay in force "
        "meanwhile.",
        _fleet(lambda state: state.stale_for_s),
    ),
    Series(
        "headgate_fleet_source",
        "gauge",
        ("source",),
        "1 for the source that this agent follows: `store`, another `agent` of its shard, or "
        "`nobody`.",
        _fleet_source,
    ),
    Series(
        "headgate_fleet_kept_items",
        "gauge",
        (),
        "Items that the fleet's store has lost and that stay in force here. Above 0, an operator "
        "must look: `headgate changes restore --fleet`.",
        _fleet(lambda state: state.went_back.kept if state.went_back else 0),
    ),
    Series(
        "headgate_fleet_entries",
        "gauge",
        (),
        "Entries of the fleet in this agent's memory.",
        _fleet(lambda state: state.entries),
    ),
    Series(
        "headgate_fleet_connects_total",
        "counter",
        (),
        "Times that following was started or restarted.",
        _fleet(lambda state: state.connects_total),
    ),
    Series(
        "headgate_fleet_losses_total",
        "counter",
        (),
        "Watches and tries that failed.",
        _fleet(lambda state: state.losses_total),
    ),
    Series(
        "headgate_fleet_listings_total",
        "counter",
        (),
        "Times that all followed entries were read again.",
        _fleet(lambda state: state.listings_total),
    ),
    Series(
        "headgate_fleet_store_requests_total",
        "counter",
        ("outcome",),
        "Requests of this agent to the fleet's store: `ok`, `conflict`, `unavailable`, `rejected`, "
        "`unknown` (sent, but no answer), `compacted`, `lease_lost`, `other`.",
        _fleet_requests,
    ),
    Series(
        "headgate_fleet_shards",
        "gauge",
        ("state",),
        "With `view` of [fleet]: shards of the fleet that are `healthy`, `unhealthy`, "
        "`resting`, `starting`, or `silent`.",
        _fleet_shards,
    ),
    Series(
        "headgate_fleet_agents",
        "gauge",
        ("state",),
        "With `view` of [fleet]: agents that have what was set for them (`current`), may still "
        "report it in time (`pending`), are `behind`, or have not reported (`unknown`).",
        _fleet_agents,
    ),
    Series(
        "headgate_fleet_agents_stale",
        "gauge",
        (),
        "With `view` of [fleet]: agents that report no contact to the fleet.",
        _viewed(lambda counts: counts.stale),
    ),
    Series(
        "headgate_fleet_agents_behind",
        "gauge",
        (),
        "With `view` of [fleet]: agents that do not have what was set for them yet.",
        _viewed(lambda counts: counts.behind),
    ),
    Series(
        "headgate_fleet_agents_rejecting",
        "gauge",
        (),
        "With `view` of [fleet]: agents that could not apply what was set for them.",
        _viewed(lambda counts: counts.rejecting),
    ),
    Series(
        "headgate_fleet_unreadable_items",
        "gauge",
        (),
        "Items of the fleet that this agent cannot read; their last readable version stays in "
        "force.",
        _fleet_unreadable,
    ),
)
