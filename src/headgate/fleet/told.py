"""The state of a shard, as its primary's agent reports it.   ShardTold ◄──► shards/<shard>

Readers may be older or newer than writers: an unknown field is ignored, a missing one has its
default, and an entry that cannot be read at all is a ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from headgate.base.stored import read_object

MAX_TOLD_BYTES = 64 * 1024
MAX_METRICS_TOLD = 40
MAX_MEMBERS_TOLD = 40
MAX_DETAIL_CHARS = 200

HEALTHY, UNHEALTHY, IDLE = "healthy", "unhealthy", "idle"
STATES = (HEALTHY, UNHEALTHY, IDLE)
PASSING = frozenset({"healthy", "last_value", "ignored", "exempted", "idle"})
"""States of a metric that reject no check."""


@dataclass(frozen=True, slots=True)
class MetricTold:
    metric: str
    scope: str
    """`host`: the primary's own value; `shard`: the rollup."""
    state: str
    """As a check sees it: `healthy`, `breached`, `unavailable` …; or `idle`: no client checks."""
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    since: float = 0.0
    """Wall-clock seconds since when it has this state."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemberTold:
    member: str
    host: str = ""
    """Name of its agent."""
    role: str = ""
    """`primary` or `replica`, as its server reports; empty if unknown."""
    url: str = ""
    lag_s: float | None = None
    n: int | None = None
    """The fleet's revision that its agent has applied; None: not reported."""
    source: str = ""
    """Where its agent got that revision from."""
    stale_since: float | None = None
    """Wall-clock seconds since when its agent has no contact with the fleet."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ShardTold:
    shard: str
    region: str
    cluster: str
    url: str
    """Address of the agent that reports."""
    agent: str
    state: str
    """One of STATES."""
    since: float
    """Wall-clock seconds since when the shard has this state."""
    at: float
    """Wall-clock seconds of this report."""
    n: int = 0
    rules: int = 0
    """Rules in force at the reporting agent: the fleet's and its own."""
    checks: int = 0
    """Checks that it answered in the last minute."""
    rejected: float | None = None
    """Share of those that were rejected; None: there were none."""
    problem: str = ""
    """Why no agent can answer for the shard, if so."""
    hosts: tuple[str, ...] = ()
    """Agents of its members, by name."""
    metrics: tuple[MetricTold, ...] = ()
    members: tuple[MemberTold, ...] = ()

    @property
    def healthy(self) -> bool:
        """Nothing is known to be wrong: an idle shard is not unhealthy."""
        return self.state != UNHEALTHY

    def sign(self) -> tuple[object, ...]:
        """Changes when other agents need a new report. A value that only moves is no change. Nor
        is the fleet's revision: each agent registers that itself, so that one change of the fleet
        does not make ten thousand shards report."""
        return (
            self.state,
            self.problem,
            self.url,
            self.hosts,
            _step(self.rejected),
            tuple((one.metric, one.scope, one.state) for one in self.metrics),
            tuple(
                (one.member, one.role, one.source, one.stale_since is None, one.problem)
                for one in self.members
            ),
        )


def told_bytes(told: ShardTold) -> bytes:
    document = {**_fields(told), "healthy": told.healthy}
    document["metrics"] = [_fields(one) for one in told.metrics[:MAX_METRICS_TOLD]]
    document["members"] = [_fields(one) for one in told.members[:MAX_MEMBERS_TOLD]]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_told(raw: bytes) -> ShardTold:
    """ValueError where it is none."""
    document = _object(raw)
    shard, state = _text(document, "shard"), _text(document, "state")
    if not shard or state not in STATES:
        raise ValueError(f"is not a shard's report: shard is {shard!r}, state is {state!r}")
    return ShardTold(
        shard=shard,
        region=_text(document, "region"),
        cluster=_text(document, "cluster"),
        url=_text(document, "url"),
        agent=_text(document, "agent"),
        state=state,
        since=_number(document, "since") or 0.0,
        at=_number(document, "at") or 0.0,
        n=_count(document, "n") or 0,
        rules=_count(document, "rules") or 0,
        checks=_count(document, "checks") or 0,
        rejected=_number(document, "rejected"),
        problem=_text(document, "problem"),
        hosts=tuple(one for one in _list(document, "hosts") if isinstance(one, str)),
        metrics=tuple(map(_metric, _objects(document, "metrics", MAX_METRICS_TOLD))),
        members=tuple(map(_member, _objects(document, "members", MAX_MEMBERS_TOLD))),
    )


def clipped(text: str) -> str:
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[: MAX_DETAIL_CHARS - 1]}…"


def _step(share: float | None) -> int | None:
    """A share as a few steps: none, some, a quarter, half, most, all."""
    return None if share is None else sum(share > limit for limit in (0.0, 0.05, 0.25, 0.5, 0.9))


def _metric(document: Mapping[str, Any]) -> MetricTold:
    return MetricTold(
        metric=_text(document, "metric"),
        scope=_text(document, "scope"),
        state=_text(document, "state"),
        value=_number(document, "value"),
        threshold=_number(document, "threshold"),
        unit=_text(document, "unit"),
        since=_number(document, "since") or 0.0,
        detail=_text(document, "detail"),
    )


def _member(document: Mapping[str, Any]) -> MemberTold:
    return MemberTold(
        member=_text(document, "member"),
        host=_text(document, "host"),
        role=_text(document, "role"),
        url=_text(document, "url"),
        lag_s=_number(document, "lag_s"),
        n=_count(document, "n"),
        source=_text(document, "source"),
        stale_since=_number(document, "stale_since"),
        problem=_text(document, "problem"),
    )


def _fields(value: ShardTold | MetricTold | MemberTold) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


# --- fields of another agent's document --------------------------------------------------------


def _object(raw: bytes) -> Mapping[str, Any]:
    if len(raw) > MAX_TOLD_BYTES:
        raise ValueError(f"has {len(raw)} bytes, must have at most {MAX_TOLD_BYTES}")
    return read_object(raw)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return clipped(value) if isinstance(value, str) else ""


def _number(document: Mapping[str, Any], key: str) -> float | None:
    """A finite number. NaN and anything else are None: not reported, never 0."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)


def _count(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if usable else None


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _objects(document: Mapping[str, Any], key: str, most: int) -> Iterator[Mapping[str, Any]]:
    return (one for one in _list(document, key)[:most] if isinstance(one, Mapping))
