"""One agent of the simulated fleet: the real following, beat, registrar and rules of an agent.

ModelClient ──► LogFollower ──► Mirror ──► SharedInForce ──► RuleKeeper.follow ──► book
                     ▲               └──fleet/feed_api──► the shard's replicas
                     └── AgentReader ── FeedLink (the simulated way to the primary's agent)

Left out: probes, checks, the listener. What stands between two agents is bytes, as it is for real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.fixtures.memory_store import MemoryStore

from bench.fleet_sim_etcd import ModelClient
from bench.fleet_sim_net import Traffic, Wire
from headgate.base.keyvalue import Changes
from headgate.base.ports import Clock, LogReader
from headgate.changes.beat import LogBeat
from headgate.changes.follower import LogFollower
from headgate.changes.inforce import SharedInForce
from headgate.changes.log_copy import LogCopy
from headgate.changes.mirror import Mirror
from headgate.changes.model import ITEMS, followed_prefixes
from headgate.changes.reach import Place
from headgate.errors import Compacted, PeerFailed, StoreUnavailable
from headgate.fleet.beat import FleetTiming
from headgate.fleet.feed_api import FEED, encode_changes, feed_page
from headgate.fleet.feed_reader import WAIT_S, AgentReader
from headgate.fleet.members import FleetMember
from headgate.fleet.registrar import Registrar
from headgate.metrics.samples import Cause
from headgate.rules.matching import RuleBook
from headgate.rules.service import RuleKeeper

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spot:
    """Who an agent is."""

    place: Place
    is_primary: bool

    @property
    def url(self) -> str:
        return f"http://{self.place.host}:8500"


class SimAgent:
    """Starts, stops and starts anew; what was on its disk is all that it keeps in between."""

    __slots__ = (
        "_applied",
        "_beat",
        "_clock",
        "_in_force",
        "_keeper",
        "_prefixes",
        "_registrar",
        "_role",
        "_roll",
        "_state",
        "_store",
        "_tasks",
        "_timing",
        "disk",
        "follower",
        "mirror",
        "primary",
        "spot",
        "traffic",
    )

    def __init__(
        self,
        spot: Spot,
        clock: Clock,
        roll: Callable[[], float],
        store: ModelClient,
        traffic: Traffic,
        applied: Callable[[SimAgent, RuleBook], None],
        timing: FleetTiming,
    ) -> None:
        self.spot = spot
        self.traffic = traffic
        self.primary: LogReader | None = None
        """The feed of its primary's agent, where it is a replica's."""
        self.disk: LogCopy | None = None
        self._role = "primary" if spot.is_primary else "replica"
        self._clock = clock
        self._roll = roll
        self._store = store
        self._applied = applied
        self._timing = timing
        self._prefixes = followed_prefixes((spot.place.shard,))
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._make()

    def _make(self) -> None:
        clock, roll, store = self._clock, self._roll, self._store
        self.mirror = Mirror(clock)
        self.follower = LogFollower(
            self.mirror,
            clock,
            roll,
            sources=self._sources,
            prefixes=lambda: self._prefixes,
            timing=self._timing,
        )
        self._beat = LogBeat(store, self.follower, clock, roll, by=self.spot.place.host)
        self._registrar = Registrar(
            store,
            clock,
            roll,
            members=self._own_members,
            spread_s=lambda: self.follower.spread_s,
            is_size_known=lambda: self.mirror.known,
        )
        self._state = MemoryStore()
        self._keeper = RuleKeeper(self._state, clock, self._put_in_force, lambda _: {})
        self._in_force = SharedInForce(
            self.follower,
            clock,
            (self._keeper,),
            places=lambda: (self.spot.place,),
            found=self._found,
        )

    # --- life ------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return bool(self._tasks)

    @property
    def rules_on_disk(self) -> int:
        entries = self.disk.listing.entries if self.disk is not None else ()
        return sum(entry.key.startswith(ITEMS) for entry in entries)

    @property
    def book(self) -> RuleBook:
        return self._keeper.book

    async def start(self) -> None:
        self._make()
        await self._state.open()
        if self.disk is not None:
            self.follower.recall(self.disk)
            await self._in_force.apply()
        loops = (self.follower.run, self._in_force.run, self._beat.run, self._registrar.run)
        self._tasks = tuple(asyncio.create_task(loop()) for loop in loops)

    def stop(self) -> None:
        """At once, as by a kill; its copy on disk is of just before."""
        self.disk = self.follower.copy() or self.disk
        self.mirror.apply(Changes((), self.mirror.revision + 1))  # Whoever waits here is let go.
        for task in self._tasks:
            task.cancel()
        self._tasks = ()

    def say_role(self, *, known: bool) -> None:
        """Its server does, or does not, tell its role."""
        told = "primary" if self.spot.is_primary else "replica"
        self._role = told if known else "unknown"
        self._registrar.look_again()

    # --- following -------------------------------------------------------------------------

    def _sources(self) -> Sequence[LogReader]:
        return (self._store,) if self.primary is None else (self.primary, self._store)

    def _found(self, members: Sequence[FleetMember]) -> None:
        self._registrar.seen(members)
        self._registrar.look_again()

    def _put_in_force(self, book: RuleBook) -> None:
        self._applied(self, book)

    def _own_members(self) -> Sequence[FleetMember]:
        place = self.spot.place
        return (
            FleetMember(
                shard=place.shard,
                member=f"{place.host}.{place.database}",
                url=self.spot.url,
                database=place.database,
                role=self._role,
                host=place.host,
                region=place.region,
                cluster=place.cluster,
                at=self._clock.now().wall_s,
                n=self._in_force.n,
                version="0.0",
            ),
        )

    # --- handing down ----------------------------------------------------------------------

    async def answer(self, target: str) -> tuple[int, bytes]:
        """As fleet/routes.py does, without the framework around it."""
        of_what, _, more_of_it = target.partition("&after=")
        path, prefixes = _asked(of_what)
        try:
            if path == FEED:
                return 200, msgspec.json.encode(feed_page(self.mirror.listing(prefixes)))
            more = dict(parse_qsl(f"after={more_of_it}"))
            changes = await self.mirror.changes_after(
                int(more["after"]),
                prefixes,
                float(more["wait_s"]),
                store_id=more.get("store_id", ""),
            )
        except Compacted:
            return 410, b""
        except StoreUnavailable:
            return 503, b""
        body = encode_changes(changes, self.mirror.store_id)
        return (410, b"") if body is None else (200, body)


@cache
def _asked(target: str) -> tuple[str, tuple[str, ...]]:
    """A replica always asks for the same."""
    parts = urlsplit(target)
    return parts.path, tuple(value for name, value in parse_qsl(parts.query) if name == "prefix")


class FeedLink:
    """The Link of an AgentReader, over the simulated network."""

    __slots__ = ("_to", "_wire")

    def __init__(self, wire: Wire, to: SimAgent) -> None:
        self._wire = wire
        self._to = to

    @property
    def url(self) -> str:
        return self._to.spot.url

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        timeout_s: float,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await self._wire.call(lambda: self._to.answer(target))
        except TimeoutError:
            raise PeerFailed(Cause.TIMED_OUT, f"{self.url}: no answer") from None
        return status, answer, NO_HEADERS

    async def close(self) -> None: ...


def joined_to(replica: SimAgent, primary: SimAgent, wire: Wire, beat_s: float) -> None:
    """Have `replica` follow `primary`; a beat comes before a request of it is answered empty."""
    wait_s = WAIT_S * beat_s / FleetTiming().beat_interval_s
    replica.primary = AgentReader(FeedLink(wire, primary), wait_s=wait_s)
