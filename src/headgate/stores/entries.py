"""What every store does alike with the values it is given: text form, checks, messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headgate.core.records import AuditEntry, MetricChange, Tally
from headgate.errors import Conflict, StoreUnavailable

MAX_METRIC_CHANGES = 10_000
"""Changed metrics kept, removed ones included: a removal must outlive the settings file."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is kept of one metric now, and who put it there."""

    raw_json: str | None
    revision: int
    wall_s: float
    who: str
    action: str


def standing_of(change: MetricChange, audit: AuditEntry, revision: int) -> Standing:
    raw_json = None if change.raw is None else to_json(change.raw)
    return Standing(raw_json, revision, audit.wall_s, audit.who, audit.action)


def change_of(database: str, metric: str, raw_json: str | None, revision: int) -> MetricChange:
    raw = None if raw_json is None else json.loads(raw_json)
    return MetricChange(database, metric, raw, revision)


def to_json(value: Any) -> str:
    """ASCII, so that no string can be one that a store's encoding refuses."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


def check_replaces(change: MetricChange, standing: Standing | None, *, kept: int) -> None:
    """Raise Conflict unless `change` was built on what stands; refuse one metric too many."""
    name = f"{change.database}/{change.metric}"
    if change.revision != (standing.revision if standing else 0):
        raise Conflict(f"{name}: {_what_happened(change.revision, standing)}")
    if standing is None and kept >= MAX_METRIC_CHANGES:
        raise StoreUnavailable(
            f"{name}: {kept} changed metrics are kept, the most there may be; "
            "set metrics in the settings file instead of under ever new names"
        )


def _what_happened(revision: int, standing: Standing | None) -> str:
    if standing is None:
        return f"nothing is kept that has revision {revision}; look again and add it as new"
    when = datetime.fromtimestamp(standing.wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    built_on = f"revision {revision}" if revision else "none being there"
    return (
        f"the change was built on {built_on}, but {standing.who} made revision "
        f"{standing.revision} at {when} ({standing.action}); look again and repeat"
    )


def check_tallies(tallies: Sequence[Tally]) -> None:
    for tally in tallies:
        if tally.count < 1:
            raise ValueError(f"a tally of {tally.client!r} counts {tally.count}, must be 1 or more")
