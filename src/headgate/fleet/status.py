"""The state of this agent's connection to its fleet: for status, readiness and metrics.

LogFollower.state ──► FleetLook ──► StatusDoc.fleet, advice, /readyz, /metrics
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from headgate.base.declared import iso
from headgate.changes.follower import FollowState
from headgate.check.reasons import duration
from headgate.fleet.api import FleetFollowingDoc
from headgate.fleet.view import FleetCounts
from headgate.metrics.samples import Instant

MAX_TOLD = 5


class LogFollowing(Protocol):
    """As much of changes/follower.LogFollower as is looked at."""

    def state(self) -> FollowState: ...


class Viewing(Protocol):
    """As much of fleet/picture.FleetView."""

    @property
    def counts(self) -> FleetCounts: ...


@dataclass(frozen=True, slots=True)
class FleetLook:
    follower: LogFollowing
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests to the store since the start, by outcome (changes/etcd/client.py)."""
    view: Viewing | None = None
    """Set if this agent watches the whole fleet."""
    unreadable: Callable[[], Mapping[str, str]] = dict
    """Items of the fleet that this agent cannot read, and why: by key."""
    notes: Callable[[], Sequence[str]] = list
    """Other problems: with the beat, with the copy on disk."""

    def doc(self, now: Instant) -> FleetFollowingDoc:
        state = self.follower.state()
        heard = state.heard_at
        went_back = state.went_back
        return FleetFollowingDoc(
            says=says(state, now),
            source=state.source or None,
            direct=state.direct,
            n=state.n,
            revision=state.revision,
            last_seen_s_ago=None if heard is None else max(0.0, now.mono_s - heard.mono_s),
            stale_for_s=None if state.stale_since is None else state.stale_for_s,
            from_cache_of=None if state.from_cache_of is None else iso(state.from_cache_of),
            fault=state.fault or None,
            kept=0 if went_back is None else went_back.kept,
        )

    def advice(self) -> list[str]:
        """What an operator must do, or know before the next change."""
        state = self.follower.state()
        told = []
        if state.went_back is not None:
            told.append(_behind(state))
        if state.stale_since is not None:
            told.append(_stale(state))
        unreadable = self.unreadable()
        for key, fault in islice(unreadable.items(), MAX_TOLD):
            told.append(f"fleet: {key} cannot be read; its last version stays in force: {fault}")
        if len(unreadable) > MAX_TOLD:
            told.append(f"fleet: {len(unreadable) - MAX_TOLD} more items cannot be read")
        return [*told, *(f"fleet: {note}" for note in self.notes())]


def amiss(
    doubles: Mapping[str, str], unbelieved: Mapping[str, str], rivals: Mapping[str, str]
) -> list[str]:
    """Members and shards that others have by the same names, and members that do not count."""
    told = [
        f"another agent at {url} also registers {member}: give one of them another `member` name"
        for member, url in doubles.items()
    ]
    told += [
        f"shard {shard} is also reported by {other}, and each overwrites the other's report: it "
        "has two primaries, or two shards have the same name"
        for shard, other in rivals.items()
    ]
    told += unbelieved.values()
    more = len(told) - MAX_TOLD
    return told if more <= 0 else [*told[:MAX_TOLD], f"{more} more of this kind"]


def says(state: FollowState, now: Instant) -> str:
    if not state.store_id:
        return f"nothing is known of the fleet yet: {state.fault or 'its store is being read'}"
    where = f"n {state.n:,} {_from(state)}"
    if state.stale_since is not None:
        return f"{where}, STALE for {duration(state.stale_for_s)}"
    heard_s = now.mono_s - state.heard_at.mono_s if state.heard_at is not None else 0.0
    return f"{where}, last seen {duration(max(0.0, heard_s))} ago"


def _from(state: FollowState) -> str:
    if state.source:
        return f"from {state.source}"
    if state.from_cache_of is not None:
        return f"from this host's disk, of {iso(state.from_cache_of)}"
    return "the last known state; no source is followed now"


def _stale(state: FollowState) -> str:
    why = f" ({state.fault})" if state.fault else ""
    if not state.store_id:
        return (
            f"fleet: this agent has no contact with its fleet{why}; rules and budgets of the "
            "fleet are not in force here until it has"
        )
    return (
        f"fleet: no contact for {duration(state.stale_for_s)}{why}; rules and budgets of "
        f"n {state.n:,} stay in force, each until its own end; newer ones are not known here"
    )


def _behind(state: FollowState) -> str:
    back = state.went_back
    assert back is not None
    items = f"{back.kept:,} item{'' if back.kept == 1 else 's'}"
    what = (
        f"items were deleted from its store by hand (n {back.to_n:,} as before)"
        if back.from_n == back.to_n
        else f"its store went back from n {back.from_n:,} to {back.to_n:,}"
    )
    return (
        f"fleet: {what}, at {iso(back.wall_s)}, and it lost {items} that stay in force here; "
        "`headgate changes restore --fleet --dry-run` shows what would be put back"
    )
