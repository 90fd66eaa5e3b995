"""What the agent needs from outside, as Protocols. probes/, stores/ and clock.py implement them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headgate.core.metrics import MetricSpec
from headgate.core.records import AuditEntry, MetricChange, StoreFault, Tally
from headgate.core.samples import Instant


class Clock(Protocol):
    def now(self) -> Instant: ...

    async def sleep(self, seconds: float) -> None: ...


class Probe(Protocol):
    """Reads one number, or raises ProbeFailed with the cause. Never returns a stand-in.

    `read` is cancelled at the metric's timeout; a probe also has the server end the work,
    and leaves nothing behind that a later read would trip over.
    """

    async def read(self) -> float: ...

    async def close(self) -> None: ...


class ProbeSource(Protocol):
    """The probes of one database, and the connections they share."""

    def probe_for(self, spec: MetricSpec) -> Probe:
        """The probe of `spec`, not connected yet; raises InvalidSettings if there is none."""
        ...

    async def close(self) -> None: ...


class HeartbeatWriter(Protocol):
    """Writes one heartbeat if the server is a primary; says whether it did."""

    async def beat(self) -> bool: ...

    async def close(self) -> None: ...


class Store(Protocol):
    """Keeps what must outlive the process. Reads and writes may raise StoreUnavailable.

    No check ever waits for it. `put_metric` and its audit entry are one transaction.
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

    async def audit(self, *, limit: int = 100) -> Sequence[AuditEntry]:
        """Newest first."""
        ...

    async def add_tallies(self, tallies: Sequence[Tally]) -> None:
        """Add counts to what is kept of the same minute, all or nothing."""
        ...

    async def tallies(
        self, *, since_minute: int, until_minute: int, limit: int = 10_000
    ) -> Sequence[Tally]:
        """Both minutes included, oldest first; beyond `limit` the oldest are left out."""
        ...

    async def forget_before(self, minute: int) -> None:
        """Drop tallies and audit entries from before `minute`."""
        ...


__all__ = [
    "AuditEntry",
    "Clock",
    "HeartbeatWriter",
    "MetricChange",
    "Probe",
    "ProbeSource",
    "Store",
    "StoreFault",
    "Tally",
]
