"""Agents of one shard, each with its own log; the links between them lose what the test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from headgate.base.names import parse_identity
from headgate.base.ports import PeerLink, Store
from headgate.changes.exchange import Exchange, OwnFacts, Pair
from headgate.changes.exchange_api import decode_answer, decode_offer, encode_answer, encode_offer
from headgate.changes.exchanged import ExchangeAnswer, Offer
from headgate.changes.inforce import OwnInForce
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Place, Reach, parse_reach
from headgate.changes.state import ChangeMade
from headgate.check.demand import Demands
from headgate.check.model import Idleness
from headgate.errors import InvalidRequest, PeerFailed, StoreUnavailable, WrongShard
from headgate.metrics.samples import Absent, Cause
from headgate.rules.drafts import Here, RuleDrafts
from headgate.rules.matching import NO_RULES, RuleBook
from headgate.rules.service import RuleKeeper
from headgate.rules.settings import KnownMetric
from headgate.shard.service import Shards
from headgate.shard.topology import Following, Leading, Role, RoleSeen, Standpoint, Unled
from tests.changes import verbs
from tests.fixtures.fakes import HandClock, settle
from tests.fixtures.memory_store import MemoryStore

SHARD = "commerce/-80"
REACH = parse_reach(f"shard:{SHARD}")
KNOWN = {"lag": KnownMetric(5.0, True)}
MOST_BYTES = 256 * 1024
T = TypeVar("T")


def known(database: str) -> Mapping[str, KnownMetric]:
    return KNOWN


@dataclass
class StubLocal:
    name: str
    database: str
    demand: Any
    role: RoleSeen | None = None


@dataclass
class StubRemote:
    name: str
    url: str
    database: str = "main"


@dataclass
class StubRoster:
    remotes: dict[str, StubRemote] = field(default_factory=dict)
    was_primary: bool = False

    def distinct(self) -> list[StubRemote]:
        return list(self.remotes.values())

    def had_primary(self) -> bool:
        return self.was_primary


@dataclass
class StubShard:
    name: str
    locals: dict[str, StubLocal]
    roster: StubRoster = field(default_factory=StubRoster)
    point: Standpoint = field(
        default_factory=lambda: Unled(Absent(Cause.NO_PRIMARY, "nobody is the primary", 0.0))
    )


def stub_shard(name: str, member: str, demands: Demands) -> StubShard:
    """Of all databases that are measured."""
    mine = {d: StubLocal(member, d, demand) for d, demand in demands.by_database.items()}
    return StubShard(name, mine)


@dataclass
class StubShards:
    each: dict[str, StubShard]

    def asked(self, shard: str, database: str) -> StubShard:
        if shard not in self.each:
            raise WrongShard(f"{database} belongs to another shard at this agent, not to {shard!r}")
        if database not in self.each[shard].locals:
            raise InvalidRequest(f"no database {database!r}", status=404)
        return self.each[shard]


@dataclass
class Net:
    """Who reaches whom, and what is lost on the way."""

    agents: dict[str, Agent] = field(default_factory=dict)
    cut: set[tuple[str, str]] = field(default_factory=set)
    """(from, to), by name."""
    fates: list[str] = field(default_factory=list)
    """What the next messages come to: `lost`, `answer lost`, `twice`, `late`; then all is well."""
    late: list[Offer] = field(default_factory=list)
    messages: int = 0
    offers: list[tuple[str, str, Offer]] = field(default_factory=list)
    """(from, to, what)."""

    async def tell(self, by: str, url: str, offer: Offer, timeout_s: float) -> ExchangeAnswer:
        self.messages += 1
        other = self.agents[url]
        self.offers.append((by, other.name, offer))
        fate = self.fates.pop(0) if self.fates else ""
        if (by, other.name) in self.cut or not other.is_up or fate == "lost":
            raise PeerFailed(Cause.UNREACHABLE, f"{url}: connection refused")
        body = encode_offer(offer)
        assert len(body) <= MOST_BYTES
        if fate == "late":  # It comes when nobody waits for it any more.
            self.late.append(decode_offer(body))
            raise PeerFailed(Cause.TIMED_OUT, f"{url}: no answer in {timeout_s:g} s")
        for _ in range(2 if fate == "twice" else 1):
            try:
                answer = await other.answer(decode_offer(body))
            except (StoreUnavailable, InvalidRequest, WrongShard) as error:
                raise PeerFailed(Cause.FAILED, f"{url}: rejects: {error}") from None
        if fate == "answer lost" or not other.is_up:
            raise PeerFailed(Cause.UNREACHABLE, f"{url}: the connection was closed")
        told = encode_answer(answer)
        assert len(told) <= MOST_BYTES
        return decode_answer(told)

    async def deliver_late(self, to: Agent) -> None:
        late, self.late = self.late, []
        for offer in reversed(late):
            await to.answer(offer)


@dataclass
class Link:
    net: Net
    by: str
    url: str
    closed: bool = False

    async def exchange(self, offer: Offer, *, timeout_s: float) -> ExchangeAnswer:
        return await self.net.tell(self.by, self.url, offer, timeout_s)

    async def close(self) -> None:
        self.closed = True


class Agent:
    def __init__(
        self,
        net: Net,
        name: str,
        clock: HandClock,
        *,
        store: Store | None = None,
        database: str = "main",
        url: str = "",
        shards: Sequence[str] = (SHARD,),
    ) -> None:
        self.net, self.name, self.clock, self.database = net, name, clock, database
        self.url = url or f"https://{name}:8087"
        self.store = store or MemoryStore()
        self.shards = shards
        self.is_up = False
        self.standby_for = ""
        self.is_passive = False
        self.open_store: Callable[[], Store] | None = None
        net.agents[self.url] = self
        self._begin()

    def _begin(self) -> None:
        self.books: deque[RuleBook] = deque(maxlen=1)
        self.demands = Demands(self.clock)
        self.demands.open(self.database, Idleness())
        each = {one: stub_shard(one, self.name, self.demands) for one in self.shards}
        self.stubs = StubShards(each)
        self.keeper = RuleKeeper(self.store, self.clock, self.books.append, known)
        in_force = OwnInForce((self.keeper,), self.places, self.clock)
        self.in_force = in_force
        self.book = OwnBook(
            self.store,
            self.clock,
            lambda: 0.5,
            RuleDrafts(known, here=Here(self.keeper.advice, self.keeper.time.now_s)),
            in_force.changed,
        )
        self.exchange = Exchange(
            cast(Shards, self.stubs),
            self.book,
            self.demands,
            self.clock,
            self._open_link,
            OwnFacts(self.name, False, self.places),
            Pair(lambda: self.standby_for, lambda: self.is_passive),
        )

    def _open_link(self, url: str) -> PeerLink:
        return cast(PeerLink, Link(self.net, self.name, url))

    def places(self) -> list[Place]:
        return [Place(shard=one, host=self.name, database=self.database) for one in self.shards]

    # --- life ------------------------------------------------------------------------------

    async def start(self) -> Agent:
        await self.store.open()
        held = await self.book.load()
        await self.in_force.load(list(held.items.values()))
        self.is_up = True
        self._running = asyncio.create_task(self.exchange.run())
        return self

    async def kill(self) -> None:
        """As kill -9: nothing is finished, nobody is told; the log is what it is."""
        self.is_up = False
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.exchange.close()

    async def restart(self) -> None:
        if self.open_store is not None:
            await self.store.close()
            self.store = self.open_store()
        self._begin()
        await self.start()

    async def stop(self) -> None:
        if self.is_up:
            await self.kill()
        await self.store.close()

    async def answer(self, offer: Offer) -> ExchangeAnswer:
        return await self.exchange.answer(offer)

    # --- the shard ---------------------------------------------------------------------------

    @property
    def shard(self) -> StubShard:
        return self.stubs.each[self.shards[0]]

    def lead(self, *others: Agent) -> None:
        self.shard.point = Leading(self.name, 1, 0.0)
        self.shard.roster.was_primary = True
        self.shard.roster.remotes = {
            other.name: StubRemote(other.name, other.url, other.database) for other in others
        }
        self.exchange.look()

    def follow(self, primary: Agent) -> None:
        self.shard.point = Following(primary.name, primary.url)
        self.shard.roster.was_primary = False
        self.exchange.look()

    def rest(self) -> None:
        self.shard.point = Unled(Absent(Cause.HIBERNATING, "nobody asks", 0.0))
        self.demands.by_database[self.database].shard_asked_at = float("-inf")

    # --- rules -------------------------------------------------------------------------------

    async def put(
        self, name: str, target: str = "etl", *, reach: Reach = REACH, **more: Any
    ) -> ChangeMade:
        raw = {"id": name, "target": target, "ratio": 0.5, "for": "2h", **more}
        return await self.finished(
            verbs.put_rule(self.book, raw, reach=reach, who=f"ops@{self.name}")
        )

    async def set_here(self, name: str, target: str = "etl", **more: Any) -> ChangeMade:
        return await self.put(name, target, reach=HERE, **more)

    async def lift(self, name: str) -> ChangeMade:
        return await self.finished(verbs.lift_rule(self.book, name, who=f"ops@{self.name}"))

    async def patch(self, name: str, **raw: Any) -> ChangeMade:
        return await self.finished(verbs.patch_rule(self.book, name, raw, who=f"ops@{self.name}"))

    async def finished(self, change: Awaitable[T]) -> T:
        """With the time that it takes: a change may wait for others."""
        task = asyncio.ensure_future(change)
        for _ in range(200):
            await settle()
            if task.done():
                break
            await pass_s(self.clock, 0.02, on_disk=self.open_store is not None)
        return await task

    def in_force_now(self) -> set[str]:
        """Ids of rules that count just now."""
        book = self.books[-1] if self.books else NO_RULES
        wall_s = self.clock.now().wall_s
        return {rule.id for rule in book.rules if rule.in_force(wall_s)}

    def rejects(self, client: str) -> bool:
        book = self.books[-1] if self.books else NO_RULES
        applied = book.applied(parse_identity(client), self.database, self.clock.now().wall_s)
        return bool(applied.rules)

    @property
    def digest(self) -> str:
        return self.book.inventory(self.shards[0]).digest

    def state(self, other: Agent) -> tuple[bool, str]:
        has_all, _, fault = self.exchange.copies(self.shards[0])[other.name]
        return has_all, fault


async def pass_s(clock: HandClock, seconds: float, *, on_disk: bool = False) -> None:
    """`on_disk`: what a thread does takes time that no clock of ours tells."""
    if not on_disk:
        await clock.advance(seconds)
        return
    for _ in range(max(1, round(seconds / 0.25))):
        await asyncio.sleep(0.003)
        await clock.advance(min(seconds, 0.25))


async def agents(*names: str, net: Net | None = None) -> list[Agent]:
    """The first leads."""
    net, clock = net or Net(), HandClock()
    found = [await Agent(net, name, clock).start() for name in names]
    promote(found[0], found)
    await settle()
    return found


def promote(new: Agent, all_of_them: Sequence[Agent]) -> None:
    for one in all_of_them:
        if one is not new and one.is_up:
            one.follow(new)
    new.lead(*(one for one in all_of_them if one is not new))


ROLE = Role.PRIMARY
