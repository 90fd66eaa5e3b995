"""What operators look at, as documents: status, metrics, clients, history, audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.changes.exchange_api import CopiesDoc
from headgate.check.answer_api import AnswerDoc, MetricDoc
from headgate.fleet.api import FleetFollowingDoc, ReachedDoc
from headgate.history.replay import ThresholdReplay
from headgate.history.unthrottled_api import UnthrottledDoc
from headgate.pacing.api import PaceDoc
from headgate.shard.api import ShardDoc


class MetricView(msgspec.Struct, frozen=True):
    """A metric with its settings, its last reading, and where it was set."""

    database: str
    metric: str
    source: str
    """`builtin`, `sql`, `url`, `command` or `plugin`."""
    origin: str
    """`file`; `runtime` for one that was added or changed at this agent while running; else the
    reach of the change that is in force here, such as `fleet` or `shard:commerce/*`."""
    revision: int
    settings: Mapping[str, Any]
    """As set. Passwords, tokens, and the query of a URL are shown as `…`."""
    file: Mapping[str, Any] | None
    """Its settings in the file, which count again once it is reverted; null for none."""
    in_default: bool
    """Whether it applies to a check that names no metric."""
    interval_s: float
    timeout_s: float
    max_age_s: float
    granularity_s: float
    """Resolution of the value: the longest of heartbeat interval (lag), probe interval and age."""
    now: MetricDoc
    """Its state is `disabled` if it is switched off: neither probed nor used."""
    advice: Sequence[str] = ()
    expires_at: str | None = None
    """When a runtime change ends, and the file's settings count again (ISO 8601, UTC); null: it
    stays."""
    replay: ThresholdReplay | None = None
    """Of a dry run: its effect on the last hour; null if history cannot be read."""


class RemovedDoc(msgspec.Struct, frozen=True):
    """What DELETE answers, and a revert to a file that has no such metric."""

    database: str
    metric: str
    removed: bool
    """False in a dry run."""
    expires_at: str | None = None
    """When that ends, and the metric is back as the file sets it (ISO 8601, UTC); null: it
    stays removed."""
    advice: Sequence[str] = ()


class WideMetricDoc(msgspec.Struct, frozen=True):
    """What a change of a metric with a reach answers."""

    database: str
    """`*`: each one of an agent."""
    metric: str
    reach: str
    state: str
    """`set`, `removed` or `reverted`."""
    settings: Mapping[str, Any]
    """What it changes, wherever it is in force; null restores a setting's default."""
    revision: int
    """Of the log that has it."""
    dry_run: bool
    expires_at: str | None
    advice: Sequence[str]
    """Also with which of this agent's metrics it was validated."""
    reached: ReachedDoc | None = None
    """Null: it is not in a fleet's log."""
    copies: CopiesDoc | None = None
    """For a shard's change without a fleet's store: which other agents have it."""
    replay: ThresholdReplay | None = None
    """Of a dry run: what it would have done to the checks of the last hour. At the first of this
    agent's databases that it changes; null where it changes none."""


class MetricsDoc(msgspec.Struct, frozen=True):
    metrics: Sequence[MetricView]
    rejected: Sequence[str] = ()
    """Changes that reach this agent and are not in force here as they were set, and why."""


class ClientDoc(msgspec.Struct, frozen=True):
    client: str
    database: str
    admitted: int
    """How many of its checks were admitted."""
    rejected: int
    """How many of its checks were rejected."""
    last_verdict: str
    last_seen_s_ago: float
    rejected_for_s: float | None
    """How long it has been rejected without a break; null while it is admitted."""
    rejected_by: str
    """The metric or rule of the last rejection."""


class ClientsDoc(msgspec.Struct, frozen=True):
    clients: Sequence[ClientDoc]


class DatabaseDoc(msgspec.Struct, frozen=True):
    database: str
    engine: str
    verdict: str
    """The current answer to a check that names no metric; on a replica, about its host."""
    reason: str
    healthy_s_ago: float | None
    """Seconds since a check would last have been admitted; 0 while it is, null for never."""
    metrics: Sequence[MetricDoc]
    """Metrics that apply to such a check."""
    other_metrics: Sequence[MetricDoc]
    """Not among the default metrics (they apply if a check names them), or `disabled`."""
    role: str | None = None
    """`primary` or `replica`, as its server says; null outside a shard, or where unknown."""
    activity: str = "awake"
    """`awake`, `idle` (no check for a while: measured less often) or `hibernating` (not at all)."""
    idle: bool = False
    """Nobody checks it, and nothing else is wrong: the next check wakes it, which takes about 1 s.
    Until then `verdict` says nothing about the database."""
    shard: ShardDoc | None = None
    """Null if it belongs to none."""
    pace: PaceDoc | None = None
    """Null if none of its metrics is paced."""

    @property
    def every_metric(self) -> tuple[MetricDoc, ...]:
        return (*self.metrics, *self.other_metrics)


class StoreDoc(msgspec.Struct, frozen=True):
    name: str
    writable: bool
    fault: str | None
    fault_for_s: float | None
    tallies_waiting: int


class StatusDoc(msgspec.Struct, frozen=True):
    agent: str
    version: str
    """Of Headgate."""
    uptime_s: float
    settings: str
    """The file, and whether its last reload succeeded."""
    settings_fault: str | None
    databases: Sequence[DatabaseDoc]
    """Each database with its metrics."""
    clients: Sequence[ClientDoc]
    store: StoreDoc
    advice: Sequence[str]
    fleet: FleetFollowingDoc | None = None
    """Null: it belongs to none."""
    state_lost: str | None = None
    """The operators' changes are lost: why, what the agent does meanwhile, and what to do."""


class TallyDoc(msgspec.Struct, frozen=True):
    minute: str
    """ISO 8601, UTC."""
    database: str
    client: str
    verdict: str
    metric: str
    count: int


class HistoryDoc(msgspec.Struct, frozen=True):
    tallies: Sequence[TallyDoc]
    unthrottled: Sequence[UnthrottledDoc] = ()
    """Periods without a throttler, as their clients reported."""
    whole: bool = True
    """False: there are more tallies than fit into one answer, and the oldest are left out."""


class RejectionDoc(msgspec.Struct, frozen=True):
    at: str
    """ISO 8601, UTC."""
    answer: AnswerDoc


class RejectionsDoc(msgspec.Struct, frozen=True):
    rejections: Sequence[RejectionDoc]


class AuditDoc(msgspec.Struct, frozen=True):
    at: str
    who: str
    action: str
    target: str
    """What was changed."""
    before: Any
    after: Any


class AuditsDoc(msgspec.Struct, frozen=True):
    audit: Sequence[AuditDoc]


class ReadyDoc(msgspec.Struct, frozen=True):
    ready: bool
    waiting_for: Sequence[str]
    notes: Sequence[str] = ()
    """Problems that do not make the agent unready."""


class AcknowledgedDoc(msgspec.Struct, frozen=True):
    moved: Sequence[str]
    """Files, by their new names."""
    notes: Sequence[str]
    """What the new one began with."""


class ReloadedDoc(msgspec.Struct, frozen=True):
    settings: str
    """The file."""
    databases: Sequence[str]
    """In force now."""
    waiting: Sequence[str]
    """Sections whose changes wait for a restart."""
