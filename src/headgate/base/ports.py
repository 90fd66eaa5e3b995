"""What the agent needs from outside, as Protocols. probes/, stores/ and clock.py implement them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Protocol

from headgate.base.keyvalue import Changes, Compare, Lease, Listing, Put
from headgate.budgets.policy import Policy
from headgate.budgets.readings import BudgetReadings, Lying, Published
from headgate.changes.exchanged import ExchangeAnswer, Offer
from headgate.history.records import (
    AuditEntry,
    BudgetMinute,
    CheckedMinute,
    MetricMinute,
    Report,
    StoreFault,
    Tally,
)
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Instant, Number
from headgate.shard.model import Pull, Pulled
from headgate.shard.topology import RoleSeen


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
    """Reads a server's role in its shard, on its own connection."""

    async def read(self) -> RoleSeen:
        """Or ProbeFailed with the cause."""
        ...

    async def lost(self) -> None:
        """Returns once the server has hung up on that connection; until then, never."""
        ...

    async def close(self) -> None: ...


class FenceProbe(Protocol):
    """Reads whether a server takes writes, on its own connection, as cheaply as possible."""

    async def read(self) -> bool:
        """False: it is read only now. Or ProbeFailed."""
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
        """`resting` marks it as the last one for a while, so that nobody takes it for lag.
        WriteRejected where the server turned out to be read only; or another ProbeFailed."""
        ...

    async def close(self) -> None: ...


class PeerLink(Protocol):
    """A connection to one other agent of a shard. One request at a time; reconnects
    automatically."""

    @property
    def url(self) -> str: ...

    async def pull(self, ask: Pull, *, timeout_s: float) -> Pulled:
        """Or PeerFailed with the cause, within `timeout_s`."""
        ...

    async def wake(self, shard: str, database: str, *, timeout_s: float) -> None:
        """Have that agent's database watched, and its heartbeat written, for a while."""
        ...

    async def exchange(self, offer: Offer, *, timeout_s: float) -> ExchangeAnswer:
        """Send a shard's changes to that agent and receive its own; or PeerFailed."""
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


class PolicySink(Protocol):
    """Where the policy of a database goes: to a server's own directory, beside its queries."""

    async def publish(self, policy: Policy, revision: int) -> Published:
        """Apply it completely or not at all. PolicyRejected has the cause, and then the last
        good one stays. `revision` is only for display."""
        ...

    async def look(self) -> Lying | None:
        """The policy that is there now, from any source; None: none that could be used.
        PolicyRejected if it cannot be read."""
        ...

    async def tell_health(self, healthy: bool, until_ms: int) -> None:
        """For budgets that bite under pressure alone; believed until then (Unix time), and not
        known after. PolicyRejected with the cause."""
        ...

    def describe(self) -> str:
        """Where it goes, in a few words."""
        ...


class BudgetMeter(Protocol):
    """Reads what a server counts of its budgets, without a connection to it."""

    async def read(self) -> BudgetReadings:
        """Or MeterFailed with the cause. Never a stand-in."""
        ...


class ChangeLog(Protocol):
    """A log of changes, as keys: SQLite for one agent, etcd for a fleet, memory in tests. One
    suite proves for all of them what it promises (tests/contracts/test_change_log.py).

    No check ever waits for it. Every call ends within a second or two: with what was asked for, or
    with StoreUnavailable.
    """

    @property
    def name(self) -> str:
        """For people: `etcd 10.0.0.1:2379, …`. Never with a password."""
        ...

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing:
        """All under these prefixes, at one revision. `allow_stale`: also what may be behind, from a
        member that has lost the others, or from a file that cannot be opened or its copy, which has
        all but `log/`; for a start in need. StateLost where there has been something, and it is
        gone."""
        ...

    async def count(self, prefix: str) -> int:
        """How many entries there are, without reading them."""
        ...

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        """All puts, if every compare holds; the new revision. Else Conflict, and nothing is done.
        OutcomeUnknown where it was sent and no answer came: look before the next try.
        InvalidSettings or ValueError for what is too long; StoreUnavailable for an entry too many.

        An agent's own log keeps `audit` in the same transaction; a fleet's has who and what in its
        revisions. `must_fit`: it lifts a restriction, and may take the room that is kept for that
        on a full disk.
        """
        ...

    async def close(self) -> None: ...


class LogReader(Protocol):
    """What a fleet shares, to be followed: its log, or another agent that has it from there."""

    @property
    def name(self) -> str: ...

    async def list(self, prefixes: Sequence[str], *, allow_stale: bool = False) -> Listing: ...

    def watch(self, prefixes: Sequence[str], *, after_revision: int) -> AsyncGenerator[Changes]:
        """Every change after that revision, in order, none missing and none twice. Ends only
        with an error: Compacted, or StoreUnavailable when the connection is gone. A connection
        that stalls is not noticed here; the beat is for that. So the newest commit may arrive
        without the mark that it is complete (see Changes). May yield Changes without events, to
        report the store's revision."""
        ...

    async def close(self) -> None: ...


class SharedLog(ChangeLog, LogReader, Protocol):
    """The log of a fleet, with leases for its members to say that they are there."""

    async def grant(self, ttl_s: float) -> Lease: ...

    async def renew(self, lease_id: int) -> Lease:
        """Or LeaseLost: what was put under it is gone, or soon will be."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """What was put under it is taken out now. One that is not there is not missed."""
        ...


class HistoryStore(Protocol):
    """What was decided and measured, by the minute."""

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
    ) -> Sequence[CheckedMinute]:
        """Every minute in which such a client checked, in order."""
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

    async def add_budget_minutes(self, minutes: Sequence[BudgetMinute]) -> None:
        """Add to what is kept of the same minute, budget, kind and limit, all or nothing."""
        ...

    async def budget_minutes(
        self,
        *,
        since_minute: int,
        until_minute: int,
        database: str = "",
        budget: str = "",
        limit: int = 100_000,
    ) -> Sequence[BudgetMinute]:
        """Both minutes included, oldest first, of one database and budget if they are named;
        beyond `limit` the oldest are left out."""
        ...

    async def forget_before(self, minute: int) -> None:
        """Drop tallies, metrics and violations by the minute, and audit entries from before
        `minute`. The log stays."""
        ...


class Store(ChangeLog, Protocol):
    """Keeps what must outlive the process: the agent's own log, where a lease means nothing, and
    its history. Reads and writes may raise StoreUnavailable."""

    @property
    def history(self) -> HistoryStore: ...

    @property
    def fault(self) -> str | None:
        """Why the last write failed, if it was the disk's fault; None once one succeeds."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What is amiss with what is kept, or was when it was opened, for people."""
        ...

    async def open(self) -> None:
        """StateLost: there has been a state, and it is gone."""
        ...

    async def begin_anew(self, audit: AuditEntry) -> Sequence[str]:
        """If the file cannot be opened: rename it and begin another one, with the content of a
        copy or with nothing; the new names of the old files. Conflict if it can be used."""
        ...

    async def audit(self, *, limit: int = 100) -> Sequence[AuditEntry]:
        """Newest first."""
        ...

    async def reports(self) -> Sequence[Report]:
        """What clients said of themselves, in the order in which they said it."""
        ...

    async def put_report(self, report: Report, *, forget: Sequence[Report] = ()) -> None:
        """Keep it in place of an earlier one of the same client and origin, without those of
        `forget`, all or nothing. Kept apart from what operators change: it is not audited and
        has no revision. The first thing to go where the store runs out of room."""
        ...


Fact = str | int | float | bool
NO_FACTS: Mapping[str, Fact] = MappingProxyType({})


class Span(Protocol):
    """Something that takes time, while it lasts. An exception inside is noted automatically."""

    def note(self, facts: Mapping[str, Fact]) -> None: ...

    def fault(self, detail: str) -> None:
        """It went wrong, though nothing is raised."""
        ...


class SpansOut(Protocol):
    """What becomes of spans."""

    fault: str | None
    """Why the collector rejected the last spans; None: it took them."""

    @property
    def collector(self) -> str: ...

    @property
    def outcomes(self) -> Mapping[str, int]: ...

    @property
    def waiting(self) -> int: ...


class Tracer(Protocol):
    """Tells a collector what took how long. Never waits, never fails; where there is none, the
    parts are put together without one."""

    def request(
        self, name: str, traceparent: str, facts: Mapping[str, Fact] = NO_FACTS
    ) -> AbstractContextManager[Span]:
        """A request from outside; part of the caller's trace, if `traceparent` names one."""
        ...

    def step(self, name: str, facts: Mapping[str, Fact] = NO_FACTS) -> AbstractContextManager[Span]:
        """Part of what is under way here, else of its own accord."""
        ...

    def turn(self, name: str, facts: Mapping[str, Fact] = NO_FACTS) -> AbstractContextManager[Span]:
        """One turn of a loop: the code that started the loop does not wait for it."""
        ...

    def traceparent(self) -> str:
        """The current span, for requests to others; empty: not traced."""
        ...


__all__ = [
    "AuditEntry",
    "BudgetMeter",
    "BudgetMinute",
    "ChangeLog",
    "CheckedMinute",
    "Clock",
    "Fact",
    "FenceProbe",
    "HeartbeatWriter",
    "HistoryStore",
    "LogReader",
    "MetricMinute",
    "PeerLink",
    "PolicySink",
    "Probe",
    "ProbeSource",
    "Pulled",
    "RoleProbe",
    "SharedLog",
    "Span",
    "SpansOut",
    "Store",
    "StoreFault",
    "Tally",
    "Tracer",
]
