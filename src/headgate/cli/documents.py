"""The agent's documents as values.   JSON ──read──► Status, Metric, Client, … ──► render

A field that this version does not know is ignored; one that it needs and does not find, or
that is of another kind, is named. Nothing missing is shown as 0.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headgate.errors import HeadgateError

T = TypeVar("T")


class BadDocument(HeadgateError):
    def __init__(self, place: str, what: str) -> None:
        super().__init__(
            f"the agent's answer cannot be shown: {place} {what}; "
            "is the agent of another version? --json shows the answer as it came"
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as a check sees it."""

    metric: str
    scope: str
    state: str
    value: float | None
    unit: str
    threshold: float | None
    comparison: str
    age_ms: float | None
    cause: str | None
    detail: str
    absent_for_ms: float | None

    @property
    def name(self) -> str:
        """With its scope, where that is not the host's own."""
        return self.metric if self.scope == "host" else f"{self.scope}/{self.metric}"

    @property
    def share(self) -> float | None:
        """Of the threshold; None where there is no value or nothing to compare with."""
        if self.value is None or not self.threshold:
            return None
        return self.value / self.threshold

    @property
    def over(self) -> bool:
        if self.value is None or self.threshold is None:
            return False
        return self.value > self.threshold or (
            self.comparison == ">=" and self.value == self.threshold
        )


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: str
    admitted: bool
    app: str
    database: str
    reason: str
    retry_after_ms: float | None
    rule: str | None
    metrics: Sequence[Metric] = field(metadata={"each": Metric})


@dataclass(frozen=True, slots=True)
class MetricView:
    database: str
    metric: str
    source: str
    origin: str
    revision: int
    settings: Mapping[str, Any]
    file: Mapping[str, Any] | None
    in_default: bool
    interval_s: float
    timeout_s: float
    max_age_s: float
    granularity_s: float
    advice: Sequence[str]
    expires_at: str | None
    """When a runtime change ends; null: it stays."""
    now: Metric = field(metadata={"one": Metric})


@dataclass(frozen=True, slots=True)
class RemovedMetric:
    expires_at: str | None
    advice: Sequence[str]


@dataclass(frozen=True, slots=True)
class WideMetric:
    """A change of a metric that reaches beyond one agent."""

    database: str
    metric: str
    reach: str
    state: str
    settings: Mapping[str, Any]
    dry_run: bool
    expires_at: str | None
    advice: Sequence[str]
    copies: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Client:
    client: str
    database: str
    admitted: int
    refused: int
    last_verdict: str
    last_seen_s_ago: float
    refused_for_s: float | None
    refused_by: str


@dataclass(frozen=True, slots=True)
class Skip:
    who: str
    reason: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Copy:
    """What a member's agent has of the shard's changes."""

    has_all: bool
    exchanged_s_ago: float | None
    fault: str


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a shard, as the asked agent sees it."""

    member: str
    url: str
    here: bool
    role: str | None
    role_detail: str
    term: int | None
    upstream: str
    upstream_member: str | None
    bytes_behind: int | None
    labels: Mapping[str, Any]
    activity: str | None
    reachable: bool
    problem: str
    unreachable_for_s: float | None
    reported_s_ago: float | None
    joined_s_ago: float | None
    asked_s_ago: float | None
    clock_ahead_s: float | None
    asides: Mapping[str, Any]
    hopeless: Sequence[str]
    copy: Copy | None = field(metadata={"one": Copy, "or_null": True})
    skip: Skip | None = field(metadata={"one": Skip, "or_null": True})
    readings: Sequence[Metric] = field(metadata={"each": Metric})


@dataclass(frozen=True, slots=True)
class Unwatched:
    name: str
    host: str
    port: int | None
    bytes_behind: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    state: str
    probes: int
    messages: int
    beats: int


@dataclass(frozen=True, slots=True)
class Shard:
    shard: str
    database: str
    member: str
    standing: str
    primary: str | None
    primary_url: str | None
    term: int | None
    cause: str | None
    detail: str
    warming_up: str | None
    collect_interval_s: float
    messages_total: int
    members: Sequence[Member] = field(metadata={"each": Member})
    unwatched: Sequence[Unwatched] = field(metadata={"each": Unwatched})
    costs: Sequence[Cost] = field(metadata={"each": Cost})
    told: Sequence[str]


@dataclass(frozen=True, slots=True)
class SetPoint:
    metric: str
    scope: str
    value: float | None
    set_point: float
    threshold: float
    unit: str


@dataclass(frozen=True, slots=True)
class Pace:
    """What paced admission releases, towards what, and who waits."""

    rate: float
    starting: bool
    metric: str | None
    paced_total: int
    clients: Sequence[str]
    clients_total: int
    set_points: Sequence[SetPoint] = field(metadata={"each": SetPoint})


@dataclass(frozen=True, slots=True)
class Database:
    database: str
    engine: str
    verdict: str
    reason: str
    healthy_s_ago: float | None
    role: str | None
    activity: str
    metrics: Sequence[Metric] = field(metadata={"each": Metric})
    other_metrics: Sequence[Metric] = field(metadata={"each": Metric})
    shard: Shard | None = field(metadata={"one": Shard, "or_null": True})
    pace: Pace | None = field(metadata={"one": Pace, "or_null": True})

    @property
    def every_metric(self) -> tuple[Metric, ...]:
        return (*self.metrics, *self.other_metrics)


@dataclass(frozen=True, slots=True)
class Store:
    name: str
    writable: bool
    fault: str | None
    fault_for_s: float | None
    tallies_waiting: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """How far the agent knows what its fleet has set."""

    says: str
    stale_for_s: float | None
    kept: int


@dataclass(frozen=True, slots=True)
class Status:
    agent: str
    version: str
    uptime_s: float
    settings: str
    settings_fault: str | None
    state_lost: str | None
    advice: Sequence[str]
    databases: Sequence[Database] = field(metadata={"each": Database})
    clients: Sequence[Client] = field(metadata={"each": Client})
    store: Store = field(metadata={"one": Store})
    fleet: Fleet | None = field(metadata={"one": Fleet, "or_null": True})


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: str
    who: str
    action: str
    target: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Refusal:
    at: str
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unthrottled:
    """A period of going without a throttler."""

    client: str
    started_at: str
    duration_s: float
    ended_s_ago: float
    pieces: int


# --- reading -------------------------------------------------------------------------------


def read(kind: type[T], document: object, place: str = "it") -> T:
    if not isinstance(document, Mapping):
        raise BadDocument(place, "is no object")
    values = {}
    for name, (allowed, nested) in _shape(cast(Any, kind)).items():
        where = f"{place}.{name}" if place != "it" else name
        if name not in document:
            raise BadDocument(where, "is missing")
        values[name] = _value(document[name], allowed, nested, where)
    return kind(**values)


def decoded(kind: type[T], document: object) -> T:
    """As a struct of wire/."""
    import msgspec

    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise BadDocument("it", f"is not as expected ({error})") from None


def read_list(kind: type[T], document: Mapping[str, Any], name: str) -> tuple[T, ...]:
    """The documents under `name`, as the agent's lists have them."""
    if name not in document:
        raise BadDocument(name, "is missing")
    return _items(document[name], kind, name)


def _value(value: object, allowed: tuple[type, ...], nested: Mapping[str, Any], where: str) -> Any:
    if "each" in nested:
        return _items(value, nested["each"], where)
    if value is None and "or_null" in nested:
        return None
    if "one" in nested:
        return read(nested["one"], value, where)
    fits = isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed)
    if allowed and not fits:
        raise BadDocument(where, f"is not of the expected kind, but {type(value).__name__}")
    return value


def _items(value: object, kind: type[T], where: str) -> tuple[T, ...]:
    if not isinstance(value, list):
        raise BadDocument(where, "is no list")
    return tuple(read(kind, item, f"{where}.{index}") for index, item in enumerate(value))


@cache
def _shape(kind: type[Any]) -> dict[str, tuple[tuple[type, ...], Mapping[str, Any]]]:
    hints = get_type_hints(kind)
    return {f.name: (_allowed(hints[f.name]), f.metadata) for f in fields(kind)}


def _allowed(hint: Any) -> tuple[type, ...]:
    """The JSON kinds that fit an annotation; () lets everything through."""
    if hint is Any:
        return ()
    if get_origin(hint) in (types.UnionType, Union):
        return tuple(kind for part in get_args(hint) for kind in _allowed(part))
    known = {float: (int, float), Mapping: (dict,), Sequence: (list,)}
    origin = get_origin(hint) or hint
    for abstract, kinds in known.items():
        if origin is abstract:
            return kinds
    return (origin,)
