"""What the agent needs from outside, as Protocols. probes/, stores/ and clock.py implement them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from headgate.core.metrics import MetricSpec
from headgate.core.records import (
    Asked,
    AuditEntry,
    MetricChange,
    MetricMinute,
    Record,
    StoreFault,
    Tally,
)
from headgate.core.samples import Instant, Number
from headgate.core.shard import Pull, Pulled
from headgate.core.topology import RoleSeen


class Clock(Protocol):
    def now(self) -> Instant: ...

    async def sleep(self, seconds: float) -> None: ...


class Probe(Protocol):
    """Reads one number, or raises ProbeFailed with the cause. Never returns a stand-in.

    `read` is cancelled at the metric's timeout; a probe also has the server end the work,
    and leaves nothing behind that a later read would trip over.
    """

    async def read(self) -> Number: ...

    async def close(self) -> None: ...


class RoleProbe(Protocol):
    """Asks a server what it is in its shard, on a connection of its own."""

    async def read(self) -> RoleSeen:
        """Or ProbeFailed with the cause."""
        ...

    async def lost(self) -> None:
        """Returns once the server has hung up on that connection; until then, never."""
        ...

    async def close(self) -> None: ...


class ProbeSource(Protocol):
    """The probes of one database, and the connections they share."""

    def probe_for(self, spec: MetricSpec) -> Probe:
        """The probe of `spec`, not connected yet; raises InvalidSettings if there is none."""
        ...

    async def close(self) -> None: ...


class HeartbeatWriter(Protocol):
    """Writes one heartbeat if the server is a primary; says whether it did."""

    async def beat(self, *, resting: bool = False) -> bool:
        """`resting` marks it as the last one for a while, so that nobody takes it for lag."""
        ...

    async def close(self) -> None: ...


class PeerLink(Protocol):
    """The way to one other agent of a shard. One request at a time; reconnects by itself."""

    @property
    def url(self) -> str: ...

    async def pull(self, ask: Pull, *, timeout_s: float) -> Pulled:
        """Or PeerFailed with the cause, within `timeout_s`."""
        ...

    async def wake(self, shard: str, database: str, *, timeout_s: float) -> None:
        """Have that agent's database watched, and its heartbeat written, for a while."""
        ...

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        timeout_s: float,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Any other request: status, body and headers of the answer, or PeerFailed."""
        ...

    async def close(self) -> None: ...


class Store(Protocol):
    """Keeps what must outlive the process. Reads and writes may raise StoreUnavailable.

    No check ever waits for it. A put and its audit entry are one transaction.
    """

    @property
    def name(self) -> str: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def metric_changes(self) -> Sequence[MetricChange]: ...

    async def salvage_changes(self) -> Sequence[MetricChange]:
        """The same, where the store could not be opened but what it keeps can still be read."""
        ...

    async def put_metric(self, change: MetricChange, audit: AuditEntry) -> MetricChange:
        """Keep `change`; its `revision` must be the one it replaces (0 for new), else Conflict.

        Returns the change with its new revision.
        """
        ...

    async def records(self, kind: str) -> Sequence[Record]:
        """Those of one kind that stand, ordered by key; removed ones are not listed."""
        ...

    async def salvage_records(self, kind: str) -> Sequence[Record]:
        """The same, where the store could not be opened but what it keeps can still be read."""
        ...

    async def put_record(self, record: Record, audit: AuditEntry) -> Record:
        """Keep `record` as put_metric keeps a change: Conflict unless its `revision` stands.

        Over a removed one, 0 stands as well as the revision of the removal. What is too long
        raises ValueError. Returns the record with its new revision, higher than any before.
        """
        ...

    async def put_records(self, puts: Sequence[tuple[Record, AuditEntry]]) -> Sequence[Record]:
        """Each as put_record would, in this order and in one transaction: all or none."""
        ...

    async def note_record(self, record: Record) -> None:
        """Replace the value of one that stands at that very revision, else Conflict; neither
        audited nor given a new revision. For what nobody set: the agent notes it down itself,
        every few seconds."""
        ...

    async def audit(self, *, limit: int = 100) -> Sequence[AuditEntry]:
        """Newest first."""
        ...

    async def add_tallies(self, tallies: Sequence[Tally]) -> None:
        """Add counts to what is kept of the same minute, all or nothing."""
        ...

    async def tallies(
        self,
        tokens: Sequence[str] = (),
        *,
        since_minute: int,
        until_minute: int,
        limit: int = 10_000,
    ) -> Sequence[Tally]:
        """Of clients that have all these levels, both minutes included, oldest first; beyond
        `limit` the oldest are left out."""
        ...

    async def sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        step_minutes: int | None = 1,
        by_client: bool = True,
        limit: int | None = None,
    ) -> Sequence[Tally]:
        """Tallies of clients that have all these levels, summed up over steps that begin at round
        times (of 5 minutes: at 07:00, 07:05 …), or over all of the time for None; all clients as
        one ("") unless `by_client`. Only of one database, if it is named. Beyond `limit` the
        oldest are left out."""
        ...

    async def client_sums(
        self,
        tokens: Sequence[str],
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        limit: int,
    ) -> Sequence[Tally]:
        """Tallies by client over all of the time, the largest first; beyond `limit` the smallest
        are left out."""
        ...

    async def minutes_asked(
        self, tokens: Sequence[str], *, since_minute: int, until_minute: int, database: str = ""
    ) -> Sequence[Asked]:
        """Every minute in which such a client asked, in order."""
        ...

    async def add_metric_minutes(self, minutes: Sequence[MetricMinute]) -> None:
        """Add to what is kept of the same minute and metric, all or nothing."""
        ...

    async def metric_minutes(
        self,
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        metric: str = "",
        limit: int = 100_000,
    ) -> Sequence[MetricMinute]:
        """Both minutes included, oldest first, of one database and metric if they are named;
        beyond `limit` the oldest are left out."""
        ...

    async def forget_before(self, minute: int) -> None:
        """Drop tallies, metrics by the minute and audit entries from before `minute`."""
        ...


__all__ = [
    "Asked",
    "AuditEntry",
    "Clock",
    "HeartbeatWriter",
    "MetricChange",
    "MetricMinute",
    "PeerLink",
    "Probe",
    "ProbeSource",
    "Pulled",
    "Record",
    "RoleProbe",
    "Store",
    "StoreFault",
    "Tally",
]
