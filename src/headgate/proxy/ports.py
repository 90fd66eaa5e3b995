"""What the proxy's parts say to each other, as Protocols and values.

    agent's API ──► agentlink ──► gates, release, targets, policy ──► Relay ──► relay/*.c
                                       ▲                                 │ events
                                       └──────────── process ◄───────────┘

Everything here is called on the one asyncio loop of the process. `Relay` never waits: it writes
parameters into shared memory, and reads counters from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from headgate.budgets.policy import Policy
from headgate.budgets.readings import Published
from headgate.proxy.model import PLAIN, Act, TlsTerms

UNIDENTIFIED = 0
"""Index of the client without an identity."""
OTHERS = 1
"""And of those beyond the table's size."""


class ActCause(IntEnum):
    """Why a statement was acted upon: HR_BY_* of relay/relay.h."""

    NOTHING = 0
    BUDGET = 1
    RULE = 2
    HEALTH = 3
    PACE = 4
    LOSS = 5
    CANCEL = 6
    LIMIT = 7


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client of the relay. The index may be another's later: key tells."""

    index: int
    key: int
    identity: str
    """In the grammar of core.names; `unidentified` and `others` are the first two."""


class Reported(NamedTuple):
    """Of a client's counts, what some process has taken upon itself to tell an agent."""

    admitted: int = 0
    blocked: tuple[int, ...] = (0,) * len(ActCause)


class ClientCounts(NamedTuple):
    """What a client's statements came to, ever; held and running, now."""

    client: ClientKey
    told: bool
    """There is a gate for it."""
    statements: int
    admitted: int
    warned: int
    delayed: int
    delayed_ns: int
    blocked: tuple[int, ...]
    """By ActCause."""
    passed: int
    wall_ns: int
    errors: int
    waiting: int
    running: int
    reported: Reported = Reported()
    kept: bool = False
    """Its place is never another's: some rule has a word on that name."""


@dataclass(frozen=True, slots=True)
class ClientGate:
    """The decision for one client; replaced whole. The default admits everything, and never
    expires."""

    act: Act = Act.PASS
    ratio: float = 0.0
    """This share of its statements is acted upon, by dice."""
    ignores_priority: bool = False
    cause: ActCause = ActCause.NOTHING
    """RULE or HEALTH."""
    writes_only: bool = False
    paced: bool = False
    exempt: bool = False
    max_delay_s: float = 0.0
    max_delayed: int = 0
    delay_s: float = 0.0
    """DELAY: this long, then it passes; 0: until the gate opens, or max_delay_s."""
    retry_s: float = 0.0
    until_ms: int | None = None
    """Unix time after which this is not known any more; None: never."""
    reason: str = ""
    """For the error's text, at most 199 bytes: "lag 12.3 s > 5 s on primary-a"."""


@dataclass(frozen=True, slots=True)
class Release:
    """How much the control loop lets through; per_s None: not paced."""

    per_s: float | None = None
    burst: float = 1.0
    """Units that may go at once."""
    act: Act = Act.DELAY
    max_delay_s: float = 5.0


class Released(NamedTuple):
    taken: int
    """Units ever."""
    limited: int
    """Times that a statement had to wait or was blocked for the pace alone."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server that sessions go to, at an address that needs no more looking up."""

    id: int
    """Never 0, and the same as long as it is the same server at the same address."""
    name: str
    address: str
    """IPv4, IPv6, or the absolute path of a Unix socket."""
    port: int
    primary: bool
    replica: bool
    weight: int = 1
    tls: TlsTerms = PLAIN


@dataclass(frozen=True, slots=True)
class Targets:
    """All of them; put whole or not at all. At most 64 targets, and 16 different TlsTerms."""

    targets: tuple[ServerTarget, ...] = ()
    replicas_or_primary: bool = True
    grace_s: float = 10.0
    """Sessions to one that is gone, or was primary and is not, are closed between transactions,
    and after this long in any case."""


class WantedPlan(NamedTuple):
    """A pattern under a budget that needs to know what it costs."""

    pattern: int
    database: str
    username: str
    text: str
    whole: bool
    """The text is not cut."""
    parameters: bool
    """It has $n or ? in it."""


class RelayClients(Protocol):
    """The relay's table of clients, with a gate for each (proxy/relay.py)."""

    def all(self) -> Sequence[ClientCounts]:
        """All that have a place, unidentified and others first."""
        ...

    def put_reported(self, counts: Sequence[ClientCounts], at_s: float) -> None:
        """This process reports these clients' counts, and no other does. Kept with the counters,
        so that a process that takes over goes on where this one ends."""
        ...

    def reported_at_s(self) -> float | None:
        """When that was last kept, monotonic; None: never."""
        ...

    def enter(self, identity: str) -> ClientKey | None:
        """Give a level that rules name a place of its own, which no other client gets. Its gate
        applies to new names with that level until they have their own. None: there is no place
        for it just now; half of the table is for others."""
        ...

    def leave(self, client: ClientKey) -> None:
        """No rule has a word on it any more: a client like all others."""
        ...

    def put_gate(self, client: ClientKey, gate: ClientGate) -> None:
        """Nothing happens if the place is another client's meanwhile. `stir` once after many."""
        ...

    def put_lost(self, act: Act) -> None:
        """What happens when what is known of health is too old."""
        ...


class Relay(Protocol):
    """The data path, to those who tell it what to do (proxy/relay.py)."""

    @property
    def clients(self) -> RelayClients: ...

    def put_release(self, release: Release) -> None: ...

    def released(self) -> Released: ...

    def put_plan(self, pattern: int, cost: float) -> None: ...

    def put_targets(self, targets: Targets) -> None:
        """Or RelayFault with what is wrong, and then the last ones stay."""
        ...

    def tell_health(self, healthy: bool, until_ms: int) -> None:
        """For budgets that bite under pressure."""
        ...

    def stir(self) -> None:
        """Decide again about all statements that wait."""
        ...


class PolicyTaker(Protocol):
    """Puts a policy in force: agentlink gives it what the agent serves."""

    async def take(self, policy: Policy, revision: int, source: str) -> Published:
        """Or PolicyRejected with the cause; then the last good one stays."""
        ...


class RelayWatcher(Protocol):
    """Gets the relay's events from the process; each call returns at once."""

    def client_seen(self, client: ClientKey) -> None:
        """A client that was not there before: it has no gate yet."""
        ...

    def plan_wanted(self, wanted: WantedPlan) -> None: ...


@dataclass(frozen=True, slots=True)
class PartState:
    """How a part of the proxy does, for `status` and readiness: agentlink, targets, plans, …"""

    name: str
    healthy: bool
    summary: str
    """One line for people: "follows main at http://db1:8087, last seen 0.2 s ago"."""
    since_s: float | None = None
    """How long it has been so, where that is known."""
    figures: dict[str, float | int | str | None] = field(default_factory=dict)
    """More, for --json and Prometheus: bounded in number, and names are fixed."""


class Part(Protocol):
    """A loop of its own. `run` goes on until it is cancelled; the process keeps it running."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None: ...

    def state(self) -> PartState: ...

    async def close(self) -> None: ...
